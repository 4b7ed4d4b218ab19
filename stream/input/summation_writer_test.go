package input

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamdp/streamdp/stream/failure"
)

// clockLog is a log that records the time and size of each write.
type clockLog struct {
	SumLog
	begun  time.Time
	writes []string
}

func (l *clockLog) Append(_ context.Context, _ int, records [][]byte) error {
	l.writes = append(l.writes, fmt.Sprintf("%v: %d from %d", time.Since(l.begun), len(records), records[0][0]))
	return nil
}

// TestPartWriterGathers: records written soon after others are gathered into one write, in order. The first write and a
// large write do not wait.
func TestPartWriterGathers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &clockLog{begun: time.Now()}
		ctx, stop := context.WithCancel(t.Context())
		w := &partWriter{log: log, pace: 20 * time.Millisecond, queue: make(chan partOut, 64),
			Retrier: failure.NewRetrier(slog.New(slog.DiscardHandler), nil, func() {})}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.run(ctx)
		}()
		var done []byte
		put := func(after time.Duration, number byte, size int) {
			time.Sleep(after)
			w.queue <- partOut{[][]byte{append([]byte{number}, make([]byte, size)...)},
				func() { done = append(done, number) }}
			synctest.Wait()
		}
		put(0, 1, 0)
		put(time.Millisecond, 2, 0)
		put(time.Millisecond, 3, 0)
		put(time.Millisecond, 4, 0)
		put(30*time.Millisecond, 5, 0)           // waits for 40 ms
		put(time.Millisecond, 6, partGather)     // joins the waiting write, which is now large enough
		put(100*time.Millisecond, 7, 0)          // nothing was written recently
		put(time.Millisecond, 8, partGather-100) // waits until 154 ms
		time.Sleep(19 * time.Millisecond)
		synctest.Wait()
		if stop(); !slices.Equal(done, []byte{1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Errorf("done: %d", done)
		}
		<-ended
		if want := []string{"0s: 1 from 1", "20ms: 3 from 2", "34ms: 2 from 5", "134ms: 1 from 7",
			"154ms: 1 from 8"}; !slices.Equal(log.writes, want) {
			t.Errorf("wrote %q, want %q", log.writes, want)
		}
	})
}
