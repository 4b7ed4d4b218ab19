package stream

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/stream/core"
)

// The parameters that a mechanism has learnt outlive its epoch: the next epoch begins
// with the parameters that this one ended with. They are a function of releases, and as
// public. The files hold packed little-endian float64s. The plan in the manifest holds
// the hash of the parameters that its epoch begins with.

// initial returns the parameters that a new epoch begins with: those of the last epoch;
// without one, those of the stream's initial_file; without that, nil, which stands for
// the mechanism's own.
func (r *keeper) initial() ([]float64, error) {
	learning := core.LearningOf(r.s)
	if learning == nil {
		return nil, nil
	}
	names, err := r.d.disk.ReadDir(r.store.dir)
	if err != nil {
		return nil, err
	}
	var last uint64
	for _, name := range names {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, "final-"), 10, 64); err == nil && name == finalName(n) {
			last = max(last, n)
		}
	}
	if last == 0 {
		return initialFile(r.s)
	}
	data, err := r.d.disk.ReadFile(r.store.path(finalName(last)))
	if err != nil {
		return nil, err
	}
	x, err := parseParameters(data)
	if err != nil {
		return nil, halted(haltState, "parameters of epoch %d: %w", last, err)
	}
	if n := learning.Parameters; len(x) != n {
		r.log.Warn("the last epoch's parameters are another model's: the new epoch begins without them", "epoch", last, "parameters", len(x), "configured", n)
		return initialFile(r.s)
	}
	return x, nil
}

// keepInitial writes what a new epoch begins with.
func (r *keeper) keepInitial(ctx context.Context, epoch uint64, x []float64) error {
	if x == nil {
		return nil
	}
	return r.write(ctx, func() error { return writeNew(r.d.disk, r.store.path(initialName(epoch)), packParameters(x)) })
}

// initialOf returns the parameters that an epoch began with, nil if they are the
// mechanism's own.
func (r *keeper) initialOf(epoch uint64) ([]float64, error) {
	data, err := r.d.disk.ReadFile(r.store.path(initialName(epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseParameters(data)
}

// keepFinal writes the parameters with which an epoch that is being closed ended. It
// reads them from the last checkpoint. Without a checkpoint the next epoch begins anew.
func (r *keeper) keepFinal(ctx context.Context, opened *Entry) error {
	if !core.Learns(opened.Mechanism) {
		return nil
	}
	cp, err := r.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return err
	}
	if err != nil || cp == nil || cp.epoch != opened.Epoch {
		r.log.Warn("epoch closed without its checkpoint: what it has learnt is in its releases only", "epoch", opened.Epoch)
		return nil
	}
	x, err := core.LearntBy(opened.Mechanism, cp.state)
	if err != nil {
		r.log.Warn("epoch closed with a state of another version: what it has learnt is in its releases only", "epoch", opened.Epoch)
		return nil
	}
	if x == nil {
		return nil
	}
	return r.write(ctx, func() error {
		if err := removeAll(r.d.disk, r.store.dir, finalName(opened.Epoch)); err != nil { // of an interrupted closing
			return err
		}
		return writeNew(r.d.disk, r.store.path(finalName(opened.Epoch)), packParameters(x))
	})
}
