package adam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// tapped is an estimator whose releases also contain the noisy integer rows from which they are computed.
type tapped struct {
	*Estimator
	first, second []float64
}

func newTapped(e *Estimator) *tapped {
	t := &tapped{Estimator: e}
	e.tap = func(e *Estimator, w *worker, s *shard) {
		for i := s.from; i < s.to; i++ {
			t.first[i] = float64(e.first[i] + w.noise[0][i-s.from])
			if e.second != nil {
				t.second[i] = float64(e.second[i] + w.noise[1][i-s.from])
			}
		}
	}
	return t
}

// Close implements the daemon's interface.
func (t *tapped) Close(n dp.Noise) (*dp.Release, error) {
	t.first, t.second = make([]float64, t.dim), nil
	if t.Estimator.second != nil {
		t.second = make([]float64, t.dim)
	}
	r, err := t.Estimator.Close(n)
	if err == nil {
		r.Values = append(r.Values, dp.Value{Name: "first", Data: t.first}, dp.Value{Name: "second", Data: t.second})
	}
	return r, err
}

// oracle computes the optimiser by its definition, from the noisy means alone.
type oracle struct {
	c           Config
	plan        Plan
	i           float64
	m, v, theta []float64
}

// step returns the parameters, and the update that was added to them. bias and deviation describe the noise in v̂.
func (o *oracle) step(x, q []float64, bias, deviation float64) (theta, update []float64) {
	c := o.c
	o.i++
	rate := c.Rate
	switch c.Schedule {
	case "inverse-sqrt":
		rate /= math.Sqrt(o.i)
	case "cosine":
		rate *= (1 + math.Cos(math.Pi*(o.i-1)/float64(c.Horizon))) / 2
	}
	u := make([]float64, len(x))
	norm := 0.0
	for j := range x {
		o.m[j] = c.Beta1*o.m[j] + (1-c.Beta1)*x[j]
		u[j] = o.m[j] / (1 - math.Pow(c.Beta1, o.i))
		if c.Method != "momentum" {
			if q == nil {
				o.v[j] = c.Beta2*o.v[j] + (1-c.Beta2)*x[j]*x[j]
			} else {
				o.v[j] = c.Beta2*o.v[j] + (1-c.Beta2)*q[j]
			}
			v := o.v[j]/(1-math.Pow(c.Beta2, o.i)) - bias
			switch {
			case c.Negative == "abs":
				v = math.Abs(v)
			case c.Negative == "zero":
				v = max(v, 0)
			case c.VFloor > 0:
				v = max(v, c.VFloor)
			default:
				v = max(v, deviation)
			}
			u[j] /= math.Sqrt(v) + c.Eps
		}
		norm = math.Hypot(norm, u[j])
	}
	for j := range u {
		if c.UpdateClip > 0 && norm > c.UpdateClip {
			u[j] *= c.UpdateClip / norm
		}
		u[j] = -rate * (u[j] + c.WeightDecay*o.theta[j])
		o.theta[j] += u[j]
	}
	return slices.Clone(o.theta), u
}

// TestStep compares parameters and updates with the optimiser by its definition, from the noisy rows on, for every
// method, schedule and option.
func TestStep(t *testing.T) {
	t.Parallel()
	const d, steps = 4, 12
	for _, m := range []uint64{1, 4} {
		for _, base := range methods(m) {
			for _, option := range []Config{
				{}, {Schedule: "inverse-sqrt", WeightDecay: 0.3, Eps: 1e-3},
				{Schedule: "cosine", UpdateClip: 0.4, Beta1: 0.5, Beta2: 0.7},
				{Negative: "zero", UpdateClip: 0.2, WeightDecay: 0.1}, {Negative: "abs"}, {VFloor: 0.03},
				{Factorization: "blt"}, {Factorization: "sqrt", UpdateClip: 1, Initial: []float64{1, -2, 3, 0}},
			} {
				for _, release := range []string{"parameters", "update"} {
					c := option
					c.Method, c.Tau, c.MeanClip, c.Step, c.Clip, c.Rate = base.Method, base.Tau, base.MeanClip,
						base.Step, base.Clip, base.Rate
					c.Dim, c.Horizon, c.Release = d, steps, release
					if c.Method == "momentum" {
						c.VFloor, c.Negative = 0, ""
					}
					e := newTapped(mustNew(t, c, dp.Params{Mu: 2, Adjacency: dp.Replace}))
					o := &oracle{c: e.cfg, plan: e.Plan(), m: make([]float64, d), v: make([]float64, d),
						theta: make([]float64, d)}
					copy(o.theta, c.Initial)
					first, second := e.plan.units(m)
					source, noise := rand.New(rand.NewPCG(1, m)), dptest.Seeded(m)
					for i := range uint64(steps) {
						for k := range m {
							e.Add(i*m+k, inBall(source, d, 2))
						}
						r, err := e.Close(noise)
						if err != nil {
							t.Fatal(err)
						}
						value := func(name string) []float64 {
							for _, v := range r.Values {
								if v.Name == name {
									return v.Data
								}
							}
							return nil
						}
						x, q := value("first"), value("second")
						for j := range x {
							x[j] *= first
						}
						for j := range q {
							q[j] *= second
						}
						if !e.cfg.joint() {
							q = nil
						}
						bias, deviation := 0.0, 0.0
						if e.noise != nil {
							v := newVNoise(e.factors.first, e.cfg.Beta2, i+1)
							deviation = v.Squared * math.Pow(e.plan.FirstNoise, 2)
							if e.cfg.Method == "pp_debiased" {
								bias = v.Bias * math.Pow(e.plan.FirstNoise, 2)
							}
						} else if e.second != nil {
							deviation = newVNoise(e.factors.second, e.cfg.Beta2, i+1).Linear * e.plan.SecondNoise
						}
						theta, update := o.step(x, q, bias, deviation)
						what := fmt.Sprintf("%s, m=%d, %+v, step %d", c.Method, m, option, i+1)
						want := theta
						if release == "update" {
							want = update
						}
						for j, got := range value(release) {
							if math.Abs(got-want[j]) > 1e-9*(1+math.Abs(want[j])) {
								t.Fatalf("%s: %s %d is %.12g, want %.12g", what, release, j, got, want[j])
							}
						}
						if got := value("v_noise"); (got == nil) != (c.Method == "momentum") ||
							got != nil && math.Abs(got[0]-deviation) > 1e-12*deviation {
							t.Errorf("%s: v_noise is %g, want %g", what, got, deviation)
						}
						if got := value("model_step"); got[0] != float64(i+1) || r.Step != i+1 {
							t.Errorf("%s: model_step is %g, step %d", what, got, r.Step)
						}
						names := []string{}
						for _, v := range r.Values[:len(r.Values)-2] {
							names = append(names, v.Name)
						}
						if !slices.Equal(names, e.cfg.Values()) {
							t.Errorf("%s: values %q, announced %q", what, names, e.cfg.Values())
						}
					}
					if _, err := e.Close(noise); err != dp.ErrExhausted {
						t.Errorf("after the horizon: %v", err)
					}
					if !slices.Equal(e.Parameters(), e.theta) {
						t.Error("Parameters returns other parameters than the release")
					}
				}
			}
		}
	}
}

// TestSchedule compares the learning rates with those computed by the standard library.
func TestSchedule(t *testing.T) {
	t.Parallel()
	c := Config{Rate: 0.3, Schedule: "cosine", Horizon: 1000}
	for i := uint64(1); i <= 1000; i++ {
		want := 0.15 * (1 + math.Cos(math.Pi*float64(i-1)/1000))
		if got := c.rate(i); math.Abs(got-want) > 2e-16 {
			t.Errorf("step %d: rate %.17g, want %.17g", i, got, want)
		}
	}
	for _, beta := range []float64{0.1, 0.9, 0.999, 1 - 1e-9} {
		for _, n := range []uint64{1, 2, 3, 10, 12345, 1 << 40} {
			want := -math.Expm1(float64(n) * math.Log1p(-(1 - beta)))
			if got := complement(1-beta, n); math.Abs(got-want) > 1e-14*want {
				t.Errorf("1 − %g^%d = %.17g, want %.17g", beta, n, got, want)
			}
		}
	}
}

// TestDiverging checks that a step whose parameters overflow fails, and releases nothing.
func TestDiverging(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"momentum", "pp_debiased"} {
		e := mustNew(t, Config{Method: method, Clip: 1, Rate: 1e308, Dim: 2, Step: 1},
			dp.Params{Mu: 0.01, Adjacency: dp.Replace})
		var err error
		noise := dptest.Seeded(3)
		for range 20 {
			if _, err = e.Close(noise); err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s: parameters of %g are released", method, e.theta)
		}
	}
}
