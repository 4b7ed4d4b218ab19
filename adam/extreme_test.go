package adam

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// TestExtremeGradients feeds gradients of every order of magnitude, and examples that produce them. None may cause a
// panic. For every weight of the squares, the clipped pair must be in its ball by exact arithmetic.
func TestExtremeGradients(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(31, 32))
	draw := func(n int) []float64 {
		g := make([]float64, n)
		around := source.IntN(2098) - 1074
		for i := range g {
			switch source.IntN(12) {
			case 0:
				g[i] = []float64{0, math.Copysign(0, -1), 5e-324, math.MaxFloat64, math.Inf(1),
					math.NaN()}[source.IntN(6)]
			case 1, 2, 3:
				g[i] = math.Ldexp(2*source.Float64()-1, source.IntN(2098)-1074)
			default:
				g[i] = math.Ldexp(2*source.Float64()-1, around)
			}
		}
		return g
	}
	for _, clip := range []float64{1e-50, 1e-3, 1, 1e50} {
		for _, tau := range []float64{1e-6, 1, 1e6} {
			tau /= clip * clip
			e, err := New(Config{Method: "joint_clip", Tau: tau, Clip: clip, Rate: 1, Dim: 3, Step: 1},
				dp.Params{Mu: 1, Adjacency: dp.Replace})
			if err != nil {
				t.Fatal(err)
			}
			first, second := make([]int64, 3), make([]int64, 3)
			weight := new(big.Float).SetPrec(300).SetFloat64(tau)
			ratio := new(big.Float).SetPrec(300).SetMantExp(big.NewFloat(1), e.plan.SecondExp-e.plan.Lattice.Exp)
			weight.Mul(weight, ratio).Mul(weight, ratio)
			limit := new(big.Float).SetPrec(300).SetInt64(e.plan.Lattice.K)
			limit.Mul(limit, limit)
			for range 4000 {
				g := draw(3)
				e.joint.quantise(first, second, g)
				sum := new(big.Float).SetPrec(300)
				for i := range first {
					k, q := new(big.Float).SetPrec(300).SetInt64(first[i]),
						new(big.Float).SetPrec(300).SetInt64(second[i])
					sum.Add(sum, k.Mul(k, k))
					sum.Add(sum, q.Mul(q, q).Mul(q, weight))
				}
				if sum.Cmp(limit) > 0 {
					t.Fatalf("clip %g, tau %g, gradient %g: %v and %v are outside of the ball", clip, tau, g,
						first, second)
				}
			}
		}
	}
	for _, m := range []Model{{Loss: "linear"}, {Loss: "logistic"}, {Loss: "softmax", Classes: 3},
		{Loss: "mlp", Hidden: 4}, {Loss: "mlp", Hidden: 4, Classes: 3}} {
		m.Target = "y"
		e, err := New(
			Config{Mode: "model", Model: &m, Columns: exampleColumns(4, 1), Clip: 1, Rate: 0.1, Step: 1 << 16},
			dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4000 {
			if i%100 == 0 {
				copy(e.theta, draw(len(e.theta)))
			}
			row := draw(4)
			if source.IntN(2) == 0 {
				row[1] = float64(source.IntN(4))
			}
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Fatalf("%s: example %g: %v", m.Loss, row, r)
					}
				}()
				e.Add(uint64(i), row)
			}()
		}
	}
}
