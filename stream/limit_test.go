package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestLimit: an opening beyond the limit is refused and changes nothing; a
// raised limit is a line of the ledger; one below what is charged is refused.
func TestLimit(t *testing.T) {
	t.Parallel()
	toml := with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.2")
	r := newRig(t, toml)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	// The same records again: refused, and the epoch goes on.
	for _, from := range []string{"0", "500", "900"} {
		if err := x.control(requestOpen, OpenRequest{From: from}); err == nil || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open from %s: %v", from, err)
		}
	}
	if err := x.control(requestOpen, OpenRequest{From: "yesterday"}); err == nil {
		t.Error("opened from yesterday")
	}
	if s := x.d.Status()[0]; s.State != stateRunning || s.Epoch != 1 {
		t.Errorf("after a refusal: %+v", s)
	}
	// Those that come after it pay their own.
	if err := x.control(requestOpen, OpenRequest{}); err != nil {
		t.Errorf("open: %v", err)
	}
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
	x.end()
	if got := r.kinds(); got != "open close key-destroyed open" {
		t.Errorf("ledger: %s", got)
	}
	if e := r.entries()[3]; e.First != 1000 {
		t.Errorf("the successor begins at %d", e.First)
	}
	// Offline as well.
	err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "0"})
	})
	if err == nil || !strings.Contains(err.Error(), "above limit_epsilon") || r.kinds() != "open close key-destroyed open" {
		t.Errorf("open from 0: %v, ledger %s", err, r.kinds())
	}

	r.toml = with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 2.5")
	r.produce(1050, 100)
	x = r.start()
	x.published(1)
	x.end()
	if e := r.entries(); e[len(e)-1].Kind != kindLimit || e[len(e)-1].LimitEpsilon != 2.5 {
		t.Errorf("ledger: %s", r.kinds())
	}
	// The release says what the limit was when the epoch opened, and a restart
	// writes no second line.
	x = r.start()
	x.published(1)
	x.end()
	if got := r.kinds(); got != "open close key-destroyed open limit" {
		t.Errorf("ledger: %s", got)
	}
	if last := r.history("orders.dp").byKey["orders/0/2/1"]; !strings.Contains(last.value, `"limit_epsilon":1.2`) || !strings.Contains(last.value, "when this epoch opened was (1.2,") {
		t.Errorf("release %s", last.value)
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "0"})
	}); err != nil {
		t.Error(err) // 2.5 has room for two
	}
	r.toml = with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.0")
	lines := len(r.entries())
	err = r.start().ends()
	if !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "is below what records of orders/0 have paid") {
		t.Errorf("a limit below what is charged: %v", err)
	}
	if len(r.entries()) != lines {
		t.Error("a refused limit was recorded")
	}
}

// TestLimitShared: two streams that read the same records pay together.
func TestLimitShared(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	both := strings.ReplaceAll(ordersStream+second, "limit_epsilon = 3.0", "limit_epsilon = 1.1")
	r := newRig(t, both)
	r.produce(0, 250)
	x := r.start()
	x.until("one of them halts", func(TaskStatus) bool {
		states := map[string]int{}
		for _, s := range x.d.Status() {
			if s.State == stateRunning && s.Step == 2 && s.Outbox == 0 || s.State == stateHalted && s.Reason == haltBudget {
				states[s.State]++
			}
		}
		return states[stateRunning] == 1 && states[stateHalted] == 1
	})
	x.end()
	if r.kinds() != "open" {
		t.Errorf("ledger: %s", r.kinds())
	}
	// With room for both, both run.
	r.toml = strings.ReplaceAll(both, "limit_epsilon = 1.1", "limit_epsilon = 1.6")
	x = r.start()
	x.until("both run", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
			if s.State != stateRunning || s.Step != 2 || s.ChargedEpsilon < 1.2 {
				return false
			}
		}
		return true
	})
	x.end()
}

// TestCharged: positions of one log compose in parallel, logs in sequence.
func TestCharged(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	x := func(req OpenRequest) float64 {
		t.Helper()
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, req) }))
		eps, err := readCharged(r.dir+"/state", r.options().Config.Streams[0], 0)
		must(t, err)
		return eps
	}
	near := func(got, want float64) {
		t.Helper()
		if got < want-0.01 || got > want+0.01 {
			t.Errorf("charged %g, want %g", got, want)
		}
	}
	near(x(OpenRequest{}), 1)
	near(x(OpenRequest{From: "500"}), 1.44) // √2 times mu
	d := r.start()
	d.published(5)
	d.end()
	r.recreate(7, 2000)
	near(x(OpenRequest{}), 1.78) // and the log that came after, √3
}

// TestMemoryGivenBack: a task that has ended has no share of kafka.fetch_memory, and one that runs
// again has.
func TestMemoryGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1]`, "step   = 100", "step = 100\nhorizon = 1"))
	must(t, r.client.CreateTopic(t.Context(), "wide", 2, nil))
	var list []kafka.Message
	for i := range 100 {
		list = append(list, kafka.Message{Value: orderRecord(i), Time: time.UnixMilli(1)})
	}
	_, err := r.client.Produce(t.Context(), "wide", 0, list)
	must(t, err)
	x := r.start()
	both := func(first string, epoch uint64, readers int) {
		t.Helper()
		x.until(first, func(s TaskStatus) bool {
			return s.State == first && s.Epoch == epoch && x.d.Status()[1].State == stateRunning
		})
		if a, b := x.in.Tasks()[0].expected, x.in.Tasks()[1].expected; a != readers || b != 1 {
			t.Errorf("%s: shares for %d and %d readers, not %d and 1", first, a, b, readers)
		}
	}
	both(stateExhausted, 1, 0)
	must(t, x.control(requestOpen, OpenRequest{}))
	both(stateRunning, 2, 1)
	x.end()
}
