package matfact

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// narrowed returns BLTs of one to eight buffers, made narrow for noise of standard deviation sd.
func narrowed(t *testing.T, sd float64) []named {
	t.Helper()
	sum := Workload{Kind: "sum"}
	list := []named{
		{"exponential", mustNew(t, Config{Kind: "blt"}, Workload{Kind: "exponential", Decay: 0.999})},
		{"window", mustNew(t, Config{Kind: "blt"}, Workload{Kind: "window", Window: 100})},
	}
	for _, buffers := range []int{1, 2, 4, 5, 8} {
		list = append(list,
			named{fmt.Sprintf("%d buffers", buffers),
				mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: buffers}, sum)})
	}
	for i, f := range list {
		if list[i].Factorization = Narrow(f.Factorization, sd); list[i].Factorization == nil {
			t.Fatalf("%s: not made narrow for %g", f.name, sd)
		}
	}
	return list
}

// TestNarrowExact runs narrow Shapers and exact fractions on the same noise. The noise is Gaussian, or the largest
// possible, or chosen among 32 neighbours such that the next rounding down loses the most or the least. The error of
// every buffer must be within the buffer's bound, and no buffer may overflow.
func TestNarrowExact(t *testing.T) {
	const steps = 600
	for _, sd := range []float64{1.9 * (1 << 25), 1 << 33} {
		for _, f := range narrowed(t, sd) {
			s := f.Stored()
			limits, err := f.Limits(sd)
			if err != nil {
				t.Fatal(err)
			}
			source := rand.New(rand.NewPCG(1, 2))
			nearest := 0.0
			for _, driver := range []string{"gaussian", "constant", "turning", "most", "least"} {
				shaper, o := f.NewShaper(1).(*narrowShaper), newOracle(s)
				row, w := []float64{0}, []int64{0}
				for step := range steps {
					shaper.Predict(row)
					if d := math.Abs(o.difference(row[0])); d > limits.Rounding {
						t.Fatalf("sd %g, %s, %s: s is off by %g, Limits.Rounding is %g", sd, f.name, driver, d,
							limits.Rounding)
					}
					z := source.NormFloat64()
					switch driver {
					case "constant":
						z = 14
					case "turning":
						z = 14 * float64(1-2*(step/100%2))
					}
					draw(w, []float64{z}, row, sd, 1)
					switch driver {
					case "most":
						w[0] += worstOf(shaper, w[0], 1)
					case "least":
						w[0] += worstOf(shaper, w[0], -1)
					}
					shaper.Push(w)
					o.push(w[0])
					if math.Abs(float64(w[0])) > limits.Noise+32 {
						t.Fatalf("sd %g, %s: |w| = %d, Limits.Noise is %g", sd, f.name, w[0], limits.Noise)
					}
				}
				for i, b := range shaper.buffers {
					x := int64(b.state[0] - bias)
					if x > narrowState || x < -narrowState {
						t.Errorf("sd %g, %s: buffer %d exceeds its range", sd, f.name, i)
					}
					have := bigFloat(0).SetPrec(64*steps + 300).SetInt64(x)
					have.SetMantExp(have, -s.Fraction)
					want := bigFloat(0).SetPrec(64*steps + 300).SetInt(o.state[i])
					want.SetMantExp(want, -64*steps)
					lost, _ := want.Sub(want, have).Float64()
					// 1/a is the bound for any number of steps, Σθ^m the bound for this number of steps.
					gap := s.Decay[i].gap()
					bound := math.Ldexp(gapPower(gap, steps)/gap, -s.Fraction)
					if math.Abs(lost) >= bound {
						t.Errorf("sd %g, %s, %s: buffer %d of gap %g is off by %g, bound %g", sd, f.name, driver, i,
							gap, lost, bound)
					}
					nearest = max(nearest, math.Abs(lost)/bound)
				}
			}
			if nearest < 0.45 { // half of the bound if Θ is odd, because then rounding down always loses something
				t.Errorf("sd %g, %s: the adversary reaches only %.2f of the bound", sd, f.name, nearest)
			}
		}
	}
}

// worstOf returns the number from 0 to 31 to add to w such that the next rounding of the slowest buffer loses the most
// (sign 1) or the least (sign −1).
func worstOf(s *narrowShaper, w int64, sign int) int64 {
	b := &s.buffers[len(s.buffers)-1]
	high, _ := bits.Mul64(b.decay, b.state[0])
	var best int64
	var found uint64
	for change := range int64(32) {
		_, lost := bits.Mul64(b.decay, high+b.weight*uint64(w+change)+b.constant)
		if sign < 0 {
			lost = ^lost
		}
		if change == 0 || lost > found {
			best, found = change, lost
		}
	}
	return best
}

// TestNarrowRoom drives every buffer, and their sum, to the largest values that draws of ±14 can give. All must use
// less than half of the range of 64 bits. Limits must refuse four times the noise, and two more fractional bits.
func TestNarrowRoom(t *testing.T) {
	const n = 600
	for _, sd := range []float64{1 << 22, 1 << 24, 1.99 * (1 << 24), 1.7 * (1 << 30), 1 << 36} {
		for _, f := range narrowed(t, sd) {
			s := f.Stored()
			// The response of buffer i to an impulse of q, row by row, from C⁻¹.
			inverse := f.Factorization.(*buffered).inverseSeries(n)
			most := 0.0
			total := make([]float64, n)
			for i := range s.Decay {
				var state, sum float64
				for t, x := range inverse {
					state = s.Decay[i].float()*state + s.Phases[0].Weight[i].float()*x
					sum += math.Abs(state)
					total[t] += state
				}
				most = max(most, sum)
			}
			var sum float64
			for _, x := range total {
				sum += math.Abs(x)
			}
			most = max(most, sum) * 14 * sd
			if used := math.Ldexp(most, s.Fraction); !(used < narrowState) {
				t.Errorf("sd %g, %s: the state can reach 2^%.2f units", sd, f.name, math.Log2(used))
			}
			if _, err := f.Limits(sd); err != nil {
				t.Errorf("sd %g, %s: %v", sd, f.name, err)
			}
			if _, err := f.Limits(4 * sd); err == nil && s.Fraction < maxFraction {
				t.Errorf("sd %g, %s: four times the noise is not refused", sd, f.name)
			}
			s.Fraction += 2
			more := mustNew(t, Config{Kind: "blt", Stored: s}, Workload{Kind: "sum"})
			if _, err := more.Limits(sd); err == nil {
				t.Errorf("sd %g, %s: %d fractional bits are not refused", sd, f.name, s.Fraction)
			}
		}
	}
}

// TestNarrowWide checks that Narrow returns nil if no number of fractional bits fits, and for matrices that are not
// BLTs.
func TestNarrowWide(t *testing.T) {
	sum := Workload{Kind: "sum"}
	blt := mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, sum)
	for _, sd := range []float64{1 << 42, 1 << 50, math.Inf(1), math.NaN()} {
		if Narrow(blt, sd) != nil {
			t.Errorf("Narrow accepted noise of %g", sd)
		}
	}
	if Narrow(mustNew(t, Config{Kind: "blt", Tune: 1e9, Buffers: 8}, sum), 1<<38) != nil {
		t.Error("Narrow cut weights of about 10⁻⁵ to a few bits")
	}
	if Narrow(Narrow(blt, 1<<24), 1<<24) != nil {
		t.Error("Narrow accepted a narrow factorization")
	}
	for _, f := range factorizations(t, 40) {
		if f.Kind() != "blt" || strings.HasPrefix(f.name, "normalised") {
			if Narrow(f.Factorization, 1<<24) != nil {
				t.Errorf("%s: Narrow accepted it", f.name)
			}
		}
	}
}

// TestNarrowMatrix checks that cutting the weights changes the error only slightly, and that the column norm belongs to
// the cut weights.
func TestNarrowMatrix(t *testing.T) {
	w := Workload{Kind: "sum"}
	wide := mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, w)
	for _, sd := range []float64{1 << 24, 1 << 30, 1 << 35} {
		narrow := Narrow(wide, sd)
		if narrow.ColNorm() > wide.ColNorm() {
			t.Errorf("sd %g: column norm %.17g, wide %.17g", sd, narrow.ColNorm(), wide.ColNorm())
		}
		near(t, "error", narrow.ColNorm()*math.Sqrt(narrow.RowVar(w, 1e5)),
			wide.ColNorm()*math.Sqrt(wide.RowVar(w, 1e5)), 1e-8)
		exact := new(big.Int)
		for _, x := range narrow.Stored().Phases[0].Weight {
			exact.Or(exact, new(big.Int).SetUint64(uint64(x)))
		}
		if int(exact.TrailingZeroBits()) < 64-narrow.Stored().Fraction {
			t.Error("weights have more bits than the state")
		}
	}
}

// TestNarrowStored checks that New refuses a stored fraction that does not fit the rest of the integers.
func TestNarrowStored(t *testing.T) {
	sum := Workload{Kind: "sum"}
	good := Narrow(mustNew(t, Config{Kind: "blt", Tune: 1e4, Buffers: 3}, sum), 1<<24).Stored()
	if f := mustNew(t, Config{Kind: "blt", Stored: good}, sum); f.Stored().Fraction != good.Fraction {
		t.Error("Stored lost the fraction")
	}
	persons := Participation{Count: 3, Separation: 2}
	for name, edit := range map[string]func(c *Config){
		"persons":    func(c *Config) { c.Participation = persons },
		"normalised": func(c *Config) { c.Horizon, c.Normalise, c.Stored.Height = 50, true, 50 },
		"finer":      func(c *Config) { c.Stored.Phases[0].Weight[0]++ },
		"negative":   func(c *Config) { c.Stored.Fraction = -1 },
		"too few":    func(c *Config) { c.Stored.Fraction = minFraction - 1 },
		"too many":   func(c *Config) { c.Stored.Fraction = 64 },
		"scale":      func(c *Config) { c.Stored.Phases[0].Scale = 1.5 },
		"phased":     func(c *Config) { c.Kind, c.Stored.Kind = "phased", "phased" },
		"identity": func(c *Config) {
			c.Kind, c.Stored = "identity", &Stored{Kind: "identity", Phases: identity().Phases, Fraction: 30}
		},
		"bands": func(c *Config) {
			c.Kind, c.Stored = "bisr", &Stored{Kind: "bisr", Bands: []Fixed{1 << 62}, Fraction: 30}
		},
	} {
		c := Config{Kind: "blt", Stored: good.Clone()}
		edit(&c)
		if _, err := New(c, sum); err == nil {
			t.Errorf("%s: a narrow factorization is accepted", name)
		}
	}
}

// TestNarrowState checks that a narrow Shaper refuses a state of 128 bits, and a wide Shaper a state of 64 bits, even
// for the same matrix.
func TestNarrowState(t *testing.T) {
	narrow := Narrow(mustNew(t, Config{Kind: "blt", Tune: 1e4, Buffers: 3}, Workload{Kind: "sum"}), 1<<24).Stored()
	wide := narrow.Clone()
	wide.Fraction = 0
	of := func(s *Stored, steps int) (Shaper, []byte) {
		shaper := mustNew(t, Config{Kind: "blt", Stored: s}, Workload{Kind: "sum"}).NewShaper(2)
		for range steps {
			shaper.Push([]int64{1 << 20, -7})
		}
		state, err := shaper.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		return shaper, state
	}
	for _, steps := range []int{0, 3} {
		n, narrowState := of(narrow, steps)
		w, wideState := of(wide, steps)
		if n.UnmarshalBinary(wideState) == nil || w.UnmarshalBinary(narrowState) == nil {
			t.Errorf("after %d steps another kind of Shaper accepted the state", steps)
		}
		if n.UnmarshalBinary(narrowState) != nil || w.UnmarshalBinary(wideState) != nil {
			t.Errorf("after %d steps the Shaper refused its state", steps)
		}
	}
}

// TestPushNarrow compares a buffer of any length with its numbers computed one by one.
func TestPushNarrow(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(41, 42))
	for n := range 14 {
		decay, weight, constant := rng.Uint64(), rng.Uint64(), rng.Uint64()
		state, w, sum := make([]uint64, n), make([]int64, n), make([]uint64, n)
		for j := range n {
			state[j], w[j], sum[j] = rng.Uint64(), int64(rng.Uint64()), rng.Uint64()
		}
		states, sums := slices.Clone(state), slices.Clone(sum)
		before, first, next := slices.Clone(state), slices.Clone(sum), make([]float64, n)
		for j, u := range states {
			u, _ = bits.Mul64(decay, u)
			states[j] = u + weight*uint64(w[j]) + constant
			sums[j] += states[j]
		}
		pushNarrow(decay, weight, constant, state, w, sum)
		if !slices.Equal(state, states) || !slices.Equal(sum, sums) {
			t.Errorf("%d numbers become %x with sums %x, want %x, %x", n, state, sum, states, sums)
		}
		pushLast(decay, weight, constant, before, w, first, next, 0x1p-40)
		if !slices.Equal(before, states) {
			t.Errorf("in the last buffer, %d numbers become %x, want %x", n, before, states)
		}
		for j, x := range sums {
			if want := float64(int64(x)) * 0x1p-40; next[j] != want {
				t.Errorf("number %d of %d predicts %g, want %g", j, n, next[j], want)
			}
		}
	}
}

// TestNarrowPush uses Shapers with any number of buffers and rows of several blocks. It compares them with the
// recursion of narrowShaper, computed for one coordinate after the other, and subtracts the biases from the sum at the
// end.
func TestNarrowPush(t *testing.T) {
	t.Parallel()
	const sd = 1 << 24
	for _, dim := range []int{1, 7, block, 2*block + 5} {
		for _, f := range narrowed(t, sd) {
			shaper := f.NewShaper(dim).(*narrowShaper)
			plain := make([][]uint64, len(shaper.buffers))
			for i := range plain {
				plain[i] = slices.Repeat([]uint64{bias}, dim)
			}
			source := rand.New(rand.NewPCG(7, uint64(dim)))
			w, s := make([]int64, dim), make([]float64, dim)
			for step := range 6 {
				for j := range w {
					w[j] = int64(sd * source.NormFloat64())
				}
				if step == 3 { // continue from the state
					state, err := shaper.AppendBinary(nil)
					if err != nil {
						t.Fatal(err)
					}
					if shaper = f.NewShaper(dim).(*narrowShaper); shaper.UnmarshalBinary(state) != nil {
						t.Fatal("the Shaper refused its state")
					}
				}
				shaper.Predict(s)
				for j := range w {
					var sum uint64
					for i := range plain {
						sum += plain[i][j]
					}
					want := float64(int64(sum-uint64(len(plain))*bias)) * math.Ldexp(1, -f.Stored().Fraction)
					if s[j] != want {
						t.Fatalf("%s, %d coordinates, step %d: predicts %g, want %g", f.name, dim, step, s[j], want)
					}
					for i, b := range shaper.buffers {
						u, _ := bits.Mul64(b.decay, plain[i][j])
						plain[i][j] = u + b.weight*uint64(w[j]) + b.constant
					}
				}
				shaper.Push(w)
			}
		}
	}
}
