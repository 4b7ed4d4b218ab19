package dp

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestCompose(t *testing.T) {
	c := Compose(Cost{Adjacency: ZeroOut, Mu: 3}, Cost{Adjacency: ZeroOut, Mu: 4})
	if c.Mu < 5 || c.Mu > 5*(1+2e-15) || c.Adjacency != ZeroOut {
		t.Errorf("3 and 4 compose to %+v", c)
	}
	if one := (Cost{Adjacency: Replace, Mu: 0.3}); !Compose(one).Equal(one) ||
		!Compose(one, Cost{Adjacency: Replace}).Equal(one) {
		t.Error("composing a single cost changes it")
	}
	if c := Compose(Cost{Adjacency: ZeroOut, Mu: 1e-200},
		Cost{Adjacency: ZeroOut, Mu: 1e-200}); !(c.Mu >= math.Sqrt2*1e-200) {
		t.Errorf("the sum of small squares is %g", c.Mu)
	}
	laplace, pure := Term{Kind: KindLaplace, Count: 2, Scale: 10}, Term{Kind: KindPure, Count: 1, Epsilon: 0.1}
	fast := Term{Kind: KindFastMixRow, Count: 100, Gamma: 20, C2: 2}
	a := Cost{Adjacency: ZeroOut, Mu: 0.1, Rows: 72, Gamma: 300, Terms: []Term{laplace, fast}, BadDelta: 1e-9}
	b := Cost{Adjacency: ZeroOut, Mu: 0.2, Rows: 8, Gamma: 200, Terms: []Term{pure, laplace}, BadDelta: 2e-9}
	got := Compose(a, b)
	laplace.Count = 4
	want := Cost{Adjacency: ZeroOut, Mu: got.Mu, Rows: 80, Gamma: 200, Terms: []Term{fast, laplace, pure},
		BadDelta: got.BadDelta}
	if !got.Equal(want) || !(got.BadDelta >= 3e-9 && got.BadDelta < 3.0000001e-9) {
		t.Errorf("composed to %+v", got)
	}
	if a.Terms[0].Count != 2 {
		t.Error("Compose wrote into its arguments")
	}
	if !got.Covers(a) || !got.Covers(b) || a.Covers(b) || b.Covers(a) || a.Covers(got) || !got.Covers(got) {
		t.Error("a composition must cover its parts and must not be covered by them")
	}
	defer func() {
		if recover() == nil {
			t.Error("Compose accepted two adjacencies")
		}
	}()
	Compose(Cost{Adjacency: ZeroOut, Mu: 1}, Cost{Adjacency: Replace, Mu: 1})
}

// TestComposeOrder checks that the order of costs does not change a bit of the result.
func TestComposeOrder(t *testing.T) {
	source := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		var costs []Cost
		for range 2 + source.IntN(6) {
			costs = append(costs, randomCost(source, ZeroOut))
		}
		want := Compose(costs...)
		source.Shuffle(len(costs), func(i, j int) { costs[i], costs[j] = costs[j], costs[i] })
		if got := Compose(costs...); !got.Equal(want) {
			t.Fatalf("%+v in one order, %+v in another", want, got)
		}
		for _, c := range costs {
			if !want.Covers(c) {
				t.Fatalf("%+v does not cover %+v", want, c)
			}
		}
	}
}

// TestComposeRounds checks that sums are at least the exact sums, and close to them.
func TestComposeRounds(t *testing.T) {
	source := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		var costs []Cost
		squares, bad := new(big.Float).SetPrec(500), new(big.Float).SetPrec(500)
		for range 1 + source.IntN(200) {
			c := Cost{Adjacency: ZeroOut, Mu: math.Exp(30*source.Float64() - 15), BadDelta: 1e-6 * source.Float64()}
			costs = append(costs, c)
			m := new(big.Float).SetPrec(500).SetFloat64(c.Mu)
			squares.Add(squares, m.Mul(m, m))
			bad.Add(bad, new(big.Float).SetFloat64(c.BadDelta))
		}
		c := Compose(costs...)
		within := func(what string, got float64, exact *big.Float) {
			excess, _ := new(big.Float).SetPrec(500).Sub(new(big.Float).SetFloat64(got), exact).Float64()
			if !(excess >= 0 && excess <= 1e-13*got) {
				t.Fatalf("%d costs: %s is %g, off by %g", len(costs), what, got, excess)
			}
		}
		within("mu", c.Mu, squares.Sqrt(squares))
		within("bad delta", c.BadDelta, bad)
	}
	for _, k := range []int{3, 7, 10} {
		c, err := Cost{Adjacency: ZeroOut, Mu: 0.1}.Group(k)
		exact := new(big.Float).SetPrec(200).Mul(big.NewFloat(0.1).SetPrec(200), big.NewFloat(float64(k)))
		if err != nil || big.NewFloat(c.Mu).Cmp(exact) < 0 || c.Mu > 0.1*float64(k)*(1+1e-15) {
			t.Errorf("group of %d: %g, %v", k, c.Mu, err)
		}
	}
}

func randomCost(source *rand.Rand, a Adjacency) Cost {
	c := Cost{Adjacency: a, Mu: math.Round(20*source.Float64()) / 10}
	if source.IntN(3) == 0 {
		c.Rows, c.Gamma = 8+source.IntN(100), 2+math.Round(source.Float64()*100)
	}
	if source.IntN(4) == 0 {
		c.Terms = append(c.Terms,
			Term{Kind: KindLaplace, Count: 1 + source.IntN(3), Scale: 5 + float64(source.IntN(3))})
	}
	if source.IntN(4) == 0 {
		c.BadDelta = 1e-9 * float64(source.IntN(4))
	}
	return c
}

// TestCostEpsilon checks that each kind of cost uses the tightest curve that holds for it, and that BadDelta is
// subtracted first.
func TestCostEpsilon(t *testing.T) {
	const delta = 1e-6
	is := func(c Cost, delta float64, want float64, err error) {
		t.Helper()
		got, e := c.Epsilon(delta)
		if err != nil || e != nil || got != want {
			t.Errorf("%+v: %g, %v, want %g, %v", c, got, e, want, err)
		}
	}
	z := Cost{Adjacency: ZeroOut}
	is(z, delta, 0, nil)
	c := z
	c.Mu = 0.3
	want, err := Epsilon(delta, 0.3)
	is(c, delta, want, err)
	c.BadDelta = 4e-7
	want, err = Epsilon(math.Nextafter(delta-4e-7, 0), 0.3)
	is(c, delta, want, err)
	c.Rows, c.Gamma = 60, 20
	want, err = jointEpsilon(math.Nextafter(delta-4e-7, 0), 0.3, 60, 20, ZeroOut)
	is(c, delta, want, err)
	c.Adjacency = Replace
	want, err = jointEpsilon(math.Nextafter(delta-4e-7, 0), 0.3, 60, 20, Replace)
	is(c, delta, want, err)
	c.Terms = []Term{{Kind: KindPure, Count: 3, Epsilon: 0.1}}
	want, err = Curve{{Kind: KindGaussian, Count: 1, Mu: 0.3}, {Kind: KindSketchRowReplace, Count: 60, Gamma: 20},
		c.Terms[0]}.Epsilon(math.Nextafter(delta-4e-7, 0))
	is(c, delta, want, err)
	for _, delta := range []float64{4e-7, 1e-7, 0, 1, math.NaN()} {
		if e, err := c.Epsilon(delta); err == nil {
			t.Errorf("delta %g: %g", delta, e)
		}
	}
	// δ(ε) includes BadDelta.
	for _, c := range []Cost{c, {Adjacency: ZeroOut, Mu: 0.3, BadDelta: 1e-7},
		{Adjacency: ZeroOut, Rows: 60, Gamma: 20, BadDelta: 1e-7}} {
		eps, err := c.Epsilon(delta)
		back, err2 := c.Delta(eps)
		if err != nil || err2 != nil || !(back <= delta*(1+1e-9) && back >= delta*(1-1e-6)) {
			t.Errorf("%+v: δ(ε(δ)) = %g, %v, %v", c, back, err, err2)
		}
	}
}

// TestWithin checks that a cost calibrated to (ε, δ) is within (ε, δ), and that a cost larger by one part in 10⁹ is
// not.
func TestWithin(t *testing.T) {
	for _, eps := range []float64{0.1, 1, 3.7} {
		for _, delta := range []float64{1e-5, 1e-9} {
			mu, err := Mu(eps, delta)
			if err != nil {
				t.Fatal(err)
			}
			c := Cost{Adjacency: Replace, Mu: mu}
			in, err := Compose(c).Within(eps, delta)
			c.Mu *= 1 + 1e-9
			out, err2 := c.Within(eps, delta)
			if !in || out || err != nil || err2 != nil {
				t.Errorf("Gaussian at (%g, %g): %v, %v, %v, %v", eps, delta, in, out, err, err2)
			}
			// The smallest γ for 60 rows and μ = 0.8·Mu, as a calibration finds it.
			c = Cost{Adjacency: Replace, Mu: 0.8 * mu, Rows: 60}
			lo, hi := 1.1, 1e6
			for hi-lo > 1e-12*hi {
				mid := (lo + hi) / 2
				if d, err := jointDelta(eps, c.Mu, 60, mid, Replace); err == nil && d <= delta {
					hi = mid
				} else {
					lo = mid
				}
			}
			c.Gamma = hi
			in, err = Compose(c).Within(eps, delta)
			c.Gamma *= 1 - 1e-9
			out, err2 = c.Within(eps, delta)
			if !in || out || err != nil || err2 != nil {
				t.Errorf("sketch at (%g, %g): %v, %v, %v, %v", eps, delta, in, out, err, err2)
			}
		}
	}
	if in, err := (Cost{Adjacency: ZeroOut, Mu: 1e-9, BadDelta: 1e-6}).Within(1, 1e-6); in || err != nil {
		t.Errorf("no delta left: %v, %v", in, err)
	}
	if in, err := (Cost{Adjacency: ZeroOut}).Within(0, 1e-300); !in || err != nil {
		t.Errorf("nothing spent: %v, %v", in, err)
	}
	for _, c := range [][2]float64{{-1, 0.1}, {math.NaN(), 0.1}, {1, 0}, {1, 1}} {
		if in, err := (Cost{Adjacency: ZeroOut}).Within(c[0], c[1]); err == nil {
			t.Errorf("%v: %v", c, in)
		}
	}
}

func TestIn(t *testing.T) {
	c := Cost{Adjacency: ZeroOut, Mu: 0.3, Rows: 60, Gamma: 20, BadDelta: 1e-9,
		Terms: []Term{{Kind: KindLaplace, Count: 2, Scale: 10}, {Kind: KindPure, Count: 1, Epsilon: 0.1}}}
	r, err := c.In(Replace)
	if err != nil || r.Mu != 0.6 || r.Rows != 60 || r.Gamma != 20 || r.BadDelta != 1e-9 || r.Adjacency != Replace ||
		!(r.Terms[0].Scale <= 5 && r.Terms[0].Scale > 4.999) || r.Terms[1].Epsilon != 0.2 {
		t.Errorf("converted to %+v, %v", r, err)
	}
	if c.Terms[0].Scale != 10 {
		t.Error("In wrote into its receiver")
	}
	back, err := r.In(ZeroOut)
	r.Adjacency = ZeroOut
	if err != nil || !back.Equal(r) {
		t.Errorf("converted back to %+v, %v", back, err)
	}
	if same, err := c.In(ZeroOut); err != nil || !same.Equal(c) {
		t.Errorf("converted to itself: %+v, %v", same, err)
	}
	c.Terms = append(c.Terms, Term{Kind: KindFastMixRow, Count: 1, Gamma: 20})
	if r, err := c.In(Replace); err == nil {
		t.Errorf("FastMix rows under replace: %+v", r)
	}
	if r, err := c.In(0); err == nil {
		t.Errorf("no adjacency: %+v", r)
	}
	if r, err := (Cost{}).In(ZeroOut); err == nil {
		t.Errorf("from no adjacency: %+v", r)
	}
}

func TestGroup(t *testing.T) {
	for _, a := range []Adjacency{ZeroOut, Replace} {
		c := Cost{Adjacency: a, Mu: 0.1,
			Terms: []Term{{Kind: KindPure, Count: 1, Epsilon: 0.2}, {Kind: KindLaplace, Count: 1, Scale: 9}}}
		g, err := c.Group(3)
		if err != nil || !(g.Mu >= 0.3 && g.Mu < 0.3000001) || !(g.Terms[0].Epsilon >= 0.6) ||
			!(g.Terms[1].Scale <= 3) || g.Adjacency != a {
			t.Errorf("group of 3: %+v, %v", g, err)
		}
	}
	const delta = 1e-6
	for _, c := range []Cost{
		{Adjacency: ZeroOut, Rows: 60, Gamma: 20}, {Adjacency: ZeroOut, Mu: 0.1, Rows: 216, Gamma: 327.2},
		{Adjacency: ZeroOut, Mu: 0.1, BadDelta: 1e-9},
		{Adjacency: ZeroOut, Terms: []Term{{Kind: KindFastMixRow, Count: 100, Gamma: 50}}},
		{Adjacency: Replace, Rows: 60, Gamma: 20, BadDelta: 1e-12},
	} {
		if g, err := c.Group(2); err == nil {
			t.Errorf("%+v has the group cost %+v, want an error", c, g)
		}
		last, err := c.GroupEpsilon(1, delta)
		one, err2 := c.Epsilon(delta)
		if err != nil || err2 != nil || last != one {
			t.Errorf("%+v: a group of one has %g, %v, one record %g, %v", c, last, err, one, err2)
		}
		for k := 2; k <= 4; k++ {
			eps, err := c.GroupEpsilon(k, delta)
			if err != nil || !(eps > float64(k)*one && eps > last) {
				t.Errorf("%+v: %d records %g after %g, %v", c, k, eps, last, err)
			}
			// The ε must satisfy its definition.
			e := eps / float64(k)
			d, err := c.Delta(e)
			if d *= math.Expm1(eps) / math.Expm1(e); err != nil || !(d <= delta*(1+1e-9)) {
				t.Errorf("%+v: %d records at ε = %g have δ = %g, %v", c, k, eps, d, err)
			}
			last = eps
		}
	}
	for _, c := range []struct {
		cost  Cost
		k     int
		delta float64
	}{
		{Cost{Adjacency: ZeroOut, Rows: 60, Gamma: 3}, 4, delta}, {Cost{Adjacency: ZeroOut, Mu: 1}, 0, delta},
		{Cost{Adjacency: ZeroOut, Rows: 1, Gamma: 2}, -1, delta},
		{Cost{Adjacency: ZeroOut, Rows: 60, Gamma: 20}, 2, 0},
		{Cost{Adjacency: ZeroOut, Rows: 60, Gamma: 20, BadDelta: 1e-6}, 2, delta},
	} {
		if eps, err := c.cost.GroupEpsilon(c.k, c.delta); err == nil {
			t.Errorf("%+v: %d records at %g: %g", c.cost, c.k, c.delta, eps)
		}
	}
}

func TestParallel(t *testing.T) {
	gaussian, sketch := Cost{Adjacency: ZeroOut, Mu: 0.4}, Cost{Adjacency: ZeroOut, Rows: 20, Gamma: 10}
	// Their curves cross, so δ decides which one is worse.
	a, err := Parallel(1e-2, gaussian, sketch)
	b, err2 := Parallel(1e-9, sketch, gaussian)
	if err != nil || err2 != nil || a.Equal(b) {
		t.Errorf("at 10⁻²: %+v, at 10⁻⁹: %+v, %v, %v", a, b, err, err2)
	}
	bad := Cost{Adjacency: ZeroOut, Mu: 0.01, BadDelta: 1e-6}
	if c, err := Parallel(1e-6, gaussian, bad); err != nil || !c.Equal(bad) {
		t.Errorf("a cost without ε is not the worst: %+v, %v", c, err)
	}
	if c, err := Parallel(1e-6); err == nil {
		t.Errorf("without costs: %+v", c)
	}
	if c, err := Parallel(0, gaussian); err == nil {
		t.Errorf("at δ = 0: %+v", c)
	}
	defer func() {
		if recover() == nil {
			t.Error("Parallel accepted two adjacencies")
		}
	}()
	Parallel(1e-6, gaussian, Cost{Adjacency: Replace})
}

// TestCostJSON parses lines of existing ledgers and writes them again unchanged. Other text must not parse.
func TestCostJSON(t *testing.T) {
	for line, want := range map[string]Cost{
		`{"adjacency":"zero-out","mu":0.25}`:                      {Adjacency: ZeroOut, Mu: 0.25},
		`{"adjacency":"replace","mu":0,"rows":216,"gamma":327.2}`: {Adjacency: Replace, Rows: 216, Gamma: 327.2},
		`{"adjacency":"zero-out","mu":0.1,"terms":[{"kind":"fastmix-row","count":100,"gamma":20,"c2":2},{"kind":"laplace","count":2,"scale":10},` +
			`{"kind":"pure","count":1,"epsilon":0.1}],"bad_delta":1e-9}`: {Adjacency: ZeroOut, Mu: 0.1, BadDelta: 1e-9,
			Terms: []Term{
				{Kind: KindFastMixRow, Count: 100, Gamma: 20, C2: 2}, {Kind: KindLaplace, Count: 2, Scale: 10},
				{Kind: KindPure, Count: 1, Epsilon: 0.1}}},
	} {
		var got Cost
		if err := json.Unmarshal([]byte(line), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
		if out, err := json.Marshal(want); err != nil || string(out) != line {
			t.Errorf("%s, want %s, %v", out, line, err)
		}
	}
	for _, line := range []string{
		`{}`, `null`, `[]`, `{"mu":1}`, `{"adjacency":"add-remove","mu":1}`, `{"adjacency":"zero-out","mu":-1}`,
		`{"adjacency":"zero-out","mu":1e7}`,
		`{"adjacency":"zero-out","mu":1,"extra":1}`, `{"adjacency":"zero-out","mu":1,"rows":3}`,
		`{"adjacency":"zero-out","mu":1,"rows":-3,"gamma":5}`,
		`{"adjacency":"zero-out","mu":1,"rows":3,"gamma":1}`, `{"adjacency":"zero-out","mu":1,"gamma":5}`,
		`{"adjacency":"zero-out","mu":1,"bad_delta":1}`,
		`{"adjacency":"zero-out","mu":1,"bad_delta":-1e-9}`,
		`{"adjacency":"zero-out","mu":1,"terms":[{"kind":"gaussian","count":1,"mu":1}]}`,
		`{"adjacency":"zero-out","mu":1,"terms":[{"kind":"laplace","count":1}]}`,
		`{"adjacency":"zero-out","mu":1,"terms":[{"kind":"laplace","count":0,"scale":3}]}`,
		`{"adjacency":"zero-out","mu":1,"terms":[{"kind":"sketch-row","count":1,"gamma":3}]}`,
		`{"adjacency":"replace","mu":1,"terms":[{"kind":"fastmix-row","count":1,"gamma":30}]}`,
		`{"adjacency":"zero-out","mu":1,"terms":[{"kind":"pure","count":1,"epsilon":3,"scale":3}]}`,
	} {
		c := Cost{Adjacency: ZeroOut, Mu: 7}
		if err := json.Unmarshal([]byte(line), &c); err == nil || c.Mu != 7 {
			t.Errorf("%s: %+v, %v", line, c, err)
		}
	}
	if !(Cost{Adjacency: ZeroOut}).Empty() || (Cost{Adjacency: ZeroOut, Rows: 1, Gamma: 2}).Empty() {
		t.Error("Empty is wrong")
	}
}

// FuzzCost parses arbitrary text. If a text parses, it must be a valid cost: it is the same after writing and reading,
// it can be converted and composed, and it has an ε or an error, never NaN.
func FuzzCost(f *testing.F) {
	f.Add([]byte(`{"adjacency":"zero-out","mu":0.25}`))
	f.Add([]byte(`{"adjacency":"replace","mu":0.1,"rows":216,"gamma":327.2,"bad_delta":1e-8}`))
	f.Add(
		[]byte(
			`{"adjacency":"zero-out","mu":0.1,"terms":[{"kind":"fastmix-row","count":100,"gamma":20,"c2":2},{"kind":"laplace","count":2,"scale":10}]}`))
	f.Add([]byte(`{"adjacency":"zero-out","mu":1e-300,"rows":3,"gamma":1.0000000001}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var c Cost
		if json.Unmarshal(line, &c) != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("%s parses, but is not valid: %v", line, err)
		}
		out, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var again Cost
		if err := json.Unmarshal(out, &again); err != nil || !again.Equal(c) {
			t.Fatalf("%s becomes %s, %v", line, out, err)
		}
		if both := Compose(c, c); !both.Covers(Compose(c)) {
			t.Fatalf("%+v does not cover %+v", both, c)
		}
		for _, a := range []Adjacency{ZeroOut, Replace} {
			in, err := c.In(a)
			if err != nil {
				if a != Replace || !strings.Contains(string(out), "fastmix") {
					t.Fatalf("%s in %v: %v", out, a, err)
				}
				continue
			}
			eps, err := in.Epsilon(1e-6)
			if err == nil && !(eps >= 0 && !math.IsInf(eps, 0)) {
				t.Fatalf("%s in %v: ε = %g", out, a, eps)
			}
			if err != nil && in.BadDelta < 1e-6 && in.Mu <= maxMu &&
				slices.IndexFunc(in.Terms, func(t Term) bool { return t.Validate() != nil }) < 0 {
				t.Fatalf("%s in %v: %v", out, a, err)
			}
			if d, err := in.Delta(1); err == nil && !(d >= 0 && d <= 1) {
				t.Fatalf("%s in %v: δ = %g", out, a, d)
			}
		}
	})
}
