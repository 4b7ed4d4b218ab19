package epoch

// This file shows the tests in package epoch_test what they look into.

import (
	"context"

	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

type (
	Opening = opening
)

func (x *Keeper) Claim(a0 context.Context, a1 *opening) error { return x.claim(a0, a1) }

func (x *Keeper) Pay(a0 context.Context, a1 *opening) error { return x.pay(a0, a1) }

func (x *Keeper) Reach(a0 context.Context, a1 *ledger.Entry, a2 []int64, a3 *state.Checkpoint) ([]ledger.EntryPart, error) {
	return x.reach(a0, a1, a2, a3)
}

func (x *Keeper) Survey(a0 context.Context, a1 OpenRequest) (*opening, error) {
	return x.survey(a0, a1)
}
