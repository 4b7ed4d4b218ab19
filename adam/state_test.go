package adam

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// gradientsOf returns steps of up to m gradients each, some of them invalid.
func gradientsOf(steps, d int, m uint64) [][][]float64 {
	source := rand.New(rand.NewPCG(8, 9))
	all := make([][][]float64, steps)
	for i := range all {
		for k := range min(uint64(source.IntN(6)), m) {
			if k == 3 {
				all[i] = append(all[i], nil)
				continue
			}
			all[i] = append(all[i], inBall(source, d, 3))
		}
	}
	return all
}

// contractOf returns the contract of an estimator whose step t takes the gradients of steps[t−1].
func contractOf(t testing.TB, c Config, p dp.Params, steps [][][]float64) estimatortest.Contract[*Estimator] {
	t.Helper()
	return estimatortest.Contract[*Estimator]{
		New: estimatortest.Adopted(t, mustNew(t, c, p).Plan(),
			func(kept Plan) (*Estimator, error) { return Adopt(c, p, kept) }),
		Steps: uint64(len(steps)),
		Rows:  func(step, _, _ uint64) [][]float64 { return steps[step-1] },
		Noise: func(t testing.TB) func(uint64) dp.Noise { return keyed(t, 5) },
		Size:  func(e *Estimator) int64 { return e.Sizes().State },
	}
}

// stateful returns configurations whose states differ in form.
func stateful(m uint64) (all []Config) {
	for _, c := range methods(m) {
		for _, kind := range []string{"identity", "blt", "sqrt"} {
			c.Factorization, c.Horizon, c.UpdateClip = kind, 30, 2
			all = append(all, c)
		}
	}
	return all
}

// TestRestart restores states of every method and factorization, which must continue with the same releases.
func TestRestart(t *testing.T) {
	t.Parallel()
	const steps, d = 12, 3
	for _, m := range []uint64{1, 4} {
		s := gradientsOf(steps, d, m)
		for _, c := range stateful(m) {
			t.Run(fmt.Sprintf("%s/%s/m=%d", c.Method, c.Factorization, m), func(t *testing.T) {
				c.Dim, c.Initial = d, []float64{1, 2, 3}
				contract := contractOf(t, c, dp.Params{Mu: 0.8, Adjacency: dp.ZeroOut}, s)
				contract.After = func(e *Estimator, state []byte, _ *dp.Release) {
					if theta, err := ParametersOf(state); err != nil || !slices.Equal(theta, e.Parameters()) {
						t.Errorf("the state's parameters are %g (%v), want %g", theta, err, e.Parameters())
					}
				}
				if e, states := contract.Restart(t); c.Factorization != "sqrt" &&
					int64(len(states[steps-1])) < e.Sizes().State {
					t.Errorf("a state of %d bytes, announced %d", len(states[steps-1]), e.Sizes().State)
				}
			})
		}
	}
}

// TestDamaged damages a state of every method and factorization.
func TestDamaged(t *testing.T) {
	t.Parallel()
	for _, m := range []uint64{1, 4} {
		for _, c := range stateful(m) {
			t.Run(fmt.Sprintf("%s/%s/m=%d", c.Method, c.Factorization, m), func(t *testing.T) {
				c.Dim = 2
				contract := contractOf(t, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace}, gradientsOf(5, 2, m))
				states, _ := contract.Run(t, nil)
				contract.Damaged(t, states[4])
			})
		}
	}
}

// TestShards runs a step with many parameters on 1 and on 5 processors, with an estimator that is restored in between,
// and with noise that is read at once. All give the same bytes. The test is not parallel, because it sets the number of
// processors.
func TestShards(t *testing.T) {
	const steps, d = 3, 5*shardSize + 77
	s := gradientsOf(steps, d, 2)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []Config{
		{Method: "pp_debiased", UpdateClip: 3}, {Method: "jme_per_example", Factorization: "blt", Release: "update"},
		{Method: "joint_clip", Tau: 2}, {Method: "jme_batch"},
		{Method: "momentum", Factorization: "blt", WeightDecay: 0.1, UpdateClip: 0.01},
	} {
		c.Dim, c.Clip, c.Rate, c.Step = d, 1, 0.1, 2
		p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
		var want [][]byte
		for i, processors := range []int{1, 5, 2, 3} {
			runtime.GOMAXPROCS(processors)
			noise := keyed(t, 5)
			if i == 3 { // rows that do not support cursors
				keys := keyed(t, 5)
				noise = func(step uint64) dp.Noise { return foreign{keys(step)} }
			}
			contract := contractOf(t, c, p, s)
			contract.Noise = func(testing.TB) func(uint64) dp.Noise { return noise }
			states, releases := contract.Run(t, func(_ uint64, e *Estimator) *Estimator {
				if i != 2 {
					return e
				}
				next := contract.New(t)
				if err := next.UnmarshalBinary(estimatortest.State(t, e)); err != nil {
					t.Fatal(err)
				}
				return next
			})
			if want == nil {
				want = append(states, releases...)
			}
			if !slices.EqualFunc(want, append(states, releases...), bytes.Equal) {
				t.Errorf("%s: the bytes depend on the number of processors (%d, case %d)", c.Method, processors, i)
			}
		}
		// All coordinates moved, including the last.
		runtime.GOMAXPROCS(5)
		contract := contractOf(t, c, p, s)
		var e *Estimator
		contract.Run(t, func(_ uint64, last *Estimator) *Estimator { e = last; return last })
		for j, x := range e.theta {
			if x == 0 {
				t.Fatalf("%s: parameter %d did not move", c.Method, j)
			}
		}
	}
}

// foreign hides the concrete type of noise rows, so that they do not support cursors.
type foreign struct{ dp.Noise }

func (f foreign) Row(array string, hidden []int64) dp.Row {
	return hiddenRow{f.Noise.Row(array, hidden)}
}

type hiddenRow struct{ dp.Row }

// TestAllocations counts the allocations of a step. The number is the same for one shard and for many, except for draws
// that need an exact decision (one draw in two million).
func TestAllocations(t *testing.T) {
	count := func(d int) float64 {
		e := mustNew(t, Config{Clip: 1, Rate: 1, Dim: d, Step: 4}, dp.Params{Mu: 1, Adjacency: dp.Replace})
		noise, step := keyed(t, 3), uint64(0)
		g := make([]float64, d)
		return testing.AllocsPerRun(8, func() {
			e.Add(0, g)
			step++
			if _, err := e.Close(noise(step)); err != nil {
				t.Fatal(err)
			}
		})
	}
	few, many := count(100), count(20*shardSize)
	// On average a step with many parameters has a sixth of an exact decision, which takes about 700 allocations. By
	// chance it may be six times as many.
	if few > 20 || many > few+60+700 {
		t.Errorf("%g allocations a step for 100 parameters, %g for %d", few, many, 20*shardSize)
	}
	t.Logf("%g allocations a step for 100 parameters, %g for %d", few, many, 20*shardSize)
	e := mustNew(t, Config{Clip: 1, Rate: 1, Dim: 100, Step: 4}, dp.Params{Mu: 1, Adjacency: dp.Replace})
	estimatortest.Allocates(t, e, 0, make([]float64, 100), nil)
}

// TestStateRefused checks that estimators with other configurations refuse a state, and the estimator itself refuses
// damaged ones.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
	own := Config{Method: "jme_per_example", Clip: 1.4, Rate: 0.1, Dim: 3, Step: 4, Factorization: "blt", Horizon: 30}
	contract := contractOf(t, own, p, gradientsOf(5, 3, 4))
	states, _ := contract.Run(t, nil)
	state := states[4]
	others := map[string]*Estimator{}
	for name, alter := range map[string]func(*Config, *dp.Params){
		"method":        func(c *Config, _ *dp.Params) { c.Method = "jme_batch" },
		"clip":          func(c *Config, _ *dp.Params) { c.Clip *= 1.01 },
		"dim":           func(c *Config, _ *dp.Params) { c.Dim = 2 },
		"step":          func(c *Config, _ *dp.Params) { c.Step = 5 },
		"rate":          func(c *Config, _ *dp.Params) { c.Rate = 0.2 },
		"schedule":      func(c *Config, _ *dp.Params) { c.Schedule = "cosine" },
		"beta1":         func(c *Config, _ *dp.Params) { c.Beta1 = 0.8 },
		"beta2":         func(c *Config, _ *dp.Params) { c.Beta2 = 0.99 },
		"eps":           func(c *Config, _ *dp.Params) { c.Eps = 1e-6 },
		"v_floor":       func(c *Config, _ *dp.Params) { c.VFloor = 1 },
		"negative":      func(c *Config, _ *dp.Params) { c.Negative = "abs" },
		"update_clip":   func(c *Config, _ *dp.Params) { c.UpdateClip = 1 },
		"weight_decay":  func(c *Config, _ *dp.Params) { c.WeightDecay = 1 },
		"release":       func(c *Config, _ *dp.Params) { c.Release = "update" },
		"factorization": func(c *Config, _ *dp.Params) { c.Factorization = "identity" },
		"horizon":       func(c *Config, _ *dp.Params) { c.Horizon = 31 },
		"endless":       func(c *Config, _ *dp.Params) { c.Endless = true },
		"nu":            func(c *Config, _ *dp.Params) { c.Nu = 0.6 },
		"initial":       func(c *Config, _ *dp.Params) { c.Initial = []float64{0, 0, 1} },
		"mu":            func(_ *Config, p *dp.Params) { p.Mu = 0.81 },
		"adjacency":     func(_ *Config, p *dp.Params) { p.Adjacency = dp.ZeroOut },
		"bits":          func(_ *Config, p *dp.Params) { p.LatticeBits = 25 },
	} {
		c, q := own, p
		alter(&c, &q)
		others[name] = mustNew(t, c, q)
	}
	estimatortest.Foreign(t, state, others)
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNew(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for n := range 25 + 8*3 {
		if theta, err := ParametersOf(state[:n]); err == nil {
			t.Errorf("a state cut to %d bytes has parameters %g", n, theta)
		}
	}
	for i := 9; i < 25; i++ { // step, parameters
		b := slices.Clone(state)
		b[i] ^= 0x10
		refuse(fmt.Sprintf("another byte %d", i), b)
	}
	patch := func(at int, v uint64, order binary.ByteOrder) []byte {
		b := slices.Clone(state)
		order.PutUint64(b[at:], v)
		return b
	}
	for at := 25; at < 25+8*9; at += 8 {
		refuse("a moment that is no number", patch(at, math.Float64bits(math.NaN()), binary.LittleEndian))
	}
	shaper := 25 + 8*9 + 8
	if got := binary.BigEndian.Uint64(state[shaper+17:]); got != 5 {
		t.Fatalf("the shaper's state holds %d steps, but the test expects 5", got)
	}
	refuse("one step more", patch(9, 6, binary.LittleEndian))
	refuse("a shaper one step behind", patch(shaper+17, 4, binary.BigEndian))
	refuse("a prediction beyond all noise", patch(shaper+33, 1<<62-1, binary.BigEndian))
}

// FuzzState gives arbitrary bytes to UnmarshalBinary.
func FuzzState(f *testing.F) {
	var all []estimatortest.Contract[*Estimator]
	for _, c := range append(stateful(4), stateful(1)...) {
		c.Dim = 2
		all = append(all, contractOf(f, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace}, gradientsOf(3, 2, c.Step)))
	}
	estimatortest.Fuzz(f, all, func(c *estimatortest.Contract[*Estimator]) [][]byte {
		states, _ := c.Run(f, nil)
		return append(states, estimatortest.State(f, c.New(f)))
	})
}

// FuzzParametersOf gives arbitrary bytes to ParametersOf, which knows no configuration.
func FuzzParametersOf(f *testing.F) {
	f.Add(
		estimatortest.State(f,
			mustNew(f, Config{Clip: 1, Rate: 1, Dim: 2, Step: 4}, dp.Params{Mu: 1, Adjacency: dp.Replace})))
	f.Fuzz(func(t *testing.T, data []byte) {
		if theta, err := ParametersOf(data); (theta == nil) == (err == nil) && len(theta) > 0 {
			t.Fatalf("ParametersOf returns %g, %v", theta, err)
		}
	})
}

// TestIdentity pins the form in which a configuration enters fingerprints: with another form, the states of open epochs
// would be refused.
func TestIdentity(t *testing.T) {
	for _, x := range []struct {
		c    Config
		want string
	}{
		{Config{Mode: "model", Method: "pp", Clip: 1.5, MeanClip: 0.5, Nu: 0.25, Tau: 2, Beta1: 0.9, Beta2: 0.999,
			Rate: 0.1, Schedule: "cosine",
			Eps: 1e-8, VFloor: 1, Negative: "abs", UpdateClip: 3, WeightDecay: 4, Factorization: "blt",
			Release: "update",
			Model:   &Model{Loss: "mlp", Target: "y", Classes: 3, Hidden: 4}, StepHeader: "model-step",
			Columns: []string{"u", "y", "v"},
			Step:    7, Horizon: 9, Endless: true, Initial: []float64{1}, InitialFile: "f"},
			`{"Mode":"model","Method":"pp","Clip":1.5,"MeanClip":0.5,"Nu":0.25,"Tau":2,"Beta1":0.9,"Beta2":0.999,"Rate":0.1,"Schedule":"cosine",` +
				`"Eps":1e-8,"VFloor":1,"Negative":"abs","UpdateClip":3,"WeightDecay":4,"Factorization":"blt","Dim":0,"Release":"update",` +
				`"Model":{"loss":"mlp","target":"y","classes":3,"hidden":4},"MaxStaleness":0,"StepHeader":"model-step","InitialFile":"",` +
				`"Columns":3,"Target":1,"Step":7,"Horizon":9,"Endless":true,"Initial":null}`},
		{Config{Mode: "gradients", Dim: 12, MaxStaleness: 2},
			`{"Mode":"gradients","Method":"","Clip":0,"MeanClip":0,"Nu":0,"Tau":0,"Beta1":0,"Beta2":0,"Rate":0,"Schedule":"","Eps":0,"VFloor":0,` +
				`"Negative":"","UpdateClip":0,"WeightDecay":0,"Factorization":"","Dim":12,"Release":"","Model":null,"MaxStaleness":2,` +
				`"StepHeader":"","InitialFile":"","Columns":0,"Target":0,"Step":0,"Horizon":0,"Endless":false,"Initial":null}`},
		{Config{Mode: "gradients", Dim: 12, Step: 4,
			Person: matfact.Participation{Count: 5, Separation: 2, PerStep: 9}},
			`{"Mode":"gradients","Method":"","Clip":0,"MeanClip":0,"Nu":0,"Tau":0,"Beta1":0,"Beta2":0,"Rate":0,"Schedule":"","Eps":0,"VFloor":0,` +
				`"Negative":"","UpdateClip":0,"WeightDecay":0,"Factorization":"","Dim":12,"Release":"","Model":null,"MaxStaleness":0,` +
				`"StepHeader":"","InitialFile":"","Columns":0,"Target":0,"Step":4,"Horizon":0,"Endless":false,"Initial":null,` +
				`"Person":{"Count":5,"Separation":2,"Fixed":false,"PerStep":4}}`},
	} {
		if got, err := json.Marshal(x.c.identity()); err != nil || string(got) != x.want {
			t.Errorf("%v\n got %s\nwant %s", err, got, x.want)
		}
	}

	// identity must have all fields except the names of columns and the initial parameters, whose hash is in the plan.
	config, identity := reflect.TypeFor[Config](), reflect.TypeFor[identity]()
	for i := range config.NumField() {
		if _, ok := identity.FieldByName(config.Field(i).Name); !ok {
			t.Errorf("%s is missing", config.Field(i).Name)
		}
	}
}
