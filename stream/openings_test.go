package stream_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/task"
)

// TestOpenings: no opening begins while the gate is shut. Shut waits for openings in progress until the context ends;
// then the gate stays open.
func TestOpenings(t *testing.T) {
	t.Parallel()
	var o epoch.OpenGate
	ended, end := context.WithCancel(t.Context())
	end()
	fixtures.Must(t, o.Begin(ended))
	fixtures.Must(t, o.Begin(t.Context()))
	if err := o.Shut(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("shut during two openings: %v", err)
	}
	fixtures.Must(t, o.Begin(t.Context())) // the gate is open as before
	o.End()
	shut := make(chan error)
	go func() { shut <- o.Shut(t.Context()) }()
	o.End()
	select {
	case err := <-shut:
		t.Fatalf("shut during one opening: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	o.End()
	fixtures.Must(t, <-shut)
	if err := o.Begin(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("begin while the gate is shut: %v", err)
	}
	begun := make(chan error)
	go func() { begun <- o.Begin(t.Context()) }()
	o.Reopen()
	fixtures.Must(t, <-begun)
	if o.N != 1 {
		t.Errorf("%d openings are in progress", o.N)
	}
}

// TestReloadWaitsForOpening: streams do not change while an epoch is being charged, and no epoch is charged while
// streams change.
func TestReloadWaitsForOpening(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 100)
	x := r.Start(r.Reloadable)
	x.Published(1)
	before := x.In.Process.Config()
	fixtures.Must(t, x.In.Process.Openings.Begin(t.Context()))
	r.Write(fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\non_gap = \"null\""))
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); !errors.Is(err, stream.ErrOpening) ||
		x.In.Process.Config() != before {
		t.Errorf("while an epoch is opened: %v", err)
	}
	x.In.Process.Openings.End()
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); err != nil || x.In.Process.Config() == before {
		t.Errorf("afterwards: %v", err)
	}
	fixtures.Must(t, x.In.Process.Openings.Shut(t.Context()))
	opened := make(chan error)
	go func() { opened <- x.Control(task.RequestOpen, epoch.OpenRequest{}) }()
	for late := time.Now().Add(fixtures.Patience); !strings.HasSuffix(r.Kinds(), "destroyed") &&
		time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // no matter how long the opening waits, it must not be charged
	if kinds := r.Kinds(); kinds != "open close key-destroyed" {
		t.Errorf("the ledger has %s", kinds)
	}
	x.In.Process.Openings.Reopen()
	fixtures.Must(t, <-opened)
	x.End()
}
