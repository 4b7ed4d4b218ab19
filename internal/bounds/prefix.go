package bounds

import (
	"fmt"
	"math"
	"math/big"
	"sync"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// shape is a histogram of B bins whose prefix sums are released:
//
//	P = cumsum(h) + σ·C z,   C_ij = f_{i−j} for i ≥ j,   f₀ = 1, f_k = f_{k−1}(2k−1)/(2k)
//
// C·C is the matrix of prefix sums. So P is a function of C h + σz, a Gaussian mechanism: the square root factorization
// of a stream of B steps, with one bin in each step.
type shape struct {
	bins   int
	f      []float64
	alpha  float64 // largest column norm of C
	square float64 // ρ: the largest ‖c_i − c_j‖² over alpha², at least 1
	factor matfact.Factorization
}

// These are the shapes of the stages' histograms.
var (
	octaveShape    = sync.OnceValue(func() *shape { return newShape(octaveBins) })
	circleShape    = sync.OnceValue(func() *shape { return newShape(circleBins) })
	deviationShape = sync.OnceValue(func() *shape { return newShape(deviationBins) })
	normShape      = sync.OnceValue(func() *shape { return newShape(normBins) })
)

func newShape(bins int) *shape {
	factor, err := matfact.New(matfact.Config{Kind: "sqrt", Horizon: uint64(bins)}, matfact.Workload{Kind: "sum"})
	if err != nil {
		panic(err) // cannot happen: the arguments do not depend on the configuration
	}
	s := &shape{bins: bins, f: make([]float64, bins), alpha: factor.ColNorm(), factor: factor}
	s.f[0] = 1
	for k := 1; k < bins; k++ {
		s.f[k] = s.f[k-1] * float64(2*k-1) / float64(2*k)
	}
	// ‖c_i − c_j‖² = S_i + S_j − 2⟨c_i, c_j⟩. For j = i + l, the inner product has one more term whenever i decreases
	// by one.
	norm := make([]float64, bins) // S_i of column i
	for i := bins - 1; i >= 0; i-- {
		k := bins - 1 - i
		norm[i] = s.f[k] * s.f[k]
		if k > 0 {
			norm[i] += norm[i+1]
		}
	}
	largest := norm[0] // a null record replaces a record in the first bin
	for lag := 1; lag < bins; lag++ {
		var product float64
		for i := bins - 1 - lag; i >= 0; i-- {
			k := bins - 1 - lag - i
			product += s.f[k] * s.f[k+lag]
			largest = max(largest, norm[i]+norm[i+lag]-2*product)
		}
	}
	s.square = largest / norm[0]
	return s
}

// moves returns ρ of an adjacency: changing a record changes W histograms by at most α·√(Wρ).
//
//	zero-out   1: a record adds one to a bin of each histogram, a null record adds nothing
//	replace    ρ: it moves from one bin to another; entries of C are positive
func (s *shape) moves(a dp.Adjacency) float64 {
	if a == dp.Replace {
		return s.square
	}
	return 1
}

// term is a bin and its factor in a linear form of prefix sums.
type term struct {
	bin    int
	factor float64
}

// deviation returns the standard deviation of Σ factor·P_bin for σ = 1. Terms with a bin below the first are 0.
func (s *shape) deviation(terms ...term) float64 {
	last := -1
	for _, t := range terms {
		last = max(last, t.bin)
	}
	var sum float64
	for j := 0; j <= last; j++ {
		var v float64
		for _, t := range terms {
			if t.bin >= j {
				v += t.factor * s.f[t.bin-j]
			}
		}
		sum += v * v
	}
	return math.Sqrt(sum)
}

// histograms are the W histograms of one stage. They count exactly and release noisy prefix sums.
type histograms struct {
	shape *shape
	width int     // W
	sigma float64 // noise of one bin's draw, in records
	exp   int     // lattice step 2^exp
	one   int64   // one record, in lattice steps
	// counts are in lattice steps, bin by bin: bin b of histogram w is at b·W + w.
	counts []int64
}

// newHistograms returns empty histograms with noise of
//
//	σ = α√(Wρ)/μ
//
// σ is increased because rounding correlated noise adds to the sensitivity. The histograms can count at most the given
// number of records.
//
// Privacy: releasing their prefix sums is μ-Gaussian private for one record zeroed out or replaced, if each record is
// counted at most once in each histogram.
func newHistograms(s *shape, width int, mu float64, a dp.Adjacency, bits int, records uint64) (*histograms, error) {
	s2, exp, err := calibrate(s, width, mu, a, bits, records)
	if err != nil {
		return nil, err
	}
	return &histograms{
		shape: s, width: width, sigma: s2, exp: exp, one: 1 << -exp,
		counts: make([]int64, s.bins*width),
	}, nil
}

// calibrate returns σ and the exponent of the lattice.
func calibrate(s *shape, width int, mu float64, a dp.Adjacency, bits int, records uint64) (sigma float64, exp int,
	err error) {
	exact := s.alpha * math.Sqrt(float64(width)*s.moves(a))
	before := exact / mu
	exp = calibration.Exponent(min(1, before*calibration.NoiseRoom), bits)
	sensitivity, limits, err := calibration.Charge(exact, 0, 0, calibration.Array{
		Factor: s.factor, Entries: width, Unit: math.Ldexp(1, exp), Deviation: before, Weight: 1,
	})
	if err == nil {
		sigma = sensitivity / mu
		err = calibration.Grown(sigma, before)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("noise of the warm-up: %w", err)
	}
	if !calibration.Fits(math.Ldexp(float64(records), -exp), limits[0]) {
		return 0, 0, fmt.Errorf("noise of the warm-up: counts of %d records do not fit 62 bits", records)
	}
	return sigma, exp, nil
}

// add counts a record in a bin of histogram w.
func (h *histograms) add(bin, w int) { h.counts[bin*h.width+w] += h.one }

// release draws the noise of all bins. It returns the noisy prefix sums of each histogram, in records, and overwrites
// the counts.
func (h *histograms) release(n dp.Noise, array string) *sums {
	width, bins := h.width, h.shape.bins
	row := &stretch{Row: n.Row(array, h.counts)}
	shaper := h.shape.factor.NewShaper(width)
	noise, predict := make([]int64, width), make([]float64, width)
	running := make([]dp.Wide, width)
	p := &sums{shape: h.shape, sigma: h.sigma, prefix: make([][]float64, width)}
	for w := range p.prefix {
		p.prefix[w] = make([]float64, bins)
	}
	sd := []float64{h.sigma / math.Ldexp(1, h.exp)}
	for b := range bins {
		r := shaper.Predict(predict)
		dp.RoundRow(noise, row, sd, predict, r)
		shaper.Push(noise)
		row.first += width
		for w, x := range noise {
			running[w].Add(h.counts[b*width+w] + x)
			p.prefix[w][b] = running[w].Float(h.exp)
		}
	}
	for _, prefix := range p.prefix {
		p.records += prefix[bins-1] / float64(width)
	}
	clear(h.counts)
	return p
}

// stretch is the part of a row that begins with the coordinate `first`.
type stretch struct {
	dp.Row
	first int
}

func (s *stretch) At(j int) float64             { return s.Row.At(s.first + j) }
func (s *stretch) Above(j int, b *big.Rat) bool { return s.Row.Above(s.first+j, b) }
func (s *stretch) Word(j int) uint64            { return s.Row.Word(s.first + j) }
func (s *stretch) Fill(dst []float64) {
	for j := range dst {
		dst[j] = s.At(j)
	}
}

// sums are the released prefix sums of a stage, one slice for each histogram. Everything computed from them is
// post-processing.
type sums struct {
	shape   *shape
	sigma   float64
	records float64 // n̂, the mean of the last prefix sums
	prefix  [][]float64
}

// noise returns the standard deviation of the last prefix sum, σα.
func (p *sums) noise() float64 { return p.sigma * p.shape.alpha }

// rising returns the nondecreasing sequence nearest to x in least squares, by pooling adjacent violators.
func rising(x []float64) []float64 {
	type pool struct {
		sum float64
		n   int
	}
	mean := func(p pool) float64 { return p.sum / float64(p.n) }
	pools := make([]pool, 0, len(x))
	for _, v := range x {
		pools = append(pools, pool{v, 1})
		for k := len(pools) - 1; k > 0 && mean(pools[k-1]) > mean(pools[k]); k-- {
			pools[k-1].sum += pools[k].sum
			pools[k-1].n += pools[k].n
			pools = pools[:k]
		}
	}
	out := make([]float64, 0, len(x))
	for _, p := range pools {
		for range p.n {
			out = append(out, mean(p))
		}
	}
	return out
}
