package moments

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// The tests of this file audit estimators with planted faults, of the kinds that published implementations had. If an
// audit misses such a fault, its success for the real estimator proves nothing.

// recalibrate returns an estimator whose noise follows a plan changed by f. The plan still claims the same μ.
func recalibrate(t *testing.T, c Config, p dp.Params, f func(*Plan)) *subject {
	t.Helper()
	e := mustNew(t, c, p)
	f(&e.plan)
	a, err := newSubject(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*series{e.first, e.second, e.full} {
		array, _ := a.Array(s.name, 1)
		s.sd = array.Deviations
	}
	return a
}

// TestMutantCalibrations plants wrong calibrations. The sensitivity audit must find each and measure its size, and must
// accept the right calibration.
func TestMutantCalibrations(t *testing.T) {
	t.Parallel()
	const clip, steps = 2, 6
	const nu = 0.5
	replace, zeroOut := dp.Params{Mu: 2, Adjacency: dp.Replace}, dp.Params{Mu: 2, Adjacency: dp.ZeroOut}
	// The largest and the last column norm of the square root for sums.
	var largest float64
	for _, c := range mustSubject(t, Config{Clip: 1, Columns: dptest.Columns(1), Step: 1, Workload: "sum",
		Factorization: "sqrt", Horizon: steps}, replace).root(t, steps) {
		largest = math.Hypot(largest, c)
	}
	less := func(all, second, off float64) func(p *Plan) {
		return func(p *Plan) {
			p.First /= all
			p.Diagonal /= all * second
			p.OffDiagonal /= all * second * off
		}
	}
	for _, m := range []struct {
		name   string
		params dp.Params
		alter  func(p *Plan)
		factor float64 // the distance of neighbours, divided by μ
	}{
		{"none", replace, less(1, 1, 1), 1},
		{"none, zero-out", zeroOut, less(1, 1, 1), 1},
		{"sensitivity without its factor 2", replace, less(2, 1, 1), 2},
		// λ = 2/ζ² instead of 1/(2ζ²): r(2) = 6.25, but 4 was charged.
		{"weight upside down", replace, less(1, 2, 1), 1.25},
		// λ = 1/2 instead of 1/(2ζ²): the relative weight is ζ²/2 = 2.
		{"weight without the clip norm's square", replace, less(1, clip, 1), 1.25},
		// ν = 1 with the noise of the first moment alone: r(1) = 4.5.
		{"free beyond the free point", replace, less(1, math.Sqrt2, 1), math.Sqrt(4.5 / 4)},
		// Zeroed records have no free weight: the sensitivity is 1 + ν, but 1 was charged.
		{"free under zero-out", zeroOut, less(math.Sqrt(1+nu), 1, 1), math.Sqrt(1 + nu)},
		// The last column of a square root has norm 1.
		{"last column for the largest", replace, less(largest, 1, 1), largest},
		// This calibrates as if the coordinate were x_ix_j instead of √2·x_ix_j: ν = 1 off the diagonal.
		{"off-diagonal variance halved twice", replace, less(1, 1, math.Sqrt2), math.Sqrt(4.5 / 4)},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := Config{Clip: clip, Columns: dptest.Columns(3), Step: 1, Workload: "mean", Factorization: "sqrt",
				Horizon: steps, Nu: nu}
			a := recalibrate(t, c, m.params, m.alter)
			all := pairs(nu, a.plan.Clip, 3, m.params.Adjacency)
			if m.params.Adjacency == dp.Replace { // the weights for which the faults have the largest effect
				for _, nu := range []float64{1, 2} {
					all = append(all, audit.JointWorst(nu, a.plan.Clip, 3, m.params.Adjacency))
				}
			}
			var top float64
			fixed := keys(11)
			for _, p := range all {
				base := make(audit.Stream, steps)
				base[0] = [][]float64{nil}
				x, y := base.Replace(0, 0, p.X), base.Replace(0, 0, p.Y)
				distance, err := a.Sensitivity(x, y, fixed)
				if err != nil {
					t.Fatal(err)
				}
				top = max(top, distance/a.plan.Mu)
				// The coupling measures the same distance without the releases.
				coupled, err := a.Coupling(x, y, fixed)
				if err != nil || math.Abs(coupled-distance) > 1e-9*a.plan.Mu {
					t.Errorf("the coupling measures %.9g of μ, the releases %.9g: %v", coupled/a.plan.Mu,
						distance/a.plan.Mu, err)
				}
			}
			if (top <= 1+1e-9) != (m.factor == 1) {
				t.Errorf("the audit measures %.9g of μ", top)
			}
			if math.Abs(top-m.factor) > 1e-4*m.factor {
				t.Errorf("the audit measures %.6g of μ, the fault is worth %.6g", top, m.factor)
			}
		})
	}
}

// TestMutantNoise plants noise that is used twice, is too small, is correlated by the wrong matrix, or is fed back
// without rounding. The noise audit must find each fault, and must accept the right noise. Statistics find only the
// faults with `law` set. The others are too small for a thousand steps, and only the audit's test of equality finds
// them.
func TestMutantNoise(t *testing.T) {
	t.Parallel()
	const steps = 1000
	type source = func(uint64) dp.Noise
	shapers := func(a *subject, c []float64, coarse bool) {
		for _, s := range []*series{a.e.first, a.e.second} {
			s.shaper = &mutantShaper{coef: c, dim: len(s.integers), coarse: coarse}
		}
	}
	for _, m := range []struct {
		name          string
		identity, law bool // which of the two tests must find it
		plant         func(a *subject, noise source) source
	}{
		{"none", false, false, func(_ *subject, noise source) source { return noise }},
		{"none, in float64", false, false, func(a *subject, noise source) source {
			shapers(a, a.root(t, steps), false)
			return noise
		}},
		{"a row used for two steps", false, true, func(_ *subject, noise source) source {
			return reuse(noise, func(array string, t uint64) (string, uint64) { return array, t - (t-1)%2 })
		}},
		{"a row used for both moments", false, true, func(_ *subject, noise source) source {
			return reuse(noise, func(array string, t uint64) (string, uint64) { return "both", t })
		}},
		{"half the deviation", true, true, func(a *subject, noise source) source {
			a.e.first.sd[0] /= 2
			return noise
		}},
		{"half the variance off the diagonal", true, true, func(a *subject, noise source) source {
			a.e.second.sd[1] /= math.Sqrt2
			return noise
		}},
		{"a deviation smaller by 10⁻⁶", true, false, func(a *subject, noise source) source {
			a.e.second.sd[2] *= 1 - 1e-6
			return noise
		}},
		{"C for its inverse", true, true, func(a *subject, noise source) source {
			shapers(a, inverse(a.root(t, steps)), false)
			return noise
		}},
		{"independent noise for a square root's budget", true, true, func(a *subject, noise source) source {
			shapers(a, make([]float64, steps), false)
			return noise
		}},
		{"unrounded feedback", true, false, func(a *subject, noise source) source {
			taps := map[string]*mutantShaper{}
			for _, s := range []*series{a.e.first, a.e.second} {
				m := &mutantShaper{coef: a.root(t, steps), dim: len(s.integers), sd: s.sd, feedDrawn: true}
				s.shaper, taps[s.name] = m, m
			}
			return func(t uint64) dp.Noise { return tapped{noise(t), taps} }
		}},
		{"feedback on a coarser lattice", true, false, func(a *subject, noise source) source {
			shapers(a, a.root(t, steps), true)
			return noise
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			a := mustSubject(t,
				Config{Clip: 2, Columns: dptest.Columns(2), Step: 4, Workload: "mean", Factorization: "sqrt",
					Horizon: steps},
				dp.Params{Mu: 2, Adjacency: dp.Replace})
			noise := m.plant(a, keyed(t, 77))
			n, err := a.Noise(auditStream(steps, 2), noise)
			if err != nil {
				t.Fatal(err)
			}
			law := audit.Failed(n.Law(stattest.Alpha))
			if m.identity && n.Identity == nil || m.law && law == nil {
				t.Errorf("the audit missed the fault: %v, %v", n.Identity, law)
			}
			if !m.identity && !m.law && errors.Join(n.Identity, n.Repeated, law) != nil {
				t.Errorf("the audit found: %v, %v, %v", n.Identity, n.Repeated, law)
			}
		})
	}
}

// TestMutantBands plants two faults into noise that is multiplied by a banded C⁻¹. One feeds back the draws. The other
// feeds back the noise itself, and so solves with wrong numbers. In both cases the noise is not a function of the
// Gaussian mechanism's output, and the noise audit must find it.
func TestMutantBands(t *testing.T) {
	t.Parallel()
	const steps = 1000
	for _, m := range []struct {
		name  string
		fault bool
		keep  func(w, s, drawn float64) float64
	}{
		{"none, in float64", false, func(w, s, _ float64) float64 { return w + s }},
		{"draws fed back", true, func(_, _, drawn float64) float64 { return drawn }},
		{"noise fed back", true, func(w, _, _ float64) float64 { return w }},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			a := mustSubject(t,
				Config{Clip: 2, Columns: dptest.Columns(2), Step: 4, Workload: "mean", Factorization: "bisr", Bands: 6},
				dp.Params{Mu: 2, Adjacency: dp.Replace})
			coef := inverse(a.root(t, 6))
			for j := range coef {
				coef[j] *= -1
			}
			coef = append(coef, make([]float64, steps)...)
			taps := map[string]*mutantShaper{}
			for _, s := range a.e.arrays {
				x := &mutantShaper{coef: coef, dim: len(s.integers), sd: s.sd, keep: m.keep}
				s.shaper, taps[s.name] = x, x
			}
			source := keyed(t, 78)
			n, err := a.Noise(auditStream(steps, 2), func(t uint64) dp.Noise { return tapped{source(t), taps} })
			if err != nil {
				t.Fatal(err)
			}
			if (n.Identity != nil) != m.fault {
				t.Errorf("the audit found: %v", n.Identity)
			}
		})
	}
}

// reuse returns noise with a fault: for an array in step t, it opens the array and step that `other` returns.
func reuse(noise func(uint64) dp.Noise, other func(array string, t uint64) (string, uint64)) func(uint64) dp.Noise {
	drawn := map[string][]float64{}
	return func(t uint64) dp.Noise { return reused{noise(t), t, other, drawn} }
}

type reused struct {
	dp.Noise
	step  uint64
	other func(array string, t uint64) (string, uint64)
	drawn map[string][]float64
}

func (n reused) Row(array string, hidden []int64) dp.Row {
	key := fmt.Sprint(n.other(array, n.step))
	z := n.drawn[key]
	if len(z) < len(hidden) {
		z = make([]float64, len(hidden)+3)
		n.Noise.Row(array, hidden).Fill(z)
		n.drawn[key] = z
	}
	return dptest.Arrays(map[string][][]float64{array: {z}}).Row(array, hidden)
}

// tapped is noise that also gives its Gaussians to a mutantShaper.
type tapped struct {
	dp.Noise
	shapers map[string]*mutantShaper
}

func (n tapped) Row(array string, hidden []int64) dp.Row {
	row := n.Noise.Row(array, hidden)
	z := make([]float64, len(hidden))
	row.Fill(z)
	if s := n.shapers[array]; s != nil {
		s.z = z
	}
	return row
}

// mutantShaper solves with the given Toeplitz coefficients in float64, and can feed back the draws before they are
// rounded.
type mutantShaper struct {
	coef      []float64
	dim       int
	past      [][]float64
	sd, z     []float64
	feedDrawn bool
	coarse    bool                              // feeds back rounded to multiples of 4
	keep      func(w, s, drawn float64) float64 // returns the number to feed back; may be nil
}

func (s *mutantShaper) Predict(dst []float64) float64 {
	for j := range dst[:s.dim] {
		dst[j] = 0
		for i, row := range s.past {
			dst[j] += s.coef[len(s.past)-i] * row[j]
		}
	}
	return 1
}

func (s *mutantShaper) Push(w []int64) {
	row := make([]float64, s.dim)
	s.Predict(row)
	for j, v := range w {
		switch {
		case s.keep != nil:
			row[j] = s.keep(float64(v), row[j], s.sd[min(j, len(s.sd)-1)]*s.z[j])
		case s.feedDrawn:
			row[j] = s.sd[min(j, len(s.sd)-1)]*s.z[j] - row[j]
		case s.coarse:
			row[j] = 4 * math.Floor(float64(v)/4+0.5)
		default:
			row[j] = float64(v)
		}
	}
	s.past = append(s.past, row)
}

// The state of a mutant is only its number of steps, because it is restored only at step 0.
func (s *mutantShaper) AppendBinary(b []byte) ([]byte, error) {
	return append(b, make([]byte, 33)...), nil
}
func (s *mutantShaper) UnmarshalBinary([]byte) error {
	s.past = nil
	return nil
}

// inverse returns the coefficients of 1/c, c_0 = 1.
func inverse(c []float64) []float64 {
	x := make([]float64, len(c))
	x[0] = 1
	for j := 1; j < len(c); j++ {
		for i := 1; i <= j; i++ {
			x[j] -= c[i] * x[j-i]
		}
	}
	return x
}
