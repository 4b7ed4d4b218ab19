package adam

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
)

// The audits of internal/audit see an optimiser from outside: they feed gradients and read releases. Parameters do not
// determine the noisy means from which they are computed. So the releases of these tests also contain the means;
// TestStep shows that the parameters are computed from the means alone. The functions in this file tell the audits the
// public numbers about the noise.

// subject is an optimiser under audit.
type subject struct {
	*audit.Subject
	e *tapped
}

func newSubject(t testing.TB, e *Estimator) *subject {
	t.Helper()
	p := e.Plan()
	first, second := p.units(e.cfg.Step)
	arrays := map[string]audit.Array{}
	describe := func(name string, sd float64, stored int) {
		s, decay := p.First, e.cfg.Beta1
		if stored == 2 {
			s, decay = p.Second, e.cfg.Beta2
		}
		c, err := audit.Stored(s, exponential(decay), e.cfg.Horizon)
		if err != nil {
			t.Fatal(err)
		}
		arrays[name] = audit.Array{Deviations: []float64{sd}, C: c}
	}
	describe("adam/first", p.FirstNoise/first, 1)
	if p.Second != nil {
		describe("adam/second", p.SecondNoise/second, 2)
	}
	m := newTapped(e)
	return &subject{&audit.Subject{
		Mechanism: m, Mu: p.Mu,
		Array: func(name string, _ uint64) (audit.Array, bool) { a, ok := arrays[name]; return a, ok },
		Recover: func(releases []*dp.Release) (map[string][][]float64, error) {
			rows := map[string][][]float64{}
			for _, r := range releases {
				for _, v := range r.Values[len(r.Values)-2:] {
					if name := "adam/" + v.Name; len(v.Data) > 0 {
						rows[name] = append(rows[name], v.Data)
					}
				}
			}
			if len(rows) == 0 {
				return nil, errors.New("no noisy rows")
			}
			return rows, nil
		},
	}, m}
}

// auditKeys returns fixed keys, because a test must not vary.
func auditKeys(seed byte) *audit.Keys { return audit.NewKeys([32]byte{0xad, seed}) }

// audited returns all methods with all factorizations, in the form for the audits.
func audited(m uint64) (all []Config) {
	for _, c := range methods(m) {
		for _, kind := range []string{"identity", "blt", "sqrt"} {
			c.Factorization, c.Dim, c.Horizon = kind, 3, 5
			c.Beta2 = 0.99 // its column norm differs from that of β₁
			all = append(all, c)
		}
	}
	return all
}

func describe(c Config, adjacency dp.Adjacency) string {
	return fmt.Sprintf("%s/%s/m=%d/d=%d/nu=%g/rho=%g/%s", c.Method, c.Factorization, c.Step, c.Dim, c.Nu,
		c.MeanClip, adjacency)
}

// tight reports whether some pair attains the sensitivity of a configuration. No pair does if clipping makes the
// sensitivity only a bound, or if the two matrices differ and the larger column norm is used for both arrays.
func tight(c Config, adjacency dp.Adjacency) bool {
	if c.Method == "joint_clip" {
		return adjacency == dp.ZeroOut && c.Factorization == "identity"
	}
	return c.MeanClip == 0
}

// neighbours returns pairs of streams with the given number of steps that differ in one gradient of step `at`: the
// worst pairs for the configuration, and some of every kind.
func neighbours(e *Estimator, steps, at int, adjacency dp.Adjacency) (all [][2]audit.Stream) {
	m, d := e.cfg.Step, e.dim
	base := make(audit.Stream, steps)
	for i, gradients := range gradientsOf(steps, d, m) {
		base[i] = gradients
	}
	nu := e.plan.Nu
	if e.cfg.Method == "jme_batch" && m > 1 {
		nu = 0 // any value is suitable
	}
	others, x, y := worstGradients(m, nu, e.plan.Clip, d, adjacency)
	if e.cfg.Method == "jme_per_example" { // this method sums the squares of single vectors
		_, x, y = worstGradients(1, nu, e.plan.Clip, d, adjacency)
	}
	if e.cfg.MeanClip > 0 { // a long sum hides the difference
		others = make([][]float64, m-1)
	}
	worst := slices.Clone(base)
	worst[at] = append(slices.Clone(others), x)
	all = append(all, [2]audit.Stream{worst, worst.Replace(at, int(m)-1, y)})
	for _, p := range audit.Pairs(e.plan.Clip, d, adjacency) {
		for _, b := range []audit.Stream{worst, base} {
			n := slices.Clone(b)
			n[at] = append(slices.Clone(b[at]), make([][]float64, int(m))...)[:m]
			all = append(all, [2]audit.Stream{n.Replace(at, 0, p.X), n.Replace(at, 0, p.Y)})
		}
	}
	return all
}

// TestSensitivity is audit A0 for every method, batch size, factorization and adjacency. No pair of neighbouring
// streams may be farther apart than μ. If the bound is exact, the worst pair must be at least 0.999μ apart. With
// coupled noise both streams must release the same to the last bit, including parameters.
func TestSensitivity(t *testing.T) {
	t.Parallel()
	const steps, mu = 4, 2
	pairs, coupled := 0, 0
	for _, m := range []uint64{1, 4} {
		for _, base := range audited(m) {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				for _, nu := range []float64{0, 0.2, 1.5} {
					for _, d := range []int{1, 3} {
						c := base
						c.Dim, c.Nu = d, nu
						if c.Method[0] != 'j' || c.Method == "joint_clip" {
							if c.Nu = 0; nu != 0 {
								continue
							}
						}
						what := describe(c, adjacency)
						s := newSubject(t, mustNew(t, c, dp.Params{Mu: mu, Adjacency: adjacency}))
						keys := auditKeys(1)
						var worst float64
						for i, pair := range neighbours(s.e.Estimator, steps, 0, adjacency) {
							distance, err := s.Sensitivity(pair[0], pair[1], keys)
							if err != nil {
								t.Fatal(what, err)
							}
							pairs++
							if i == 0 {
								worst = distance
							}
							if !(distance <= s.Mu*(1+1e-9)) {
								t.Errorf("%s: pair %d is %.9g of μ apart", what, i, distance/s.Mu)
							}
							if i > 3 {
								continue
							}
							other, err := s.Coupling(pair[0], pair[1], keys)
							if err != nil {
								t.Errorf("%s: pair %d can't be coupled: %v", what, i, err)
							}
							coupled++
							if math.Abs(other-distance) > 1e-6*s.Mu {
								t.Errorf("%s: pair %d is %.9g of μ apart, coupled %.9g", what, i,
									distance/s.Mu, other/s.Mu)
							}
						}
						if tight(c, adjacency) && worst < 0.999*s.Mu {
							t.Errorf("%s: the worst pair is only %.6g of μ apart", what, worst/s.Mu)
						}
					}
				}
			}
		}
	}
	t.Logf("%d pairs of streams, %d of them coupled", pairs, coupled)
}

// TestNoise is audit A1 for every method and factorization: the noisy rows without their correlation must be the drawn
// Gaussians, and these must be white.
func TestNoise(t *testing.T) {
	t.Parallel()
	const steps = 400
	for i, c := range audited(4) {
		c.Horizon = steps
		s := newSubject(t, mustNew(t, c, dp.Params{Epsilon: 2, Delta: 1e-6, Adjacency: dp.Adjacency(1 + i%2)}))
		base := make(audit.Stream, steps)
		copy(base, gradientsOf(steps, c.Dim, c.Step))
		n, err := s.NoiseUnder(base, auditKeys(byte(i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(n.Identity, n.Repeated, audit.Failed(n.Law(stattest.Alpha))); err != nil {
			t.Errorf("%s: %v", describe(c, dp.Adjacency(1+i%2)), err)
		}
	}
}

// TestNoiseOfShards is audit A1 for rows of several shards, which are drawn in pieces. Every coordinate must have the
// noise of its own random words, correlated or not.
func TestNoiseOfShards(t *testing.T) {
	t.Parallel()
	const steps, d = 2, shardSize + 300
	for i, kind := range []string{"blt", "identity"} {
		c := Config{Method: "jme_per_example", Clip: 1, Rate: 0.1, Dim: d, Step: 2, Horizon: steps, Factorization: kind}
		e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
		base := make(audit.Stream, steps)
		copy(base, gradientsOf(steps, d, 2))
		n, err := newSubject(t, e).Noise(base, keyed(t, byte(40+i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(n.Identity, n.Repeated, audit.Failed(n.Law(stattest.Alpha))); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestShift is audit A2 for every method at m = 1 and 4 and both adjacencies: under fresh keys, releases of the worst
// pair must differ as for a Gaussian mechanism of μ = 4. 300 runs for each stream suffice to detect a distance of 1.4μ.
func TestShift(t *testing.T) {
	t.Parallel()
	for _, m := range []uint64{1, 4} {
		for i, c := range audited(m) {
			if i%3 != 0 && i%3 != 1 { // identity and blt; A0 and A1 cover sqrt
				continue
			}
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				s := newSubject(t, mustNew(t, c, dp.Params{Mu: 4, Adjacency: adjacency}))
				pair := neighbours(s.e.Estimator, 2, 0, adjacency)[0]
				r, err := s.Shift(pair[0], pair[1], auditKeys(byte(m)), 300, stattest.Alpha)
				if err != nil {
					t.Fatal(describe(c, adjacency), err)
				}
				if err := r.Err(); err != nil {
					t.Errorf("%s: %v", describe(c, adjacency), err)
				}
			}
		}
	}
}
