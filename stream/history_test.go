package stream

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/stream/core"
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
	if _, _, ok := x.history(t.Context(), task(0), 0); ok {
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
				list, end, ok := x.history(t.Context(), task(i), from[i])
				if ok != (i < n-1) || ok && end != n*each {
					t.Errorf("task %d from %d: %v to %d", i, from[i], ok, end)
					return
				}
				next := from[i] + (int64(i)-from[i]%n+n)%n // the first offset ≥ from that is i modulo n
				for _, r := range list {
					if r.offset != next || r.step != uint64(next/n)+1 {
						t.Errorf("task %d from %d: %+v, not offset %d", i, from[i], r, next)
					}
					next += n
				}
				if ok && next < n*each {
					t.Errorf("task %d from %d has no release at %d", i, from[i], next)
				}
			})
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for asked := 0; asked < n; runtime.Gosched() {
			x.mu.Lock()
			if x.past.next != nil {
				asked = x.past.next.wanted
			}
			x.mu.Unlock()
		}
		if _, _, ok := x.history(gone, core.Task{Stream: "gone"}, 0); ok {
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
	x.history(gone, task(0), 0)
	if x.past.next.ctx.Err() == nil {
		t.Error("a reading that nobody wants goes on")
	}
	x.readHistories()
}
