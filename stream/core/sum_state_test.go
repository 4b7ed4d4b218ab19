package core

import (
	"fmt"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// movedManifest returns a manifest over three partitions, whose records begin at 100, 200 and 300.
func movedManifest(s *config.Stream, mech *Mechanism) *Manifest {
	return &Manifest{Format: ManifestFormat, Stream: s.Name, Epoch: 1, Source: Source{"cluster", "orders", Merged},
		Cost: mech.Cost(), Base: 600, Partitions: 3, Mechanism: mech.Name,
		Parts: []Part{{Partition: 0, Base: 100}, {Partition: 1, Base: 200}, {Partition: 2, Base: 300}}}
}

// movedCore returns a core of the stream over these partitions.
func movedCore(t testing.TB, s *config.Stream, keys *dp.Epoch) *Core {
	t.Helper()
	mech, err := NewMechanism(s, nil, nil)
	must(t, err)
	c, err := New(s, movedManifest(s, mech), []byte("manifest"), mech, keys)
	must(t, err)
	return c
}

const movedTables = `
[stream.orders]
input  = { topic = "orders", codec = "float64", columns = ["a", "b"], partition = [0, 1, 2] }
output = { topic = "orders.dp" }
merge  = true
%s
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace"
limit_epsilon = 3.0
%s
`

// TestSumMoved: an epoch has the same releases if other processes make its sums. Those processes have no keys and may
// begin at any step.
func TestSumMoved(t *testing.T) {
	t.Parallel()
	const moments = "[stream.orders.moments]\nclip = 1.0"
	for name, c := range map[string]struct {
		text  string
		clock bool
	}{
		"moments":              {fmt.Sprintf(movedTables, "step = 10", moments), false},
		"moments by the clock": {fmt.Sprintf(movedTables, "step = \"1m\"\nstep_max = 100", moments), true},
		"refit": {
			fmt.Sprintf(movedTables, "",
				"[stream.orders.refit]\ntarget = \"b\"\nclip_x = 1.0\nclip_y = 1.0\nwindow = 40\nstride = 50"), false},
		"refit by the clock": {
			fmt.Sprintf(movedTables, "step = \"1m\"\nstep_max = 300",
				"[stream.orders.refit]\ntarget = \"b\"\nclip_x = 1.0\nclip_y = 1.0"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := c.text
			if c.clock {
				text = "[kafka]\nbrokers = [\"127.0.0.1:1\"]\nboundary_topic = \"b\"\n[state]\ndir = \"/s\"\n" +
					"key_file = \"/k\"\n" + text
			} else {
				text = "[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n" + text
			}
			cfg, err := config.Parse("t.toml", []byte(text))
			must(t, err)
			s := cfg.Streams[0].Over([]int{0, 1, 2})
			keysOf := func() *dp.Epoch {
				keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "orders", 1, [16]byte{3}, [32]byte{4})
				must(t, err)
				return keys
			}
			whole, root := movedCore(t, s, keysOf()), movedCore(t, s, keysOf())
			fill := func(l *Leaf, p int) {
				for o := l.First(); o < l.End(); o++ {
					if o%7 == 3 {
						continue // a slot without a record
					}
					l.Add(o, []float64{float64(o%11)/11 - 0.5, float64(o%5+int64(p)) / 7})
				}
			}
			here, there := whole.Leaves(), root.Leaves()
			for step := uint64(0); step < 3; step++ {
				var own, moved []*Sum
				for p := range 3 {
					end := here[p].First() + int64(10*p)*int64(step) // by the clock, the first partition has no records
					for _, l := range []*Leaf{here[p], there[p]} {
						if c.clock {
							must(t, l.Until(end))
						}
					}
					sum, err := whole.NewSum()
					must(t, err)
					here[p].Into(sum)
					fill(here[p], p)
					own = append(own, here[p].Close())

					// Another process that has just begun.
					next := make([]int64, 3)
					for i := range next {
						if next[i] = there[i].First(); i < p { // these leaves are at the next step
							next[i] = own[i].offsets.first
						}
					}
					worker := movedCore(t, s, nil)
					leaves, err := worker.LeavesFrom(step, next)
					must(t, err)
					made, err := worker.NewSum()
					must(t, err)
					if c.clock {
						must(t, leaves[p].Until(end))
					}
					leaves[p].Into(made)
					fill(leaves[p], p)
					data, err := leaves[p].Close().AppendBinary(nil)
					must(t, err)
					here, err := root.NewSum()
					must(t, err)
					for n := 0; n < len(data); n += 1 + len(data)/50 {
						if err := here.UnmarshalBinary(data[:n]); err == nil {
							t.Fatalf("the first %d bytes of %d parse as a sum", n, len(data))
						}
					}
					must(t, here.UnmarshalBinary(data))
					if again, err := here.AppendBinary(nil); err != nil || string(again) != string(data) {
						t.Fatalf("encoding it again gives other bytes: %v", err)
					}
					if there[(p+1)%3].Take(here) == nil {
						t.Error("the leaf of another partition takes the sum")
					}
					must(t, there[p].Take(here))
					if there[p].Take(here) == nil {
						t.Error("a leaf takes the sum twice")
					}
					moved = append(moved, here)
					must(t, made.Reset())
					empty, _ := made.AppendBinary(nil)
					if len(empty) > len(data) ||
						len(empty) == len(data) && string(empty) == string(data) && step > 0 && p > 0 {
						t.Error("Reset does not empty the sum")
					}
				}
				one, err := whole.Merge(own, nil)
				must(t, err)
				two, err := root.Merge(moved, nil)
				must(t, err)
				if len(one) != 1 || len(two) != 1 || string(one[0].Value) != string(two[0].Value) {
					t.Fatalf("step %d: releases differ", step+1)
				}
			}
			for name, at := range map[string][]int64{"before the base": {99, 200, 300}, "too few": {100, 200}} {
				if _, err := root.LeavesFrom(1, at); err == nil {
					t.Error("leaves can begin ", name)
				}
			}
			if _, err := root.LeavesFrom(0, []int64{100, 200, 301}); err == nil {
				t.Error("the first step can begin after the base")
			}
			if _, err := root.LeavesFrom(3, []int64{101, 200, 300}); err == nil && !c.clock {
				t.Error("leaves can begin inside a step")
			}
		})
	}
}

// TestSumOfPersons: the sums of a stream that protects persons cannot leave their process, because only one process
// holds the map.
func TestSumOfPersons(t *testing.T) {
	t.Parallel()
	c := mergedPersonCore(t, personStream(t, threeSteps))
	sum, err := c.NewSum()
	must(t, err)
	if _, err := sum.AppendBinary(nil); err == nil {
		t.Error("a sum of persons is encoded")
	}
	if _, err := c.LeavesFrom(0, []int64{100, 100, 100}); err == nil {
		t.Error("leaves without their persons")
	}
}
