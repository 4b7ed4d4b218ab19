package streamtest

import (
	"context"
	"testing"

	"github.com/streamdp/streamdp/stream"
)

// ClockRig starts a broker with the topic "orders" of several partitions, for steps by a clock.
func ClockRig(t testing.TB, toml string, partitions int) *Rig {
	t.Helper()
	r := NewMergedRig(t, toml, partitions)
	r.Boundaries = "bounds"
	return r
}

// hand is a clock that the test advances.
type hand chan struct{}

func NewHand() hand { return make(hand, 1<<16) }

// On makes a daemon use the clock.
func (h hand) On(o *stream.Options) {
	o.Hooks.Beat = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h:
			return nil
		}
	}
}

func (h hand) Tick() { h <- struct{}{} }
