package decimal

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	jsonNumber  = regexp.MustCompile(`\A-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\z`)
	plainNumber = regexp.MustCompile(`\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z`)
)

// parse returns the result of strconv.ParseFloat if that is right, otherwise its own: ParseFloat misplaces the point of
// integers of more than 800 digits, and stops reading an exponent after five digits.
func parse(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	if len(s) < 800 {
		return f
	}
	if x, ok := new(big.Rat).SetString(s); ok {
		g, _ := x.Float64()
		if f = g; g == 0 && s[0] == '-' {
			f = math.Copysign(0, -1)
		}
	}
	return f
}

// check compares both readers with the grammars above and with strconv: for the number alone, and with other text after
// it, because the text decides whether eight bytes can be loaded at once.
func check(t *testing.T, s string) {
	t.Helper()
	want := parse(s)
	for _, r := range []struct {
		name    string
		read    func([]byte) (float64, int)
		grammar *regexp.Regexp
	}{{"JSON", JSON, jsonNumber}, {"Plain", Plain, plainNumber}} {
		ok := r.grammar.MatchString(s)
		for _, tail := range []string{"", ",", "]         ", ",\"abcdefgh\":1234567890"} {
			f, n := r.read([]byte(s + tail))
			if ok && n != len(s) || !ok && n == len(s) && n > 0 {
				t.Fatalf("%s(%q) read %d bytes, the grammar accepts it: %v", r.name, s+tail, n, ok)
			}
			if ok && math.Float64bits(f) != math.Float64bits(want) {
				t.Fatalf("%s(%q) = %x, want %x", r.name, s+tail, f, want)
			}
		}
	}
}

func TestGrammar(t *testing.T) {
	for _, s := range []string{
		"", "-", "+", ".", "-.", "e", "e5", ".e5", "-e5", "1e", "1e+", "1e-", "1.e", "1ee5", "1e5.5", "1.5.5", "--1",
		"+-1", "- 1",
		"0", "-0", "+0", "00", "01", "-01", "0.", ".0", "-.5", "+.5", "5.", "5.e3", ".5e3", "1.0", "0.0", "0e5", "0e+5",
		"0E-5", "1E5", "1e05", "1e-05",
		"nan", "NaN", "inf", "-Inf", "Infinity", "0x10", "0x1p-2", "1_000", "0b1", "0o7", "1f", "1d", "١", "½", "1e٣",
		"1:", "1/", "12345678:", "0.1234567:", "0.12345678/", "0.1234567/1", "0.123456789:", "\x001",
		"1\x00", "0.1\xff",
		strings.Repeat("9", 5000) + "e-4700", "5" + strings.Repeat("0", 750) + strings.Repeat("1", 100) + "e-850",
		"9007199254740993" + strings.Repeat("0", 1000) + "1e-1001",
		strings.Repeat("0", 30), "0." + strings.Repeat("0", 40), "." + strings.Repeat("0", 25) + "1",
		strings.Repeat("0", 25) + "1",
	} {
		check(t, s)
	}
}

// TestEveryByte puts every byte at every place among digits, because the reader processes eight bytes at once.
func TestEveryByte(t *testing.T) {
	for i := range 20 {
		for c := range 256 {
			b := []byte("1.012345678012345678")
			b[i] = byte(c)
			check(t, string(b))
		}
	}
}

// TestHard reads numbers that a plausible reader would get wrong, one a line.
func TestHard(t *testing.T) {
	for _, s := range []string{
		// the ends of the table of powers
		"1e308", "17e307", "18e307", "18446744073709551615e-342", "1844674407370955161e-343", "1e-342",
		"1e22", "1e23", "9007199254740991e22", "9007199254740993e22", // the last exact power, and the next one
		// ties with an exact power of ten
		"9007199254740992", "9007199254740993", "9007199254740995", "-9007199254740993",
		// ties with a power of ten that is rounded down
		"4503599627370496.5", "4503599627370497.5", "4503599627370496.49999999999999999",
		"4503599627370496.500000000000000001",
		// the digits after the nineteenth decide
		"9007199254740993.00000000000000000000000001", "9007199254740992.99999999999999999999999999",
		// 19 and 20 digits, 2⁶⁴
		"18446744073709551615", "18446744073709551616", "9999999999999999999", "10000000000000000000",
		"99999999999999999999", "0.99999999999999999999", "18446744073709551615000", // wraps around in 64 bits
		"00000000000000000000000001.5", "0.0000000000000000000000000000015", // leading zeros do not count as digits
		"1797693134862315708145274237317043567981e269", // the largest number, with many digits
		"1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "1.797693134862315807e308",
		// 2 | half a unit in the last place above the largest number
		overflow, overflow + ".0", overflow + "000e-3", overflow[:308] + "1", overflow[:308] + "1.99999",
		overflow + ".00001",
		"2e308", "1e309", "1e999", "-1e999", "1e400000000000000000000", "123456789012345678901234567890e300",
		"5e-324", "4.9406564584124654e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.47e-324",
		"2.48e-324", "1e-400", "-1e-400", "1e-400000000000000000000",
		"2.2250738585072011e-308", "2.2250738585072012e-308", "2.2250738585072014e-308",
		"2.225073858507201136057409796709131975934819546351645648023426109724822222021076945516529523908135087914149158913039621106870086438694594645527657207407820621743379988141063267329253552286881372149012981122451451889849057222307285255133155755015914397476397983411801999323962548289017107081850690630666655994938275772572015763062690663332647565300009245888316433037779791869612049497390377829704905051080609940730262937128958950003583799967207254304360284078895771796150945516748243471030702609144621572289880258182545180325707018860872113128079512233426288368622321503775666622503982534335974568884423900265498198385487948292206894721689831099698365846814022854243330660339850886445804001034933970427567186443383770486037861622771738545623065874679014086723327636718751234567890123456789012345678901e-308",
		"6.929001713869936e+236",
		"1.00000000000000188558920870223463870174566020691753515394643550663070558368373221972569761144603605635692374830246134201063722058e-309",
		"7205759403792793199999e-5", "8.41e21", "1e-5000", "1e5000", "0e999999999999",
		"0." + strings.Repeat("0", 400) + "1e401", "1" + strings.Repeat("0", 400) + "e-400",
	} {
		check(t, s)
	}
}

// midpoint returns the exact decimal expansion of the midpoint between the positive float with the given bits and the
// next one.
func midpoint(u uint64) string {
	a := new(big.Float).SetPrec(2200).SetFloat64(math.Float64frombits(u))
	b := new(big.Float).SetPrec(2200).SetFloat64(math.Float64frombits(u + 1))
	a.Add(a, b).Mul(a, big.NewFloat(0.5))
	return a.Text('e', 800)
}

func TestHalfway(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	n := 1000
	if testing.Short() {
		n = 100
	}
	for i := range n {
		u := r.Uint64() >> 1
		switch i % 4 {
		case 0:
			u = r.Uint64N(1 << (1 + r.UintN(52))) // subnormal
		case 1:
			u = math.Float64bits(math.Ldexp(1+r.Float64(), r.IntN(80)-10)) // few digits
		}
		if u >= infinity-1 {
			continue
		}
		s := midpoint(u)
		e := strings.IndexByte(s, 'e')
		digits, exp := strings.TrimRight(s[:e], "0"), s[e:]
		check(t, digits+exp)
		check(t, digits+"0000000001"+exp)
		check(t, digits+strings.Repeat("0", 900)+"1"+exp)
		if last := digits[len(digits)-1]; last > '0' && last <= '9' {
			check(t, digits[:len(digits)-1]+string(last-1)+"9999999999"+exp)
		}
		for _, k := range []int{17, 18, 19, 20, 21} { // also cut near the number of digits that fits 64 bits
			if len(digits) > k+1 {
				check(t, digits[:k+1]+exp)
			}
		}
	}
}

// randomNumber returns numbers of all kinds that occur in records, and of kinds that are hard for the reader.
func randomNumber(r *rand.Rand, kind int) string {
	switch kind {
	case 0: // any float, shortest
		return strconv.FormatFloat(math.Float64frombits(r.Uint64()), 'e', -1, 64)
	case 1: // any float, 17 digits
		return strconv.FormatFloat(math.Float64frombits(r.Uint64()), 'e', 16, 64)
	case 2: // the numbers that programs print
		return strconv.FormatFloat(r.NormFloat64()*math.Exp(20*r.Float64()-10), 'g', -1, 64)
	case 3: // amounts of money and measurements
		return strconv.FormatFloat(r.NormFloat64()*1000, 'f', r.IntN(9), 64)
	case 4: // integers
		return strconv.FormatUint(r.Uint64()>>r.UintN(64), 10)
	case 5: // 19 digits with any exponent
		return fmt.Sprintf("%de%d", r.Uint64()%10000000000000000000, r.IntN(700)-370)
	case 6: // up to 40 digits
		return fmt.Sprintf("%d.%019d%de%d", r.Uint64N(1<<r.UintN(60)+1), r.Uint64()%10000000000000000000, r.Uint64(),
			r.IntN(700)-350)
	case 7: // subnormal
		return strconv.FormatFloat(math.Float64frombits(r.Uint64N(1<<52)), 'e', r.IntN(25), 64)
	case 8: // near powers of two, where the spacing changes
		x := math.Ldexp(1, r.IntN(2098)-1074)
		return strconv.FormatFloat(math.Float64frombits(math.Float64bits(x)+uint64(r.IntN(5))-2), 'e', 14+r.IntN(8), 64)
	default: // halves of integers around 2⁵³
		return strconv.FormatUint(1<<53+r.Uint64N(1<<12), 10) +
			[]string{"", ".5", ".25", ".50000000000000001", ".4999999999999999"}[r.IntN(5)]
	}
}

func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 500_000
	if os.Getenv("STREAMDP_SLOW") != "" {
		n = 2_000_000
	}
	if testing.Short() {
		n = 50_000
	}
	for i := range n {
		s := randomNumber(r, i%10)
		if s == "NaN" || strings.HasSuffix(s, "Inf") {
			continue
		}
		want, _ := strconv.ParseFloat(s, 64)
		f, k := Plain([]byte(s + ",12345678"))
		if k != len(s) || math.Float64bits(f) != math.Float64bits(want) {
			t.Fatalf("Plain(%q) = %x after %d bytes, want %x", s, f, k, want)
		}
		if g, k := JSON([]byte(s)); k != len(s) || math.Float64bits(g) != math.Float64bits(want) {
			t.Fatalf("JSON(%q) = %x after %d bytes, want %x", s, g, k, want)
		}
	}
}

// TestPowers compares the table and the logarithm with their definitions.
func TestPowers(t *testing.T) {
	for q := minPower; q <= maxPower; q++ {
		e := q * 217706 >> 16
		p := powers[q-minPower]
		T := new(big.Int).SetUint64(p.hi)
		T.Lsh(T, 64).Or(T, new(big.Int).SetUint64(p.lo))
		if T.BitLen() != 128 {
			t.Fatalf("power of 10^%d has %d bits", q, T.BitLen())
		}
		// T ≤ 10^q/2^(e−127) < T+1
		x := new(big.Rat).SetInt64(1)
		ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(q, -q))), nil)
		if x.SetInt(ten); q < 0 {
			x.Inv(x)
		}
		two := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(e-127, 127-e))))
		if e >= 127 {
			two.Inv(two)
		}
		x.Mul(x, two)
		low := new(big.Rat).SetInt(T)
		high := new(big.Rat).SetInt(T.Add(T, big.NewInt(1)))
		if x.Cmp(low) < 0 || x.Cmp(high) >= 0 {
			t.Fatalf("power of 10^%d is not rounded down", q)
		}
		if exact := 0 <= q && q <= maxExactPower; exact != (x.Cmp(low) == 0) {
			t.Fatalf("10^%d: exact is %v", q, !exact)
		}
	}
}

// TestLongExponent: strconv stops reading an exponent after five digits, so with enough digits in the number it returns
// a wrong result. This reader does not.
func TestLongExponent(t *testing.T) {
	for s, want := range map[string]float64{
		"0." + strings.Repeat("0", 200_000) + "15e200001":                                             1.5,
		"15" + strings.Repeat("0", 200_000) + "e-200001":                                              1.5,
		"0." + strings.Repeat("0", 200_000) + "9007199254740992999999999999999999999999999999e200016": 9007199254740992,
	} {
		if f, n := JSON([]byte(s)); n != len(s) || f != want {
			t.Errorf("%d bytes: got %v after %d, want %v", len(s), f, n, want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	var all [][]byte
	for _, s := range []string{"0", "1.5", "-0.12345678901234567", "1e999", "x", midpoint(0x3FF0000000000000),
		midpoint(1), overflow + ".1", "-" + overflow, overflow[:308] + "1.5", "4503599627370496.5",
		strings.Repeat("9", 5000) + "e-4700"} {
		all = append(all, []byte(s))
	}
	if n := testing.AllocsPerRun(50, func() {
		for _, b := range all {
			JSON(b)
			Plain(b)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecimal(f *testing.F) {
	for _, s := range []string{"0", "-0", "1", "-1.5e-5", "+.5", "5.", "123456789012345678901234567890", "1e999",
		"4.9e-324", "2.4703282292062327e-324", "9007199254740993", "0.12345678", "1.7976931348623159e308", "1e",
		"0x1p-2", "nan"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e := bytes.LastIndexAny(b, "eE"); len(b) > 9000 || len(b) >= 800 && e > 0 && len(b)-e > 6 {
			return // checking it would take too long
		}
		check(t, string(b))
	})
}

var sink float64

func BenchmarkDecimal(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, k := range []struct {
		name string
		make func() string
	}{
		{"digits17", func() string { return strconv.FormatFloat(r.NormFloat64(), 'f', -1, 64) }},
		{"decimals3", func() string { return strconv.FormatFloat(100*r.NormFloat64(), 'f', 3, 64) }},
		{"exponent", func() string { return strconv.FormatFloat(math.Float64frombits(r.Uint64()>>2), 'e', -1, 64) }},
		// decided by strconv
		{"halfway17", func() string { return strconv.FormatUint(1<<52|r.Uint64()>>12, 10) + ".5" }},
		{"halfway700", func() string { return midpoint(1 + r.Uint64N(1<<20)) }},
		{"digits25", func() string { return fmt.Sprintf("0.%010d%015d", 1+r.Uint64N(1e10-1), r.Uint64N(1e15)) }},
	} {
		var numbers [16384][]byte
		for i := range numbers {
			if k.name == "halfway700" && i >= 64 {
				numbers[i] = numbers[i%64]
				continue
			}
			numbers[i] = []byte(k.make() + ",\"name\":")
		}
		b.Run(k.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f, _ := JSON(numbers[i%len(numbers)])
				sink += f
			}
		})
		b.Run(k.name+"/strconv", func(b *testing.B) {
			var texts [16384]string
			for i := range texts {
				texts[i] = strings.TrimSuffix(string(numbers[i]), ",\"name\":")
			}
			for i := 0; b.Loop(); i++ {
				f, _ := strconv.ParseFloat(texts[i%len(texts)], 64)
				sink += f
			}
		})
	}
}

func BenchmarkPowers(b *testing.B) {
	for b.Loop() {
		computePowers()
	}
}
