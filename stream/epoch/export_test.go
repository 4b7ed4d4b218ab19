package epoch

// This file exports internals to the tests in package epoch_test.

import (
	"context"

	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

type (
	Opening = opening
)

func (k *Keeper) Claim(a0 context.Context, a1 *opening) error { return k.claim(a0, a1) }

func (k *Keeper) Pay(a0 context.Context, a1 *opening) error { return k.chargeOpening(a0, a1) }

func (k *Keeper) Reach(a0 context.Context, a1 *ledger.Entry, a2 []int64,
	a3 *state.Checkpoint) ([]ledger.EntryPart, error) {
	return k.reach(a0, a1, a2, a3)
}

func (k *Keeper) Survey(a0 context.Context, a1 OpenRequest) (*opening, error) {
	return k.planOpening(a0, a1)
}

// AutomaticRequest returns the request of an opening that no operator asked for.
func AutomaticRequest(reason string) OpenRequest { return OpenRequest{Reason: reason, automatic: true} }
