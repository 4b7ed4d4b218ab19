package dp

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
)

// above fails if got is below the exact value, or above it by more than the relative tolerance. want has 25 digits.
func above(t *testing.T, what string, got float64, want string, rel float64) {
	t.Helper()
	exact, _, err := big.ParseFloat(want, 10, 200, big.ToNearestEven)
	if err != nil {
		t.Fatal(err)
	}
	// Allow half a unit of the 25th digit.
	unit := new(big.Float).Mul(exact, big.NewFloat(1e-24))
	low := new(big.Float).Sub(exact, unit.Abs(unit))
	if math.IsNaN(got) || big.NewFloat(got).Cmp(low) < 0 {
		t.Errorf("%s is %.17g, below the exact %s", what, got, want)
	}
	e, _ := exact.Float64()
	if !(got <= e*(1+rel)+1e-305) {
		t.Errorf("%s is %.17g, too far above %s: by %.2g", what, got, want, got/e-1)
	}
}

// TestJointTable compares both directions with values of 25 digits from another formula. The result must never be
// smaller, and may be larger only by as much as documented.
func TestJointTable(t *testing.T) {
	for _, c := range jointTable {
		name := fmt.Sprintf("epsilon %g, mu %g, %d rows, gamma %g: ", c.eps, c.mu, c.rows, c.gamma)
		rel, k := 1e-10, float64(c.rows)
		switch {
		case c.mu == 0:
			rel = 1e-9 // incomplete gamma functions
		case c.rows < 8:
			rel = 1e-7
		}
		rel = max(rel, 1e-13*math.Sqrt(k))
		removed, added := pair{c.mu, k, 0, c.gamma}.logDelta(c.eps), pair{c.mu, 0, k, c.gamma}.logDelta(c.eps)
		above(t, name+"removal", expUp(removed), c.removed, rel)
		above(t, name+"addition", expUp(added), c.added, rel)
		got, err := jointDelta(c.eps, c.mu, c.rows, c.gamma, ZeroOut)
		if err != nil || got != expUp(max(removed, added)) {
			t.Errorf("%s%g, %v", name, got, err)
		}
		if c.mu == 0 {
			// If the closed form is used, the integral must agree with it.
			if rel = max(1e-10, 1e-13*math.Sqrt(k)); c.rows < 8 {
				rel = 1e-7
			}
			above(t, name+"removal, integral", expUp(pair{0, k, 0, c.gamma}.invert(c.eps)), c.removed, rel)
			above(t, name+"addition, integral", expUp(pair{0, 0, k, c.gamma}.invert(c.eps)), c.added, rel)
		}
	}
}

func TestReplaceTable(t *testing.T) {
	for _, c := range replaceTable {
		got, err := jointDelta(c.eps, c.mu, c.rows, c.gamma, Replace)
		if err != nil {
			t.Fatal(err)
		}
		above(t, fmt.Sprintf("epsilon %g, mu %g, %d rows, gamma %g", c.eps, c.mu, c.rows, c.gamma), got, c.delta, 1e-10)
	}
}

func TestEpsilonTable(t *testing.T) {
	for _, c := range epsilonTable {
		got, err := jointEpsilon(c.delta, c.mu, c.rows, c.gamma, ZeroOut)
		if err != nil {
			t.Fatal(err)
		}
		above(t, fmt.Sprintf("delta %g, mu %g, %d rows, gamma %g", c.delta, c.mu, c.rows, c.gamma), got, c.eps, 1e-10)
	}
}

// chiSquare calls f with the nodes of R ~ χ²_K and their weights, by quadrature in u = √R between cuts: 9 equidistant
// ones, and c and c ± {1, 2, 4, 8}·w, where the inner curve bends.
func chiSquare(k, c, w float64, f func(r, weight float64)) {
	lo, hi := max(0, k-10*math.Sqrt(2*k)), k+12*math.Sqrt(2*k)+60
	var cuts []float64
	for i := range 11 {
		cuts = append(cuts, lo+(hi-lo)*float64(i)/10)
	}
	for _, j := range []float64{-8, -4, -2, -1, 0, 1, 2, 4, 8} {
		cuts = append(cuts, min(hi, max(lo, c+j*w)))
	}
	for i := range cuts {
		cuts[i] = math.Sqrt(cuts[i])
	}
	sortFloats(cuts)
	lg, _ := math.Lgamma(k / 2)
	nodes, weights := legendre64()
	for i := range cuts[1:] {
		a, b := cuts[i], cuts[i+1]
		if b <= a {
			continue
		}
		for n, x := range nodes {
			u := a + (b-a)*x
			f(u*u, weights[n]*(b-a)*math.Exp((k-1)*math.Log(u)-u*u/2-(k/2-1)*math.Ln2-lg))
		}
	}
}

func sortFloats(x []float64) {
	for i := range x {
		for j := i; j > 0 && x[j] < x[j-1]; j-- {
			x[j], x[j-1] = x[j-1], x[j]
		}
	}
}

// conditioned returns δ(ε) by conditioning on the χ² part: the textbook form of the integral, with other nodes in
// another variable.
func conditioned(p pair, eps float64) float64 {
	if p.removed > 0 && p.added > 0 {
		var delta float64
		slope := 1 / (2 * (p.gamma + 1))
		shift := p.added / 2 * math.Log1p(1/p.gamma)
		one := pair{p.mu, p.removed, 0, p.gamma}
		c := (shift - eps) / slope
		chiSquare(p.added, c, p.mu/slope, func(r, w float64) {
			if w > 1e-25 {
				delta += w * conditioned(one, eps-shift+slope*r)
			}
		})
		return delta
	}
	v, k := 1-1/p.gamma, p.removed
	if p.added > 0 {
		v, k = 1+1/p.gamma, p.added
	}
	slope, shift := (1/v-1)/2, k/2*math.Log(v)
	var delta float64
	chiSquare(k, (eps-shift)/slope, math.Abs(p.mu/slope), func(r, w float64) {
		if w > 1e-25 {
			delta += w * math.Exp(LogDelta(eps-shift-slope*r, p.mu))
		}
	})
	return delta
}

// TestJointConditioned compares two ways to compute the integral, at 20 random points, with STREAMDP_SLOW=1 at 40.
func TestJointConditioned(t *testing.T) {
	points := 20
	if os.Getenv("STREAMDP_SLOW") != "" {
		points = 40
	}
	source := rand.New(rand.NewPCG(7, 7))
	check := func(p pair, eps, rel float64) {
		got, want := math.Exp(p.logDelta(eps)), conditioned(p, eps)
		if want < 1e-15 {
			return
		}
		if !(math.Abs(got-want) <= rel*want) {
			t.Errorf("%+v at %g: %.15g, conditioned %.15g (%.2g)", p, eps, got, want, got/want-1)
		}
	}
	for range points {
		k := math.Floor(math.Exp(source.Float64() * math.Log(5000)))
		gamma := 1.2 + math.Exp(source.Float64()*math.Log(2000))
		mu := math.Exp(source.Float64()*math.Log(4/1e-3)) * 1e-3
		// ε between 0 and 5 deviations of the loss.
		eps := source.Float64() * 5 * math.Sqrt(mu*mu+k/(2*gamma*gamma))
		rel := 1e-9
		if k < 8 {
			rel = 1e-7
		}
		check(pair{mu, k, 0, gamma}, eps, rel)
		check(pair{mu, 0, k, gamma}, eps, rel)
	}
	check(pair{0.01, 12, 12, 10}, 1, 1e-9)
}

// TestJointFewRows: with few rows and almost no Gaussian noise, the tail of the sum decides how much the result exceeds
// the exact value. The closed form without Gaussian noise is used as the exact value, because so little noise changes
// it by less than the compared bounds. With STREAMDP_SLOW=1 it tests twice as many ε.
func TestJointFewRows(t *testing.T) {
	apart := 1.
	if os.Getenv("STREAMDP_SLOW") != "" {
		apart = 0.5
	}
	for k := 1.0; k < 8; k++ {
		for _, gamma := range []float64{1.0001, 1.01, 1.1, 1.5, 5, 30} {
			bound := 2e-7
			switch {
			case gamma < 1.1:
				bound = 0.01
			case k == 1:
				bound = 2e-5
			}
			for _, p := range []pair{{0, k, 0, gamma}, {0, 0, k, gamma}} {
				for lg := -8.0; lg < 2.5; lg += apart {
					eps := math.Pow(10, lg)
					want := math.Exp(p.logDelta(eps))
					if want < 1e-60 {
						continue
					}
					p := p
					p.mu = 1e-10
					if got := math.Exp(p.logDelta(eps)); !(got >= want*(1-1e-9) && got <= want*(1+bound)) {
						t.Errorf("%+v at %g: %.15g, without Gaussian noise %.15g (%.2g)", p, eps, got, want, got/want-1)
					}
				}
			}
		}
	}
}

// TestJointLimits checks the limits. Without Gaussian noise the result must be the sketch's curve, and without rows the
// Gaussian's. It must be continuous at both limits.
func TestJointLimits(t *testing.T) {
	for _, a := range []Adjacency{ZeroOut, Replace} {
		for _, eps := range []float64{0.1, 0.5, 2} {
			zero, err := jointDelta(eps, 0, 72, 30, a)
			if err != nil {
				t.Fatal(err)
			}
			tiny, err := jointDelta(eps, 1e-9, 72, 30, a)
			if err != nil || !(math.Abs(tiny-zero) <= 1e-9*zero) {
				t.Errorf("%v, epsilon %g: %g with mu 1e-9, %g with 0, %v", a, eps, tiny, zero, err)
			}
			want := math.Exp(LogDelta(eps, 0.4))
			none, err := jointDelta(eps, 0.4, 0, 0, a)
			if err != nil || !(none >= want && none <= want*(1+1e-12)) {
				t.Errorf("%v, epsilon %g: %g without rows, Gaussian %g, %v", a, eps, none, want, err)
			}
			few, err := jointDelta(eps, 0.4, 4, 1e12, a)
			if err != nil || !(math.Abs(few-want) <= 1e-9*want) {
				t.Errorf("%v, epsilon %g: %g with rows of gamma 1e12, Gaussian %g, %v", a, eps, few, want, err)
			}
		}
	}
	sketch, err := sketchDelta(1, 100, 20)
	joint, err2 := jointDelta(1, 0, 100, 20, ZeroOut)
	if err != nil || err2 != nil || sketch != joint {
		t.Errorf("sketch %g, joint %g, %v, %v", sketch, joint, err, err2)
	}
}

// TestJointMonotone checks that δ falls with ε and γ, and rises with μ and K. Under Replace with twice the shift, δ
// must be at least that of ZeroOut.
func TestJointMonotone(t *testing.T) {
	delta := func(eps, mu float64, rows int, gamma float64, a Adjacency) float64 {
		d, err := jointDelta(eps, mu, rows, gamma, a)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	source := rand.New(rand.NewPCG(3, 1))
	for range 300 {
		rows, a := 1+source.IntN(400), Adjacency(1+source.IntN(2))
		gamma, mu := 1.05+200*source.ExpFloat64(), source.Float64()*2
		if source.IntN(4) == 0 {
			mu = 0
		}
		eps := source.Float64() * 8 * math.Sqrt(mu*mu+float64(rows)/(2*gamma*gamma))
		base := delta(eps, mu, rows, gamma, a)
		tol := base * 2e-9
		if rows < 8 {
			tol = base * 2e-7
		}
		for what, more := range map[string]float64{
			"smaller epsilon": delta(eps*0.9, mu, rows, gamma, a), "larger mu": delta(eps, mu*1.1+1e-3, rows, gamma, a),
			"more rows": delta(eps, mu, rows+1, gamma, a), "smaller gamma": delta(eps, mu, rows, 1+(gamma-1)*0.9, a),
			"replace": delta(eps, mu, rows, gamma, Replace),
		} {
			if !(more >= base-tol) {
				t.Errorf("epsilon %g, mu %g, %d rows, gamma %g, %v: %g, with %s %g", eps, mu, rows, gamma, a,
					base, what, more)
			}
		}
	}
}

// TestJointInverse computes ε from δ, and δ from that ε, for δ down to 10⁻³⁰⁰. The second δ must be just below the
// first, and the exact ε must be at most that of the Rényi curve.
func TestJointInverse(t *testing.T) {
	for _, a := range []Adjacency{ZeroOut, Replace} {
		for _, c := range []Cost{
			{Rows: 216, Gamma: 327.2}, {Mu: 0.2, Rows: 216, Gamma: 327.2}, {Mu: 1, Rows: 264, Gamma: 120},
			{Mu: 0.01, Rows: 20, Gamma: 3},
			{Mu: 3, Rows: 12, Gamma: 1.5}, {Mu: 0.3}, {Rows: 20000, Gamma: 2200},
		} {
			c.Adjacency = a
			last := 0.0
			for _, delta := range []float64{0.1, 1e-3, 1e-6, 1e-9, 1e-20, 1e-100, 1e-300} {
				eps, err := c.Epsilon(delta)
				if err != nil {
					t.Fatal(err)
				}
				back, err := c.Delta(eps)
				if err != nil || !(back <= delta*(1+1e-11)) || eps > 0 && !(back >= delta*(1-1e-8)) {
					t.Errorf("%+v: δ(ε(%g)) = %g, %v", c, delta, back, err)
				}
				if eps < last {
					t.Errorf("%+v: ε(%g) = %g after %g", c, delta, eps, last)
				}
				last = eps
				bound, err := c.Curve().Epsilon(delta)
				if err != nil || !(eps <= bound) {
					t.Errorf("%+v: ε(%g) = %g above the Rényi bound %g, %v", c, delta, eps, bound, err)
				}
			}
		}
	}
}

// TestReplaceTwoSteps: a replacement is a removal and an addition, so δ_replace(2ε; 2μ) ≤ δ_removed(ε; μ) + e^ε
// δ_added(ε; μ). It is in fact much smaller.
func TestReplaceTwoSteps(t *testing.T) {
	for _, c := range []struct {
		mu, gamma, eps float64
		rows           int
	}{{0.1, 327.2, 0.4, 216}, {0.3, 20, 1, 60}, {0, 100, 0.3, 100}, {0.05, 4, 2, 12}} {
		one, err := jointDelta(2*c.eps, 2*c.mu, c.rows, c.gamma, Replace)
		if err != nil {
			t.Fatal(err)
		}
		k := float64(c.rows)
		two := math.Exp(pair{c.mu, k, 0, c.gamma}.logDelta(c.eps)) +
			math.Exp(c.eps+pair{c.mu, 0, k, c.gamma}.logDelta(c.eps))
		if !(one <= two) {
			t.Errorf("%+v: %g in one step, %g in two", c, one, two)
		}
	}
}

func TestJointRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		eps, mu float64
		rows    int
		gamma   float64
		a       Adjacency
	}{
		{-1, 1, 1, 2, ZeroOut}, {nan, 1, 1, 2, ZeroOut}, {inf, 1, 1, 2, ZeroOut}, {1, -1, 1, 2, ZeroOut},
		{1, nan, 1, 2, ZeroOut}, {1, inf, 1, 2, ZeroOut},
		{1, 2e6, 1, 2, ZeroOut}, {1, 1, -1, 2, ZeroOut}, {1, 1, 1, 1, ZeroOut}, {1, 1, 1, 0, ZeroOut},
		{1, 1, 1, -3, ZeroOut}, {1, 1, 1, nan, ZeroOut},
		{1, 1, 1, inf, ZeroOut}, {1, 1, 1, 2, 0}, {1, 1, 1, 2, 3},
	} {
		if d, err := jointDelta(c.eps, c.mu, c.rows, c.gamma, c.a); err == nil {
			t.Errorf("%+v: δ = %g", c, d)
		}
		if c.eps == 1 {
			if e, err := jointEpsilon(1e-6, c.mu, c.rows, c.gamma, c.a); err == nil {
				t.Errorf("%+v: ε = %g", c, e)
			}
		}
	}
	for _, delta := range []float64{0, 1, -1, nan} {
		if e, err := sketchEpsilon(delta, 10, 20); err == nil {
			t.Errorf("delta %g: ε = %g", delta, e)
		}
	}
}

// TestJointFinite checks that the result is a probability for all valid arguments.
func TestJointFinite(t *testing.T) {
	for _, eps := range []float64{0, 1e-300, 1e-9, 1, 700, 1e6, 1e300} {
		for _, mu := range []float64{0, 1e-300, 1e-9, 1, 1e6} {
			for _, rows := range []int{0, 1, 3, 1000, maxCount} {
				for _, gamma := range []float64{1 + 1e-15, 1.5, 1e3, 1e300} {
					for _, a := range []Adjacency{ZeroOut, Replace} {
						if testing.Short() && rows == 1 {
							continue
						}
						if d, err := jointDelta(eps, mu, rows, gamma, a); err != nil || !(d >= 0 && d <= 1) {
							t.Errorf("epsilon %g, mu %g, %d rows, gamma %g, %v: %g, %v", eps, mu, rows,
								gamma, a, d, err)
						}
					}
				}
			}
		}
	}
}
