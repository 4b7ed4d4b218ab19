package matfact

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// draw does the caller's part of a step: w = ⌊r(sd·z − s) + ½⌋. float64 is exact enough for these tests, because they
// also hold if w is wrong by one.
func draw(w []int64, z, s []float64, sd, r float64) {
	for i := range w {
		w[i] = int64(math.Floor(r*(sd*z[i]-s[i]) + 0.5))
	}
}

// oracle computes Σ_{j<t} C_tj w_j as a fraction, n·2^(−64t), without rounding.
type oracle struct {
	decay  []*big.Int
	stored *Stored
	state  []*big.Int
	step   uint64
}

func newOracle(s *Stored) *oracle {
	o := &oracle{stored: s}
	for _, d := range s.Decay {
		o.decay = append(o.decay, new(big.Int).SetUint64(uint64(d)))
		o.state = append(o.state, new(big.Int))
	}
	return o
}

func (o *oracle) push(w int64) {
	o.step++
	ph := o.stored.Phases[phaseOf(o.stored.Phases, o.step)]
	for i, s := range o.state {
		s.Mul(s, o.decay[i])
		if i < len(ph.Weight) {
			in := new(big.Int).SetUint64(uint64(ph.Weight[i]))
			in.Mul(in, big.NewInt(w))
			s.Add(s, in.Lsh(in, uint(64*(o.step-1))))
		}
	}
}

// difference returns x − s_t.
func (o *oracle) difference(x float64) float64 {
	sum := new(big.Int)
	for _, s := range o.state {
		sum.Add(sum, s)
	}
	exact := bigFloat(0).SetInt(sum)
	exact.SetMantExp(exact, -64*int(o.step))
	d, _ := bigFloat(0).Sub(bigFloat(x), exact).Float64()
	return d
}

// TestShaperExact runs the Shaper for thousands of steps, with Gaussian draws and with the largest possible draws, and
// compares it with fractions. The state before its conversion to float64 has a separate, much smaller bound.
func TestShaperExact(t *testing.T) {
	const sd = 1 << 27
	steps := 800
	if slow() {
		steps = 2500
	}
	for _, f := range factorizations(t, uint64(steps)) {
		s, ok := f.Factorization.(*buffered)
		if !ok || s.stored.Fraction != 0 { // see TestNarrowExact
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			limits, err := f.Limits(sd)
			if err != nil {
				t.Fatal(err)
			}
			var floor float64
			for _, d := range s.stored.Decay {
				floor += 0x1p-64 / d.gap()
			}
			const dim = 3
			shaper := f.NewShaper(dim).(*bufferedShaper)
			oracles := [dim]*oracle{newOracle(s.stored), newOracle(s.stored), newOracle(s.stored)}
			source := rand.New(rand.NewPCG(1, 2))
			row, z, w := make([]float64, dim), make([]float64, dim), make([]int64, dim)
			var worst, worstState, largest float64
			for step := range steps {
				r := shaper.Predict(row)
				for i := range dim {
					worst = max(worst, math.Abs(oracles[i].difference(row[i])))
					if step > 0 {
						worstState = max(worstState, stateError(shaper, oracles[i], i))
					}
				}
				z[0], z[1] = source.NormFloat64(), 14
				z[2] = 14 * float64(1-2*(step/100%2)) // changes sign every 100 steps
				draw(w, z, row, sd, r)
				for i := range dim {
					oracles[i].push(w[i])
					largest = max(largest, math.Abs(float64(w[i])))
				}
				shaper.Push(w)
			}
			t.Logf(
				"s: error %.2g, Limits.Rounding %.2g; state: error %.2g, bound %.2g; |w| up to %.3g, Limits.Noise %.3g",
				worst, limits.Rounding, worstState, floor, largest, limits.Noise)
			if worst > limits.Rounding || worstState > floor || largest > limits.Noise {
				t.Error("a limit is exceeded")
			}
		})
	}
}

// stateError returns the exact sum of coordinate j's buffers less the computed sum.
func stateError(s *bufferedShaper, o *oracle, j int) float64 {
	sum := new(big.Int)
	for _, state := range s.state {
		x := new(big.Int).Lsh(big.NewInt(state[j].hi), 64)
		sum.Add(sum, x.Add(x, new(big.Int).SetUint64(state[j].lo)))
	}
	have := bigFloat(0).SetPrec(uint(64*o.step + 300)).SetInt(sum)
	have.SetMantExp(have, -64)
	exact := new(big.Int)
	for _, x := range o.state {
		exact.Add(exact, x)
	}
	want := bigFloat(0).SetPrec(uint(64*o.step + 300)).SetInt(exact)
	want.SetMantExp(want, -64*int(o.step))
	d, _ := want.Sub(want, have).Float64()
	if d < 0 {
		return math.Inf(1) // the state must be rounded down
	}
	return d
}

// TestRootShaperExact does for the square root what TestShaperExact does for buffers.
func TestRootShaperExact(t *testing.T) {
	const sd, steps = 1 << 27, 400
	for _, w := range []Workload{{Kind: "sum"}, {Kind: "window", Window: 5}} {
		f := mustNew(t, Config{Kind: "sqrt", Horizon: steps}, w)
		limits, err := f.Limits(sd)
		if err != nil {
			t.Fatal(err)
		}
		coef := f.(*root).coef
		shaper, source := f.NewShaper(1), rand.New(rand.NewPCG(1, 2))
		s, z, noise := []float64{0}, []float64{0}, []int64{0}
		var past []int64
		var worst float64
		for range steps {
			r := shaper.Predict(s)
			exact := new(big.Int)
			for j, x := range past {
				exact.Add(exact, new(big.Int).Mul(big.NewInt(x), big.NewInt(coef[len(past)-j])))
			}
			have := bigFloat(0).SetInt(exact)
			have.SetMantExp(have, -62)
			d, _ := have.Sub(have, bigFloat(s[0])).Float64()
			worst = max(worst, math.Abs(d))
			z[0] = source.NormFloat64()
			draw(noise, z, s, sd, r)
			if math.Abs(float64(noise[0])) > limits.Noise {
				t.Errorf("w = %d, Limits.Noise is %g", noise[0], limits.Noise)
			}
			past = append(past, noise[0])
			shaper.Push(noise)
		}
		if worst > limits.Rounding {
			t.Errorf("s is off by %g, Limits.Rounding is %g", worst, limits.Rounding)
		}
	}
}

// TestBandedShaperExact does for bands what TestShaperExact does for buffers, in 3000-bit arithmetic.
func TestBandedShaperExact(t *testing.T) {
	const steps, precision = 500, 3000
	sum := Workload{Kind: "sum"}
	for _, c := range []struct {
		kind  string
		bands int
		sd    float64
	}{
		{"bsr", 2, 1 << 25}, {"bsr", 32, 1 << 35}, {"bisr", 2, 1 << 24}, {"bisr", 32, 1 << 25}, {"bisr", 256, 1 << 37},
	} {
		f := mustNew(t, Config{Kind: c.kind, Bands: c.bands}, sum)
		limits, err := f.Limits(c.sd)
		if err != nil {
			t.Fatal(err)
		}
		for _, extreme := range []bool{false, true} {
			shaper, source := f.NewShaper(1), rand.New(rand.NewPCG(1, 2))
			s, z, noise := []float64{0}, []float64{0}, []int64{0}
			var past []*big.Float // w, or q
			var worst, largest float64
			for step := range steps {
				r := shaper.Predict(s)
				exact := bigFloat(0).SetPrec(precision)
				for k, m := range f.Stored().Bands[:min(step, c.bands-1)] {
					x := new(big.Float).SetPrec(precision).SetUint64(uint64(m))
					exact.Add(exact, x.Mul(x, past[step-k-1]))
				}
				exact.SetMantExp(exact, -64)
				d, _ := new(big.Float).Sub(exact, bigFloat(s[0])).Float64()
				worst = max(worst, math.Abs(d))
				z[0] = source.NormFloat64()
				if extreme {
					z[0] = 14 * float64(1-2*(step/40%2))
				}
				draw(noise, z, s, c.sd, r)
				largest = max(largest, math.Abs(float64(noise[0])))
				kept := new(big.Float).SetPrec(precision).SetInt64(noise[0])
				if c.kind == "bisr" {
					kept.Add(kept, exact)
				}
				past = append(past, kept)
				shaper.Push(noise)
			}
			t.Logf("%s %d: s: error %.2g, Limits.Rounding %.2g; |w| up to %.3g, Limits.Noise %.3g", c.kind, c.bands,
				worst, limits.Rounding, largest, limits.Noise)
			if worst > limits.Rounding || largest > limits.Noise {
				t.Errorf("%s with %d bands: a limit is exceeded", c.kind, c.bands)
			}
		}
	}
}

// TestLimitsAttained drives each row to the largest noise that draws of ±14 can give, z_j = 14·sign (C⁻¹)_tj. The noise
// must be below Limits.Noise; for a BLT, only slightly below.
func TestLimitsAttained(t *testing.T) {
	const n, sd = 300, 1 << 24
	for _, f := range factorizations(t, n) {
		limits, err := f.Limits(sd)
		if err != nil {
			t.Fatal(err)
		}
		var largest float64
		for _, row := range invert(denseMatrix(f.Factorization, n)) {
			var sum float64
			for _, x := range row {
				sum += math.Abs(x)
			}
			largest = max(largest, 14*sd*sum)
		}
		if largest > limits.Noise {
			t.Errorf("%s: |w| can reach %g, Limits.Noise is %g", f.name, largest, limits.Noise)
		}
		t.Logf("%s: largest noise %.4f of Limits.Noise", f.name, largest/limits.Noise)
	}
}

// TestLimitsErrors checks that Limits accepts the deviations for which a state fits its integers, and returns an error
// for all others.
func TestLimitsErrors(t *testing.T) {
	for _, f := range factorizations(t, 300) {
		for _, sd := range []float64{0, 1, 1 << 24, 1 << 30, 1 << 36} {
			if sd == 1<<36 && f.name == "normalised blt" {
				continue // it counts in units of 2⁻²⁰
			}
			if _, err := f.Limits(sd); err != nil && f.name != "odd phases" {
				t.Errorf("%s: Limits(%g): %v", f.name, sd, err)
			}
		}
		for _, sd := range []float64{-1, math.NaN(), math.Inf(1), 1 << 50} {
			if _, err := f.Limits(sd); err == nil {
				t.Errorf("%s: Limits(%g) reports no error", f.name, sd)
			}
		}
	}
}

// TestShaperFilter gives the same noise on a fine lattice to Shaper and Filter.
func TestShaperFilter(t *testing.T) {
	const n, dim, sd = 400, 5, 1 << 36
	for _, f := range factorizations(t, n) {
		shaper, filter := f.NewShaper(dim), f.NewFilter(dim)
		source := rand.New(rand.NewPCG(3, 4))
		z, s, y, w := make([]float64, dim), make([]float64, dim), make([]float64, dim), make([]int64, dim)
		for step := range n {
			if h := f.Horizon(); h > 0 && uint64(step) == h {
				break
			}
			for i := range z {
				z[i] = source.NormFloat64()
			}
			r := shaper.Predict(s)
			draw(w, z, s, sd, r)
			shaper.Push(w)
			filter.Next(y, z)
			for i := range y {
				if d := math.Abs(float64(w[i])/sd - y[i]); d > 1e-9 {
					t.Fatalf("%s: step %d: the Shaper has %.12g, the Filter %.12g", f.name, step+1,
						float64(w[i])/sd, y[i])
				}
			}
		}
	}
}

// TestMonteCarlo estimates the variance of every row from 50 000 coordinates at once. The standard deviation of an
// estimate is 0.63 %, and the tolerance is 4 %. The probability that one of the 2640 estimates fails by chance is 10⁻⁶.
// The seed is fixed.
func TestMonteCarlo(t *testing.T) {
	const n, dim = 40, 50000
	if testing.Short() {
		t.Skip("statistical")
	}
	list := []Workload{{Kind: "sum"}, {Kind: "exponential", Decay: 0.9}, {Kind: "window", Window: 6}, {Kind: "mean"}}
	for _, f := range factorizations(t, n) {
		source := rand.New(rand.NewPCG(5, 6))
		filter := f.NewFilter(dim)
		z, y, total, decayed := make([]float64, dim), make([]float64, dim), make([]float64, dim), make([]float64, dim)
		window := make([]float64, dim)
		ring := make([][]float64, 6)
		for i := range ring {
			ring[i] = make([]float64, dim)
		}
		for step := uint64(1); step <= n; step++ {
			for i := range z {
				z[i] = source.NormFloat64()
			}
			filter.Next(y, z)
			oldest := ring[step%6]
			var sums [5]float64
			for i, v := range y {
				total[i] += v
				decayed[i] = 0.9*decayed[i] + v
				window[i] += v - oldest[i]
				oldest[i] = v
				for k, x := range [5]float64{total[i], decayed[i], window[i], total[i] / float64(step), v} {
					sums[k] += x * x
				}
			}
			for k, w := range list {
				near(t, f.name+" "+w.Kind, sums[k]/dim, f.RowVar(w, step), 0.04)
			}
			near(t, f.name+" C⁻¹", sums[4]/dim, f.CinvVar(step), 0.04)
		}
	}
}

func TestShaperAllocs(t *testing.T) {
	f := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"})
	shaper, s, w := f.NewShaper(100), make([]float64, 100), make([]int64, 100)
	for range 1 << 10 {
		shaper.Push(w)
	}
	if n := testing.AllocsPerRun(1000, func() { shaper.Predict(s); shaper.Push(w) }); n != 0 {
		t.Errorf("a step allocates %g times", n)
	}
}

// TestGolden pins every bit on which a release can depend: the numbers of Predict, the state, ColNorm, Limits and
// variances. A different value on another architecture means that the compiler fused a product with a sum.
func TestGolden(t *testing.T) {
	blt := storeBLT([]float64{9.836865043880268e-07, 1.88849494123769e-05, 0.25},
		[]float64{5.146947372507541e-06, 0.01, 0.75})
	fixed, err := newBuffered(blt)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		f    Factorization
		want string
	}{
		{"phased", mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"}), "3c682aac6e3816cd1edf17c893b6f0a9"},
		{"phased mean", mustNew(t, Config{Kind: "phased"}, Workload{Kind: "mean"}), "f22cf6e8448ad58b8b974b10ea96d95c"},
		{"blt", fixed, "0053b00ac56fa92b6afce4b3defc0b96"},
		{"narrow blt", Narrow(fixed, 1<<25), "8ab94426b5c757a6e964a6dfe6b105eb"},
		{"sqrt", mustNew(t, Config{Kind: "sqrt", Horizon: 600}, Workload{Kind: "window", Window: 9}),
			"41e3d91bbc729e5b59cfd22b8605d8ab"},
		{"bsr", mustNew(t, Config{Kind: "bsr", Bands: 8}, Workload{Kind: "sum"}), "66f2c897f453a8df7e1b452338a3b802"},
		{"bsr exponential", mustNew(t, Config{Kind: "bsr", Bands: 256}, Workload{Kind: "exponential", Decay: 0.99}),
			"df2bc20dc60ab4b72ee8c322d6d09bad"},
		{"bisr", mustNew(t, Config{Kind: "bisr"}, Workload{Kind: "sum"}), "f9996372a2408ec85045f3505ba2c27c"},
		{"dense", denseFor(t, 300), "6e13e8fd5595affa7032a2314a15c9ac"},
		{"normalised blt", normalisedBLT(t, blt), "4d009631b502a8be52064dcdd9fa8ae0"},
		{"normalised bisr", mustNew(t, Config{Kind: "bisr", Horizon: 400, Normalise: true}, Workload{Kind: "sum"}),
			"d70e82463bf291fac1f2564cbe3c1f6b"},
		{"normalised sqrt",
			mustNew(t, Config{Kind: "sqrt", Horizon: 300, Normalise: true}, Workload{Kind: "window", Window: 9}),
			"7279cd64a073e8afe9ff762df596d0cc"},
		{"bisr window", mustNew(t, Config{Kind: "bisr", Bands: 32}, Workload{Kind: "window", Window: 20}),
			"274e68bc2b70782683a4257d5a43e00c"},
	} {
		h := sha256.New()
		put := func(x ...float64) {
			for _, v := range x {
				binary.Write(h, binary.BigEndian, v)
			}
		}
		limits, err := c.f.Limits(1 << 25)
		if err != nil {
			t.Fatal(err)
		}
		put(c.f.ColNorm(), limits.Noise, limits.Rounding)
		shaper, s, w := c.f.NewShaper(2), []float64{0, 0}, []int64{0, 0}
		steps := uint64(600)
		if h := c.f.Horizon(); h > 0 {
			steps = h
		}
		for step := uint64(1); step <= steps; step++ {
			put(shaper.Predict(s))
			put(s...)
			for i := range w {
				w[i] = int64(step*0x9e3779b97f4a7c15*uint64(i+1))>>37 - int64(s[i])
			}
			shaper.Push(w)
			for _, x := range []Workload{{Kind: "mean"}, {Kind: "exponential", Decay: 0.97},
				{Kind: "window", Window: 50}} {
				put(c.f.RowVar(x, step), c.f.Cov(x, step, (step+1)/2))
			}
			put(c.f.CinvVar(step))
		}
		if c.f.Horizon() == 0 {
			for _, step := range []uint64{1e6 + 1, 1<<40 - 1, 1 << 50} {
				put(c.f.RowVar(Workload{Kind: "sum"}, step),
					c.f.RowVar(Workload{Kind: "exponential", Decay: 0.9997}, step))
			}
		}
		state, err := shaper.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(state)
		if got := hex.EncodeToString(h.Sum(nil)[:16]); got != c.want {
			t.Errorf("%s: hash %s, want %s", c.name, got, c.want)
		}
	}
}

func normalisedBLT(t *testing.T, s *Stored) Factorization {
	s = s.Clone()
	s.Height = 500
	return mustNew(t, Config{Kind: "blt", Horizon: 500, Normalise: true, Stored: s}, Workload{Kind: "sum"})
}

func TestRootHorizon(t *testing.T) {
	f := mustNew(t, Config{Kind: "sqrt", Horizon: 3}, Workload{Kind: "sum"})
	shaper, filter := f.NewShaper(1), f.NewFilter(1)
	for range 3 {
		shaper.Push([]int64{1})
		filter.Next([]float64{0}, []float64{1})
	}
	for name, step := range map[string]func(){
		"Push": func() { shaper.Push([]int64{1}) },
		"Next": func() { filter.Next([]float64{0}, []float64{1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic beyond the horizon", name)
				}
			}()
			step()
		}()
	}
}
