package matfact

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestRandomMatrices draws random matrices that Stored allows, mostly difficult ones: decays that differ by 2⁻⁶⁴ or are
// tiny, weights of 2⁻⁶⁴, modes at the border of stability. Every formula must still agree with the dense matrix. (If
// the weight of a buffer falls from one phase to the next by a factor q, about log₁₀ q digits are lost; in the tables q
// is below 1.6.)
func TestRandomMatrices(t *testing.T) {
	const n = 40
	source := rand.New(rand.NewPCG(9, 10))
	var worst float64
	for trial := range 400 {
		s := &Stored{Kind: "phased"}
		for len(s.Decay) < 1+source.IntN(7) {
			var d Fixed
			switch m := len(s.Decay); {
			case m > 0 && source.IntN(4) == 0:
				d = s.Decay[m-1] + 1 + Fixed(source.Uint64()>>(40+source.IntN(24)))
			case source.IntN(4) == 0:
				d = Fixed(source.Uint64() >> source.IntN(60))
			default:
				d = floorDecay(math.Exp(-30 * source.Float64()))
			}
			if m := len(s.Decay); d == 0 || m > 0 && d <= s.Decay[m-1] {
				if m == 0 {
					continue
				}
				if s.Decay[m-1] == math.MaxUint64 {
					break
				}
				d = s.Decay[m-1] + 1
			}
			s.Decay = append(s.Decay, d)
		}
		start, k := uint64(1), 0
		for k < len(s.Decay) {
			k += 1 + source.IntN(len(s.Decay)-k)
			ph := Phase{Start: start, Scale: 1 + 3*source.Float64()}
			// Divide the stability limit Σ rΩ_i/θ_i = 1 into random shares.
			share, sum, spread := make([]float64, k), 0.0, -40.0
			if k < len(s.Decay) || start > 1 {
				spread = -4
			}
			for i := range share {
				share[i] = math.Exp(spread * source.Float64() * float64(source.IntN(2)))
				sum += share[i]
			}
			border := 1 - source.Float64()*float64(source.IntN(2))
			for i := range share {
				w := floorFixed(border * share[i] / sum * s.Decay[i].float() / ph.Scale)
				ph.Weight = append(ph.Weight, max(w, 1))
			}
			s.Phases = append(s.Phases, ph)
			start += 1 + uint64(source.IntN(15))
		}
		f, err := newBuffered(s)
		if err != nil {
			continue // invalid, for example the weight 1 for a decay below 2⁻⁴⁰
		}
		name := fmt.Sprintf("trial %d", trial)
		checkSound(t, name, f)
		largest := bigFloat(0)
		for _, ph := range s.Phases {
			if exact := exactColNorm2(s, ph); exact.Cmp(largest) > 0 {
				largest = exact
			}
		}
		checkColNorm(t, name, f.ColNorm(), largest)
		inverse := invert(denseMatrix(f, n))
		list := []Workload{{Kind: "sum"}, {Kind: "window", Window: 7}, {Kind: "exponential", Decay: source.Float64()},
			{Kind: "exponential", Decay: 1 - math.Exp(-20*source.Float64())}}
		for _, w := range list {
			rows := apply(w, inverse)
			for step := uint64(1); step <= n; step++ {
				for _, u := range []uint64{step, n} {
					scale := math.Sqrt(f.RowVar(w, step) * f.RowVar(w, u))
					got, want := f.Cov(w, step, u), dot(rows[step-1], rows[u-1])
					e := math.Abs(got-want) / scale
					worst = max(worst, e)
					if !(e < 1e-9) {
						t.Fatalf("%s: Cov(%v, %d, %d) = %.15g, want %.15g; %+v", name, w, step, u, got, want, s)
					}
				}
			}
		}
	}
	t.Logf("largest relative error %.1e", worst)
}

// TestRandomBands draws random bands of every kind that Stored allows, normalised or not, and compares with the dense
// matrix: variances, column norms, the largest noise, and the results of Shaper and Filter.
func TestRandomBands(t *testing.T) {
	const n = 40
	source := rand.New(rand.NewPCG(17, 18))
	for trial := range 300 {
		s := &Stored{Kind: []string{"bsr", "bisr", "banded"}[trial%3]}
		p := 1 + source.IntN(12)
		// Draw random shares that add up to less than 1 (bisr), or random steps down from 1 to 0.
		share, sum := make([]float64, p), 0.0
		for k := range share {
			share[k] = math.Exp(-6 * source.Float64())
			sum += share[k]
		}
		rest := 1.0
		for k := range p - 1 {
			if s.Kind == "bisr" {
				s.Bands = append(s.Bands, floorFixed(0.99*source.Float64()*share[k]/sum)|1)
			} else {
				rest -= share[k] / sum
				s.Bands = append(s.Bands, floorFixed(rest))
			}
		}
		c := Config{Kind: s.Kind, Stored: s}
		if c.Normalise = trial%2 == 0; c.Normalise {
			c.Horizon, s.Height = n, n
		}
		f := mustNew(t, c, Workload{Kind: "sum"})
		name := fmt.Sprintf("trial %d, %s", trial, s.Kind)
		dense := denseMatrix(f, n)
		inverse := invert(dense)
		var reach float64
		for j := range n {
			var norm, sum float64
			for i := range n {
				norm += dense[i][j] * dense[i][j]
				sum += math.Abs(inverse[j][i])
			}
			if math.Sqrt(norm) > f.ColNorm() {
				t.Fatalf("%s: column %d has norm %.17g, ColNorm is %.17g", name, j, math.Sqrt(norm), f.ColNorm())
			}
			reach = max(reach, sum)
		}
		limits, err := f.Limits(1 << 24)
		if err != nil || limits.Noise < reach*14*(1<<24) {
			t.Fatalf("%s: Limits is %+v, %v; rows of C⁻¹ reach %g", name, limits, err, reach)
		}
		for _, w := range []Workload{{Kind: "sum"}, {Kind: "window", Window: 7},
			{Kind: "exponential", Decay: source.Float64()}} {
			rows := apply(w, inverse)
			for step := uint64(1); step <= n; step += 3 {
				scale := math.Sqrt(f.RowVar(w, step) * f.RowVar(w, n))
				if got, want := f.Cov(w, step, n), dot(rows[step-1], rows[n-1]); !(math.Abs(got-want) < 1e-11*scale) {
					t.Fatalf("%s: Cov(%v, %d, %d) = %.15g, want %.15g", name, w, step, n, got, want)
				}
				near(t, name+": RowVar", f.RowVar(w, step), dot(rows[step-1], rows[step-1]), 1e-11)
			}
		}
		shaper, filter := f.NewShaper(1), f.NewFilter(1)
		z, y, row, w := []float64{0}, []float64{0}, []float64{0}, []int64{0}
		const sd = 1 << 34
		for step := range n {
			z[0] = source.NormFloat64()
			filter.Next(y, z)
			draw(w, z, row, sd, shaper.Predict(row))
			shaper.Push(w)
			if d := float64(w[0])/sd - y[0]; math.Abs(d) > 1e-8 {
				t.Fatalf("%s: step %d: the Shaper is %g from the Filter", name, step+1, d)
			}
		}
	}
}
