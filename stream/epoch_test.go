package stream

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestConfigurationEdited: the difference is shown, and undoing it is enough.
func TestConfigurationEdited(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	was := r.toml
	r.toml = with(r.toml, "clip = 1.0", "clip = 1.5", "step   = 100", "step = 50")
	err := r.start().ends()
	if !errors.Is(err, ErrHalted) {
		t.Fatalf("ended with %v", err)
	}
	for _, w := range []string{"moments.clip: 1 → 1.5", "step: 100 → 50", "epoch open orders"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the difference does not say %q: %v", w, err)
		}
	}
	r.toml = was
	r.produce(1050, 100)
	x := r.start()
	x.published(11)
	x.end()
	// What is not in the digest ends no epoch.
	r.toml = with(was, "limit_epsilon = 3.0", "limit_epsilon = 4.0", `topic = "orders.dp"`, `topic = "orders.dp", values = ["mean"]`)
	r.produce(1150, 100)
	x = r.start()
	x.published(12)
	x.end()
	v := r.history("orders.dp")
	p := v.byKey["orders/0/1/12"]
	if rel := p.parse(t); rel.Epoch != 1 || len(rel.Values) != 1 {
		t.Errorf("release %s", p.value)
	}
}

// TestHorizon: what comes after the last step.
func TestHorizon(t *testing.T) {
	t.Parallel()
	t.Run("halt", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4"))
		r.produce(0, 1050)
		if err := r.start().ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.history("orders.dp"); v.steps != 4 {
			t.Errorf("%d steps", v.steps)
		}
		if got := r.kinds(); got != "open close key-destroyed" {
			t.Errorf("ledger: %s", got)
		}
		x := r.start()
		if err := x.ends(); !errors.Is(err, ErrNothing) {
			t.Errorf("a second run ended with %v", err)
		}
		if s := x.d.Status()[0]; s.State != stateExhausted || s.Epoch != 1 || s.NextOffset != 400 || s.Lag != 0 {
			t.Errorf("state %s, epoch %d up to %d, lag %d", s.State, s.Epoch, s.NextOffset, s.Lag)
		}
		// A log that is lost afterwards is none of its business.
		r.recreate(0, 10)
		if err := r.start().ends(); !errors.Is(err, ErrNothing) {
			t.Errorf("a run without its log ended with %v", err)
		}
	})
	t.Run("the broker is gone at the end", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4"))
		fault := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: -1})
		r.produce(0, 1050)
		x := r.start()
		x.until("the horizon", func(s TaskStatus) bool { return s.Step == 4 && s.Outbox == 4 })
		r.recreate(0, 10) // what it would still read is gone: it reads no more
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := fault.Wait(ctx, fault.Hits()+2); err != nil {
			t.Fatal(err)
		}
		fault.Remove()
		if err := x.ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.history("orders.dp"); v.steps != 4 {
			t.Errorf("%d steps", v.steps)
		}
	})
	t.Run("rollover", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 1.0"))
		r.produce(0, 1050)
		x := r.start()
		x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
		x.end()
		v := r.history("orders.dp")
		for key, covers := range map[string]string{"orders/0/1/4": `"covers":[0,400]`, "orders/0/2/1": `"covers":[400,500]`, "orders/0/3/2": `"covers":[800,1000]`} {
			if p := v.byKey[key]; !strings.Contains(p.value, covers) {
				t.Errorf("release %s: %.200s", key, p.value)
			}
		}
		if got, err := readEpochs(r.dir + "/state"); err != nil || len(got) != 3 || got[1].State != "closed" || got[2].State != "open" || got[1].Reason != reasonHorizon {
			t.Errorf("epochs %+v %v", got, err)
		}
	})
	t.Run("rollover on another log", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
		r.produce(0, 400)
		x := r.start()
		x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
		x.end()
		// Its records may be the same people's: they would pay twice.
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
		r.recreate(7, 600)
		err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) })
		if err == nil || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open on another log: %v", err)
		}
	})
	t.Run("rollover without budget", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4", "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
		r.produce(0, 400)
		if err := r.start().ends(); err != nil {
			t.Fatal(err)
		}
		r.recreate(7, 600)
		r.toml = with(r.toml, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
		err := r.start().ends()
		if !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("continue", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"continue\""))
		r.produce(0, 1050)
		x := r.start()
		x.published(10)
		x.end()
		if got := r.kinds(); got != "open" {
			t.Errorf("ledger: %s", got)
		}
	})
}
