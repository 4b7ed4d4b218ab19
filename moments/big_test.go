package moments

import (
	"os"
	"runtime"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestThousandColumns runs steps of 1000 columns, with 500 500 coordinates of the second moment, with correlated noise.
// It checks that they need no more memory than Sizes states. It runs with STREAMDP_SLOW=1.
func TestThousandColumns(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("takes long: runs with STREAMDP_SLOW=1, which the CI script sets")
	}
	const d = 1000
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	e := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(d), Step: 10, Factorization: "phased"},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	row := make([]float64, d)
	for i := range row {
		row[i] = float64(i%7) - 3
	}
	noise := keyed(t, 9)
	var r *dp.Release
	for step := uint64(1); step <= 20; step++ {
		for range 10 {
			e.Add(0, row)
		}
		var err error
		if r, err = e.Close(noise(step)); err != nil {
			t.Fatal(err)
		}
	}
	used := heap() - before
	if most := e.Sizes().Peak; used > most {
		t.Errorf("%d bytes are in use, %d are announced", used, most)
	}
	if n := len(r.Values[1].Data); n != d*(d+1)/2 {
		t.Errorf("%d coordinates", n)
	}
	state := estimatortest.State(t, e)
	if most := e.Sizes().State; int64(len(state)) > most {
		t.Errorf("a state of %d bytes, announced %d", len(state), most)
	}
	t.Logf("%d MB in use, %d MB announced; a state of %d MB", used>>20, e.Sizes().Peak>>20, len(state)>>20)
	runtime.KeepAlive(e)
}
