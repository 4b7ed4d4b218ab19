package stream_test

import (
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
)

// TestClockRefit: windows end by the clock, for one partition and for merged ones, with every solver that supports it.
// A window without records has no solution, one with few records still has a release, and records beyond step_max are
// in the next window. A restart continues with the recorded boundaries, another fetch size gives the same bytes, and
// verify computes the same bytes. refit.TestEndedWindows shows that such windows equal windows by offsets.
func TestClockRefit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, keys string
		task       core.Task
	}{
		"newton":                {fixtures.ClockStream, "", fixtures.OrdersTask},
		"ihm":                   {fixtures.ClockStream, "solver = \"ihm\"\neigen_test = true", fixtures.OrdersTask},
		"ihm from sums":         {fixtures.ClockStream, "solver = \"ihm\"\nradius = 2", fixtures.OrdersTask},
		"fast-ihm":              {fixtures.ClockStream, "solver = \"fast-ihm\"", fixtures.OrdersTask},
		"dp-gd":                 {fixtures.ClockStream, "solver = \"dp-gd\"", fixtures.OrdersTask},
		"merged newton":         {fixtures.MergedClockStream, "", fixtures.MergedTask},
		"merged adassp":         {fixtures.MergedClockStream, "solver = \"adassp\"", fixtures.MergedTask},
		"merged dp-gd-residual": {fixtures.MergedClockStream, "solver = \"dp-gd-residual\"", fixtures.MergedTask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := fixtures.ClockRefit(c.text, c.keys)
			partitions := 1
			if c.task == fixtures.MergedTask {
				partitions = 3
			}
			r := streamtest.ClockRig(t, text, partitions)
			h := streamtest.NewHand()
			x := r.Start(h.On)
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			sent := []int{80, 0, 2, 100, 30} // records of partition 0; the others get half as many
			want := []int{80, 0, 2, 100, 30, 300, 1}
			if partitions > 1 {
				want = []int{160, 0, 4, 200, 60, 100, 100, 100, 1}
			}
			first := 0
			for i, n := range sent {
				if i == 3 { // in the middle of a window, after half of its records
					r.SendTo(0, first, n/2)
					x.End()
					r.Fetch = 2000
					x = r.Start(h.On)
					r.SendTo(0, first+n/2, n-n/2)
				} else {
					r.SendTo(0, first, n)
				}
				for p := 1; p < partitions; p++ {
					r.SendTo(p, 1000*p+first, n/2)
				}
				first += n
				h.Tick()
				x.Published(uint64(i + 1))
			}
			r.SendTo(0, first, 301) // more than step_max
			for i := len(sent); i < len(want); i++ {
				h.Tick()
				x.Published(uint64(i + 1))
			}
			x.End()
			out := r.OutputOf("orders.dp")
			if len(out) != len(want) {
				t.Fatalf("%d releases, want %d", len(out), len(want))
			}
			at := int64(0)
			for i, n := range want {
				value := out[core.Identity(c.task, 1, uint64(i+1))]
				fixtures.Conforms(t, value)
				p := fixtures.Published{Key: "k", Value: value}
				rel := p.Parse(t)
				if rel.Rows != uint64(n) || rel.Offsets != [2]int64{at, at + int64(n)} ||
					!strings.Contains(value, `"window":300,"clock":"1m0s"`) {
					t.Errorf("step %d has %d rows of %v, want %d from %d on", i+1, rel.Rows, rel.Offsets, n, at)
				}
				at += int64(n)
				switch theta := rel.Values["theta"].Data; {
				case n == 0 && !strings.Contains(value, `"failed":"no solution was found"`):
					t.Errorf("step %d without records is %s", i+1, value)
				case n >= 80 && (len(theta) != 2 || math.IsNaN(theta[0])):
					t.Errorf("step %d: theta is %v", i+1, theta)
				}
			}
			o := r.Options()
			all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log}, c.task)
			if err != nil || len(all) != 1 || all[0].Releases != len(want) ||
				all[0].Difference+all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
		})
	}
}
