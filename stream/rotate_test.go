package stream_test

import (
	"context"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
)

// TestRotateKey follows docs/howto/rotate-keys.md. With a new master key the task continues where the last epoch ended,
// and no record is charged twice. If only the former key can show how far the epoch read, nothing is closed or charged
// without that key.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	closing := func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}
	opening := func(sameLog bool) func(context.Context, *stream.Daemon) error {
		return func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: sameLog})
		}
	}
	for _, encrypt := range []bool{false, true} {
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		r.Encrypt = encrypt
		r.Produce(0, 1050)
		x := r.Start()
		x.Published(10)
		x.End()
		if encrypt {
			r.Seed++
			for _, q := range []func(context.Context, *stream.Daemon) error{closing, opening(false), opening(true)} {
				if err := r.Offline(q); err == nil || !strings.Contains(err.Error(), "configure the former key") {
					t.Errorf("without the former key: %v", err)
				}
			}
			if got := r.Kinds(); got != "open" {
				t.Errorf("the ledger has %s", got)
			}
			r.Seed--
		}
		fixtures.Must(t, r.Offline(closing))
		r.Seed++
		fixtures.Must(t, r.Offline(opening(true)))
		e := r.Entries()
		if last := e[len(e)-1]; last.Kind != ledger.KindOpen || last.First != 1000 || last.Incarnation != 1 {
			t.Errorf("encrypted %t: %s from %d of log %d", encrypt, last.Kind, last.First, last.Incarnation)
		}
		x = r.Start()
		r.Produce(1050, 50)
		x.Published(1)
		x.End()
	}
	// Without the operator's assertion the log counts as a different one, even if its records are equal.
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	fixtures.Must(t, r.Offline(closing))
	r.Seed++
	fixtures.Must(t, r.Offline(opening(false)))
	e := r.Entries()
	if last := e[len(e)-1]; last.Incarnation != 2 || last.First != 0 {
		t.Errorf("without an assertion: from %d of log %d", last.First, last.Incarnation)
	}
}
