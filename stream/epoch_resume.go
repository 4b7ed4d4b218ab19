package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// resume readies the open epoch of a ledger entry, at its last commit.
func (r *keeper) resume(ctx context.Context, opened *Entry) (*openEpoch, error) {
	l, err := r.resumeAt(ctx, opened, r.lastCommit, r.provenLog)
	if err != nil {
		return nil, err
	}
	if err := r.guard.plausible(ctx); err != nil {
		l.core.Destroy()
		return nil, err
	}
	return l, nil
}

// starting returns the checkpoint from which an epoch continues.
type starting func(ctx context.Context, opened *Entry, m *core.Manifest, file []byte, mech *core.Mechanism) (*checkpoint, error)

// resumeAt prepares the open epoch of a ledger entry. proven looks whether the input is the log that the checkpoint
// is of, and the epoch must not run where it returns an error; nil: nothing looks.
func (r *keeper) resumeAt(ctx context.Context, opened *Entry, start starting, proven func(context.Context, *core.Manifest, *checkpoint) error) (l *openEpoch, err error) {
	m, file, err := r.manifest(opened)
	if err != nil {
		return nil, err
	}
	if err := r.sameConfiguration(m); err != nil {
		return nil, err
	}
	over := r.s.Over(m.Numbers())
	keys, err := r.keys(m)
	if err != nil {
		return nil, err
	}
	defer func() {
		if l == nil {
			keys.Destroy()
		}
	}()
	mech, err := r.mechanism(m, opened)
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
	users, err := openUsers(r.store, c, cp)
	if errors.Is(err, persons.ErrDamaged) {
		return nil, halted(haltState, "epoch %d: %w: streamdp recover%s reads the log again from the commit before, or from the epoch's beginning; "+
			"or start anew with: streamdp epoch open %s", m.Epoch, err, taskFlags(r.task), epochArgs(r.task))
	}
	if err != nil {
		return nil, err
	}
	if err := c.Resume(cp.state, cp.step, cp.transcript, cp.nexts()); err != nil {
		return nil, halted(haltState, "%w: streamdp recover%s, or start anew with: streamdp epoch open %s", err, taskFlags(r.task), epochArgs(r.task))
	}
	if err := r.unmark(ctx, m.Epoch); err != nil {
		return nil, err
	}
	if err := r.limit(ctx, m); err != nil {
		return nil, err
	}
	var src core.Source
	var id string
	if err := atOnce(ctx, func(ctx context.Context) (err error) {
		src, _, err = r.source(ctx, reads(m))
		return err
	}, func(ctx context.Context) (err error) {
		id, err = r.topicID(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	if src != m.Source {
		return nil, halted(haltReplaced, "the cluster's id is %q, that of the epoch's log %q: configure the brokers of that cluster, or start anew with: streamdp epoch open %s",
			src.Cluster, m.Source.Cluster, epochArgs(r.task))
	}
	if err := r.sameTopic(opened, id); err != nil {
		return nil, err
	}
	var unproven error
	at := &checkpoint{position: cp.position, older: cp.older, parts: cp.parts} // the guard changes the other
	bounds, err := r.newBoundaries(ctx, opened, m, cp)
	if err != nil {
		return nil, err
	}
	r.guard.bounds = bounds
	moved := cp.outputTopic != r.s.Output.Topic || cp.outputPartition != r.s.Output.Partition
	if err := atOnce(ctx, func(ctx context.Context) error {
		return r.guard.begin(ctx, opened, r.s.LastStep(), mech, cp)
	}, func(ctx context.Context) error {
		if proven != nil {
			unproven = proven(ctx, m, at)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return &openEpoch{m: m, core: c, cp: cp, bounds: bounds, users: users, moved: moved, unproven: unproven}, nil
}

// sameConfiguration halts if the configuration is not that of the epoch, and says how it
// differs.
func (r *keeper) sameConfiguration(m *core.Manifest) error {
	changes := changed(r.s, m)
	if changes == nil {
		return nil
	}
	return halted(haltConfiguration, "the configuration is not that of the open epoch %d, which its guarantee depends on:\n  %s\n"+
		"undo the change, or start anew with: streamdp epoch open %s", m.Epoch, strings.Join(changes, "\n  "), epochArgs(r.task))
}

// mechanism builds the mechanism of an epoch from its plan. It halts if the mechanism
// would spend more than the ledger charged.
func (r *keeper) mechanism(m *core.Manifest, opened *Entry) (*core.Mechanism, error) {
	initial, err := r.initialOf(m.Epoch)
	if err != nil {
		return nil, halted(haltState, "initial parameters of epoch %d: %w", m.Epoch, err)
	}
	mech, err := mechanismOf(&r.d.plans, r.s.Over(m.Numbers()), m, opened, initial)
	if err == nil && r.d.chunk > 0 && mech.Chunk > 0 {
		mech.Chunk = r.d.chunk
	}
	return mech, err
}

// mechanismOf builds the mechanism of an epoch by its plan and what it began with.
func mechanismOf(plans *plans, s *config.Stream, m *core.Manifest, opened *Entry, initial []float64) (*core.Mechanism, error) {
	mech, err := plans.newMechanism(s, m.Plan, initial)
	if err != nil {
		return nil, halted(haltState, "manifest of epoch %d: %w: %s", m.Epoch, err, restoreEpoch(m.Task()))
	}
	cost, charged := mech.Cost(), opened.Cost
	if !charged.Covers(cost) || !m.Cost.Equal(charged) {
		return nil, halted(haltState, "manifest of epoch %d: it spends what the ledger did not charge: %s", m.Epoch, restoreEpoch(m.Task()))
	}
	return mech, nil
}

// lastCommit loads the checkpoint of an epoch; if the epoch has none yet, it writes the
// first one. It halts if the checkpoint belongs to another epoch, manifest or ledger.
func (r *keeper) lastCommit(ctx context.Context, opened *Entry, m *core.Manifest, file []byte, mech *core.Mechanism) (*checkpoint, error) {
	cp, err := r.store.load()
	switch {
	case errors.Is(err, errCheckpoint):
		return nil, halted(haltState, "%w: streamdp recover%s goes back to the commit before it, or to the epoch's beginning, and compares with what is published; "+
			"or start anew with: streamdp epoch open %s", err, taskFlags(r.task), epochArgs(r.task))
	case err != nil:
		return nil, err
	case cp == nil:
		// A crash between manifest and checkpoint, or a lost file. The releases published
		// since then are in the output, and must be the result of the repetition. If the
		// file was lost, nothing but these releases shows that the log is the one that
		// the epoch read.
		if err := r.recoverable(ctx, opened); err != nil {
			return nil, err
		}
		if err := r.atomically(func() error { return r.begin(ctx, m, file, mech, unknownOutput, nil) }); err != nil {
			return nil, err
		}
		return r.store.load()
	}
	return cp, r.ofEpoch(cp, m, file)
}

// ofEpoch halts if a checkpoint belongs to another epoch, manifest or ledger.
func (r *keeper) ofEpoch(cp *checkpoint, m *core.Manifest, file []byte) error {
	switch {
	case cp.epoch != m.Epoch:
		return halted(haltState, "the checkpoint is of epoch %d, the open one is %d: restore the state directory as a whole, or start anew with: streamdp epoch open %s",
			cp.epoch, m.Epoch, epochArgs(r.task))
	case cp.manifest != sha256.Sum256(file):
		return halted(haltState, "manifest of epoch %d: it is not the one that the epoch began with: %s", m.Epoch, restoreEpoch(r.task))
	case !r.d.ledger.knows(cp.ledger):
		return halted(haltState, "the checkpoint was written with a newer ledger: the ledger is an old copy; restore the newest one, or where there is none: streamdp ledger repair")
	}
	return nil
}

// manifest reads the manifest of an epoch that the ledger knows.
func (r *keeper) manifest(opened *Entry) (*core.Manifest, []byte, error) {
	file, err := r.d.disk.ReadFile(r.store.path(manifestName(opened.Epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errNoManifest
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := manifestOf(r.task, opened, file)
	return m, file, err
}

// manifestOf parses the manifest of an epoch. It halts if that is not the one that the ledger
// charged.
func manifestOf(t core.Task, opened *Entry, file []byte) (*core.Manifest, error) {
	m, err := core.ParseManifest(file)
	if err != nil {
		return nil, halted(haltState, "%w: %s", err, restoreEpoch(t))
	}
	if m.Task() != t || m.Epoch != opened.Epoch || m.Source != opened.Source || hex.EncodeToString(m.Nonce) != opened.Nonce ||
		hex.EncodeToString(m.Digest) != opened.Digest || m.Base != opened.First || m.Incarnation != opened.Incarnation || !sameParts(m, opened) ||
		opened.Person != nil && opened.Person.Partitions != m.Partitions {
		return nil, halted(haltState, "manifest of epoch %d: it is not the one that the ledger charged: %s", opened.Epoch, restoreEpoch(t))
	}
	return m, nil
}

// sameParts reports whether a manifest is over the partitions that the ledger charged.
func sameParts(m *core.Manifest, opened *Entry) bool {
	return slices.EqualFunc(m.Parts, opened.Parts, func(p core.Part, e EntryPart) bool {
		return p.Partition == e.Partition && p.Incarnation == e.Incarnation && p.Base == e.First
	})
}

// keys derives the epoch's keys, and checks them before any noise is drawn.
func (r *keeper) keys(m *core.Manifest) (*dp.Epoch, error) {
	file, err := r.store.secret(m.Epoch)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	defer clear(file)
	if m.KeyID == credentials.KeyID(r.d.key) && r.d.ledger.foreign() {
		return nil, halted(haltState, "epoch %d was opened with the present key, and no line of the ledger is under it: "+
			"somebody has written the ledger anew; restore the newest one", m.Epoch)
	}
	return keysOf(r.d.key, m, file)
}

// keysOf derives the keys of an epoch from the master key and its secret, which is nil if
// it is missing. It checks them, and halts if one is not the epoch's.
func keysOf(key *[32]byte, m *core.Manifest, file []byte) (*dp.Epoch, error) {
	if id := credentials.KeyID(key); id != m.KeyID {
		return nil, halted(haltKey, "the key file holds key %s, epoch %d was opened with key %s: configure the file of that key, or start anew with: streamdp epoch open %s",
			id, m.Epoch, m.KeyID, epochArgs(m.Task()))
	}
	if len(file) != 32 {
		return nil, halted(haltKey, "the secret of epoch %d is missing or damaged: %s; without the secret the epoch is dead, and a new one pays again",
			m.Epoch, restoreEpoch(m.Task()))
	}
	secret := [32]byte(file)
	defer clear(secret[:])
	keys, err := dp.NewEpoch(key, &secret, m.Stream, m.Epoch, [16]byte(m.Nonce), [32]byte(m.Digest))
	if err != nil {
		return nil, err
	}
	if check := keys.Check(); !bytes.Equal(check[:], m.EpochID) {
		keys.Destroy()
		return nil, halted(haltKey, "the secret of epoch %d is not the one it was opened with: %s", m.Epoch, restoreEpoch(m.Task()))
	}
	return keys, nil
}

// limit records a limit that differs from the last one recorded. A raised limit is the
// guarantee from then on. It refuses a limit below what is charged.
func (r *keeper) limit(ctx context.Context, m *core.Manifest) error {
	e := limitOf(r.s, m)
	return r.atomically(func() error {
		return r.write(ctx, func() error { return r.d.ledger.setLimit(e, r.s.Privacy.Adjacency) })
	})
}

// limitOf returns the entry that records a stream's limit for an epoch.
func limitOf(s *config.Stream, m *core.Manifest) Entry {
	var parts []EntryPart
	for _, p := range m.Parts {
		parts = append(parts, EntryPart{Partition: p.Partition})
	}
	return Entry{
		Kind: kindLimit, Stream: m.Stream, Source: m.Source, Epoch: m.Epoch, Parts: parts,
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta,
	}
}
