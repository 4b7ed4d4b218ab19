package stream

import (
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestClockRefit: windows end where a clock ends them, of one partition or of merged ones, with
// every solver that can. A window without a record has no solution, one of few records has a
// release all the same, and what is beyond step_max falls into the next. A restart goes on with
// the boundaries that are recorded, another fetch size gives the same bytes, and verify finds
// them. refit.TestEndedWindows says that such windows are those by offsets.
func TestClockRefit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, keys string
		task       core.Task
	}{
		"newton":                {clockStream, "", ordersTask},
		"ihm":                   {clockStream, "solver = \"ihm\"\neigen_test = true", ordersTask},
		"ihm from sums":         {clockStream, "solver = \"ihm\"\nradius = 2", ordersTask},
		"fast-ihm":              {clockStream, "solver = \"fast-ihm\"", ordersTask},
		"dp-gd":                 {clockStream, "solver = \"dp-gd\"", ordersTask},
		"merged newton":         {mergedClockStream, "", mergedTask},
		"merged adassp":         {mergedClockStream, "solver = \"adassp\"", mergedTask},
		"merged dp-gd-residual": {mergedClockStream, "solver = \"dp-gd-residual\"", mergedTask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := clockRefit(c.text, c.keys)
			partitions := 1
			if c.task == mergedTask {
				partitions = 3
			}
			r := clockRig(t, text, partitions)
			h := newHand()
			x := r.start(h.on)
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
			sent := []int{80, 0, 2, 100, 30} // records of partition 0; of others half as many
			want := []int{80, 0, 2, 100, 30, 300, 1}
			if partitions > 1 {
				want = []int{160, 0, 4, 200, 60, 100, 100, 100, 1}
			}
			first := 0
			for i, n := range sent {
				if i == 3 { // in the middle of a window, by half of its records
					r.sendTo(0, first, n/2)
					x.end()
					r.fetch = 2000
					x = r.start(h.on)
					r.sendTo(0, first+n/2, n-n/2)
				} else {
					r.sendTo(0, first, n)
				}
				for p := 1; p < partitions; p++ {
					r.sendTo(p, 1000*p+first, n/2)
				}
				first += n
				h.tick()
				x.published(uint64(i + 1))
			}
			r.sendTo(0, first, 301) // more than step_max
			for i := len(sent); i < len(want); i++ {
				h.tick()
				x.published(uint64(i + 1))
			}
			x.end()
			out := r.outputOf("orders.dp")
			if len(out) != len(want) {
				t.Fatalf("%d releases, want %d", len(out), len(want))
			}
			at := int64(0)
			for i, n := range want {
				value := out[core.Identity(c.task, 1, uint64(i+1))]
				conforms(t, value)
				p := published{key: "k", value: value}
				rel := p.parse(t)
				if rel.Rows != uint64(n) || rel.Offsets != [2]int64{at, at + int64(n)} || !strings.Contains(value, `"window":300,"clock":"1m0s"`) {
					t.Errorf("step %d has %d rows of %v, want %d from %d on", i+1, rel.Rows, rel.Offsets, n, at)
				}
				at += int64(n)
				switch theta := rel.Values["theta"].Data; {
				case n == 0 && !strings.Contains(value, `"failed":"no solution was found"`):
					t.Errorf("step %d of no record is %s", i+1, value)
				case n >= 80 && (len(theta) != 2 || math.IsNaN(theta[0])):
					t.Errorf("step %d: theta is %v", i+1, theta)
				}
			}
			o := r.options()
			all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, c.task)
			if err != nil || len(all) != 1 || all[0].Releases != len(want) || all[0].Difference+all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
		})
	}
}
