package epoch

import (
	"context"
	"errors"
	"io/fs"

	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// The parameters that a mechanism has learnt outlive its epoch: the next epoch begins with the final parameters of this
// one. They are a function of releases, so they are public too. Files hold them as packed little-endian float64s. The
// plan in the manifest holds the hash of the parameters that its epoch begins with.

// initial returns the parameters that a new epoch begins with: the final ones of the last epoch, else those in the
// stream's initial_file, else nil. With nil, the mechanism uses its default.
func (k *Keeper) initial() ([]float64, error) {
	learning := core.LearningOf(k.S)
	if learning == nil {
		return nil, nil
	}
	last, data, err := k.Store.LastFinal()
	if err != nil {
		return nil, err
	}
	if last == 0 {
		return connect.InitialFile(k.S)
	}
	x, err := core.ParseParameters(data)
	if err != nil {
		return nil, failure.Haltf(failure.State, "parameters of epoch %d: %w", last, err)
	}
	if n := learning.Parameters; len(x) != n {
		k.Log.Warn("the last epoch's parameters do not fit the model: the new epoch begins without them", "epoch",
			last, "parameters", len(x), "configured", n)
		return connect.InitialFile(k.S)
	}
	return x, nil
}

// keepInitial writes the parameters that a new epoch begins with.
func (k *Keeper) keepInitial(ctx context.Context, epoch uint64, x []float64) error {
	if x == nil {
		return nil
	}
	return k.DoDisk(ctx, func() error { return k.Store.PutInitial(epoch, core.PackParameters(x)) })
}

// initialOf returns the parameters that an epoch began with, or nil if the mechanism used its default.
func (k *Keeper) initialOf(epoch uint64) ([]float64, error) {
	data, err := k.Store.Initial(epoch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return core.ParseParameters(data)
}

// keepFinal writes the final parameters of an epoch that is being closed. It reads them from the last checkpoint.
// Without a checkpoint it writes none, and the next epoch begins without them.
func (k *Keeper) keepFinal(ctx context.Context, opened *ledger.Entry) error {
	if !core.Learns(opened.Mechanism) {
		return nil
	}
	cp, err := k.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return err
	}
	if err != nil || cp == nil || cp.Epoch != opened.Epoch {
		k.Log.Warn("closed the epoch without a checkpoint: the next epoch begins without its parameters", "epoch",
			opened.Epoch)
		return nil
	}
	x, err := core.LearntBy(opened.Mechanism, cp.State)
	if err != nil {
		k.Log.Warn("cannot read the state of another version: the next epoch begins without its parameters", "epoch",
			opened.Epoch)
		return nil
	}
	if x == nil {
		return nil
	}
	return k.DoDisk(ctx, func() error { return k.Store.PutFinal(opened.Epoch, core.PackParameters(x)) })
}
