package refit

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// ended returns a configuration whose windows do not end by a number of slots.
func ended(c Config, partitions int, most uint64) Config {
	c.Window, c.Stride, c.Partitions, c.Most = 0, 0, uint64(partitions), most
	return c
}

// closeParts closes a window whose rows are in parts: row i is in part i mod len(parts).
func closeParts(t *testing.T, r *Refit, parts []dp.Part, first uint64, rows [][]float64, n dp.Noise) *dp.Release {
	t.Helper()
	for i, row := range rows {
		parts[i%len(parts)].Add(first+uint64(i/len(parts)), row)
	}
	for _, p := range parts {
		if err := r.Merge(p); err != nil {
			t.Fatal(err)
		}
	}
	release, err := r.Close(n)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// TestEndedWindows compares two kinds of windows with the same rows: those that something other than slots ends, some
// with few rows or none, and those with a fixed number of slots. For every solver both must have the same releases and
// hide the same integers, whether rows come one by one or in a part, and in any slots.
func TestEndedWindows(t *testing.T) {
	t.Parallel()
	sizes := []int{120, 0, 1, 2, 3, 5, 119, 240}
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Stride, c.Horizon = 0, 0
			one, by, two := mustRefit(t, ended(c, 0, 240), generous), mustRefit(t, ended(c, 0, 240), generous),
				ended(c, 0, 240)
			c.Window = 240
			want := mustRefit(t, c, generous)
			part, err := by.NewPart()
			if err != nil {
				t.Fatal(err)
			}
			slot := uint64(0)
			for i, n := range sizes {
				rows, seed := records(n, uint64(i)), uint64(i)
				reference := &seen{Noise: dptest.Seeded(seed)}
				release := closeWindow(t, want, rows, reference)
				if (release.Failed != "") != (n == 0) {
					t.Errorf("a window of %d rows: %q", n, release.Failed)
				}
				for _, row := range rows {
					one.Add(slot, row)
					slot++
				}
				noise := &seen{Noise: dptest.Seeded(seed)}
				got, err := one.Close(noise)
				if err != nil || !reflect.DeepEqual(got, release) || !slices.Equal(noise.hidden, reference.hidden) {
					t.Errorf("a window of %d rows: %v\n%+v, want\n%+v", n, err, got, release)
				}
				noise = &seen{Noise: dptest.Seeded(seed)}
				if got := closeParts(t, by, []dp.Part{part}, slot, rows, noise); !reflect.DeepEqual(got, release) ||
					!slices.Equal(noise.hidden, reference.hidden) {
					t.Errorf("a part of %d rows: %+v, want\n%+v", n, got, release)
				}
				// The restored refit continues here.
				state, err := one.AppendBinary(nil)
				if err != nil {
					t.Fatal(err)
				}
				two.Defaults()
				if one, err = newRefit(two, generous, one.Plan()); err != nil {
					t.Fatal(err)
				}
				if err := one.UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
			}
			for range 241 {
				one.Add(0, nil)
			}
			if _, err := one.Close(dptest.Seeded(1)); err == nil {
				t.Error("no error for a window with too many rows")
			}
			state, err := one.AppendBinary(nil)
			if err != nil || want.UnmarshalBinary(state) == nil {
				t.Errorf("no error for the state of a refit with other windows: %v", err)
			}
		})
	}
}

// TestEndedBlocks compares a window of several blocks with a window of a fixed number of slots. A refit of one log
// rounds blocks one by one. The releases must be equal, also if the rows came in a part.
func TestEndedBlocks(t *testing.T) {
	t.Parallel()
	rows := records(9600, 5)
	for _, solver := range merging {
		c := Config{Solver: solver, Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3, Window: 9600}
		p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace}
		by := mustRefit(t, ended(c, 0, 20000), p)
		part, err := by.NewPart()
		if err != nil {
			t.Fatal(err)
		}
		want := closeWindow(t, mustRefit(t, c, p), rows, dptest.Seeded(3))
		if got := closeParts(t, by, []dp.Part{part}, 7, rows, dptest.Seeded(3)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v, want\n%+v", solver, got, want)
		}
	}
}

// TestEndedParts compares a merged window that does not end by slots with a merged window of that many slots in each
// partition and the same rows. The releases must be equal. One partition has no rows.
func TestEndedParts(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 2, Delta: 1e-8, Adjacency: dp.ZeroOut}
	for _, solver := range merging {
		c := Config{Solver: solver, Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3}
		parts := func(r *Refit) (all []dp.Part) {
			for range r.cfg.Partitions {
				part, err := r.NewPart()
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, part)
			}
			return all
		}
		want, got := mustRefit(t, merged(c, 3, 900), p), mustRefit(t, ended(c, 3, 5000), p)
		whole := parts(got)
		for i, n := range []int{900, 600, 1, 0} {
			rows := records(n, 8)
			a := closeParts(t, want, parts(want), uint64(300*i), rows, dptest.Seeded(1))
			if b := closeParts(t, got, whole, uint64(300*i), rows, dptest.Seeded(1)); !reflect.DeepEqual(a, b) {
				t.Errorf("%s, %d rows:\n%+v\n%+v", solver, n, b, a)
			}
		}
		quiet := mustRefit(t, ended(c, 3, 5000), p)
		three, rows := parts(quiet), records(300, 9)
		for i, row := range rows {
			three[0].Add(uint64(i), row)
		}
		for _, part := range three {
			if err := quiet.Merge(part); err != nil {
				t.Fatal(err)
			}
		}
		a, err := quiet.Close(dptest.Seeded(2))
		if b := closeWindow(t, mustRefit(t, merged(c, 1, 300), p), rows, dptest.Seeded(2)); err != nil ||
			!reflect.DeepEqual(a, b) {
			t.Errorf("%s: with quiet partitions %v\n%+v, want\n%+v", solver, err, a, b)
		}
	}
}

// TestEndedFaults checks that these are errors: a number of slots in addition to Most, a Most that is too large, and a
// second part for a window of one log. It also checks the warning about too few records, and that a part takes at most
// the stated memory.
func TestEndedFaults(t *testing.T) {
	t.Parallel()
	c := ended(configs()["newton"], 0, 1<<31+1)
	c.Window, c.Stride = 5, 5
	var rules []string
	c.Defaults()
	for _, err := range fault.All(c.Validate()) {
		rules = append(rules, err.Error())
	}
	if got := strings.Join(rules,
		"; "); got != "window: must not be set: the clock ends windows (5); "+
		"stride: must not be set: the clock ends windows (5); "+
		"step_max: must be at most 2147483648 for windows (2147483649)" {
		t.Error(got)
	}
	r := mustRefit(t, ended(configs()["newton"], 0, 100), generous)
	if w := strings.Join(
		mustRefit(t, ended(configs()["newton"], 0, 2),
			dp.Params{Epsilon: 0.1, Delta: 1e-8, Adjacency: dp.ZeroOut}).Warnings(), ""); !strings.Contains(w,
		"windows of at most 2 records are too small for the budget: they have at most") {
		t.Errorf("warns %q", w)
	}
	one, err := r.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 90 {
		one.Add(uint64(i), []float64{1, 1, 1})
	}
	two.Add(0, []float64{1, 1, 1})
	data := one.(*Part).e.data
	if took, stated := int64(8*(cap(data.x)+cap(data.y))), r.Sizes().Part; took > stated {
		t.Errorf("a part takes %d bytes, stated are %d", took, stated)
	}
	if err := r.Merge(one); err != nil {
		t.Fatal(err)
	}
	if r.Merge(two) == nil {
		t.Error("no error for two parts of one log")
	}
}

// TestEndedFits checks that New refuses windows by the clock that are too large for the sums of dp-gd. Otherwise such a
// window could never be closed once its end is fixed.
func TestEndedFits(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut, LatticeBits: 30}
	c := Config{Solver: "dp-gd", Target: "y", Columns: []string{"a", "y"}, ClipX: 2, ClipY: 3}
	mustRefit(t, ended(c, 0, 1<<20), p)
	if _, err := New(ended(c, 0, 5_000_000), p); err == nil || !strings.Contains(err.Error(), "5000000 records") {
		t.Errorf("windows of at most 5000000 rows: %v", err)
	}
	c.Window = 5_000_000 // a configuration with these windows may exist
	mustRefit(t, c, p)
}

// TestEndedSizes checks that a part of a merged window takes at most the stated memory, and not much less, for any
// number of partitions that share the rows.
func TestEndedSizes(t *testing.T) {
	t.Parallel()
	const most = 200000
	for _, partitions := range []int{1, 8, 1000} {
		c := Config{Solver: "newton", Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3}
		r := mustRefit(t, ended(c, partitions, most), generous)
		part, err := r.NewPart()
		if err != nil {
			t.Fatal(err)
		}
		took, data := 0, part.(*Part).e.data
		for i := range most / partitions {
			before := cap(data.x) + cap(data.y)
			part.Add(uint64(i), nil)
			if now := cap(data.x) + cap(data.y); now != before {
				took = max(took, 8*(now+before))
			}
		}
		if stated := r.Sizes().Part; int64(took) > stated || stated > 3*int64(took)+1<<14 {
			t.Errorf("%d partitions: a part takes %d bytes, said %d", partitions, took, stated)
		}
	}
}
