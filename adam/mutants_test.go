package adam

import (
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/stattest"
)

// Each test in this file audits an optimiser with a planted fault, of a kind that published descriptions and
// implementations had. If an audit passes such a mutant, it proves nothing about the optimiser itself.

// muted returns an optimiser with the noise of its plan divided by first and second. The plan still claims the
// original μ.
func muted(t *testing.T, c Config, p dp.Params, first, second float64) *Estimator {
	t.Helper()
	e := mustNew(t, c, p)
	e.plan.FirstNoise /= first
	e.plan.SecondNoise /= second
	for i, f := range []float64{first, second} {
		if e.sd[i] != nil {
			e.sd[i][0] /= f
		}
	}
	return e
}

// printed returns Algorithm 2 as published, for batches of m: sums of clipped gradients and the squares of these sums,
// with noise that is calibrated for one gradient: σs_λ for the sums and σs_λ/√λ for the squares. If mean is set, both
// are divided by m.
func printed(t *testing.T, m uint64, lambda, mu float64, mean bool) *Estimator {
	t.Helper()
	c := Config{Method: "jme_batch", Clip: 1, Rate: 0.1, Dim: 3, Step: m, Nu: lambda}
	n := float64(m)
	s := math.Sqrt(calibration.SquaresSensitivity(lambda, 3, dp.Replace)) / mu
	first, second := s/n, s/math.Sqrt(lambda)/(n*n) // noise of the sum and of its square, in means
	if mean {
		second = s / math.Sqrt(lambda) / n
	}
	plan := mustNew(t, c, dp.Params{Mu: mu, Adjacency: dp.Replace}).Plan()
	return muted(t, c, dp.Params{Mu: mu, Adjacency: dp.Replace}, plan.FirstNoise/first, plan.SecondNoise/second)
}

// TestMutantCalibrations checks that the sensitivity audit finds every wrong calibration, including that of the
// published algorithm, measures how wrong it is, and passes the right one.
func TestMutantCalibrations(t *testing.T) {
	t.Parallel()
	replace, zeroOut := dp.Params{Mu: 2, Adjacency: dp.Replace}, dp.Params{Mu: 2, Adjacency: dp.ZeroOut}
	config := func(method string, m uint64, nu float64) Config {
		return Config{Method: method, Clip: 2, Rate: 0.1, Dim: 3, Step: m, Nu: nu}
	}
	factored := func(c Config) Config {
		c.Factorization, c.Horizon = "sqrt", 6
		return c
	}
	// root is ‖C₁‖ for 6 steps and β₁ = 0.9.
	root := mustNew(t, factored(config("pp", 4, 0)), replace).factors.first.ColNorm()
	price := func(nu, c float64) float64 { return math.Sqrt(1 + nu*c) }
	for _, m := range []struct {
		name   string
		e      *Estimator
		factor float64 // distance of neighbours in units of μ
	}{
		{"none", mustNew(t, config("jme_batch", 4, 0.3), replace), 1},
		{"none, zero-out", mustNew(t, config("jme_batch", 4, 0.3), zeroOut), 1},
		{"none, single", mustNew(t, config("jme", 1, 1.5), replace), 1},
		// The sensitivity is 2√(1 + 4λ·9), but 2 was charged.
		{"Algorithm 2 as printed, m = 4, λ = ½", printed(t, 4, 0.5, 2, false), math.Sqrt(19)},
		{"Algorithm 2 as printed, m = 4, λ = 1", printed(t, 4, 1, 2, false), 2 * math.Sqrt(37) / math.Sqrt(4.5)},
		{"Algorithm 2, noise over m, m = 4, λ = ½", printed(t, 4, 0.5, 2, true), math.Sqrt(1 + 4*0.5*9/16.)},
		{"Algorithm 2 as printed, m = 1", printed(t, 1, 0.5, 2, false), 1},
		{"sensitivity without its factor 2", muted(t, config("pp", 4, 0), replace, 2, 1), 2},
		{"noise of a mean over m twice", muted(t, config("pp_debiased", 4, 0), replace, 4, 1), 4},
		{"column norm forgotten", muted(t, factored(config("momentum", 4, 0)), replace, root, 1), root},
		// ν = 1, but the noise is that for the first moment only: r(1) = 4.5.
		{"free beyond the free point",
			muted(t, config("jme_per_example", 4, 1), replace, math.Sqrt(4.5/4), math.Sqrt(4.5/4)), math.Sqrt(4.5 / 4)},
		{"free under zero-out", muted(t, config("jme_per_example", 4, 0.5), zeroOut, math.Sqrt(1.5), math.Sqrt(1.5)),
			math.Sqrt(1.5)},
		// λ = 1/2 instead of 1/(2ζ²): the relative weight is ζ²/2 = 2.
		{"weight without the clip norm's square", muted(t, config("jme_per_example", 4, 0.5), replace, 1, 2), 1.25},
		// b = m−1 instead of 2m−1: zeroed gradients move a square by more than half.
		{"replacement's price under zero-out", muted(t, config("jme_batch", 4, 1), zeroOut,
			price(1, 49./16)/price(1, 36./16), price(1, 49./16)/price(1, 36./16)), price(1, 49./16) / price(1, 36./16)},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			adjacency := m.e.params.Adjacency
			s := newSubject(t, m.e)
			var top float64
			all := neighbours(m.e, 3, 0, adjacency)
			if m.e.plan.Nu > 0 && m.e.cfg.Step > 1 && adjacency == dp.Replace {
				for _, nu := range []float64{1, 2} { // angles at which the faults are largest
					_, x, y := worstGradients(1, nu, m.e.plan.Clip, 3, adjacency)
					base := make(audit.Stream, 3)
					base[0] = [][]float64{nil}
					all = append(all, [2]audit.Stream{base.Replace(0, 0, x), base.Replace(0, 0, y)})
				}
			}
			for _, pair := range all {
				distance, err := s.Sensitivity(pair[0], pair[1], auditKeys(3))
				if err != nil {
					t.Fatal(err)
				}
				top = max(top, distance/s.Mu)
			}
			if (top <= 1+1e-9) != (m.factor == 1) {
				t.Errorf("the audit measures %.9g of μ", top)
			}
			if math.Abs(top-m.factor) > 1e-4*m.factor {
				t.Errorf("the audit measures %.6g of μ, want %.6g", top, m.factor)
			}
		})
	}
}

// TestMutantReleases checks that releases alone, under fresh keys, refute two faulty mechanisms: the published
// algorithm at m = 4, and halved noise.
func TestMutantReleases(t *testing.T) {
	t.Parallel()
	c := Config{Method: "pp", Clip: 1, Rate: 0.1, Dim: 3, Step: 4}
	p := dp.Params{Mu: 4, Adjacency: dp.Replace}
	for i, m := range []struct {
		name string
		e    *Estimator
	}{
		{"Algorithm 2 as printed", printed(t, 4, 0.5, 4, false)},
		{"Algorithm 2, noise over m, λ = 1", printed(t, 4, 1, 4, true)},
		{"half the noise", muted(t, c, p, 2, 1)},
	} {
		s := newSubject(t, m.e)
		pair := neighbours(m.e, 2, 0, dp.Replace)[0]
		// Describe to the audit the noise for which the claim would be right: with it, this pair would be μ apart.
		distance, err := s.Sensitivity(pair[0], pair[1], auditKeys(byte(9+i)))
		if err != nil {
			t.Fatal(err)
		}
		described := s.Array
		s.Array = func(name string, step uint64) (audit.Array, bool) {
			a, ok := described(name, step)
			return audit.Array{Deviations: []float64{a.Deviations[0] * distance / s.Mu * (1 + 1e-9)}, C: a.C}, ok
		}
		r, err := s.Shift(pair[0], pair[1], auditKeys(byte(9+i)), 300, stattest.Alpha)
		if err != nil {
			t.Fatal(err)
		}
		if r.T <= r.High {
			t.Errorf("%s passes: %.4g, at most %.4g", m.name, r.T, r.High)
		}
		t.Logf("%s: %.4g standard errors, at most %.4g", m.name, r.T, r.High)
	}
}

// TestMutantNoise checks that the noise audit finds noise that is used twice or shaped by the wrong matrix.
func TestMutantNoise(t *testing.T) {
	t.Parallel()
	const steps = 400
	config := Config{Method: "jme_per_example", Clip: 1, Rate: 0.1, Dim: 3, Step: 4, Factorization: "blt",
		Horizon: steps}
	p := dp.Params{Mu: 2, Adjacency: dp.Replace}
	for _, m := range []struct {
		name  string
		plant func(e *Estimator)
		noise func(n dp.Noise) dp.Noise
		found bool
	}{
		{"none", func(*Estimator) {}, nil, false},
		{"one row for both moments", func(*Estimator) {},
			func(n dp.Noise) dp.Noise { return &sameRow{Noise: n} }, true},
		{"the second moment's matrix for the first", func(e *Estimator) {
			e.shards[0].shapers[0] = e.factors.second.NewShaper(3)
		}, nil, true},
		{"independent noise on a correlated budget", func(e *Estimator) { e.shards[0].shapers[1] = nil }, nil, true},
		{"a deviation smaller by 10⁻⁶", func(e *Estimator) { e.sd[1][0] *= 1 - 1e-6 }, nil, true},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			e := mustNew(t, config, p)
			m.plant(e)
			s := newSubject(t, e)
			base := make(audit.Stream, steps)
			copy(base, gradientsOf(steps, 3, 4))
			keys := keyed(t, 7)
			n, err := s.Noise(base, func(step uint64) dp.Noise {
				if m.noise != nil {
					return m.noise(keys(step))
				}
				return keys(step)
			})
			if err != nil {
				t.Fatal(err)
			}
			fault := fmt.Sprint(n.Identity, n.Repeated, audit.Failed(n.Law(stattest.Alpha)))
			if found := fault != fmt.Sprint(error(nil), error(nil), error(nil)); found != m.found {
				t.Errorf("the audit found: %s", fault)
			}
		})
	}
}

// sameRow returns the row of the first array for all arrays.
type sameRow struct {
	dp.Noise
	row dp.Row
}

func (n *sameRow) Row(array string, hidden []int64) dp.Row {
	if n.row == nil {
		n.row = n.Noise.Row(array, hidden)
	}
	return n.row
}
