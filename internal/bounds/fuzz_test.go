package bounds

import (
	"bytes"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// FuzzState restores arbitrary states. If a state is accepted, it must be written again unchanged, and the warm-up must
// be able to continue from it.
func FuzzState(f *testing.F) {
	const mu = 3
	fuzzed := func(t testing.TB, split bool) *Warmup {
		cfg := Config{Columns: 2, Clip: true, Split: split}
		cfg.Records = cfg.Needed(mu, dp.ZeroOut)
		w, err := New(cfg, mu, dp.ZeroOut, 24)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	// goOn runs the next part, and reports whether there is one.
	goOn := func(w *Warmup, t testing.TB) bool {
		if w.Done() {
			return false
		}
		first, end := w.Range(uint64(w.next) + 1)
		for i := first; i < end; i++ {
			w.Add([]float64{math.Sin(float64(i)), 100 + 20*math.Cos(float64(7*i))})
		}
		if _, err := w.Close(dptest.Seeded(uint64(first))); err != nil {
			t.Fatal(err)
		}
		return true
	}
	for _, split := range []bool{false, true} {
		for w := fuzzed(f, split); ; {
			var b bin.Writer
			w.AppendTo(&b)
			f.Add(b.B, split)
			lacks, b := *w, bin.Writer{} // the number of records that the next part needs
			lacks.ranges, lacks.pool = nil, nil
			lacks.AppendTo(&b)
			f.Add(b.B, split)
			if !goOn(w, f) {
				break
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, split bool) {
		w := fuzzed(t, split)
		r := &bin.Reader{B: data}
		if w.Restore(r) != nil || len(r.B) > 0 {
			return
		}
		var b bin.Writer
		w.AppendTo(&b)
		if !bytes.Equal(b.B, data) {
			t.Fatalf("read\n%x, written\n%x", data, b.B)
		}
		for goOn(w, t) {
		}
		if row := make([]float64, 2); !w.Failed() && !w.Found().Scaled(row, []float64{0.5, 100}) {
			t.Logf("Scaled refused the row: %+v", w.Found())
		}
	})
}
