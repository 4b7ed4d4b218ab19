package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// TestLimit: an opening beyond the limit is refused and changes nothing. A raised limit is a line of the ledger. A
// limit below what is charged is refused.
func TestLimit(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.2")
	r := streamtest.NewRig(t, toml)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	// A request to read the same records again is refused, and the epoch continues.
	for _, from := range []string{"0", "500", "900"} {
		if err := x.Control(task.RequestOpen, epoch.OpenRequest{From: from}); err == nil ||
			!strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open from %s: %v", from, err)
		}
	}
	if err := x.Control(task.RequestOpen, epoch.OpenRequest{From: "yesterday"}); err == nil {
		t.Error("an opening from yesterday is accepted")
	}
	if s := x.D.Status()[0]; s.State != monitor.StateRunning || s.Epoch != 1 {
		t.Errorf("after a refusal: %+v", s)
	}
	// Later records have their own budget.
	if err := x.Control(task.RequestOpen, epoch.OpenRequest{}); err != nil {
		t.Errorf("open: %v", err)
	}
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 })
	x.End()
	if got := r.Kinds(); got != "open close key-destroyed open" {
		t.Errorf("ledger: %s", got)
	}
	if e := r.Entries()[3]; e.First != 1000 {
		t.Errorf("the successor begins at %d", e.First)
	}
	// The same applies offline.
	err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "0"})
	})
	if err == nil || !strings.Contains(err.Error(), "above limit_epsilon") ||
		r.Kinds() != "open close key-destroyed open" {
		t.Errorf("open from 0: %v, ledger %s", err, r.Kinds())
	}

	r.Toml = fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 2.5")
	r.Produce(1050, 100)
	x = r.Start()
	x.Published(1)
	x.End()
	if e := r.Entries(); e[len(e)-1].Kind != ledger.KindLimit || e[len(e)-1].LimitEpsilon != 2.5 {
		t.Errorf("ledger: %s", r.Kinds())
	}
	// The release states the limit at the epoch's opening, and a restart writes no second ledger line.
	x = r.Start()
	x.Published(1)
	x.End()
	if got := r.Kinds(); got != "open close key-destroyed open limit" {
		t.Errorf("ledger: %s", got)
	}
	if last := r.History("orders.dp").ByKey["orders/0/2/1"]; !strings.Contains(last.Value, `"limit_epsilon":1.2`) ||
		!strings.Contains(last.Value, "when this epoch opened was (1.2,") {
		t.Errorf("release %s", last.Value)
	}
	if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "0"})
	}); err != nil {
		t.Error(err) // a limit of 2.5 has room for two
	}
	r.Toml = fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.0")
	lines := len(r.Entries())
	err = r.Start().Ends()
	if !errors.Is(err, failure.ErrNothing) ||
		!strings.Contains(err.Error(), "is below what records of orders/0 have paid") {
		t.Errorf("a limit below what is charged: %v", err)
	}
	if len(r.Entries()) != lines {
		t.Error("a refused limit was recorded")
	}
}

// TestLimitShared: two streams that read the same records share the limit.
func TestLimitShared(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	both := strings.ReplaceAll(fixtures.OrdersStream+second, "limit_epsilon = 3.0", "limit_epsilon = 1.1")
	r := streamtest.NewRig(t, both)
	r.Produce(0, 250)
	x := r.Start()
	x.Until("one of them halts", func(monitor.TaskStatus) bool {
		states := map[string]int{}
		for _, s := range x.D.Status() {
			if s.State == monitor.StateRunning && s.Step == 2 && s.Outbox == 0 ||
				s.State == monitor.StateHalted && s.Reason == failure.Budget {
				states[s.State]++
			}
		}
		return states[monitor.StateRunning] == 1 && states[monitor.StateHalted] == 1
	})
	x.End()
	if r.Kinds() != "open" {
		t.Errorf("ledger: %s", r.Kinds())
	}
	// With room for both, both run.
	r.Toml = strings.ReplaceAll(both, "limit_epsilon = 1.1", "limit_epsilon = 1.6")
	x = r.Start()
	x.Until("both run", func(monitor.TaskStatus) bool {
		for _, s := range x.D.Status() {
			if s.State != monitor.StateRunning || s.Step != 2 || s.ChargedEpsilon < 1.2 {
				return false
			}
		}
		return true
	})
	x.End()
}

// TestCharged: charges for different offsets of one log compose in parallel, and charges for different logs in
// sequence.
func TestCharged(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	x := func(req epoch.OpenRequest) float64 {
		t.Helper()
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, req)
		}))
		eps, err := readCharged(r.Dir+"/state", r.Options().Config.Streams[0], 0)
		fixtures.Must(t, err)
		return eps
	}
	near := func(got, want float64) {
		t.Helper()
		if got < want-0.01 || got > want+0.01 {
			t.Errorf("charged %g, want %g", got, want)
		}
	}
	near(x(epoch.OpenRequest{}), 1)
	near(x(epoch.OpenRequest{From: "500"}), 1.44) // √2 times mu
	d := r.Start()
	d.Published(5)
	d.End()
	r.Recreate(7, 2000)
	near(x(epoch.OpenRequest{}), 1.78) // and the next log, √3
}

// TestMemoryGivenBack: a task whose epoch has ended has no share of kafka.fetch_memory, and gets one when it runs
// again.
func TestMemoryGivenBack(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1]`, "step   = 100",
			"step = 100\nhorizon = 1"))
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "wide", 2, nil))
	var list []kafka.Message
	for i := range 100 {
		list = append(list, kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)})
	}
	_, err := r.Client.Produce(t.Context(), "wide", 0, list)
	fixtures.Must(t, err)
	x := r.Start()
	both := func(first string, epoch uint64, readers int) {
		t.Helper()
		x.Until(first, func(s monitor.TaskStatus) bool {
			return s.State == first && s.Epoch == epoch && x.D.Status()[1].State == monitor.StateRunning
		})
		if a, b := x.In.Tasks()[0].Expected, x.In.Tasks()[1].Expected; a != readers || b != 1 {
			t.Errorf("%s: shares for %d and %d readers, not %d and 1", first, a, b, readers)
		}
	}
	both(monitor.StateExhausted, 1, 0)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{}))
	both(monitor.StateRunning, 2, 1)
	x.End()
}
