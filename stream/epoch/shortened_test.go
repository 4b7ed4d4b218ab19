package epoch_test

import (
	"context"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/task"
)

// TestClockShortenedBehind: if a partition's log ends before the checkpoint's position, the charge of that partition
// has no end. This holds for every division of the epoch's offsets among the partitions.
func TestClockShortenedBehind(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.MergedClockStream, 2)
	r.SendTo(0, 0, 400)
	r.SendTo(1, 0, 400)
	h := streamtest.NewHand()
	h.Tick()
	x := r.Start(h.On)
	x.Published(1)
	x.End()
	fixtures.Must(t, r.Inside(func(ctx context.Context, in *stream.Inside) error {
		run, err := task.NewRunner(in.Own, in.Process.Cfg.Streams[0], core.Merged)
		if err != nil {
			return err
		}
		for next, want := range map[int64]int64{400: 400, 401: -1, 700: -1} {
			cp, err := run.Store.Load()
			if err != nil {
				return err
			}
			cp.Parts[0].Position.Next, cp.Parts[1].Position.Next = next, 10
			ends, err := run.Reach(ctx, in.Own.Ledger.Newest(fixtures.MergedTask), nil, cp)
			if err != nil || ends[0].End != want || ends[1].End != 400 {
				t.Errorf("read to %d and 10 of 400 and 400: %+v, %v, want %d and 400", next, ends, err, want)
			}
		}
		return nil
	}))
}
