package moments

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestProducts compares sums of squared noisy rows with integers of arbitrary size, for sums, windows and decays, with
// entries up to the largest that fit.
func TestProducts(t *testing.T) {
	t.Parallel()
	const steps, d = 30, 3
	source := rand.New(rand.NewPCG(6, 6))
	for _, w := range []matfact.Workload{{Kind: "sum"}, {Kind: "window", Window: 4},
		{Kind: "exponential", Decay: 0.75}} {
		for _, size := range []int64{3, 1 << 30, 1<<53 - 1} {
			p, ring := newProducts(w, d), newAccumulator(w, d)
			var rows [][]int64
			for step := range steps {
				row := make([]int64, d)
				for j := range row {
					row[j] = source.Int64N(2*size+1) - size
				}
				if step == 0 {
					row = []int64{size, -size, size}
				}
				rows = append(rows, row)
				if a, ok := ring.(*windowed); ok {
					p.remove(a.oldest())
				}
				p.add(row)
				ring.add(row)
				got := p.value(-20, 8)
				n := 0
				for i := range d {
					for j := i; j < d; j++ {
						want := new(big.Float).SetPrec(300)
						for k, r := range rows {
							weight := 1.0
							switch {
							case w.Kind == "exponential":
								weight = math.Pow(w.Decay, float64(step-k)) // exact for 0.75
							case w.Kind == "window" && step-k >= int(w.Window):
								continue
							}
							x := new(big.Float).SetPrec(300).SetInt64(r[i])
							x.Mul(x, new(big.Float).SetInt64(r[j]))
							want.Add(want, x.Mul(x, big.NewFloat(weight)))
						}
						exact, _ := want.SetMantExp(want, -43).Float64()
						tolerance := 0.0
						if w.Kind == "exponential" {
							tolerance = 1e-14 * math.Ldexp(float64(size)*float64(size), -43) * 4
						}
						if math.Abs(got[n]-exact) > tolerance {
							t.Fatalf("%s, size %d, step %d: %g, want %g", w.Kind, size, step, got[n], exact)
						}
						n++
					}
				}
			}
		}
	}
	if !fit(1<<52, 1<<21) || fit(1<<52, 1<<22) || fit(1<<53, 1) {
		t.Error("the range of sums has changed")
	}
}

// TestSquaresNeedNoData closes a step twice, for a method that squares noisy rows. The records differ, but the noise
// makes the noisy rows equal. So the releases must be equal.
func TestSquaresNeedNoData(t *testing.T) {
	t.Parallel()
	c := Config{Method: "pp", Clip: 1, Columns: dptest.Columns(1), Step: 1, Factorization: "identity", Workload: "sum"}
	e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
	sd := e.plan.First
	e.Add(0, []float64{0.5})
	a, err := e.Close(dptest.Queue(0.25, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.UnmarshalBinary(
		estimatortest.State(t, mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace}))); err != nil {
		t.Fatal(err)
	}
	e.Add(0, []float64{-0.5})
	b, err := e.Close(dptest.Queue(0.25+1/sd, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.Values {
		if x, y := a.Values[i].Data[0], b.Values[i].Data[0]; math.Abs(x-y) > 1e-6*math.Abs(x) {
			t.Errorf("%s: %g and %g", a.Values[i].Name, x, y)
		}
	}
}
