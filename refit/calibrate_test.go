package refit

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// grid calls f with guarantees and shapes to calibrate for.
func grid(f func(p dp.Params, k, iterations int)) {
	for _, eps := range []float64{0.1, 1, 10} {
		for _, delta := range []float64{1e-4, 1e-10} {
			for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				for _, shape := range [][2]int{{60, 1}, {264, 3}, {1000, 8}} {
					f(dp.Params{Epsilon: eps, Delta: delta, Adjacency: a}, shape[0], shape[1])
				}
			}
		}
	}
}

// TestCalibrations checks that calibrated noise keeps the guarantee, but barely: if γ and the other noise are 0.1 %
// smaller, the guarantee fails. Better accounting must need less noise.
func TestCalibrations(t *testing.T) {
	t.Parallel()
	check := func(what string, acc Accounting, p dp.Params, cost dp.Cost, smaller func() dp.Cost) {
		t.Helper()
		if ok, err := cost.Within(p.Epsilon, p.Delta); err != nil || !ok {
			t.Errorf("%s, %s, %+v: not within its guarantee: %v", what, acc, p, err)
		}
		if ok, err := within(acc, p, smaller()); err != nil || ok {
			t.Errorf("%s, %s, %+v: less noise is private too: %v", what, acc, p, err)
		}
	}
	grid(func(p dp.Params, k, iterations int) {
		for _, test := range []bool{false, true} {
			gammas := map[Accounting]float64{}
			for _, acc := range []Accounting{Exact, RDP} {
				n, err := calibrateIHM(acc, p, k, iterations, 0.2, test)
				if err != nil {
					t.Fatal(err)
				}
				gammas[acc] = n.Gamma
				check("ihm", acc, p, n.Cost, func() dp.Cost {
					c := n.Cost
					c.Gamma, c.Mu = c.Gamma*0.999, c.Mu/0.999
					return c
				})
				// The cost must agree with the noise.
				mu := p.Adjacency.Factor() * math.Sqrt(float64(iterations)) / n.Sigma
				if test {
					mu = math.Hypot(mu, 1/n.Test)
					if q := upperTail(n.Tau); q > n.Cost.BadDelta || q < 0.999*n.Cost.BadDelta {
						t.Errorf("the test fails with probability %g, charged %g", q, n.Cost.BadDelta)
					}
				}
				if math.Abs(n.Cost.Mu-mu) > 1e-12*mu || n.Cost.Rows != k*iterations || n.Cost.Gamma != n.Gamma {
					t.Errorf("cost %+v of noise %+v", n.Cost, n)
				}
			}
			if !(gammas[Exact] < gammas[RDP]) {
				t.Errorf("%+v: exact γ %g, by Rényi curves %g", p, gammas[Exact], gammas[RDP])
			}
			if p.Adjacency == dp.ZeroOut {
				n, err := calibrateIHM(Paper, p, k, iterations, 0.2, test)
				if err != nil {
					t.Errorf("%+v: %v", p, err)
					return
				}
				// The paper's noise is twice too large. So scale its γ and σ by the same factor, to the limit of the
				// guarantee.
				ok, err := dp.Cost{Adjacency: p.Adjacency, Mu: n.Cost.Mu * 1.5, Rows: n.Cost.Rows,
					Gamma: n.Cost.Gamma / 1.5, BadDelta: n.Cost.BadDelta}.Within(p.Epsilon, p.Delta)
				if err != nil || !ok && p.Epsilon <= 1 {
					t.Errorf("%+v: the paper's noise is less than 1.5 times too large: %v", p, err)
				}
			}
		}
		mixing, err := calibrateMixing(Exact, p, k)
		if err != nil {
			t.Fatal(err)
		}
		check("linmix", Exact, p, mixing.Cost, func() dp.Cost {
			c := mixing.Cost
			c.Gamma, c.Mu = c.Gamma*0.999, c.Mu/0.999
			return c
		})
		for _, test := range []bool{false, true} {
			s, err := calibrateAdaSSP(Exact, p, test)
			if err != nil {
				t.Fatal(err)
			}
			check("adassp", Exact, p, s.cost(), func() dp.Cost { c := s.cost(); c.Mu *= 1.001; return c })
			split, err := calibrateAdaSSP(Analytic, p, test)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := split.cost().Within(p.Epsilon, p.Delta); err != nil || !ok || split.s < s.s {
				t.Errorf("%+v: adassp split in three has noise %g, jointly %g: %v", p, split.s, s.s, err)
			}
		}
		g, err := calibrateDescent(Exact, p, iterations, 1, rate)
		if err != nil {
			t.Fatal(err)
		}
		check("dp-gd-residual", Exact, p, g.cost(), func() dp.Cost { c := g.cost(); c.Mu *= 1.001; return c })
		paper, err := calibrateDescent(Paper, p, iterations, 1, rate)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := paper.cost().Within(p.Epsilon, p.Delta); err != nil || !ok {
			t.Errorf("%+v: the paper's descent: %v", p, err)
		}
		if p.Adjacency == dp.Replace {
			return
		}
		for _, transforms := range []int{1, iterations} {
			for _, acc := range []Accounting{RDP, Paper} {
				n, err := calibrateFast(acc, p, k, iterations, transforms, 0.2)
				if err != nil {
					t.Fatal(err)
				}
				if ok, err := n.Cost.Within(p.Epsilon, p.Delta); err != nil || !ok {
					t.Errorf("fast-ihm, %s, %+v: not within its guarantee: %v", acc, p, err)
				}
			}
		}
	})
}

// TestReplacedRows checks, by the Rényi curve, that sketch rows need a γ about 1.29 times as large at ε = 1 if they
// protect replaced records.
func TestReplacedRows(t *testing.T) {
	gamma := func(a dp.Adjacency) float64 {
		p := dp.Params{Epsilon: 1, Delta: 1e-9, Adjacency: a}
		g, err := leastGamma(1, func(gamma float64) (bool, error) { return sketchWithin(p, 800, gamma, 1, 1e-9) })
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if r := gamma(dp.Replace) / gamma(dp.ZeroOut); math.Abs(r-1.29) > 0.01 {
		t.Errorf("γ grows by %.4f", r)
	}
}

// TestOverspent computes the real cost of calibrations in the literature.
func TestOverspent(t *testing.T) {
	// First fault: a dynamic number of rows is chosen without the norm bound C² = 2. Then λ̃ = γ is only half of γ in
	// units of C², but the sketch gets as many rows as λ̃ itself would permit. The claimed ε are 0.5, 1 and 2.
	for eps, want := range map[float64]float64{0.5: 0.73, 1: 1.48, 2: 3.04} {
		p := params(eps, 1e-8)
		n, err := calibrateMixing(Paper, p, 102)
		if err != nil {
			t.Fatal(err)
		}
		k, err := dynamicRows(Paper, p, n, 102, n.Gamma)
		if err != nil {
			t.Fatal(err)
		}
		curve := dp.Cost{Adjacency: dp.ZeroOut, Rows: k, Gamma: n.Gamma / 2}.Curve()
		spent, err := curve.Epsilon(p.Delta / 3)
		if err != nil {
			t.Fatal(err)
		}
		if spent += classical(p.Delta/3, 102, n.Gamma); math.Abs(spent-want) > 0.02*want {
			t.Errorf("at ε = %g, with the wrong units, the cost is %.4f, want %.4f", eps, spent, want)
		}
		// The rule of this package costs exactly the budget.
		honest, err := dynamicRows(Paper, p, n, 102, 1.3*n.Gamma)
		if err != nil {
			t.Fatal(err)
		}
		c := dp.Cost{Adjacency: dp.ZeroOut, Mu: 1 / n.Test, Rows: honest, Gamma: 1.3 * n.Gamma,
			BadDelta: n.Cost.BadDelta}
		if ok, err := c.Within(eps, p.Delta); err != nil || !ok || honest <= 102 {
			t.Errorf("at ε = %g %d rows without noise: %v", eps, honest, err)
		}
	}
	// The published code of linear mixing charges √2 too little for its test.
	for eps, want := range map[float64]float64{0.1: 0.117, 1: 1.160, 10: 11.39} {
		const k, delta = 102, 1e-8
		published, err := leastGamma(1, func(g float64) (bool, error) { // γ_c = 2γ
			return sketchWithin(params(eps, delta), k, g, eps-classical(delta/3, k, 2*g), delta/3)
		})
		if err != nil {
			t.Fatal(err)
		}
		spent := eps + (math.Sqrt2-1)*classical(delta/3, k, 2*published)
		if math.Abs(spent-want) > 0.01*want {
			t.Errorf("the published code spends %.4f at ε = %g, want %.4f", spent, eps, want)
		}
	}
	// In the FastMix paper, Theorem 2's γ₂ costs ε instead of ε/3.
	for _, eps := range []float64{0.1, 1} {
		const kT, delta = 800, 1e-10
		l := math.Log(3 / delta)
		gamma := (2*kT + 25*l) / (8 * eps)
		// This is the second branch of the bound that the paper displays; it applies here.
		spent := kT/(4*gamma) + 25*l/(8*gamma-25)
		if spent < eps {
			t.Errorf("γ₂ spends %.4f of ε = %g", spent, eps)
		}
	}
}

func TestTail(t *testing.T) {
	for _, p := range []float64{0.5, 0.1, 1e-6, 1e-12, 1e-100, 1e-300} {
		z := upperQuantile(p)
		if q := upperTail(z); q > p || q < p*(1-1e-9) {
			t.Errorf("P(Z > %g) = %g, want %g", z, q, p)
		}
	}
}

// TestDynamicRows checks that the number of rows depends on the test only if the sketch alone has a guarantee.
func TestDynamicRows(t *testing.T) {
	t.Parallel()
	p := params(0.5, 1e-6)
	for _, acc := range []Accounting{Exact, RDP, Paper} {
		n, err := calibrateMixing(acc, p, 100)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := dynamicRows(acc, p, n, 100, 2*n.Gamma); (err == nil) != (acc == Paper) ||
			err == nil && rows <= 100 {
			t.Errorf("%s: %d rows, %v", acc, rows, err)
		}
	}
}
