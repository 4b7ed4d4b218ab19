package epoch_test

import (
	"context"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// TestClaimsAcross: two fresh directories open epoch 1 at the same moment, one with the stream merged and one without.
// The directory whose line is first in the control topic opens the epoch. The other charges nothing, even if it had
// opened the epoch before it read the topic.
func TestClaimsAcross(t *testing.T) {
	t.Parallel()
	merged := fixtures.With(fixtures.MergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{
		"merged first":  {merged, fixtures.OrdersStream},
		"merged second": {fixtures.OrdersStream, merged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.Mirrored(t, c[0])
			fixtures.Must(t, r.Client.CreateTopic(t.Context(), r.Topic, 1, ledger.TopicSpec.Settings))
			paid := func(r *streamtest.Rig) (*task.Runner, *epoch.Opening) {
				var in *stream.Inside
				o := r.Options()
				o.Hooks.Opened = func(i *stream.Inside) { in = i }
				d, err := stream.New(o)
				fixtures.Must(t, err)
				t.Cleanup(func() { d.Close() })
				part := 0
				if r.Toml == merged {
					part = core.Merged
				}
				run, err := task.NewRunner(in.Own, in.Process.Cfg.Streams[0], part)
				fixtures.Must(t, err)
				fixtures.Must(t, in.Own.Mirror.Sync(t.Context()))
				plan, err := run.Survey(t.Context(), epoch.AutomaticRequest("first"))
				fixtures.Must(t, err)
				fixtures.Must(t, run.Pay(t.Context(), plan))
				return run, plan
			}
			one, o1 := paid(r)
			two, o2 := paid(r.Sibling(c[1]))
			lost := *two.D.Ledger.Newest(two.Task)
			fixtures.Must(t, one.Claim(t.Context(), o1))
			if err := two.Claim(t.Context(), o2); err == nil ||
				!strings.Contains(err.Error(), "another state directory opened epoch 1") {
				t.Errorf("the second directory opened it too: %v", err)
			}
			if last := two.D.Ledger.Newest(two.Task); last != nil {
				t.Errorf("the second directory charged %+v", last)
			}
			fixtures.Must(t, one.D.Mirror.Sync(t.Context()))
			fixtures.Must(t, one.D.Mirror.Ours(one.D.Ledger.Newest(one.Task)))
			if err := two.D.Mirror.Ours(&lost); err == nil {
				t.Error("a later start of the second directory would continue")
			}
		})
	}
	t.Run("one directory", func(t *testing.T) {
		t.Parallel()
		r := streamtest.Mirrored(t, merged)
		x := r.Start()
		x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		x.End()
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.CloseEpoch(ctx, d, fixtures.MergedTask, false)
		}))
		r.Toml = fixtures.OrdersStream
		for range 2 {
			x = r.Start()
			x.Until("running", func(s monitor.TaskStatus) bool {
				return s.State == monitor.StateRunning && s.Epoch == 1 && s.Partition == 0
			})
			x.End()
		}
	})
}
