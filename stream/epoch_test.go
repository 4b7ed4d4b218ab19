package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestConfigurationEdited: the halt shows the difference, and undoing it resolves the halt.
func TestConfigurationEdited(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	was := r.Toml
	r.Toml = fixtures.With(r.Toml, "clip = 1.0", "clip = 1.5", "step   = 100", "step = 50")
	err := r.Start().Ends()
	if !errors.Is(err, failure.ErrHalted) {
		t.Fatalf("ended with %v", err)
	}
	for _, w := range []string{"moments.clip: 1 → 1.5", "step: 100 → 50", "epoch open orders"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the difference does not say %q: %v", w, err)
		}
	}
	r.Toml = was
	r.Produce(1050, 100)
	x := r.Start()
	x.Published(11)
	x.End()
	// Keys outside the digest end no epoch.
	r.Toml = fixtures.With(was, "limit_epsilon = 3.0", "limit_epsilon = 4.0", `topic = "orders.dp"`,
		`topic = "orders.dp", values = ["mean"]`)
	r.Produce(1150, 100)
	x = r.Start()
	x.Published(12)
	x.End()
	v := r.History("orders.dp")
	p := v.ByKey["orders/0/1/12"]
	if rel := p.Parse(t); rel.Epoch != 1 || len(rel.Values) != 1 {
		t.Errorf("release %s", p.Value)
	}
}

// TestHorizon checks what a task does after the last step of its epoch, with each on_horizon.
func TestHorizon(t *testing.T) {
	t.Parallel()
	t.Run("halt", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4"))
		r.Produce(0, 1050)
		if err := r.Start().Ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.History("orders.dp"); v.Steps != 4 {
			t.Errorf("%d steps", v.Steps)
		}
		if got := r.Kinds(); got != "open close key-destroyed" {
			t.Errorf("ledger: %s", got)
		}
		x := r.Start()
		if err := x.Ends(); !errors.Is(err, failure.ErrNothing) {
			t.Errorf("a second run ended with %v", err)
		}
		if s := x.D.Status()[0]; s.State != monitor.StateExhausted || s.Epoch != 1 || s.NextOffset != 400 ||
			s.Lag != 0 {
			t.Errorf("state %s, epoch %d up to %d, lag %d", s.State, s.Epoch, s.NextOffset, s.Lag)
		}
		// A task whose epoch has ended does not notice if the log is lost.
		r.Recreate(0, 10)
		if err := r.Start().Ends(); !errors.Is(err, failure.ErrNothing) {
			t.Errorf("a run without its log ended with %v", err)
		}
	})
	t.Run("the broker is gone at the end", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4"))
		fault := r.Broker.Cluster().Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: -1})
		r.Produce(0, 1050)
		x := r.Start()
		x.Until("the horizon", func(s monitor.TaskStatus) bool { return s.Step == 4 && s.Outbox == 4 })
		r.Recreate(0, 10) // the daemon reads no more, so the loss does not matter
		ctx, cancel := context.WithTimeout(t.Context(), fixtures.Patience)
		defer cancel()
		if err := fault.Wait(ctx, fault.Hits()+2); err != nil {
			t.Fatal(err)
		}
		fault.Remove()
		if err := x.Ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.History("orders.dp"); v.Steps != 4 {
			t.Errorf("%d steps", v.Steps)
		}
	})
	t.Run("rollover", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"",
				"limit_epsilon = 3.0", "limit_epsilon = 1.0"))
		r.Produce(0, 1050)
		x := r.Start()
		x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
		x.End()
		v := r.History("orders.dp")
		for key, covers := range map[string]string{
			"orders/0/1/4": `"covers":[0,400]`,
			"orders/0/2/1": `"covers":[400,500]`,
			"orders/0/3/2": `"covers":[800,1000]`,
		} {
			if p := v.ByKey[key]; !strings.Contains(p.Value, covers) {
				t.Errorf("release %s: %.200s", key, p.Value)
			}
		}
		if got, err := streamtest.ReadEpochs(r.Dir + "/state"); err != nil || len(got) != 3 ||
			got[1].State != "closed" || got[2].State != "open" || got[1].Reason != ledger.ReasonHorizon {
			t.Errorf("epochs %+v %v", got, err)
		}
	})
	t.Run("rollover on another log", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"",
				"limit_epsilon = 3.0", "limit_epsilon = 1.2"))
		r.Produce(0, 400)
		x := r.Start()
		x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 })
		x.End()
		// The new log's records may belong to the same persons, who would be charged twice.
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
		}))
		r.Recreate(7, 600)
		err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		})
		if err == nil || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open on another log: %v", err)
		}
	})
	t.Run("rollover without budget", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4", "limit_epsilon = 3.0",
				"limit_epsilon = 1.2"))
		r.Produce(0, 400)
		if err := r.Start().Ends(); err != nil {
			t.Fatal(err)
		}
		r.Recreate(7, 600)
		r.Toml = fixtures.With(r.Toml, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
		err := r.Start().Ends()
		if !errors.Is(err, failure.ErrNothing) || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("continue", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"continue\""))
		r.Produce(0, 1050)
		x := r.Start()
		x.Published(10)
		x.End()
		if got := r.Kinds(); got != "open" {
			t.Errorf("ledger: %s", got)
		}
	})
}
