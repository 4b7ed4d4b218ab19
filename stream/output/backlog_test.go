package output_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestHistory: tasks that begin together share a reading of the output. Each task gets its own releases from the offset
// that it asked for. A task that cannot be served is told so.
func TestHistory(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "out", 1, nil))
	tails := output.Partitions{Client: r.Client}
	const n, each = 8, 5
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	x := tails.Join(config.Output{Topic: "out"}, task(0))
	wrong := func(err error) { t.Errorf("troubled: %v", err) }
	no := func(r output.Released) error { t.Errorf("given %+v", r); return nil }
	if _, whole, _ := x.History(t.Context(), task(0), 0, no, wrong); whole {
		t.Error("a task alone in the partition is served")
	}
	for i := range n {
		tails.Join(config.Output{Topic: "out"}, task(i))
	}
	var messages []kafka.Message
	for step := range uint64(each) {
		for i := range n {
			messages = append(messages,
				kafka.Message{Key: []byte(core.Identity(task(i), 1, step+1)), Value: []byte{byte(i)},
					Time: time.UnixMilli(1)})
		}
	}
	_, err := r.Client.Produce(t.Context(), "out", 0, messages)
	fixtures.Must(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		from := [n]int64{0: int64(rng.IntN(n * each)), n - 1: n*each + 1} // the last offset is after the end
		for i := 1; i < n-1; i++ {
			from[i] = int64(rng.IntN(n*each + 1))
		}
		(*x.Mu()).Lock()
		(*x.Past()).Busy = true // prevents reading
		(*x.Mu()).Unlock()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				next := from[i] + (int64(i)-from[i]%n+n)%n // the first offset ≥ from that is i modulo n
				end, whole, err := x.History(t.Context(), task(i), from[i], func(r output.Released) error {
					if r.Offset != next || r.Step != uint64(next/n)+1 {
						t.Errorf("task %d from %d: %+v, not offset %d", i, from[i], r, next)
					}
					if next += n; i == 1 && r.Step == each-1 {
						return failure.ErrStop // stop the reading early
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
		for x.Asking() < n {
			runtime.Gosched()
		}
		if _, whole, _ := x.History(gone, core.Task{Stream: "gone"}, 0, no, wrong); whole {
			t.Error("a task that has stopped waiting is served")
		}
		x.ReadHistories()
		wg.Wait()
	}
	// When no task waits any more, nothing is read.
	(*x.Mu()).Lock()
	(*x.Past()).Busy = true
	(*x.Mu()).Unlock()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	x.History(gone, task(0), 0, no, wrong)
	if (*x.Past()).Next.Ctx.Err() == nil {
		t.Error("a reading without waiting tasks continues")
	}
	x.ReadHistories()
}

// TestHistoryTroubled: while a shared reading retries a call, each task that waits for the reading shows the call's
// error, as if it read for itself. If the topic is missing, each task halts.
func TestHistoryTroubled(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "out", 1, nil))
	h := &epoch.Process{Client: r.Client, Metrics: monitor.NewMetrics(false, false, "test", false),
		Log: slog.New(slog.NewTextHandler(r.Log, nil))}
	h.Tails.Client = r.Client
	var guards [2]*output.ForkGuard
	for i := range guards {
		task := core.Task{Stream: "orders", Partition: i}
		guards[i] = output.NewForkGuard(
			output.New(failure.NewRetrier(h.Log.With("task", task.String()), h.Metrics.KafkaError, func() {}), h.Client,
				nil, &h.Tails, task, config.Output{Topic: "out"}), nil)
		guards[i].Reset(0)
		guards[i].Epoch = 1
	}
	_, err := r.Client.Produce(t.Context(), "out", 0,
		[]kafka.Message{{Key: []byte("orders/1/1/1"), Time: time.UnixMilli(1)}})
	fixtures.Must(t, err)
	r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "out", Err: kerr.LeaderNotAvailable, Count: 2})
	both := func() (errs [2]error) {
		tail := guards[0].Partition
		(*tail.Mu()).Lock()
		(*tail.Past()).Busy = true // prevents reading
		(*tail.Mu()).Unlock()
		var wg sync.WaitGroup
		for i, g := range guards {
			wg.Go(func() { errs[i] = g.Compare(t.Context(), "out", 0, 0, output.Comparison{Pause: true}) })
		}
		for tail.Asking() < len(guards) {
			runtime.Gosched()
		}
		tail.ReadHistories()
		wg.Wait()
		return errs
	}
	for i, err := range both() {
		if ahead, behind := guards[i].Behind(); err != nil || (*guards[i].Next()) != 1 || behind != (i == 1) {
			t.Errorf("task %d compared up to %d, behind %d: %v", i, (*guards[i].Next()), ahead, err)
		}
		for _, word := range []string{"call failed: retrying", "call succeeds again"} {
			if !regexp.MustCompile(fmt.Sprintf(`msg="?%s"? task=orders-%d what=output`, word, i)).MatchString(
				r.Log.String()) {
				t.Errorf("the log has no %q of task %d:\n%s", word, i, r.Log)
			}
		}
	}
	kafkatest.DeleteTopic(t, []string{r.Addr}, "out")
	for i, err := range both() {
		var stop *failure.Halt
		if !errors.As(err, &stop) || stop.Reason != failure.OutputTruncated {
			t.Errorf("task %d, without the topic: %v", i, err)
		}
	}
}
