package moments

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/race"
)

// TestParts sums a step in parts, by several goroutines, and at once. The releases and stated errors must be the same,
// because sums of integers are exact in any order. The rows fit one block, so second moments are rounded once in both
// cases.
func TestParts(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"jme", "ime", "cs"} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, parts := range []int{1, 3, 64} {
				t.Run(fmt.Sprint(method, adjacency, parts), func(t *testing.T) {
					cfg := Config{Method: method, Clip: 1, Columns: []string{"a", "b", "c"}, Step: 640,
						ValidCount: new(true)}
					if method == "cs" {
						cfg.Tau = 1
					}
					p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: adjacency}
					whole, err := New(cfg, p)
					if err != nil {
						t.Fatal(err)
					}
					merged, err := New(cfg, p)
					if err != nil {
						t.Fatal(err)
					}
					if whole.block < 640 {
						t.Fatalf("a block has %d records", whole.block)
					}
					list := make([]dp.Part, parts)
					for i := range list {
						if list[i], err = merged.NewPart(); err != nil {
							t.Fatal(err)
						}
					}
					rng := rand.New(rand.NewPCG(5, uint64(parts)))
					for step := range 3 {
						rows := make([][]float64, 640-step)
						for i := range rows {
							if i%50 != 7 { // an invalid record now and then
								rows[i] = []float64{rng.NormFloat64(), rng.NormFloat64() / 2, rng.NormFloat64() / 4}
							}
							whole.Add(uint64(i), rows[i])
						}
						var wg sync.WaitGroup
						for i, part := range list {
							wg.Go(func() {
								for j := i; j < len(rows); j += parts {
									part.Add(uint64(j), rows[j])
								}
							})
						}
						wg.Wait()
						for _, i := range rng.Perm(parts) {
							if err := merged.Merge(list[i]); err != nil {
								t.Fatal(err)
							}
						}
						one, err1 := whole.Close(dptest.Seeded(uint64(step)))
						two, err2 := merged.Close(dptest.Seeded(uint64(step)))
						if err1 != nil || err2 != nil || !reflect.DeepEqual(one, two) {
							t.Fatalf("step %d: %v, %v\n%+v\n%+v", step, err1, err2, one, two)
						}
					}
					if a, b := whole.Clipped(), merged.Clipped(); a != b || a == 0 {
						t.Errorf("%d clipped, %d in parts", a, b)
					}
				})
			}
		}
	}
}

// TestPartsRefused merges a part of another estimator, which must fail. A step with more records than slots must be
// refused, whether it is summed in parts or not.
func TestPartsRefused(t *testing.T) {
	cfg := Config{Clip: 1, Columns: []string{"a"}, Step: 2}
	p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace}
	one, err := New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	two, err := New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	part, err := one.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	if two.Merge(part) == nil {
		t.Error("Merge accepted a part of another estimator")
	}
	for i := range 3 {
		part.Add(uint64(i), []float64{0.5})
	}
	if err := one.Merge(part); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Close(dptest.Seeded(1)); err == nil {
		t.Error("a step with three records in two slots was released")
	}
}

// TestPartsOfManyBlocks uses a step with more records than a block of squares. Its integers must not depend on the
// number of parts.
func TestPartsOfManyBlocks(t *testing.T) {
	t.Parallel()
	cfg := Config{Clip: 1, Columns: []string{"a", "b"}, Step: 600}
	p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace, LatticeBits: 30}
	rng := rand.New(rand.NewPCG(6, 6))
	rows := make([][]float64, 600)
	for i := range rows {
		rows[i] = []float64{rng.NormFloat64(), rng.NormFloat64()}
	}
	var want *dp.Release
	for _, parts := range []int{1, 3, 64} {
		e, err := New(cfg, p)
		if err != nil {
			t.Fatal(err)
		}
		if e.block > 100 {
			t.Fatalf("a block has %d records", e.block)
		}
		list := make([]dp.Part, parts)
		for i := range list {
			if list[i], err = e.NewPart(); err != nil {
				t.Fatal(err)
			}
		}
		for i, row := range rows {
			list[i%parts].Add(uint64(i), row)
		}
		for _, part := range list {
			if err := e.Merge(part); err != nil {
				t.Fatal(err)
			}
		}
		r, err := e.Close(dptest.Seeded(1))
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = r
		} else if !reflect.DeepEqual(r, want) {
			t.Errorf("%d parts: %+v, want %+v", parts, r, want)
		}
	}
}

// TestPartMemory checks that a part takes at most the stated memory plus two kilobytes for the Part itself.
func TestPartMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const d = 64
	e := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(d), Step: 10, Factorization: "identity"},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	if _, err := e.NewPart(); err != nil { // the first one creates memory that all parts share
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	part, err := e.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float64, d)
	for slot := range uint64(10) {
		part.Add(slot, row)
	}
	runtime.ReadMemStats(&after)
	took, stated := int64(after.TotalAlloc-before.TotalAlloc), e.Sizes().Part
	if took > stated+stated/10+2048 || stated > 3*took {
		t.Errorf("a part takes %d bytes, stated %d", took, stated)
	}
}
