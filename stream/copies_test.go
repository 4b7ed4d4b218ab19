package stream_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// copies starts two daemons on two copies of one state in the middle of epoch 1. Each draws its own secrets.
func copies(t *testing.T, toml string) (r, s *streamtest.Rig, x, y *streamtest.Running) {
	t.Helper()
	r = streamtest.NewRig(t, toml)
	r.Real = true
	r.Produce(0, 250)
	x = r.Start()
	x.Published(2)
	x.End()
	s = r.Sibling(toml)
	r.CopyState(s)
	return r, s, r.Start(), s.Start()
}

// forked fails unless at least one of two copies has halted, and the only key with two releases is the first of an
// epoch. A copy may publish that release before it can know of the other copy.
func forked(t *testing.T, r *streamtest.Rig, x, y *streamtest.Running, halts int) *streamtest.Verdict {
	t.Helper()
	halted := 0
	for _, c := range []*streamtest.Running{x, y} {
		if s := c.D.Status()[0]; s.State == monitor.StateHalted {
			halted++
			if s.Reason != failure.OutputAhead || !strings.Contains(s.Message, "epoch open") {
				t.Errorf("halted with %q: %s", s.Reason, s.Message)
			}
		}
	}
	if halted < halts {
		t.Errorf("%d of two copies halted: %+v\n%+v", halted, x.D.Status()[0], y.D.Status()[0])
	}
	v := streamtest.Judge(t, r.Output("orders.dp"))
	for _, key := range v.Forks {
		if !strings.HasSuffix(key, "/1") {
			t.Errorf("release %s was published with two values", key)
		}
	}
	return &v
}

// TestCopiesRollOver: two copies of one state run at the same time and open their next epochs with their own secrets.
// Each halts when it finds the first release of the other's epoch, after at most one own release.
func TestCopiesRollOver(t *testing.T) {
	t.Parallel()
	r, _, x, y := copies(t, fixtures.RollsStream)
	x.Published(2)
	y.Published(2)
	r.Produce(250, 1000)
	halted := func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted }
	// The fourth epoch, which is too short for a step, may begin before the test looks.
	late := func(s monitor.TaskStatus) bool {
		return halted(s) || s.Epoch == 3 && s.Step == 4 && s.Outbox == 0 || s.Epoch == 4
	}
	x.Until("a halt or the end", late)
	y.Until("a halt or the end", late)
	// A copy that still runs finds the other's release before its own next one.
	r.Produce(1250, 100)
	x.Until("a halt", func(s monitor.TaskStatus) bool { return halted(s) || halted(y.D.Status()[0]) })
	v := forked(t, r, x, y, 1)
	if len(v.Forks) > 2 {
		t.Errorf("%d keys have two releases: %v", len(v.Forks), v.Forks)
	}
}

// TestCopyOpens: an operator opens an epoch on one of two running copies. The other halts before its next release, and
// the first halts if the other has continued.
func TestCopyOpens(t *testing.T) {
	t.Parallel()
	r, _, x, y := copies(t, fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.5"))
	x.Published(2)
	y.Published(2)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{}))
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == monitor.StateRunning })
	r.Produce(250, 1000)
	y.Until("a halt", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateHalted || s.Step >= 12 && s.Outbox == 0
	})
	r.Produce(1250, 100)
	halted := func(c *streamtest.Running) bool { return c.D.Status()[0].State == monitor.StateHalted }
	x.Until("a halt", func(s monitor.TaskStatus) bool { return halted(x) || halted(y) })
	forked(t, r, x, y, 1)
	v := streamtest.Judge(t, r.Output("orders.dp"))
	if p, ok := v.ByKey["orders/0/1/4"]; ok {
		if _, both := v.ByKey["orders/0/2/2"]; both {
			t.Errorf("both copies published: %s at %d", p.Key, p.Offset)
		}
	}
}

// TestFreshDirectory: a second daemon with an empty state directory, started while the output is still empty, has its
// own epoch 1.
func TestFreshDirectory(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Real = true
	s := r.Sibling(fixtures.OrdersStream)
	x, y := r.Start(), s.Start()
	running := func(s monitor.TaskStatus) bool { return s.Epoch == 1 && s.State == monitor.StateRunning }
	x.Until("epoch 1", running)
	y.Until("epoch 1", running)
	r.Produce(0, 1000)
	done := func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateHalted || s.Step == 10 && s.Outbox == 0
	}
	x.Until("a halt or the end", done)
	y.Until("a halt or the end", done)
	r.Produce(1000, 100)
	x.Until("a halt", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateHalted || y.D.Status()[0].State == monitor.StateHalted
	})
	forked(t, r, x, y, 1)
}

// TestCopiesApart is the control: the same two copies have separate outputs, so neither sees the other. The checker
// must find forks here; otherwise it does not work.
func TestCopiesApart(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.RollsStream)
	r.Real = true
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	s := r.Sibling(fixtures.With(fixtures.RollsStream, `"orders.dp"`, `"elsewhere"`))
	r.CopyState(s)
	x, y := r.Start(), s.Start()
	x.Published(2)
	y.Published(2)
	r.Produce(250, 1000)
	third := func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 4 && s.Outbox == 0 || s.Epoch == 4 }
	x.Until("epoch 3", third)
	y.Until("epoch 3", third)
	x.End()
	y.End()
	v := streamtest.Judge(t, append(r.Output("orders.dp"), r.Output("elsewhere")...))
	late := 0
	for _, key := range v.Forks {
		if !strings.HasSuffix(key, "/1") {
			late++
		}
	}
	if late < 4 {
		t.Errorf("the checker finds %d forks: %v", late, v.Forks)
	}
}

// TestCopyCutOff: a copy loses its connection between the charge of an epoch and its manifest, while the other
// publishes an epoch of that number. The first copy halts: it must assume that the releases are its own. It does not
// take its charge back, and opens no other epoch.
func TestCopyCutOff(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Real = true
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	s := r.Sibling(fixtures.OrdersStream)
	r.CopyState(s)
	open := func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}
	fixtures.Must(t, s.Offline(open))
	for _, name := range []string{"manifest-2", state.CheckpointName, state.PreviousName} {
		if err := os.Remove(s.File(name)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	fixtures.Must(t, os.WriteFile(s.File(state.OpeningName(2)), nil, 0o600))
	fixtures.Must(t, r.Offline(open))
	r.Produce(250, 250)
	x = r.Start()
	x.Until("three steps", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 3 && s.Outbox == 0 })
	if err := s.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), fixtures.MayHaveRun) {
		t.Errorf("ended with %v", err)
	}
	if got := s.Kinds(); got != "open close key-destroyed open" {
		t.Errorf("ledger: %s", got)
	}
	x.End()
}
