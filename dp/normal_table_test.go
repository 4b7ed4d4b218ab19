package dp

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"math"
	"math/big"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write normal.table")

// The test computes the table from its definition, with 420-bit arithmetic.
const tablePrec = 420

// inverseTail returns z with Q(z) = p by Newton's method.
func inverseTail(p *big.Float) *big.Float {
	f, _ := p.Float64()
	// Start from a value that is right to a few digits: Q⁻¹ is concave in −log p.
	lo, hi := 0.0, 14.0
	for range 60 {
		mid := (lo + hi) / 2
		if math.Erfc(mid/math.Sqrt2)/2 > f {
			lo = mid
		} else {
			hi = mid
		}
	}
	z := newFloat(tablePrec).SetFloat64(lo)
	for range 7 {
		r, _ := z.Rat(nil)
		step := newFloat(tablePrec).Sub(upperTail(r, tablePrec+140), p)
		step.Quo(step, densityAt(z))
		z.Add(z, step)
	}
	return z
}

func densityAt(z *big.Float) *big.Float {
	h := newFloat(tablePrec).Mul(z, z)
	h.Quo(h, newFloat(tablePrec).SetInt64(2))
	d := expNeg(h)
	return d.Quo(d, sqrt2Pi(tablePrec))
}

// derivativePolynomials returns P_1 … P_n with
// dᵏQ⁻¹/dpᵏ = (−1)ᵏ P_k(z)/φ(z)ᵏ: P_1 = 1, P_{k+1} = P_k' + k·z·P_k.
func derivativePolynomials(n int) [][]*big.Int {
	p := [][]*big.Int{nil, {big.NewInt(1)}}
	for k := 1; k < n; k++ {
		next := make([]*big.Int, k+1)
		for i := range next {
			next[i] = new(big.Int)
		}
		for i, c := range p[k] {
			if i > 0 {
				next[i-1].Add(next[i-1], new(big.Int).Mul(c, big.NewInt(int64(i))))
			}
			next[i+1].Add(next[i+1], new(big.Int).Mul(c, big.NewInt(int64(k))))
		}
		p = append(p, next)
	}
	return p
}

var derivatives = derivativePolynomials(48)

func evalInt(poly []*big.Int, z *big.Float) *big.Float {
	v := newFloat(tablePrec)
	for i := len(poly) - 1; i >= 0; i-- {
		v.Mul(v, z)
		v.Add(v, newFloat(tablePrec).SetInt(poly[i]))
	}
	return v
}

// taylor returns the coefficients in x of f(x) = Q⁻¹(centre + width·x).
func taylor(centre, width *big.Float, degree int) []*big.Float {
	z := inverseTail(centre)
	ratio := newFloat(tablePrec).Quo(width, densityAt(z))
	c := []*big.Float{z}
	power := newFloat(tablePrec).SetInt64(1)
	for k := 1; k <= degree; k++ {
		power.Mul(power, ratio)
		power.Quo(power, newFloat(tablePrec).SetInt64(int64(k)))
		power.Neg(power)
		c = append(c, newFloat(tablePrec).Mul(power, evalInt(derivatives[k], z)))
	}
	return c
}

// chebyshev returns the coefficients of Σ c_k x^k in the polynomials T_k(2x),
// exactly: x^k = 4^−k·2^(1−k)… by T_1·T_k = (T_{k+1} + T_{k−1})/2.
func chebyshev(c []*big.Float) []*big.Float {
	n := len(c)
	out := make([]*big.Float, n)
	power := make([]*big.Float, n+1) // x^k in the basis
	for i := range out {
		out[i] = newFloat(tablePrec)
	}
	for i := range power {
		power[i] = newFloat(tablePrec)
	}
	power[0].SetInt64(1)
	quarter := newFloat(tablePrec).SetFloat64(0.25)
	for k := range n {
		for i := range n {
			out[i].Add(out[i], newFloat(tablePrec).Mul(c[k], power[i]))
		}
		// multiply by x = T_1(2x)/2
		next := make([]*big.Float, n+1)
		for i := range next {
			next[i] = newFloat(tablePrec)
		}
		for i := 0; i < n; i++ {
			half := newFloat(tablePrec).Mul(power[i], quarter)
			if i == 0 {
				next[1].Add(next[1], newFloat(tablePrec).Add(half, half))
				continue
			}
			next[i+1].Add(next[i+1], half)
			next[i-1].Add(next[i-1], half)
		}
		power = next
	}
	return out
}

// powers is the inverse function of chebyshev.
func powers(t []*big.Float) []*big.Float {
	n := len(t)
	out := make([]*big.Float, n)
	prev, cur := make([]*big.Float, n), make([]*big.Float, n) // T_{k−1}, T_k in powers of x
	for i := range n {
		out[i], prev[i], cur[i] = newFloat(tablePrec), newFloat(tablePrec), newFloat(tablePrec)
	}
	prev[0].SetInt64(1)
	if n > 1 {
		cur[1].SetInt64(2)
	}
	four := newFloat(tablePrec).SetInt64(4)
	for k := range n {
		for i := range n {
			out[i].Add(out[i], newFloat(tablePrec).Mul(t[k], prev[i]))
		}
		next := make([]*big.Float, n)
		for i := range n {
			next[i] = newFloat(tablePrec).Neg(prev[i])
			if i > 0 {
				next[i].Add(next[i], newFloat(tablePrec).Mul(four, cur[i-1]))
			}
		}
		prev, cur = cur, next
	}
	return out
}

// tableRow is the domain of one row, and its degree.
type tableRow struct {
	left, width *big.Float // of p
	degree      int
	stored      []float64
}

func tableRows() []tableRow {
	var rows []tableRow
	exp2 := func(e int) *big.Float { return newFloat(tablePrec).SetMantExp(newFloat(tablePrec).SetInt64(1), e) }
	for i := range mainRows {
		zeros := i / 32
		w := exp2(-(zeros + 7))
		a := newFloat(tablePrec).Add(exp2(-(zeros + 2)),
			newFloat(tablePrec).Mul(w, newFloat(tablePrec).SetInt64(int64(i%32))))
		rows = append(rows, tableRow{a, w, mainDegree, mainTable[mainIndex(uint64(i/32), uint64(i%32))][:mainDegree+1]})
	}
	for i := range tailRows {
		w := exp2(-(i + 17))
		rows = append(rows, tableRow{w, w, tailDegree, tailTable[i][:]})
	}
	return rows
}

func (r tableRow) centre() *big.Float {
	half := newFloat(tablePrec).Quo(r.width, newFloat(tablePrec).SetInt64(2))
	return half.Add(half, r.left)
}

// extra returns the number of degrees of the Taylor polynomial beyond the stored degree.
func (r tableRow) extra() int {
	if r.degree == mainDegree {
		return 12
	}
	return 25
}

func (r tableRow) coefficients() []float64 {
	t := chebyshev(taylor(r.centre(), r.width, r.degree+r.extra()))[:r.degree+1]
	c := make([]float64, r.degree+1)
	for k, v := range powers(t) {
		c[k], _ = v.Float64()
	}
	return c
}

// TestNormalTable pins the stored table; with -update it writes it.
func TestNormalTable(t *testing.T) {
	if *update {
		var out []byte
		for _, r := range tableRows() {
			for _, c := range r.coefficients() {
				out = binary.LittleEndian.AppendUint64(out, math.Float64bits(c))
			}
		}
		if err := os.WriteFile("normal.table", out, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Log("normal.table written; run the tests again")
		return
	}
	sum := func(rows []tableRow) string {
		h := sha256.New()
		for _, r := range rows {
			for _, c := range r.stored {
				h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(c)))
			}
		}
		return hex.EncodeToString(h.Sum(nil))
	}
	rows := tableRows()
	if got, want := sum(rows[:mainRows]),
		"cd8804d2e2d8a06e60337b354430c0d1d23ad29fd0ab7ecc1fc574435c19c154"; got != want {
		t.Errorf("main table: SHA-256 %s, want %s", got, want)
	}
	if got, want := sum(rows[mainRows:]),
		"a2c04ab78bf187b2581cd73c037ca6af4e735667a0c9e4856e851bdd45720775"; got != want {
		t.Errorf("tail table: SHA-256 %s, want %s", got, want)
	}
}

// TestNormalGolden pins the bits of 2²¹ draws on every architecture: the words are the keystream of AES-256-CTR under
// the zero key and IV, and the extension word of u is NOT u.
func TestNormalGolden(t *testing.T) {
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	stream := cipher.NewCTR(block, make([]byte, 16))
	h := sha256.New()
	buf, zero := make([]byte, 8*512), make([]byte, 8*512)
	tail := 0
	for n := range 1 << 21 / 512 {
		stream.XORKeyStream(buf, zero)
		for i := 0; i < len(buf); i += 8 {
			u := binary.LittleEndian.Uint64(buf[i:])
			var z float64
			if isTail(u) {
				z = gaussianTail(u, ^u)
				tail++
			} else {
				z = gaussianMain(u)
			}
			if n == 0 && i == 0 && (u != 0x898940a278c095dc || z != -1.7835235787875185) {
				t.Errorf("first word %x gives %v, want 898940a278c095dc and -1.7835235787875185", u, z)
			}
			binary.LittleEndian.PutUint64(buf[i:], math.Float64bits(z))
		}
		h.Write(buf)
	}
	if tail != 67 {
		t.Errorf("%d tail words, want 67", tail)
	}
	const want = "d79db48f19a4af03ee2eccaab4ccf455a911876f5ce73bc66ce9388dce4f4535"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("SHA-256 %s, want %s", got, want)
	}
}
