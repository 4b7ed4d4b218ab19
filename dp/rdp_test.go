package dp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestRenyiTable compares every kind of term with 25 digits of the printed formulas, also at the ends of their ranges.
func TestRenyiTable(t *testing.T) {
	for _, c := range renyiTable {
		got, err := Curve{c.term}.At(c.alpha)
		if err != nil {
			t.Fatal(err)
		}
		// Near the end of the range the rounding of alpha to float64 matters.
		rel := 2e-14
		if limit := c.term.limit(); c.alpha > 0.9*limit {
			rel *= 1 / (1 - c.alpha/limit)
		}
		above(t, fmt.Sprintf("%+v at %g", c.term, c.alpha), got, c.r, rel)
	}
}

// TestTightTable compares conversions with the minimum over all orders in 25 digits. They must never be below the
// minimum, and be within 10⁻¹⁰ of it.
func TestTightTable(t *testing.T) {
	for _, c := range tightTable {
		eps, err := c.curve.Epsilon(c.delta)
		if err != nil {
			t.Fatal(err)
		}
		above(t, fmt.Sprintf("ε(%g) of %+v", c.delta, c.curve), eps, c.epsilon, 1e-10)
		l, err := c.curve.logDelta(c.eps)
		if err != nil {
			t.Fatal(err)
		}
		// For a negative number, being above means being closer to zero.
		above(t, fmt.Sprintf("log δ(%g) of %+v", c.eps, c.curve), l, c.logDelta, -1e-10)
		if d, err := c.curve.Delta(c.eps); err != nil || !(d >= math.Exp(l) && d <= 1) {
			t.Errorf("δ(%g) of %+v is %g, %v", c.eps, c.curve, d, err)
		}
	}
}

// TestCurveRange checks that orders outside the range and invalid terms are errors. Inside the range no curve may be
// NaN, infinite, negative or falling.
func TestCurveRange(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		term  Term
		limit float64
	}{
		{Term{Kind: KindGaussian, Count: 1, Mu: 0.3}, inf},
		{Term{Kind: KindPure, Count: 2, Epsilon: 0.3}, inf},
		{Term{Kind: KindLaplace, Count: 3, Scale: 5}, inf},
		{Term{Kind: KindSketchRow, Count: 1, Gamma: 5}, 5},
		{Term{Kind: KindSketchRow, Count: 1, Gamma: 1 + 1e-15}, 1 + 1e-15},
		{Term{Kind: KindSketchRowReplace, Count: 9, Gamma: 1e12}, 1e12},
		{Term{Kind: KindFastMixRow, Count: 1, Gamma: 20}, 40 * (math.Sqrt2 - 1)},
		{Term{Kind: KindFastMixRow, Count: 1, Gamma: 20, C2: 1}, 20},
		{Term{Kind: KindFastMixRow, Count: 1, Gamma: 1.2072}, 2.4144 * (math.Sqrt2 - 1)},
	} {
		curve := Curve{c.term}
		limit, err := curve.Range()
		if err != nil || !(math.Abs(limit-c.limit) <= 1e-15*c.limit || limit == c.limit) {
			t.Fatalf("%+v: range ends at %g, want %g, %v", c.term, limit, c.limit, err)
		}
		for _, alpha := range []float64{nan, inf, -inf, -1, 0, 1, limit, math.Nextafter(limit, inf), 2 * limit} {
			if r, err := curve.At(alpha); err == nil {
				t.Errorf("%+v at %g: %g", c.term, alpha, r)
			}
		}
		last := 0.0
		for x := 1e-13; 1+x < limit*(1-1e-15) && x < 1e13; x *= 1.1 {
			r, err := curve.At(1 + x)
			if err != nil || !(r >= last*(1-1e-13)) || r > 1e200 {
				t.Fatalf("%+v at 1+%g: %g after %g, %v", c.term, x, r, last, err)
			}
			last = r
		}
	}
	for _, term := range []Term{
		{}, {Kind: "gauss", Count: 1, Mu: 1}, {Kind: KindGaussian, Mu: 1}, {Kind: KindGaussian, Count: -1, Mu: 1},
		{Kind: KindGaussian, Count: 1},
		{Kind: KindGaussian, Count: 1, Mu: nan}, {Kind: KindGaussian, Count: 1, Mu: inf},
		{Kind: KindGaussian, Count: 1, Mu: 1, Gamma: 3},
		{Kind: KindGaussian, Count: 1, Mu: 1, Scale: nan}, {Kind: KindPure, Count: 1, Epsilon: -1},
		{Kind: KindPure, Count: 1, Epsilon: nan},
		{Kind: KindLaplace, Count: 1}, {Kind: KindLaplace, Count: 1, Scale: inf},
		{Kind: KindSketchRow, Count: 1, Gamma: 1},
		{Kind: KindSketchRow, Count: 1, Gamma: nan}, {Kind: KindSketchRow, Count: 1, Gamma: inf},
		{Kind: KindFastMixRow, Count: 1, Gamma: 1.2},
		{Kind: KindFastMixRow, Count: 1, Gamma: 20, C2: 0.5}, {Kind: KindFastMixRow, Count: 1, Gamma: 20, C2: nan},
		{Kind: KindFastMixRow, Count: 1, Gamma: nan},
		{Kind: KindFastMixRow, Count: 1, Gamma: inf, C2: 2},
	} {
		curve := Curve{{Kind: KindGaussian, Count: 1, Mu: 1}, term}
		_, e1 := curve.Range()
		_, e2 := curve.At(2)
		_, e3 := curve.Epsilon(0.1)
		_, e4 := curve.Delta(1)
		if e1 == nil || e2 == nil || e3 == nil || e4 == nil {
			t.Errorf("%+v is accepted: %v, %v, %v, %v", term, e1, e2, e3, e4)
		}
	}
	for _, delta := range []float64{0, 1, -1, nan, inf} {
		if e, err := (Curve{}).Epsilon(delta); err == nil {
			t.Errorf("delta %g: %g", delta, e)
		}
	}
	for _, eps := range []float64{-1, nan, inf} {
		if d, err := (Curve{}).Delta(eps); err == nil {
			t.Errorf("epsilon %g: %g", eps, d)
		}
	}
}

// TestCurveInverse computes ε from δ and δ from that ε, which must give the same δ. More terms must cost more, and no
// terms nothing.
func TestCurveInverse(t *testing.T) {
	source := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		// With a Gaussian term, δ is positive for every finite ε.
		c := Curve{{Kind: KindGaussian, Count: 1, Mu: 0.05 + source.ExpFloat64()}}
		for range source.IntN(3) {
			n := 1 + source.IntN(20)
			switch source.IntN(5) {
			case 0:
				c = c.Add(Term{Kind: KindPure, Count: n, Epsilon: source.ExpFloat64()})
			case 1:
				c = c.Add(Term{Kind: KindLaplace, Count: n, Scale: 1 + source.ExpFloat64()*10})
			case 2:
				c = c.Add(Term{Kind: KindSketchRow, Count: n, Gamma: 1.01 + source.ExpFloat64()*100})
			case 3:
				c = c.Add(Term{Kind: KindSketchRowReplace, Count: n, Gamma: 1.01 + source.ExpFloat64()*100})
			case 4:
				c = c.Add(
					Term{Kind: KindFastMixRow, Count: n, Gamma: 1.3 + source.ExpFloat64()*100,
						C2: float64(source.IntN(2)) * (1 + source.ExpFloat64())})
			}
		}
		delta := math.Exp(-1 - 30*source.Float64())
		eps, err := c.Epsilon(delta)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		back, err := c.Delta(eps)
		if err != nil || back > delta*(1+1e-9) || eps > 0 && back < delta*(1-1e-4) {
			t.Errorf("%+v: δ(ε(%g)) = %g, %v", c, delta, back, err)
		}
		more, err := c.Add(Term{Kind: KindGaussian, Count: 1, Mu: 0.1}).Epsilon(delta)
		if err != nil || !(more >= eps) {
			t.Errorf("%+v: %g, with a Gaussian %g, %v", c, eps, more, err)
		}
	}
	if e, err := (Curve{}).Epsilon(0.5); err != nil || e != 0 {
		t.Errorf("an empty curve costs %g, %v", e, err)
	}
	// Add must not write into the curve that it extends.
	base := append(make(Curve, 0, 8), Term{Kind: KindGaussian, Count: 1, Mu: 1})
	one, two := base.Add(Term{Kind: KindPure, Count: 1, Epsilon: 1}),
		base.Add(Term{Kind: KindPure, Count: 1, Epsilon: 2})
	if one[1].Epsilon != 1 || two[1].Epsilon != 2 {
		t.Error("curves share their terms")
	}
}

// TestClosedFormLoose checks that the exact row curve is below the papers' closed forms wherever these hold.
func TestClosedFormLoose(t *testing.T) {
	for _, gamma := range []float64{5, 20, 300, 1e4} {
		for alpha := 1.001; alpha < 8*gamma/25; alpha *= 1.05 {
			fast, err := Curve{{Kind: KindFastMixRow, Count: 1, Gamma: gamma}}.At(alpha)
			if err != nil || !(fast <= 25*alpha/(32*gamma*gamma)) {
				t.Errorf("FastMix row, order %g, gamma %g: %g, %v", alpha, gamma, fast, err)
			}
			dense, err := Curve{{Kind: KindSketchRow, Count: 1, Gamma: gamma}}.At(alpha)
			if err != nil || !(dense <= alpha/(2*gamma*gamma)) || !(dense < fast) {
				t.Errorf("dense row, order %g, gamma %g: %g, %v", alpha, gamma, dense, err)
			}
		}
	}
}

func TestZCDP(t *testing.T) {
	for _, rho := range []float64{0, 1e-12, 1e-6, 0.01, 0.5, 3, 50} {
		for _, delta := range []float64{1e-300, 1e-20, 1e-6, 0.01, 0.3} {
			simple, e1 := ZCDP(rho).Simple(delta)
			tight, e2 := ZCDP(rho).Tight(delta)
			exact, e3 := ZCDP(rho).Exact(delta)
			if e1 != nil || e2 != nil || e3 != nil || !(exact <= tight && tight <= simple) {
				t.Errorf("rho %g, delta %g: exact %g, tight %g, simple %g, %v, %v, %v", rho, delta, exact, tight,
					simple, e1, e2, e3)
			}
			back, err := RhoSimple(simple, delta)
			if err != nil || !(math.Abs(float64(back)-rho) <= 1e-13*rho) {
				t.Errorf("rho %g, delta %g: back %g, %v", rho, delta, float64(back), err)
			}
			if again, err := back.Simple(delta); err != nil || again > simple*(1+1e-14) {
				t.Errorf("rho %g, delta %g: %g, then %g, %v", rho, delta, simple, again, err)
			}
		}
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range [][2]float64{{-1, 0.1}, {nan, 0.1}, {inf, 0.1}, {1, 0}, {1, 1}, {1, nan}} {
		rho := ZCDP(c[0])
		for what, f := range map[string]func(float64) (float64, error){"simple": rho.Simple, "tight": rho.Tight,
			"exact": rho.Exact} {
			if e, err := f(c[1]); err == nil {
				t.Errorf("%s%v = %g", what, c, e)
			}
		}
		if r, err := RhoSimple(c[0], c[1]); err == nil {
			t.Errorf("RhoSimple%v = %g", c, float64(r))
		}
	}
}
