package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestHistory: tasks that begin together share a reading of the output, each gets its own
// releases from where it asked on, and who can't be served is told so.
func TestHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "out", 1, nil))
	tails := tails{client: r.client}
	const n, each = 8, 5
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	x := tails.join(config.Output{Topic: "out"}, task(0))
	wrong := func(err error) { t.Errorf("troubled: %v", err) }
	no := func(r released) error { t.Errorf("given %+v", r); return nil }
	if _, whole, _ := x.history(t.Context(), task(0), 0, no, wrong); whole {
		t.Error("a task alone is served")
	}
	for i := range n {
		tails.join(config.Output{Topic: "out"}, task(i))
	}
	var messages []kafka.Message
	for step := range uint64(each) {
		for i := range n {
			messages = append(messages, kafka.Message{Key: []byte(core.Identity(task(i), 1, step+1)), Value: []byte{byte(i)}, Time: time.UnixMilli(1)})
		}
	}
	_, err := r.client.Produce(t.Context(), "out", 0, messages)
	must(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		from := [n]int64{0: int64(rng.IntN(n * each)), n - 1: n*each + 1} // the last is beyond the end
		for i := 1; i < n-1; i++ {
			from[i] = int64(rng.IntN(n*each + 1))
		}
		x.mu.Lock()
		x.past.busy = true // nobody reads
		x.mu.Unlock()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				next := from[i] + (int64(i)-from[i]%n+n)%n // the first offset ≥ from that is i modulo n
				end, whole, err := x.history(t.Context(), task(i), from[i], func(r released) error {
					if r.offset != next || r.step != uint64(next/n)+1 {
						t.Errorf("task %d from %d: %+v, not offset %d", i, from[i], r, next)
					}
					if next += n; i == 1 && r.step == each-1 {
						return errStop // what is behind comes at another time
					}
					return nil
				}, wrong)
				stopped := i == 1 && from[i] <= n*(each-2)+1
				switch {
				case err != nil, whole != (i < n-1), !whole && end != from[i], whole && !stopped && end != n*each:
					t.Errorf("task %d from %d: %v to %d: %v", i, from[i], whole, end, err)
				case stopped:
					if end != n*(each-2)+2 {
						t.Errorf("task %d from %d stopped at %d", i, from[i], end)
					}
				case whole && next < n*each:
					t.Errorf("task %d from %d has no release at %d", i, from[i], next)
				}
			})
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for x.asking() < n {
			runtime.Gosched()
		}
		if _, whole, _ := x.history(gone, core.Task{Stream: "gone"}, 0, no, wrong); whole {
			t.Error("one who has given up is served")
		}
		x.readHistories()
		wg.Wait()
	}
	// When the last one has given up, nothing is read.
	x.mu.Lock()
	x.past.busy = true
	x.mu.Unlock()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	x.history(gone, task(0), 0, no, wrong)
	if x.past.next.ctx.Err() == nil {
		t.Error("a reading that nobody wants goes on")
	}
	x.readHistories()
}

// TestHistoryTroubled: while a shared reading repeats a call, the tasks that wait for it show why,
// as a task that reads for itself does. If the topic is gone, each halts.
func TestHistoryTroubled(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "out", 1, nil))
	h := &host{client: r.client, metrics: newMetrics(false, false, "test", false), log: slog.New(slog.NewTextHandler(r.log, nil))}
	h.tails.client = r.client
	var guards [2]*guard
	for i := range guards {
		task := core.Task{Stream: "orders", Partition: i}
		guards[i] = newGuard(newOutput(newRepeater(h.log.With("task", task.String()), h.metrics.kafkaError, func() {}), h.client, nil, &h.tails, task, config.Output{Topic: "out"}), nil)
		guards[i].reset(0)
		guards[i].epoch = 1
	}
	_, err := r.client.Produce(t.Context(), "out", 0, []kafka.Message{{Key: []byte("orders/1/1/1"), Time: time.UnixMilli(1)}})
	must(t, err)
	r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "out", Err: kerr.LeaderNotAvailable, Count: 2})
	both := func() (errs [2]error) {
		tail := guards[0].tail
		tail.mu.Lock()
		tail.past.busy = true // nobody reads
		tail.mu.Unlock()
		var wg sync.WaitGroup
		for i, g := range guards {
			wg.Go(func() { errs[i] = g.compare(t.Context(), "out", 0, 0, comparison{pause: true}) })
		}
		for tail.asking() < len(guards) {
			runtime.Gosched()
		}
		tail.readHistories()
		wg.Wait()
		return errs
	}
	for i, err := range both() {
		if ahead, behind := guards[i].behind(); err != nil || guards[i].next != 1 || behind != (i == 1) {
			t.Errorf("task %d compared up to %d, behind %d: %v", i, guards[i].next, ahead, err)
		}
		for _, word := range []string{"retrying", "works again"} {
			if !regexp.MustCompile(fmt.Sprintf(`msg="?%s"? task=orders-%d what=output`, word, i)).MatchString(r.log.String()) {
				t.Errorf("the log has no %q of task %d:\n%s", word, i, r.log)
			}
		}
	}
	kafkatest.DeleteTopic(t, []string{r.addr}, "out")
	for i, err := range both() {
		var stop *halt
		if !errors.As(err, &stop) || stop.reason != haltOutputGone {
			t.Errorf("task %d, without the topic: %v", i, err)
		}
	}
}
