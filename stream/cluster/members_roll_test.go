package cluster_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/ledger"
)

// TestRollingChange: instances get a larger limit, one after the other, while the others run. Instances with the new
// limit are on standby until more than half of all instances have it. Then they take over the shards, and instances
// with the old limit are on standby. Nothing is lost or released twice, and the ledgers record the new limit once for
// each partition.
func TestRollingChange(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := streamtest.GroupRig(t, partitions, "")
	r.Begin()
	raised := func(name string) *streamtest.Rig {
		s := r.Instance(name)
		s.Toml = fixtures.With(s.Toml, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
		return s
	}
	all := map[string]*streamtest.Running{}
	logs := func() (text string) {
		for name, x := range all {
			text += name + ":\n" + x.R.Log.String()
		}
		return text
	}
	// share waits until the shards are divided among these instances, and the others that run are on standby.
	share := func(want ...string) {
		t.Helper()
		until := time.Now().Add(fixtures.Patience)
		for {
			var got []string
			shards, running := 0, true
			for name, x := range all {
				g := x.In.Member.Status()
				for _, s := range g.Shards {
					running = running && s.State == cluster.PostRunning
				}
				shards += len(g.Shards)
				if len(g.Shards) > 0 {
					got = append(got, name)
				} else {
					running = running && g.Standby == "configuration"
				}
			}
			if slices.Sort(got); slices.Equal(got, want) && shards == 4 && running {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("%v have %d shards, want %v\n%s", got, shards, want, logs())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	sent := 0
	feed := func() {
		t.Helper()
		for p := range partitions {
			r.SendTo(p, sent, 250)
		}
		sent += 250
		r.Awaits("orders.dp", sent/100*partitions, logs)
	}
	for _, name := range []string{"a", "b", "c"} {
		all[name] = r.Instance(name).Start()
	}
	share("a", "b", "c")
	feed()
	replace := func(name string, want ...string) {
		t.Helper()
		all[name].End()
		all[name] = raised(name).Start()
		share(want...)
		feed()
	}
	replace("a", "b", "c")
	replace("b", "a", "b")
	replace("c", "a", "b", "c")
	for _, x := range all {
		x.End()
	}
	if want := alone(r, sent/100*partitions); !maps.Equal(r.Values("orders.dp"), want) {
		t.Errorf("the releases are not those of one process\n%s", logs())
	}
	limits := map[int]int{}
	for _, l := range groupBooks(r).Ledgers {
		for _, e := range l.Entries {
			switch {
			case e.Kind == ledger.KindLimit && e.LimitEpsilon == 4:
				limits[e.Partition]++
			case e.Kind != ledger.KindOpen:
				t.Errorf("a line %s of partition %d", e.Kind, e.Partition)
			}
		}
	}
	if want := map[int]int{0: 1, 1: 1, 2: 1, 3: 1}; !maps.Equal(limits, want) {
		t.Errorf("limits %v", limits)
	}
}
