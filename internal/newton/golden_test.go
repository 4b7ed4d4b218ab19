package newton

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestGoldenNorms pins the bits of numbers computed from a histogram. Fused products would give different bits on some
// machines.
func TestGoldenNorms(t *testing.T) {
	apart := [3]int{}
	for k := range 1000 {
		n := Norms{SD: 10 + float64(k)/100}
		// Test the largest number of rows that may be shortened, and slightly more.
		const valid = 1000.0
		root := math.Sqrt(2)
		limit := 0.4*valid - float64(1.5*n.SD*root)
		if math.FMA(-1.5*n.SD, root, 0.4*valid) != limit {
			apart[0]++
		}
		for _, c := range []struct{ rows, want float64 }{{limit, 0.25}, {math.Nextafter(limit, 1e3), 0.5}} {
			n.Counts[1] = c.rows
			if squared, _ := n.Radius(valid, 1, 0); squared != c.want {
				t.Fatalf("deviation %g, %v rows: R² = %g, want %g", n.SD, c.rows, squared, c.want)
			}
		}
		n.Counts[1] = 300
		root = math.Sqrt(Bins)
		if math.FMA(2*n.SD, root, 300) != 300+float64(2*n.SD*root) {
			apart[1]++
		}
		if got, want := n.Valid(1e4), 300+float64(2*n.SD*root); got != want {
			t.Fatalf("deviation %g: %v rows, want %v", n.SD, got, want)
		}
		var square float64
		for j := range Bins {
			square += float64(min(middle(j), 0.5) * min(middle(j), 0.5))
		}
		root = math.Sqrt(square)
		if math.FMA(n.SD, root, 300*middle(1)) != 300*middle(1)+float64(n.SD*root) {
			apart[2]++
		}
		if got, want := n.Trace(0.5, 1e4, 0), 300*middle(1)+float64(n.SD*root); got != want {
			t.Fatalf("deviation %g: trace %v, want %v", n.SD, got, want)
		}
	}
	if slices.Min(apart[:]) < 50 {
		t.Errorf("%d cases are told apart", apart)
	}
}

// TestGoldenBits checks that the arithmetic gives the same bits on every machine.
func TestGoldenBits(t *testing.T) {
	h := sha256.New()
	put := func(x ...float64) {
		for _, v := range x {
			binary.Write(h, binary.LittleEndian, math.Float64bits(v))
		}
	}
	state := uint64(1)
	next := func() float64 { // in (−1, 1)
		state = state*6364136223846793005 + 1442695040888963407
		return float64(int64(state)>>11) * 0x1p-52
	}
	for range 1000 {
		x := 40 * next()
		put(Exp(x), Log(math.Abs(x)), Pow(math.Abs(x), next()))
	}
	const d = 9
	upper := make([]float64, d*(d+1)/2)
	for i := range upper {
		upper[i] = next()
	}
	values, vectors := Eigen(upper, d)
	w := Whiten(upper, d, 0.3, 5)
	x := make([]float64, 6*d)
	for i := range x {
		x[i] = next()
	}
	w.ApplyRows(x, d)
	put(values...)
	put(vectors...)
	put(w.Share...)
	put(x...)
	var hist Histogram
	for i := range 200 {
		hist.Add([]float64{next(), next() / float64(i+1)})
	}
	norms := hist.Release(dptest.Zero(), "h", 1, 24)
	valid := norms.Valid(200)
	squared, missed := norms.Radius(valid, 3, 0.25)
	put(valid, squared, missed, norms.Trace(squared, valid, missed))
	const want = "1125201bdbf070eb455806ed86e4c97a5443a4f73f6c810463299f2326775ccd"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the bits hash to %s, want %s", got, want)
	}
}
