package stream

import (
	"context"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestClaimsAcross: of two fresh directories that open epoch 1 at the same moment, in one of
// which the stream is merged and in the other not, the first in the topic opens it. The other
// charges nothing, also if it had opened it before it looked.
func TestClaimsAcross(t *testing.T) {
	t.Parallel()
	merged := with(mergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{"merged first": {merged, ordersStream}, "merged second": {ordersStream, merged}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := mirrored(t, c[0])
			must(t, r.client.CreateTopic(t.Context(), r.topic, 1, controlSettings))
			paid := func(r *rig) (*runner, *opening) {
				var in *Inside
				o := r.options()
				o.Hooks.Opened = func(i *Inside) { in = i }
				d, err := New(o)
				must(t, err)
				t.Cleanup(func() { d.Close() })
				part := 0
				if r.toml == merged {
					part = core.Merged
				}
				run, err := newRunner(in.Own, in.Process.cfg.Streams[0], part)
				must(t, err)
				must(t, in.Own.mirror.sync(t.Context()))
				plan, err := run.survey(t.Context(), OpenRequest{Reason: "first", unasked: true})
				must(t, err)
				must(t, run.pay(t.Context(), plan))
				return run, plan
			}
			one, o1 := paid(r)
			two, o2 := paid(r.sibling(c[1]))
			lost := *two.d.ledger.newest(two.task)
			must(t, one.claim(t.Context(), o1))
			if err := two.claim(t.Context(), o2); err == nil || !strings.Contains(err.Error(), "another state directory opened epoch 1") {
				t.Errorf("the second opened it too: %v", err)
			}
			if last := two.d.ledger.newest(two.task); last != nil {
				t.Errorf("the second charged %+v", last)
			}
			must(t, one.d.mirror.sync(t.Context()))
			must(t, one.d.mirror.ours(one.d.ledger.newest(one.task)))
			if err := two.d.mirror.ours(&lost); err == nil {
				t.Error("a later start of the second would go on")
			}
		})
	}
	t.Run("one directory", func(t *testing.T) {
		t.Parallel()
		r := mirrored(t, merged)
		x := r.start()
		x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		x.end()
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, mergedTask, false) }))
		r.toml = ordersStream
		for range 2 {
			x = r.start()
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning && s.Epoch == 1 && s.Partition == 0 })
			x.end()
		}
	})
}
