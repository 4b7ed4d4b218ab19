package refit

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// seen is noise that records the integers that it hides.
type seen struct {
	dp.Noise
	hidden []string
}

func (s *seen) Row(array string, hidden []int64) dp.Row {
	s.hidden = append(s.hidden, fmt.Sprint(array, hidden))
	return s.Noise.Row(array, hidden)
}

// merged returns a configuration over the given number of partitions, with windows of the given total number of rows.
func merged(c Config, partitions, window int) Config {
	c.Partitions, c.Window = uint64(partitions), uint64(window/partitions)
	if c.Stride > 0 {
		c.Stride = c.Window + 2
	}
	return c
}

// TestParts fills a window from 1, 3 or 64 partitions, each by its own goroutine and in any order. Every release must
// hide the same integers, and the solutions must be equal. The window is longer than two blocks.
func TestParts(t *testing.T) {
	t.Parallel()
	const window = 9600
	no := false
	base := Config{Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3}
	configs := map[string]func(*Config){
		"newton":                    func(c *Config) { c.Solver = "newton" },
		"newton without a constant": func(c *Config) { c.Solver, c.Intercept = "newton", &no },
		"newton with a stride":      func(c *Config) { c.Solver, c.Stride = "newton", 1 },
		"adassp":                    func(c *Config) { c.Solver = "adassp" },
		"dp-gd-residual":            func(c *Config) { c.Solver = "dp-gd-residual" },
	}
	for name, set := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := base
			set(&c)
			rows := records(2*window, 5)
			var want []*dp.Release
			var hidden [2][]string
			for _, partitions := range []int{1, 3, 64} {
				r := mustRefit(t, merged(c, partitions, window),
					dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
				parts := make([]dp.Part, partitions)
				for i := range parts {
					part, err := r.NewPart()
					if err != nil {
						t.Fatal(err)
					}
					parts[i] = part
				}
				rng := rand.New(rand.NewPCG(7, uint64(partitions)))
				for step := range 2 {
					order := rng.Perm(window)
					if partitions == 1 {
						slices.Sort(order)
					}
					first, end := r.Range(uint64(step) + 1)
					var wg sync.WaitGroup
					for i, part := range parts {
						wg.Go(func() {
							lo, hi := first/uint64(partitions), end/uint64(partitions)
							start := hi - window/uint64(partitions)
							for slot := lo; slot < start; slot++ { // slots between windows
								part.Add(slot, []float64{9, 9, 9})
							}
							for slot := start; slot < hi; slot++ {
								part.Add(slot, rows[step*window+order[int(slot-start)*partitions+i]])
							}
						})
					}
					wg.Wait()
					for _, i := range rng.Perm(partitions) {
						if err := r.Merge(parts[i]); err != nil {
							t.Fatal(err)
						}
					}
					noise := &seen{Noise: dptest.Seeded(uint64(step))}
					release, err := r.Close(noise)
					if err != nil || release.Rows != window || release.Failed != "" {
						t.Fatalf("step %d: %v, %+v", step, err, release)
					}
					if partitions == 1 {
						want, hidden[step] = append(want, release), noise.hidden
						continue
					}
					if !slices.Equal(noise.hidden, hidden[step]) {
						t.Errorf("%d partitions, step %d: other integers", partitions, step+1)
					}
					if !reflect.DeepEqual(release, want[step]) {
						t.Errorf("%d partitions, step %d: %+v, want %+v", partitions, step+1, release, want[step])
					}
				}
			}
		})
	}
}

// TestPartsLikeOneLog checks that a window no longer than a block has the same release in parts as from one log,
// because both round every sum once.
func TestPartsLikeOneLog(t *testing.T) {
	t.Parallel()
	for _, solver := range merging {
		c := Config{Solver: solver, Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3, Window: 900}
		p := dp.Params{Epsilon: 2, Delta: 1e-8, Adjacency: dp.ZeroOut}
		rows := records(900, 8)
		want := closeWindow(t, mustRefit(t, c, p), rows, dptest.Seeded(1))
		r := mustRefit(t, merged(c, 3, 900), p)
		for i := range 3 {
			part, err := r.NewPart()
			if err != nil {
				t.Fatal(err)
			}
			for j := range 300 {
				part.Add(uint64(j), rows[3*j+i])
			}
			if err := r.Merge(part); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := r.Close(dptest.Seeded(1)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%+v\n%+v", solver, err, got, want)
		}
	}
}

// TestPartAhead checks that a refit of one log has the same releases whether it takes the rows itself or from a part.
// The part takes the rows of the next window, and those between windows, while the window before is solved.
func TestPartAhead(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut}
	all := configs()
	long := all["newton"]
	long.Window = 2*4096 + 50 // several blocks, which are rounded separately
	all["several blocks"] = long
	for name, c := range all {
		for _, between := range []uint64{0, 7} {
			if between > 0 {
				c.Stride = c.Window + between
			}
			const windows = 3
			own, ahead := mustRefit(t, c, p), mustRefit(t, c, p)
			part, err := ahead.NewPart()
			if err != nil {
				t.Fatal(err)
			}
			_, slots := own.Range(windows)
			rows := records(int(slots), 11)
			add := func(step uint64, to interface{ Add(uint64, []float64) }) {
				for first, end := own.Range(step); first < end; first++ {
					to.Add(first, rows[first])
				}
			}
			add(1, part)
			for step := uint64(1); step <= windows; step++ {
				add(step, own)
				want, err := own.Close(dptest.Seeded(step))
				if err != nil {
					t.Fatal(name, err)
				}
				if err := ahead.Merge(part); err != nil {
					t.Fatal(name, err)
				}
				var wait sync.WaitGroup
				if step < windows {
					wait.Go(func() { add(step+1, part) })
				}
				got, err := ahead.Close(dptest.Seeded(step))
				wait.Wait()
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s, window %d: %v\n%+v\nwant %+v", name, step, err, got, want)
				}
			}
		}
	}
}

// TestPartsRefused checks the errors of merged windows. Solvers whose releases depend on the order of rows have no
// parts. A part belongs to one refit. A window does not take more rows than slots. No other refit accepts the state of
// a merged refit.
func TestPartsRefused(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut}
	for name, c := range configs() {
		_, err := New(merged(c, 2, 120), p)
		sums := slices.Contains(merging, c.Solver) && !c.EigenTest
		if sums != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if !sums &&
			!slices.ContainsFunc(fault.All(err),
				func(err error) bool { return strings.Contains(err.Error(), "merge = true") }) {
			t.Errorf("%s is refused with %v", name, err)
		}
	}
	c := configs()["newton"]
	one, two := mustRefit(t, c, p), mustRefit(t, merged(c, 2, 120), p)
	part, err := two.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	if mustRefit(t, merged(c, 2, 120), p).Merge(part) == nil {
		t.Error("no error for a part of another refit")
	}
	for i := range 121 {
		part.Add(uint64(i)%60, []float64{1, 1, 1})
	}
	if err := two.Merge(part); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Close(dptest.Seeded(1)); err == nil {
		t.Error("no error for a window with too many rows")
	}
	state, err := one.AppendBinary(nil)
	if err != nil || two.UnmarshalBinary(state) == nil {
		t.Errorf("no error for the state of a refit of one log: %v", err)
	}
}
