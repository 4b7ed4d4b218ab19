package stream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestOpenings: nobody begins while it is shut; whoever has begun is waited for, for as long as the context
// says, and then all goes on.
func TestOpenings(t *testing.T) {
	t.Parallel()
	var o openings
	ended, end := context.WithCancel(t.Context())
	end()
	must(t, o.begin(ended))
	must(t, o.begin(t.Context()))
	if err := o.shut(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("shut while two are under way: %v", err)
	}
	must(t, o.begin(t.Context())) // it is as before
	o.end()
	shut := make(chan error)
	go func() { shut <- o.shut(t.Context()) }()
	o.end()
	select {
	case err := <-shut:
		t.Fatalf("shut while one is under way: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	o.end()
	must(t, <-shut)
	if err := o.begin(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("begin while it is shut: %v", err)
	}
	begun := make(chan error)
	go func() { begun <- o.begin(t.Context()) }()
	o.reopen()
	must(t, <-begun)
	if o.n != 1 {
		t.Errorf("%d are under way", o.n)
	}
}

// TestReloadWaitsForOpening: while an epoch is being charged nothing changes, and while streams change none is.
func TestReloadWaitsForOpening(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 100)
	x := r.start(r.reloadable)
	x.published(1)
	before := x.in.Process.config()
	must(t, x.in.Process.openings.begin(t.Context()))
	r.write(with(ordersStream, "step   = 100", "step = 100\non_gap = \"null\""))
	if _, err := x.d.Reload(ReloadRequest{}); !errors.Is(err, errOpening) || x.in.Process.config() != before {
		t.Errorf("while an epoch is opened: %v", err)
	}
	x.in.Process.openings.end()
	if _, err := x.d.Reload(ReloadRequest{}); err != nil || x.in.Process.config() == before {
		t.Errorf("afterwards: %v", err)
	}
	must(t, x.in.Process.openings.shut(t.Context()))
	opened := make(chan error)
	go func() { opened <- x.control(requestOpen, OpenRequest{}) }()
	for late := time.Now().Add(patience); !strings.HasSuffix(r.kinds(), "destroyed") && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // it must not be charged, however long it waits
	if kinds := r.kinds(); kinds != "open close key-destroyed" {
		t.Errorf("the ledger has %s", kinds)
	}
	x.in.Process.openings.reopen()
	must(t, <-opened)
	x.end()
}
