package stream

import (
	"context"
	"strings"
	"testing"
)

// TestRotateKey: a new master key goes on where the last epoch ended, and no record pays
// twice, where the operator does as docs/howto/rotate-keys.md says. Where only the former
// key knows how far the epoch read, nothing is closed or charged without it.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	closing := func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }
	opening := func(sameLog bool) func(context.Context, *Daemon) error {
		return func(ctx context.Context, d *Daemon) error {
			return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: sameLog})
		}
	}
	for _, encrypt := range []bool{false, true} {
		r := newRig(t, ordersStream)
		r.encrypt = encrypt
		r.produce(0, 1050)
		x := r.start()
		x.published(10)
		x.end()
		if encrypt {
			r.seed++
			for _, q := range []func(context.Context, *Daemon) error{closing, opening(false), opening(true)} {
				if err := r.offline(q); err == nil || !strings.Contains(err.Error(), "name the former key") {
					t.Errorf("without the former key: %v", err)
				}
			}
			if got := r.kinds(); got != "open" {
				t.Errorf("the ledger has %s", got)
			}
			r.seed--
		}
		must(t, r.offline(closing))
		r.seed++
		must(t, r.offline(opening(true)))
		e := r.entries()
		if last := e[len(e)-1]; last.Kind != kindOpen || last.First != 1000 || last.Incarnation != 1 {
			t.Errorf("encrypted %t: %s from %d of log %d", encrypt, last.Kind, last.First, last.Incarnation)
		}
		x = r.start()
		r.produce(1050, 50)
		x.published(1)
		x.end()
	}
	// Without the operator's word it is another log, whose records may be the same.
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.end()
	must(t, r.offline(closing))
	r.seed++
	must(t, r.offline(opening(false)))
	e := r.entries()
	if last := e[len(e)-1]; last.Incarnation != 2 || last.First != 0 {
		t.Errorf("without a word: from %d of log %d", last.First, last.Incarnation)
	}
}
