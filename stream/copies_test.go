package stream

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// copies starts two daemons that draw their secrets on two copies of one state, in the
// middle of epoch 1.
func copies(t *testing.T, toml string) (r, s *rig, x, y *running) {
	t.Helper()
	r = newRig(t, toml)
	r.real = true
	r.produce(0, 250)
	x = r.start()
	x.published(2)
	x.end()
	s = r.sibling(toml)
	r.copyState(s)
	return r, s, r.start(), s.start()
}

// forked fails unless at least one of two copies has halted, and keys with two
// releases are only the first of an epoch: what a copy published before it could know.
func forked(t *testing.T, r *rig, x, y *running, halts int) *verdict {
	t.Helper()
	halted := 0
	for _, c := range []*running{x, y} {
		if s := c.d.Status()[0]; s.State == stateHalted {
			halted++
			if s.Reason != haltOutput || !strings.Contains(s.Message, "epoch open") {
				t.Errorf("halted with %q: %s", s.Reason, s.Message)
			}
		}
	}
	if halted < halts {
		t.Errorf("%d of two copies halted: %+v\n%+v", halted, x.d.Status()[0], y.d.Status()[0])
	}
	v := judge(t, r.output("orders.dp"))
	for _, key := range v.forks {
		if !strings.HasSuffix(key, "/1") {
			t.Errorf("release %s was published with two values", key)
		}
	}
	return &v
}

// TestCopiesRollOver: two copies of one state that run at once open their next
// epochs with secrets of their own. Each halts at the first release of the other's
// epoch, and nothing follows the one release that it may have published itself.
func TestCopiesRollOver(t *testing.T) {
	t.Parallel()
	r, _, x, y := copies(t, rollsStream)
	x.published(2)
	y.published(2)
	r.produce(250, 1000)
	halted := func(s TaskStatus) bool { return s.State == stateHalted }
	// The fourth epoch, which is too short for a step, may begin before anybody looks.
	late := func(s TaskStatus) bool {
		return halted(s) || s.Epoch == 3 && s.Step == 4 && s.Outbox == 0 || s.Epoch == 4
	}
	x.until("a halt or the end", late)
	y.until("a halt or the end", late)
	// Whoever is left hears of the other at its next release.
	r.produce(1250, 100)
	x.until("a halt", func(s TaskStatus) bool { return halted(s) || halted(y.d.Status()[0]) })
	v := forked(t, r, x, y, 1)
	if len(v.forks) > 2 {
		t.Errorf("%d keys have two releases: %v", len(v.forks), v.forks)
	}
}

// TestCopyOpens: an operator opens an epoch on one of two copies that run. The other
// halts before its next release, and the first where the other has gone on.
func TestCopyOpens(t *testing.T) {
	t.Parallel()
	r, _, x, y := copies(t, with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.5"))
	x.published(2)
	y.published(2)
	must(t, x.control(requestOpen, OpenRequest{}))
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
	r.produce(250, 1000)
	y.until("a halt", func(s TaskStatus) bool { return s.State == stateHalted || s.Step >= 12 && s.Outbox == 0 })
	r.produce(1250, 100)
	halted := func(c *running) bool { return c.d.Status()[0].State == stateHalted }
	x.until("a halt", func(s TaskStatus) bool { return halted(x) || halted(y) })
	forked(t, r, x, y, 1)
	v := judge(t, r.output("orders.dp"))
	if p, ok := v.byKey["orders/0/1/4"]; ok {
		if _, both := v.byKey["orders/0/2/2"]; both {
			t.Errorf("both copies published: %s at %d", p.key, p.offset)
		}
	}
}

// TestFreshDirectory: a second daemon with an empty state directory, started while
// the output is empty still, has an epoch 1 of its own.
func TestFreshDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.real = true
	s := r.sibling(ordersStream)
	x, y := r.start(), s.start()
	running := func(s TaskStatus) bool { return s.Epoch == 1 && s.State == stateRunning }
	x.until("epoch 1", running)
	y.until("epoch 1", running)
	r.produce(0, 1000)
	done := func(s TaskStatus) bool { return s.State == stateHalted || s.Step == 10 && s.Outbox == 0 }
	x.until("a halt or the end", done)
	y.until("a halt or the end", done)
	r.produce(1000, 100)
	x.until("a halt", func(s TaskStatus) bool {
		return s.State == stateHalted || y.d.Status()[0].State == stateHalted
	})
	forked(t, r, x, y, 1)
}

// TestCopiesApart is the control: the same two copies with an output each, where neither
// sees the other. If the checker finds no forks then, it is blind.
func TestCopiesApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, rollsStream)
	r.real = true
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	x.end()
	s := r.sibling(with(rollsStream, `"orders.dp"`, `"elsewhere"`))
	r.copyState(s)
	x, y := r.start(), s.start()
	x.published(2)
	y.published(2)
	r.produce(250, 1000)
	third := func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 4 && s.Outbox == 0 || s.Epoch == 4 }
	x.until("epoch 3", third)
	y.until("epoch 3", third)
	x.end()
	y.end()
	v := judge(t, append(r.output("orders.dp"), r.output("elsewhere")...))
	late := 0
	for _, key := range v.forks {
		if !strings.HasSuffix(key, "/1") {
			late++
		}
	}
	if late < 4 {
		t.Errorf("the checker finds %d forks: %v", late, v.forks)
	}
}

// TestCopyCutOff: a copy is cut off between the charge of an epoch and its manifest, while the
// other one publishes an epoch of that number. It halts, as one that may have published that
// itself: it takes no charge back, and opens no other epoch.
func TestCopyCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.real = true
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	x.end()
	s := r.sibling(ordersStream)
	r.copyState(s)
	open := func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }
	must(t, s.offline(open))
	for _, name := range []string{"manifest-2", checkpointName, previousName} {
		if err := os.Remove(s.file(name)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	must(t, os.WriteFile(s.file(openingName(2)), nil, 0o600))
	must(t, r.offline(open))
	r.produce(250, 250)
	x = r.start()
	x.until("three steps", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 3 && s.Outbox == 0 })
	if err := s.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), mayHaveRun) {
		t.Errorf("ended with %v", err)
	}
	if got := s.kinds(); got != "open close key-destroyed open" {
		t.Errorf("ledger: %s", got)
	}
	x.end()
}
