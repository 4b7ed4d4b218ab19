package stream

import (
	"context"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestClockShortenedBehind: a partition whose log ends before the checkpoint's position in it
// has no end, however the offsets of the epoch are shared among the partitions.
func TestClockShortenedBehind(t *testing.T) {
	t.Parallel()
	r := clockRig(t, mergedClockStream, 2)
	r.sendTo(0, 0, 400)
	r.sendTo(1, 0, 400)
	h := newHand()
	h.tick()
	x := r.start(h.on)
	x.published(1)
	x.end()
	must(t, r.inside(func(ctx context.Context, in *Inside) error {
		run, err := newRunner(in.Own, in.Process.cfg.Streams[0], core.Merged)
		if err != nil {
			return err
		}
		for next, want := range map[int64]int64{400: 400, 401: -1, 700: -1} {
			cp, err := run.store.load()
			if err != nil {
				return err
			}
			cp.parts[0].position.Next, cp.parts[1].position.Next = next, 10
			ends, err := run.reach(ctx, in.Own.ledger.newest(mergedTask), nil, cp)
			if err != nil || ends[0].End != want || ends[1].End != 400 {
				t.Errorf("read to %d and 10 of 400 and 400: %+v, %v, want %d and 400", next, ends, err, want)
			}
		}
		return nil
	}))
}
