package adam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

var models = []Model{
	{Loss: "linear", Target: "y"}, {Loss: "logistic", Target: "y"}, {Loss: "softmax", Target: "y", Classes: 3},
	{Loss: "mlp", Target: "y", Hidden: 4}, {Loss: "mlp", Target: "y", Hidden: 3, Classes: 3},
}

// loss returns the loss of a model, computed with the standard library's functions.
func loss(m *Model, theta, x []float64, y float64) float64 {
	x = append(slices.Clone(x), 1)
	times := func(theta, x []float64, units int) []float64 {
		z := make([]float64, units)
		for i := range z {
			for j, v := range x {
				z[i] += theta[i*len(x)+j] * v
			}
		}
		return z
	}
	if m.Loss == "mlp" {
		h := times(theta, x, m.Hidden)
		for i := range h {
			h[i] = math.Tanh(h[i])
		}
		theta, x = theta[m.Hidden*len(x):], append(h, 1)
	}
	z := times(theta, x, m.outputs())
	switch {
	case m.Classes > 0:
		var sum float64
		for _, v := range z {
			sum += math.Exp(v)
		}
		return math.Log(sum) - z[int(y)]
	case m.Loss == "logistic":
		if y > 0 {
			return math.Log1p(math.Exp(-z[0]))
		}
		return math.Log1p(math.Exp(z[0]))
	}
	return (z[0] - y) * (z[0] - y) / 2
}

// TestGradient compares gradients with finite differences of the loss.
func TestGradient(t *testing.T) {
	t.Parallel()
	const columns = 5
	source := rand.New(rand.NewPCG(3, 3))
	for _, m := range models {
		for target := range columns {
			l := newLearner(&m, columns, target)
			theta := make([]float64, m.Parameters(columns))
			for range 20 {
				for i := range theta {
					theta[i] = source.NormFloat64()
				}
				row := make([]float64, columns)
				for i := range row {
					row[i] = source.NormFloat64()
				}
				if m.Classes > 0 {
					row[target] = float64(source.IntN(m.Classes))
				}
				x := slices.Delete(slices.Clone(row), target, target+1)
				got := l.gradient(theta, row)
				for i := range theta {
					const h = 1e-5
					up, down := slices.Clone(theta), slices.Clone(theta)
					up[i] += h
					down[i] -= h
					want := (loss(&m, up, x, row[target]) - loss(&m, down, x, row[target])) / (2 * h)
					if math.Abs(got[i]-want) > 1e-8*(1+math.Abs(want)) {
						t.Fatalf("%+v, target %d: derivative %d is %.9g, want %.9g", m, target, i, got[i], want)
					}
				}
			}
		}
	}
}

// TestExp compares the exponential, and functions computed from it, with the standard library.
func TestExp(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 4))
	for range 100000 {
		x := -math.Pow(10, 6*source.Float64()-3)
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 4.5e-16*want+5e-324 {
			t.Fatalf("exp(%g) = %.17g, want %.17g", x, got, want)
		}
		z := 20 * source.NormFloat64()
		if got, want := tanh(z), math.Tanh(z); math.Abs(got-want) > 1e-15 {
			t.Fatalf("tanh(%g) = %.17g, want %.17g", z, got, want)
		}
		if got, want := sigmoid(z), 1/(1+math.Exp(-z)); math.Abs(got-want) > 1e-15 {
			t.Fatalf("sigmoid(%g) = %.17g, want %.17g", z, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, -745: 5e-324, -1000: 0, math.Inf(-1): 0} {
		if got := exp(x); got != want {
			t.Errorf("exp(%g) = %g, want %g", x, got, want)
		}
	}
	if got := exp(math.NaN()); got == got {
		t.Error("exp(NaN) is not NaN")
	}
}

// TestNotAClass checks that an example whose target is not a class is an invalid record.
func TestNotAClass(t *testing.T) {
	t.Parallel()
	m := Model{Loss: "softmax", Target: "y", Classes: 3}
	e := mustNew(t, Config{Mode: "model", Model: &m, Columns: exampleColumns(3, 2), Clip: 1, Rate: 0.1, Step: 8},
		dp.Params{Mu: 1, Adjacency: dp.Replace})
	for i, y := range []float64{-1, 3, 0.5, math.NaN(), math.Inf(1), 1e300} {
		e.Add(uint64(i), []float64{1, 2, y})
	}
	noise := dptest.Zero()
	r, err := e.Close(noise)
	if err != nil || r.Rows != 6 {
		t.Fatalf("%v, %v", r, err)
	}
	if slices.ContainsFunc(noise.Hidden("adam/first"), func(k int64) bool { return k != 0 }) {
		t.Error("a target that is not a class has a gradient")
	}
}

// TestModelFaults checks that all faults of a model are reported.
func TestModelFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		keys            []string
		m               Model
		columns, target int
	}{
		{nil, Model{Loss: "linear"}, 2, 1},
		{[]string{"model.loss"}, Model{}, 2, 1},
		{[]string{"model.target"}, Model{Loss: "linear"}, 1, 0},
		{[]string{"model.target"}, Model{Loss: "linear"}, 2, -1},
		{[]string{"model.classes", "model.hidden"}, Model{Loss: "logistic", Classes: 2, Hidden: 1}, 2, 1},
		{[]string{"model.classes"}, Model{Loss: "softmax", Classes: 1}, 2, 1},
		{[]string{"model.classes", "model.hidden"}, Model{Loss: "mlp", Classes: 1}, 2, 1},
	} {
		var keys []string
		for _, err := range fault.All(f.m.validate(f.columns, f.target)) {
			keys = append(keys, err.(*fault.Fault).Key)
		}
		if !slices.Equal(keys, f.keys) {
			t.Errorf("%+v: faults of %q, want %q", f.m, keys, f.keys)
		}
	}
}

// TestModelSensitivity is audit A0 for models, by coupling: gradients depend on released parameters, and the runs of
// neighbours follow one transcript.
func TestModelSensitivity(t *testing.T) {
	t.Parallel()
	const columns, steps, mu = 4, 4, 2
	source := rand.New(rand.NewPCG(4, 3))
	for _, model := range models {
		for _, method := range methods(4) {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				c := method
				c.Mode, c.Model, c.Columns, c.Rate, c.Factorization = "model", &model,
					exampleColumns(columns, 0), 0.3, "blt"
				s := newSubject(t, mustNew(t, c, dp.Params{Mu: mu, Adjacency: adjacency}))
				base := make(audit.Stream, steps)
				for i := range base {
					for range 4 {
						row := make([]float64, columns)
						for j := range row {
							row[j] = source.NormFloat64()
						}
						row[0] = float64(source.IntN(2))
						base[i] = append(base[i], row)
					}
				}
				for _, other := range [][]float64{nil, {0, 1e9, -2, 3}, {1, -5, 0.1, 1e200}, {1, math.NaN(), 0, 0}} {
					if adjacency == dp.ZeroOut && other != nil {
						continue
					}
					at := source.IntN(steps)
					distance, err := s.Coupling(base.Replace(at, 1, []float64{1, 7, -8, 9}), base.Replace(at, 1, other),
						auditKeys(5))
					if err != nil {
						t.Errorf("%+v, %s: %v", model, describe(c, adjacency), err)
					}
					if !(distance > 0 && distance <= s.Mu*(1+1e-9)) {
						t.Errorf("%+v, %s: %.9g of μ apart", model, describe(c, adjacency), distance/s.Mu)
					}
				}
			}
		}
	}
}

// TestModelLearns trains every model, from its own initial parameters and with negligible noise, on data that it can
// represent.
func TestModelLearns(t *testing.T) {
	t.Parallel()
	const columns, m = 4, 32
	source := rand.New(rand.NewPCG(9, 3))
	example := func(m *Model) []float64 {
		x := []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64(), 0}
		switch {
		case m.Loss == "linear":
			x[3] = 0.5*x[0] - x[1] + 0.3
		case m.Loss == "mlp" && m.Classes == 0:
			x[3] = math.Tanh(2*x[0]) - math.Tanh(x[1]-1)
		case m.Loss == "logistic":
			x[3] = x[0] + x[1] - x[2]
		case m.Loss == "mlp": // no line separates these classes
			x[3] = 0
			if x[0]*x[1] > 0 {
				x[3] = 1
			}
		default:
			x[3] = float64(slices.Index(x[:3], slices.Max(x[:3])))
		}
		return x
	}
	for _, model := range models {
		if model.Loss == "mlp" {
			model.Hidden = 12
		}
		e := mustNew(t,
			Config{Mode: "model", Model: &model, Columns: exampleColumns(columns, 3), Clip: 5, Rate: 0.02, Step: m,
				Schedule: "cosine", Horizon: 1500}, dp.Params{Mu: 30, Adjacency: dp.ZeroOut})
		noise := dptest.Seeded(1)
		for i := range uint64(1500) {
			for k := range uint64(m) {
				e.Add(i*m+k, example(&model))
			}
			if _, err := e.Close(noise); err != nil {
				t.Fatal(err)
			}
		}
		var right, off float64
		for range 2000 {
			x := example(&model)
			p, err := model.Predict(e.Parameters(), x[:3])
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case model.Classes > 0:
				if slices.Index(p, slices.Max(p)) == int(x[3]) {
					right++
				}
			case model.Loss == "logistic":
				if (p[0] > 0.5) == (x[3] > 0) {
					right++
				}
			default:
				off += (p[0] - x[3]) * (p[0] - x[3]) / 2000
			}
		}
		what := fmt.Sprintf("%s with %d classes", model.Loss, model.Classes)
		if model.Loss == "linear" || model.Loss == "mlp" && model.Classes == 0 {
			if off > 0.01 {
				t.Errorf("%s: mean squared error %.3g", what, off)
			}
		} else if right < 1900 {
			t.Errorf("%s: %g of 2000 are right", what, right)
		}
	}
	if _, err := models[0].Predict([]float64{1}, []float64{1, 2}); err == nil {
		t.Error("no error for parameters of another model")
	}
}

// TestModelAllocations checks that a record allocates nothing.
func TestModelAllocations(t *testing.T) {
	for _, model := range models {
		e := mustNew(t,
			Config{Mode: "model", Model: &model, Columns: exampleColumns(4, 3), Clip: 5, Rate: 0.1, Step: 1000},
			dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
		row := []float64{1, 2, 3, 1}
		if n := testing.AllocsPerRun(100, func() { e.Add(0, row) }); n > 0 {
			t.Errorf("%+v: %g allocations", model, n)
		}
	}
}
