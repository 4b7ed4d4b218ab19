package sketch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"streamdp/dp"
)

// TestGoldenReleases pins every bit of the releases of all solvers, on every
// architecture and for good: an epoch that one version began another one must go on
// with. Plans are rounded, for calibrations end in other last bits elsewhere. The noise
// is keyed.
func TestGoldenReleases(t *testing.T) {
	h := sha256.New()
	number := func(x float64) { binary.Write(h, binary.LittleEndian, math.Float64bits(x)) }
	source := rand.New(rand.NewPCG(14, 15))
	rows := make([][]float64, 300)
	for i := range rows {
		if i%10 == 3 {
			continue
		}
		// NormFloat64 has other bits elsewhere; multiples of 2⁻¹⁰ have not.
		a, b, e := float64(source.IntN(4096)-2048)/1024, float64(source.IntN(4096)-2048)/1024, float64(source.IntN(256)-128)/1024
		rows[i] = []float64{a, a/2 - b/4 + 0.25 + e, b}
	}
	all := configs()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c := all[name]
		if c.Solver == "dp-gd" {
			continue // of package sgd
		}
		c.Window = 300
		c.Defaults()
		p := dp.Params{Epsilon: 4, Delta: 1e-4, Adjacency: dp.ZeroOut}
		if c.accounting() == Exact && name != "newton" {
			p.Adjacency = dp.Replace
		}
		plan, err := resolve(&c, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range plan.numbers() {
			*x = math.Round(*x*(1<<12)) / (1 << 12)
		}
		r, err := newRefit(c, p, *plan)
		if err != nil {
			t.Fatal(err)
		}
		e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, name, 1, [16]byte{}, [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		transcript := dp.NewTranscript([32]byte{3})
		for step := uint64(1); step <= 2; step++ {
			transcript.AbsorbRecords(uint64(len(rows)))
			release := closeWindow(t, r, rows, e.Step(step, &transcript))
			h.Write([]byte(name + release.Failed))
			for _, v := range release.Values {
				h.Write([]byte(v.Name))
				for _, x := range v.Data {
					number(x)
				}
			}
		}
	}
	const want = "7aba4f814e9cc7ef7db41dff6b9cec3e1e6a7a199fa42305017bdb5549a86e33"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("releases hash to %s, want %s", got, want)
	}
}
