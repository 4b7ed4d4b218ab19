package epoch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// OpenEpoch is an open epoch, ready to run.
type OpenEpoch struct {
	M      *core.Manifest
	Core   *core.Core           // makes its releases
	Cp     *state.Checkpoint    // the last commit
	Bounds *boundary.Boundaries // boundaries of steps by the clock; else nil
	Users  state.Journals       // journals of persons; nil: the stream protects records
	Moved  bool                 // Cp is for another output partition than the configured one
	// Unproven is nil if the input is the log that Cp belongs to. Otherwise it says why the input may be a different
	// log, and the epoch must not run.
	Unproven error
}

// resume prepares the epoch that a ledger entry opened, at the epoch's last commit.
func (k *Keeper) resume(ctx context.Context, opened *ledger.Entry) (*OpenEpoch, error) {
	l, err := k.ResumeAt(ctx, opened, k.lastCommit, k.provenLog)
	if err != nil {
		return nil, err
	}
	if err := k.Guard.Plausible(ctx); err != nil {
		l.Core.Destroy()
		return nil, err
	}
	return l, nil
}

// starting returns the checkpoint from which an epoch continues.
type starting func(ctx context.Context, opened *ledger.Entry, m *core.Manifest, file []byte,
	mech *core.Mechanism) (*state.Checkpoint, error)

// ResumeAt prepares the epoch that a ledger entry opened. proven, if not nil, is a function that checks whether the
// input is the checkpoint's log. If proven fails, the epoch must not run.
func (k *Keeper) ResumeAt(ctx context.Context, opened *ledger.Entry, start starting,
	proven func(context.Context, *core.Manifest, *state.Checkpoint) error) (l *OpenEpoch, err error) {
	m, file, err := k.Manifest(opened)
	if err != nil {
		return nil, err
	}
	if err := k.SameConfiguration(m); err != nil {
		return nil, err
	}
	over := k.S.Over(m.Numbers())
	keys, err := k.Keys(m)
	if err != nil {
		return nil, err
	}
	defer func() {
		if l == nil {
			keys.Destroy()
		}
	}()
	mech, err := k.Mechanism(m, opened)
	if err != nil {
		return nil, err
	}
	c, err := core.New(over, m, file, mech, keys)
	if err != nil {
		return nil, err
	}
	cp, err := start(ctx, opened, m, file, mech)
	if err != nil {
		return nil, err
	}
	users, err := state.OpenPersons(k.Store, c, cp)
	if errors.Is(err, persons.ErrDamaged) {
		return nil, failure.Haltf(failure.State,
			"epoch %d: %w: run streamdp recover%s, which reads the log again from the previous commit, or from the "+
				"epoch's beginning; or open a new epoch: streamdp epoch open %s",
			m.Epoch, err, failure.TaskFlags(k.Task),
			failure.EpochArgs(k.Task))
	}
	if err != nil {
		return nil, err
	}
	if err := c.Resume(cp.State, cp.Step, cp.Transcript, cp.Nexts()); err != nil {
		return nil, failure.Haltf(failure.State, "%w: run streamdp recover%s, or open a new epoch: streamdp epoch "+
			"open %s",
			err, failure.TaskFlags(k.Task), failure.EpochArgs(k.Task))
	}
	if err := k.unmark(ctx, m.Epoch); err != nil {
		return nil, err
	}
	if err := k.limit(ctx, m); err != nil {
		return nil, err
	}
	var src core.Source
	var id string
	if err := concurrently(ctx, func(ctx context.Context) (err error) {
		src, _, err = k.source(ctx, core.Partitions(m))
		return err
	}, func(ctx context.Context) (err error) {
		id, err = k.topicID(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	if src != m.Source {
		return nil, failure.Haltf(failure.Replaced,
			"the cluster's id is %q, but the epoch's log is on cluster %q: configure the brokers of that cluster, or "+
				"open a new epoch: streamdp epoch open %s",
			src.Cluster, m.Source.Cluster, failure.EpochArgs(k.Task))
	}
	if err := k.sameTopic(opened, id); err != nil {
		return nil, err
	}
	var unproven error
	bounds, err := k.NewBoundaries(ctx, opened, m, cp)
	if err != nil {
		return nil, err
	}
	k.Guard.Bounds = bounds
	moved := cp.OutputTopic != k.S.Output.Topic || cp.OutputPartition != k.S.Output.Partition
	var at output.Where
	if err := concurrently(ctx, func(ctx context.Context) (err error) {
		at, err = k.Guard.Begin(ctx, opened, k.S.LastStep(), mech, cp)
		return err
	}, func(ctx context.Context) error {
		if proven != nil {
			unproven = proven(ctx, m, cp)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	cp.OutputTopic, cp.OutputPartition, cp.Output, cp.Acknowledged = at.Topic, at.Partition, at.Offset, at.Acknowledged
	return &OpenEpoch{M: m, Core: c, Cp: cp, Bounds: bounds, Users: users, Moved: moved, Unproven: unproven}, nil
}

// SameConfiguration halts if the configuration differs from the epoch's in a way that affects the guarantee. The error
// lists the differences.
func (k *Keeper) SameConfiguration(m *core.Manifest) error {
	changes := core.Changes(k.S, m)
	if changes == nil {
		return nil
	}
	return failure.Haltf(failure.Configuration,
		"the configuration differs in keys on which the guarantee of the open epoch %d depends:\n  %s\nundo the "+
			"change, or open a new epoch: streamdp epoch open %s", m.Epoch, strings.Join(changes, "\n  "),
		failure.EpochArgs(k.Task))
}

// Mechanism builds the mechanism of an epoch from its plan. It halts if the mechanism would spend more than the ledger
// charged.
func (k *Keeper) Mechanism(m *core.Manifest, opened *ledger.Entry) (*core.Mechanism, error) {
	initial, err := k.initialOf(m.Epoch)
	if err != nil {
		return nil, failure.Haltf(failure.State, "initial parameters of epoch %d: %w", m.Epoch, err)
	}
	mech, err := MechanismOf(&k.D.Plans, k.S.Over(m.Numbers()), m, opened, initial)
	if err == nil && k.D.Chunk > 0 && mech.Chunk > 0 {
		mech.Chunk = k.D.Chunk
	}
	return mech, err
}

// MechanismOf builds the mechanism of an epoch from its plan and its initial parameters.
func MechanismOf(plans *MechanismCache, s *config.Stream, m *core.Manifest, opened *ledger.Entry,
	initial []float64) (*core.Mechanism, error) {
	mech, err := plans.newMechanism(s, m.Plan, initial)
	if err != nil {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: %w: %s", m.Epoch, err,
			failure.Restore(m.Task()))
	}
	cost, charged := mech.Cost(), opened.Cost
	if !charged.Covers(cost) || !m.Cost.Equal(charged) {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: it spends more than the ledger charged: %s",
			m.Epoch, failure.Restore(m.Task()))
	}
	return mech, nil
}

// lastCommit loads the checkpoint of an epoch, or writes the first one if there is none yet. It halts if the checkpoint
// belongs to another epoch, manifest or ledger.
func (k *Keeper) lastCommit(ctx context.Context, opened *ledger.Entry, m *core.Manifest, file []byte,
	mech *core.Mechanism) (*state.Checkpoint, error) {
	cp, err := k.Store.Load()
	switch {
	case errors.Is(err, state.ErrCheckpoint):
		return nil, failure.Haltf(failure.State,
			"%w: run streamdp recover%s, which goes back to the previous commit, or to the epoch's beginning, and "+
				"compares its releases with the published ones; or open a new epoch: streamdp epoch open %s",
			err, failure.TaskFlags(k.Task),
			failure.EpochArgs(k.Task))
	case err != nil:
		return nil, err
	case cp == nil:
		// Either a crash happened after the manifest was written and before the checkpoint was, or the checkpoint file
		// was lost. The epoch's published releases are in the output, and the repeated ones must equal them. If the
		// file was lost, only these releases show that the log is the one that the epoch read.
		if err := k.Recoverable(ctx, opened); err != nil {
			return nil, err
		}
		if err := k.Atomically(func() error {
			return k.Begin(ctx, m, file, mech, state.UnknownOutput, nil)
		}); err != nil {
			return nil, err
		}
		return k.Store.Load()
	}
	return cp, k.OfEpoch(cp, m, file)
}

// OfEpoch halts if a checkpoint belongs to another epoch, manifest or ledger.
func (k *Keeper) OfEpoch(cp *state.Checkpoint, m *core.Manifest, file []byte) error {
	switch {
	case cp.Epoch != m.Epoch:
		return failure.Haltf(failure.State,
			"the checkpoint belongs to epoch %d, but epoch %d is open: restore the state directory as a whole, or "+
				"open a new epoch: streamdp epoch open %s",
			cp.Epoch, m.Epoch, failure.EpochArgs(k.Task))
	case cp.Manifest != sha256.Sum256(file):
		return failure.Haltf(failure.State, "manifest of epoch %d: the epoch began with another manifest: %s",
			m.Epoch, failure.Restore(k.Task))
	case !k.D.Ledger.Knows(cp.Ledger):
		return failure.Haltf(failure.State,
			"the checkpoint was written with a newer ledger: the ledger is an old copy; restore the newest ledger "+
				"or, if there is none: streamdp ledger repair")
	}
	return nil
}

// Manifest reads the manifest of an epoch in the ledger.
func (k *Keeper) Manifest(opened *ledger.Entry) (*core.Manifest, []byte, error) {
	file, err := k.Store.Manifest(opened.Epoch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, ErrNoManifest
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := ManifestOf(k.Task, opened, file)
	return m, file, err
}

// ManifestOf parses the manifest of an epoch. It halts if the manifest is not the one that the ledger charged.
func ManifestOf(t core.Task, opened *ledger.Entry, file []byte) (*core.Manifest, error) {
	m, err := core.ParseManifest(file)
	if err != nil {
		return nil, failure.Haltf(failure.State, "%w: %s", err, failure.Restore(t))
	}
	if m.Task() != t || m.Epoch != opened.Epoch || m.Source != opened.Source ||
		hex.EncodeToString(m.Nonce) != opened.Nonce ||
		hex.EncodeToString(m.Digest) != opened.Digest || m.Base != opened.First ||
		m.Incarnation != opened.Incarnation || !sameParts(m, opened) ||
		opened.Person != nil && opened.Person.Partitions != m.Partitions {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: the ledger charged another manifest: %s",
			opened.Epoch, failure.Restore(t))
	}
	return m, nil
}

// sameParts reports whether a manifest is over the partitions that the ledger charged.
func sameParts(m *core.Manifest, opened *ledger.Entry) bool {
	return slices.EqualFunc(m.Parts, opened.Parts, func(p core.Part, e ledger.EntryPart) bool {
		return p.Partition == e.Partition && p.Incarnation == e.Incarnation && p.Base == e.First
	})
}

// Keys derives the epoch's keys, and checks them before any noise is drawn.
func (k *Keeper) Keys(m *core.Manifest) (*dp.Epoch, error) {
	file, err := k.Store.Secret(m.Epoch)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	defer clear(file)
	if m.KeyID == credentials.KeyID(k.D.Key) && k.D.Ledger.Foreign() {
		return nil, failure.Haltf(failure.State,
			"epoch %d was opened with the present key, but no line of the ledger is authenticated with it: somebody "+
				"has rewritten the ledger; restore the newest ledger", m.Epoch)
	}
	return KeysOf(k.D.Key, m, file)
}

// KeysOf derives the keys of an epoch from the master key and the epoch's secret, which is in file. A nil file means
// that the secret is missing. KeysOf halts if the key or the secret is not the epoch's.
func KeysOf(key *[32]byte, m *core.Manifest, file []byte) (*dp.Epoch, error) {
	if id := credentials.KeyID(key); id != m.KeyID {
		return nil, failure.Haltf(failure.Key,
			"the key file holds key %s, but epoch %d was opened with key %s: configure that key's file, or open a "+
				"new epoch: streamdp epoch open %s",
			id, m.Epoch, m.KeyID, failure.EpochArgs(m.Task()))
	}
	if len(file) != 32 {
		return nil, failure.Haltf(failure.Key,
			"the secret of epoch %d is missing or damaged: %s; without it the epoch cannot continue, and a new one is "+
				"charged again",
			m.Epoch, failure.Restore(m.Task()))
	}
	secret := [32]byte(file)
	defer clear(secret[:])
	keys, err := dp.NewEpoch(key, &secret, m.Stream, m.Epoch, [16]byte(m.Nonce), [32]byte(m.Digest))
	if err != nil {
		return nil, err
	}
	if check := keys.Check(); !bytes.Equal(check[:], m.EpochID) {
		keys.Destroy()
		return nil, failure.Haltf(failure.Key, "the secret of epoch %d is not the secret with which the epoch was "+
			"opened: %s", m.Epoch,
			failure.Restore(m.Task()))
	}
	return keys, nil
}

// limit records the configured limit in the ledger if it differs from the last recorded one. A raised limit is the
// guarantee from then on. limit refuses a limit below what is already charged.
func (k *Keeper) limit(ctx context.Context, m *core.Manifest) error {
	return k.Atomically(func() error {
		return k.DoDisk(ctx, func() error { return k.D.Ledger.SetLimit(k.S, m) })
	})
}
