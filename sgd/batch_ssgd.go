package sgd

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/shuffle"
	"github.com/streamdp/streamdp/internal/vector"
)

// ShuffledDescent describes one pass of gradient descent in secret order.
type ShuffledDescent struct {
	// Clip is the gradients' clip norm ζ. Required.
	Clip float64
	// Rate is the step size η. Required.
	Rate float64
	// Noise is the standard deviation of every step's noise, in units of ζ; CalibrateSSGD computes it. Required.
	Noise float64
}

// ShuffledSGD releases the iterates of one pass of gradient descent over a sample in random order (DP-SSGD), one record
// per step:
//
//	w_t = w_{t−1} − ηζ(clip(g_π(t)/ζ) + σZ_t),   Z_t ~ N(0, I)
//
// The permutation π is drawn uniformly from noise and is never released. Tests pass an order that replaces π; other
// callers pass nil.
//
// Privacy: SSGDEpsilon with σ = d.Noise. The order must be secret, so ShuffledSGD is not for a stream with visible
// offsets. Every run needs fresh noise.
// Cost: O(nd) time, O(nd) memory for the path.
// Source: Varshney, Thakurta, Jain (2022), Algorithm 1. Deviations: exact
// calibration with a numerical accountant, integer noise; docs/theory/sgd.md.
func ShuffledSGD(s *Sample, d ShuffledDescent, adjacency dp.Adjacency, noise dp.Noise, order []int) (*Path, error) {
	var errs []error
	for _, x := range []struct {
		name  string
		value float64
	}{{"clip", d.Clip}, {"rate", d.Rate}, {"noise", d.Noise}} {
		if !(x.value >= 0x1p-100 && x.value <= 0x1p100) {
			errs = append(errs,
				fmt.Errorf("%s is %g, must be positive, and no farther from 1 than a factor of 2^100", x.name, x.value))
		}
	}
	if !adjacency.Valid() {
		errs = append(errs, errors.New("adjacency is not set, must be \"zero-out\" or \"replace\""))
	}
	if err := errors.Join(append(errs, s.validate())...); err != nil {
		return nil, err
	}
	lattice, one, err := unitLattice(s.D, d.Noise, 24)
	if err != nil {
		return nil, err
	}
	n := s.Len()
	if order == nil {
		order = permutation(n, noise.Row("dp-ssgd/order", []int64{int64(n)}))
	}
	// The test of integers admits contributions of norm up to K. So the noise is at least σK.
	sd := []float64{d.Noise * float64(lattice.K) * dp.RoundUp}
	step := float64(d.Rate*d.Clip) / one
	path := &Path{}
	squares := s.squares()
	w := make([]float64, s.D)
	sums, draws := newGradients(lattice, one, s.D), make([]int64, s.D)
	clipped := 0
	for t, i := range order {
		sums.open(d.Clip)
		x := s.row(i)
		r := vector.Dot4(w, x) - s.Y[i]
		if squares[i] >= 0 && r-r == 0 {
			sums.add(x, r, squares[i], 1)
			clipped += 1 - int(sums.inside)
		}
		sum := sums.integers()
		dp.RoundRow(draws, noise.Row(numbered("dp-ssgd/grad", t), sum), sd, nil, 1)
		next := make([]float64, s.D)
		for j := range next {
			next[j] = w[j] - float64(step*float64(sum[j]+draws[j]))
		}
		if vector.Finite(next) {
			w = next
		}
		path.Iterates = append(path.Iterates, w)
	}
	path.Clipped = float64(clipped) / float64(n)
	return path, nil
}

// permutation returns a random order of n records. Each place takes two words of the row. The distance from the uniform
// distribution is at most n²·2⁻¹²⁸.
func permutation(n int, row dp.Row) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	for i := n - 1; i > 0; i-- {
		// ⌊(i+1)·u⌋ for u = (high·2⁶⁴ + low)/2¹²⁸
		bound := uint64(i + 1)
		carry, _ := bits.Mul64(row.Word(2*i+1), bound)
		whole, part := bits.Mul64(row.Word(2*i), bound)
		_, over := bits.Add64(part, carry, 0)
		j := int(whole + over)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// CalibrateSSGD returns the smallest noise, in units of the clip norm, with which ShuffledSGD of n records is (ε,
// δ)-private.
func CalibrateSSGD(n int, epsilon, delta float64, adjacency dp.Adjacency) (float64, error) {
	mu, err := dp.Mu(epsilon, delta)
	if err != nil {
		return 0, err
	}
	if !adjacency.Valid() || n < 1 {
		return 0, errors.New("adjacency and a number of records are required")
	}
	private := func(sigma float64) bool {
		e, err := SSGDEpsilon(n, sigma, delta, adjacency)
		return err == nil && e <= epsilon
	}
	high := adjacency.Factor() / mu * dp.RoundUp // the noise without amplification
	low := high
	for private(low) && low > 0x1p-20 {
		high, low = low, low/2
	}
	for range 50 {
		middle := (low + high) / 2
		if high-low < 1e-9*high {
			break
		}
		if private(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high, nil
}

// SSGDEpsilon returns the ε, rounded up, of ShuffledSGD over n records with noise sigma, in units of the clip norm.
//
// Each step is a Gaussian local randomizer of its record, so it is (ε₀, δ₀)-private for every pair of records. The
// clones of the n−1 other records hide which output belongs to which record. Without that argument (no amplification) a
// record pays for one Gaussian mechanism. SSGDEpsilon returns the smaller of the two ε. Under zero-out the clones can
// be any records. So the amplified ε equals the one under replace; only the ε without amplification is smaller than
// under replace.
//
// Source: Feldman, McMillan, Talwar (2021), "Hiding Among the Clones", Theorem
// 3.8, evaluated numerically; docs/theory/sgd.md.
func SSGDEpsilon(n int, sigma, delta float64, adjacency dp.Adjacency) (float64, error) {
	if !adjacency.Valid() || n < 1 || !vector.Positive(sigma) {
		return 0, errors.New("adjacency, a number of records and their noise are required")
	}
	alone, err := dp.Epsilon(delta, adjacency.Factor()/sigma)
	if err != nil {
		return 0, err
	}
	shuffled, err := shuffle.Gaussian(n, 2/sigma, delta)
	if err != nil {
		return 0, err
	}
	return min(alone, shuffled.Epsilon), nil
}
