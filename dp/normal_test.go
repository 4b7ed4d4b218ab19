package dp

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
)

// TestUpperTail compares the power series with results of 120 digits from another program (mpmath, erfc).
func TestUpperTail(t *testing.T) {
	for _, c := range []struct{ b, want string }{
		{"0.5",
			"0.308537538725986896362295389391662260116397824445422063179223857320844204593720455974758939953755080095035136021959477023"},
		{"1",
			"0.158655253931457051414767454367962077522087033273395609012605549757008558012795170499115081594360672471727312413383078495"},
		{"4.25",
			"0.0000106885257749344204692005578127212290098801756299483412660191364116743516575854916756537015221509742559398750457732127808"},
		{"13.25",
			"2.256016339685789079520385333926214545812827340572275141891255441462103708171687120638676855124523040888290949708455286e-40"},
	} {
		b, _ := new(big.Rat).SetString(c.b)
		want, _, err := big.ParseFloat(c.want, 10, 600, big.ToNearestEven)
		if err != nil {
			t.Fatal(err)
		}
		for _, prec := range []uint{192, 320} {
			diff := newFloat(600).Sub(upperTail(b, prec), want)
			if diff.Sign() != 0 && diff.MantExp(nil) > -int(prec) {
				t.Errorf("Q(%s) at %d bits: off by 2^%d: %s", c.b, prec, diff.MantExp(nil),
					upperTail(b, prec).Text(103, 60))
			}
		}
	}
}

// lawError returns |Q(z) − p|/φ(z), the distance of z from the exact quantile
// of p to first order, for z > 0.
func lawError(z float64, p *big.Float) float64 {
	q := upperTail(new(big.Rat).SetFloat64(z), 220)
	d, _ := q.Sub(q, p).Float64()
	return math.Abs(d) * math.Sqrt(2*math.Pi) * math.Exp(z*z/2)
}

// exactP returns (m + ½)·2^−64, or (m·2⁶⁴ + e + ½)·2^−128 in the tail.
func exactP(u, ext uint64) *big.Float {
	n := new(big.Int).SetUint64(u << 1 >> 1)
	exp := -65
	if isTail(u) {
		n.Add(n.Lsh(n, 64), new(big.Int).SetUint64(ext))
		exp = -129
	}
	n.Add(n.Lsh(n, 1), big.NewInt(1))
	p := newFloat(300).SetInt(n)
	return p.SetMantExp(p, exp)
}

// TestNormalError measures the error of the table at the ends of every row and octave, and for random words.
func TestNormalError(t *testing.T) {
	t.Parallel()
	type word struct{ u, ext uint64 }
	var words []word
	for zeros := range uint(15) {
		for r := range uint64(32) {
			first := (32 | r) << (62 - 5 - zeros)
			words = append(words, word{first, 0}, word{first + 1<<(57-zeros) - 1, 0})
		}
	}
	for shift := range uint(48) { // octaves whose leading one is in the first word
		words = append(words, word{1 << (47 - shift), 0}, word{1<<(48-shift) - 1, ^uint64(0)})
	}
	for shift := range uint(64) {
		words = append(words, word{0, 1 << (63 - shift)}, word{0, 1<<(64-shift) - 1})
	}
	words = append(words, word{0, 0})
	source := rand.New(rand.NewPCG(1, 2))
	times := 1
	if os.Getenv("STREAMDP_SLOW") != "" {
		times = 10
	}
	for range 10_000 * times {
		words = append(words, word{source.Uint64() >> 1, source.Uint64()})
	}
	for range 2_000 * times {
		words = append(words, word{source.Uint64() >> (1 + source.UintN(48)), source.Uint64()})
	}
	var worstMain, worstNear, worstTail float64
	for _, w := range words {
		p := exactP(w.u, w.ext)
		if isTail(w.u) {
			z := gaussianTail(w.u, w.ext)
			if gaussianTail(w.u|1<<63, w.ext) != -z {
				t.Fatalf("word %x: the sign bit changes more than the sign", w.u)
			}
			worstTail = max(worstTail, lawError(z, p))
			continue
		}
		worstMain = max(worstMain, lawError(gaussianMain(w.u), p))
		var near [1]float64
		fillNear(near[:], binary.LittleEndian.AppendUint64(nil, w.u))
		worstNear = max(worstNear, lawError(near[0], p))
	}
	t.Logf("largest error: main 2^%.2f, near 2^%.2f, tail 2^%.2f", math.Log2(worstMain), math.Log2(worstNear),
		math.Log2(worstTail))
	if worstMain > 0x1p-49 || worstNear > 0x1p-48 || worstTail > 0x1p-48 {
		t.Error("the error is above the proven bound")
	}
}

// TestNormalBudget computes the proven error of every row again. It is the sum of the approximation error with rounded
// coefficients (from the Chebyshev coefficients of Taylor polynomial minus stored polynomial, and the Taylor
// remainder), the cut of x, and the roundings of the evaluation.
func TestNormalBudget(t *testing.T) {
	t.Parallel()
	const u = 0x1p-53
	var mainWorst, tailWorst float64
	for i, row := range tableRows() {
		n := row.degree + row.extra()
		c := taylor(row.centre(), row.width, n)
		for k := range row.stored {
			c[k].Sub(c[k], newFloat(tablePrec).SetFloat64(row.stored[k]))
		}
		approx := 0.0
		for _, v := range chebyshev(c) {
			f, _ := v.Float64()
			approx += math.Abs(f)
		}
		// The remainder is P_{N+1}(z)/φ(z)^{N+1}·(w/2)^{N+1}/(N+1)! at the left end, where it is largest.
		z := inverseTail(row.left)
		ratio := newFloat(tablePrec).Quo(row.width, densityAt(z))
		ratio.Quo(ratio, newFloat(tablePrec).SetInt64(2))
		rest := evalInt(derivatives[n+1], z)
		for k := range n + 1 {
			rest.Mul(rest, ratio)
			rest.Quo(rest, newFloat(tablePrec).SetInt64(int64(k+1)))
		}
		f, _ := rest.Float64()
		approx += f

		abs := make([]float64, len(row.stored))
		for k, v := range row.stored {
			abs[k] = math.Abs(v)
		}
		var eval float64
		if row.degree == mainDegree {
			// |x| ≤ ½. Each product or sum has an error of u times its value.
			x, x2, x3 := 0.5, 0.25, 0.125
			a := abs[1]*x + abs[2]*x2
			b1 := abs[3] + abs[4]*x
			b2 := (abs[5] + abs[6]*x) * x2
			errA := u * (abs[1]*x + 2*abs[2]*x2 + a)
			errB := u * (abs[4]*x + b1 + abs[6]*x*x2 + 3*b2 + b1 + b2)
			b := b1 + b2
			eval = x3*errB + 3*u*x3*b + errA + u*(a+x3*b) + u*(abs[0]+a+x3*b)
			eval += abs[1] * 0x1p-52 * 1.1 // x cut to 52 bits
			mainWorst = max(mainWorst, approx+eval)
		} else {
			// Horner: the k-th partial sum is rounded 2k more times.
			p := 1.0
			for k := range abs {
				eval += u * float64(2*k+1) * abs[k] * p
				p *= 0.5
			}
			eval += abs[1] * 0x1p-52 * 1.1
			tailWorst = max(tailWorst, approx+eval)
		}
		if approx+eval > 0x1p-48 {
			t.Errorf("row %d: approximation 2^%.2f, evaluation 2^%.2f", i, math.Log2(approx), math.Log2(eval))
		}
	}
	t.Logf("proven: main 2^%.2f, tail 2^%.2f", math.Log2(mainWorst), math.Log2(tailWorst))

	// The distance of the stored value from the exact Z, which has infinitely many digits: half of the last digit of p.
	// Rounding drops that half and converts m to float64; then it is a whole digit and 2⁻⁵³ of p.
	density := math.Exp(-4.2*4.2/2) / math.Sqrt(2*math.Pi) // at p = 2⁻¹⁶, the smallest of the main table
	if near := mainWorst + 0x1p-64/density + 0x1p-52; near > errZ {
		t.Errorf("near: 2^%.2f, above the 2^%.2f that rounding assumes", math.Log2(near), math.Log2(errZ))
	}
	density = math.Exp(-10.1*10.1/2) / math.Sqrt(2*math.Pi) // rounding assumes nothing beyond maxFloatZ
	if tail := tailWorst + 0x1p-129/density; tail > errZ {
		t.Errorf("tail: 2^%.2f, above the 2^%.2f that rounding assumes", math.Log2(tail), math.Log2(errZ))
	}
}

// TestNormalJoins checks that neighbouring rows have the same value at their common end.
func TestNormalJoins(t *testing.T) {
	poly := func(c []float64, x float64) float64 {
		v := newFloat(200)
		for k := len(c) - 1; k >= 0; k-- {
			v.Mul(v, newFloat(200).SetFloat64(x))
			v.Add(v, newFloat(200).SetFloat64(c[k]))
		}
		f, _ := v.Float64()
		return f
	}
	rows := tableRows()
	right := func(r tableRow) float64 { f, _ := newFloat(tablePrec).Add(r.left, r.width).Float64(); return f }
	byLeft := map[float64]tableRow{}
	for _, r := range rows {
		f, _ := r.left.Float64()
		byLeft[f] = r
	}
	joins := 0
	for i, r := range rows {
		next, ok := byLeft[right(r)]
		if !ok {
			if right(r) != 0.5 {
				t.Errorf("row %d: no row begins where it ends, at %g", i, right(r))
			}
			if v := poly(r.stored, 0.5); math.Abs(v) > 0x1p-50 {
				t.Errorf("Q⁻¹(½) = %g", v)
			}
			continue
		}
		joins++
		// The first row of the tail and the last one of the main table must meet too.
		most := 0x1p-50
		if len(r.stored) != len(next.stored) || len(r.stored) > mainDegree+1 {
			most = 0x1p-48
		}
		if d := math.Abs(poly(r.stored, 0.5) - poly(next.stored, -0.5)); d > most {
			t.Errorf("row %d: there is a jump of 2^%.2f", i, math.Log2(d))
		}
	}
	if joins != mainRows+tailRows-1 {
		t.Errorf("%d joins checked, want %d", joins, mainRows+tailRows-1)
	}
}
