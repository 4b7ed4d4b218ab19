package stream

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"strings"
	"time"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

// halt stops a task, not the process. It is not stored: a restart examines its
// cause again.
type halt struct {
	reason string // a metric label
	err    error
}

// The reasons of halts.
const (
	haltConfiguration = "configuration"    // the configuration is not the epoch's
	haltKey           = "key"              // the keys are not the epoch's
	haltState         = "state"            // checkpoint or manifest is damaged
	haltGap           = "gap"              // records were deleted before they were read
	haltTruncated     = "truncated"        // the input ends before the next offset
	haltReplaced      = "replaced"         // the input is another log
	haltCompacted     = "compacted"        // the input topic is compacted
	haltOutput        = "output_ahead"     // the output holds what this state did not release
	haltOutputGone    = "output_truncated" // the output lost what would tell
	haltTooLarge      = "release_too_large"
	haltPublish       = "publish" // the output refuses releases
	haltBudget        = "budget"  // the limit leaves no epoch
	haltMechanism     = "mechanism"
	haltKafka         = "kafka" // the cluster refuses a call for good
)

func (h *halt) Error() string { return h.err.Error() }
func (h *halt) Unwrap() error { return h.err }

// Is makes a halt that a command meets what it is for a daemon whose tasks all
// meet it.
func (h *halt) Is(target error) bool {
	if h.reason == haltBudget {
		return target == ErrNothing
	}
	return target == ErrHalted
}

func halted(reason, format string, args ...any) error {
	return &halt{reason, fmt.Errorf(format, args...)}
}

// live is an open epoch, ready to run.
type live struct {
	m    *manifest
	core *core
	cp   *checkpoint // the last commit
	// published are messages that the output partition already holds, key →
	// hash. Those after cp were published before this state was restored, and
	// must come out again.
	published map[string][32]byte
	ahead     uint64 // the largest step of them
}

// settle finds the task's open epoch, or opens the one that it opens by itself:
// the first, and the successor of one that reached its horizon under rollover.
// It returns nil where there is none to run. It waits for the cluster as long
// as that takes.
func (r *runner) settle(ctx context.Context) (*live, error) {
	for {
		if err := r.finishClosings(ctx); err != nil {
			return nil, err
		}
		if err := r.ledgerIsNewest(); err != nil {
			return nil, err
		}
		last := r.d.ledger.newest(r.task)
		switch {
		case last == nil:
			unused, err := r.outputUnused(ctx)
			if err != nil {
				return nil, err
			}
			if !unused {
				return nil, halted(haltOutput, "%s/%d holds releases of this task, and the ledger knows no epoch of it: "+
					"restore the state directory, or accept a new budget with: streamdp epoch open %s", r.s.Output.Topic, r.s.Output.Partition, r.task.Stream)
			}
			if err := r.open(ctx, OpenRequest{Reason: "first", unasked: true}); err != nil {
				return nil, err
			}
		case last.Kind == kindClose:
			if last.Reason != reasonHorizon || r.s.OnHorizon != "rollover" {
				return nil, nil
			}
			if err := r.open(ctx, OpenRequest{Reason: "rollover", unasked: true}); err != nil {
				return nil, err
			}
		default:
			l, err := r.resume(ctx, last)
			if !errors.Is(err, errNoManifest) {
				return l, err
			}
			began, err := r.began(ctx, last)
			if err != nil {
				return nil, err
			}
			if began {
				return nil, halted(haltState, "the manifest of epoch %d is missing, and the epoch may have run: restore it from a backup, or start anew with: streamdp epoch open %s",
					last.Epoch, r.task.Stream)
			}
			// A crash inside an opening: no row of noise was ever drawn.
			if err := r.void(ctx, last); err != nil {
				return nil, err
			}
		}
	}
}

// ledgerIsNewest refuses a ledger that lacks epochs of which there are files:
// with it their charges would be forgotten and their numbers used again.
func (r *runner) ledgerIsNewest() error {
	n, err := r.store.newestEpoch()
	if err != nil {
		return err
	}
	if known := r.d.ledger.nextEpoch(r.task) - 1; n > known {
		return halted(haltState, "there are files of epoch %d, and the ledger knows epochs up to %d: it is missing or an old copy; restore the newest one", n, known)
	}
	return nil
}

// began reports whether an epoch whose manifest is missing may have drawn noise.
// It has not where a crash inside its opening left the mark, and there is no
// checkpoint of it and no release. Without the mark its files were lost, and that
// nothing shows what it did proves nothing.
func (r *runner) began(ctx context.Context, opened *Entry) (bool, error) {
	if opening, err := r.store.marked(opened.Epoch); err != nil || !opening {
		return true, err
	}
	cp, err := r.store.load()
	if errors.Is(err, errCheckpoint) || cp != nil && cp.epoch == opened.Epoch {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	end, err := r.releasedTo(ctx, opened)
	return end >= 0, err
}

var errNoManifest = errors.New("the epoch has no manifest")

// Reasons of a close entry.
const (
	reasonHorizon = "horizon"
	reasonRequest = "requested"
)

// OpenRequest says how an epoch is to be opened.
type OpenRequest struct {
	// From is "continue" (where the predecessor ended, the default),
	// "earliest", "latest" or an offset.
	From string `json:"from,omitempty"`
	// SameLog asserts that the log is the one the predecessor read, where
	// retention has taken the record that would prove it.
	SameLog bool `json:"same_log,omitempty"`
	// DropOutbox gives up releases of the predecessor that are not published
	// yet.
	DropOutbox bool `json:"drop_outbox,omitempty"`
	// Reason is written to the ledger.
	Reason string `json:"reason,omitempty"`

	unasked bool  // no operator asked for it
	output  int64 // releases that the ledger does not know are looked for from here, 0: everywhere
}

// open charges a new epoch and makes it, in an order that a crash cannot turn
// into noise without a charge: mark, ledger, secret, manifest, first checkpoint,
// each durable before the next. The mark is what allows to take the charge back.
func (r *runner) open(ctx context.Context, req OpenRequest) error {
	if err := r.ledgerIsNewest(); err != nil {
		return err
	}
	initial, err := r.initial()
	if err != nil {
		return halted(haltConfiguration, "%w", err)
	}
	mech, err := newMechanism(r.s, nil, initial)
	if err != nil {
		return halted(haltConfiguration, "%w", err)
	}
	src, partitions, log, err := r.input(ctx)
	if err != nil {
		return err
	}
	output, err := r.outputEnd(ctx)
	if err != nil {
		return err
	}
	incarnation, anchor, err := r.incarnation(ctx, src, req.SameLog)
	if err != nil {
		return err
	}
	base, err := r.baseOffset(req.From, src, incarnation, log)
	if err != nil {
		return err
	}

	epoch, err := r.nextEpoch(ctx, req)
	if err != nil {
		return err
	}
	secret, nonce := r.d.entropy(r.task, epoch)
	defer clear(secret[:])
	digest := r.s.Digest(r.task.Partition, versions(r.s))
	p := r.s.Privacy
	e, err := r.charge(mech, src, base)
	if err != nil {
		return err
	}
	e.Epoch, e.Incarnation, e.Reason = epoch, incarnation, req.Reason
	e.Nonce, e.Digest = hex.EncodeToString(nonce[:]), hex.EncodeToString(digest[:])
	if err := r.write(ctx, func() error { return r.store.mark(epoch) }); err != nil {
		return err
	}
	var charged float64
	err = r.write(ctx, func() (err error) {
		charged, err = r.d.ledger.open(e)
		return err
	})
	if err != nil {
		if err := r.unmark(ctx, epoch); err != nil {
			return err
		}
		if budget := (*errBudget)(nil); errors.As(err, &budget) {
			return halted(haltBudget, "%w", err)
		}
		return err
	}

	if err := r.write(ctx, func() error { return writeNew(r.d.disk, r.store.path(secretName(epoch)), secret[:]) }); err != nil {
		return err
	}
	if err := r.keepInitial(ctx, epoch, initial); err != nil {
		return err
	}
	keys, err := dp.NewEpoch(r.d.key, &secret, r.task.Stream, epoch, nonce, digest)
	if err != nil {
		return err
	}
	defer keys.Destroy()
	check := keys.Check()
	m := &manifest{
		Format: manifestFormat, Stream: r.task.Stream, Epoch: epoch, Source: src, Nonce: nonce[:],
		KeyID: config.KeyID(r.d.key), EpochID: check[:],
		Config: r.s.Canonical(r.task.Partition), Versions: versions(r.s), Digest: digest[:],
		Incarnation: incarnation, Base: base, Partitions: partitions,
		Mechanism: mech.name, Plan: mech.plan, Cost: mech.Cost(),
		LimitEpsilon: p.LimitEpsilon, LimitDelta: p.LimitDelta, ChargedEpsilonAtOpen: charged,
		Persons:  persons(mech.Cost(), p.Delta, 2, 10),
		Insecure: r.d.insecure != nil, Version: r.d.version,
	}
	file, err := m.encode()
	if err != nil {
		return err
	}
	if err := r.write(ctx, func() error { return writeNew(r.d.disk, r.store.path(manifestName(epoch)), file) }); err != nil {
		return err
	}
	if err := r.begin(ctx, m, file, mech, output, anchor); err != nil {
		return err
	}
	if err := r.unmark(ctx, epoch); err != nil {
		return err
	}
	r.d.metrics.opened(r.task)
	r.log.Info("epoch opened", "epoch", epoch, "base", base, "incarnation", incarnation, "reason", req.Reason,
		"epsilon", p.Epsilon, "delta", p.Delta, "adjacency", p.Adjacency.String(), "charged_epsilon", charged, "limit_epsilon", p.LimitEpsilon)
	return nil
}

// nextEpoch returns the number of the epoch to open: the ledger's next one, unless
// the output holds releases of it or of a later one. Then the state is an old
// copy, which opens nothing by itself, and nothing under a number that was used.
func (r *runner) nextEpoch(ctx context.Context, req OpenRequest) (uint64, error) {
	next := r.d.ledger.nextEpoch(r.task)
	if req.unasked && r.ran.Load() {
		return next, nil // this process ran the last one
	}
	newest, err := r.newestReleased(ctx, req.output)
	switch {
	case err != nil || newest < next:
		return next, err
	case req.unasked:
		return 0, r.unknownEpoch(newest)
	}
	r.log.Warn("the output holds releases of an epoch that this ledger does not know: its charge is in no sum", "epoch", newest)
	return newest + 1, nil
}

// charge returns the ledger's entry for an epoch from base on. One whose last
// offset is beyond all offsets has no end. The first one of a source says what the
// limit sets aside for sketches.
func (r *runner) charge(mech *mechanism, src Source, base int64) (Entry, error) {
	p := r.s.Privacy
	e := Entry{
		Kind: kindOpen, Stream: r.task.Stream, Source: src, First: base, End: chargedTo(mech, r.s.LastStep(), base), Mechanism: mech.name, Cost: mech.Cost(),
		Epsilon: p.Epsilon, Delta: p.Delta, LimitEpsilon: p.LimitEpsilon, LimitDelta: p.LimitDelta,
	}
	if r.d.ledger.unopened(src) {
		reserved, err := Reserve(r.d.cfg, r.s)
		if err != nil {
			return e, halted(haltBudget, "%w", err)
		}
		if !reserved.Sketches.Empty() {
			e.Reserved = reserved.Sketches
		}
	}
	return e, nil
}

// chargedTo returns the offset at which h steps from base on end, −1 where h is 0 or
// that may be beyond all offsets. The slots of step h alone are no proof: a product that
// is beyond 64 bits is some small number, and an epoch charged up to it would run on
// where nothing is charged. No step is longer than the longest of the first two and the
// last two; a difference of products is right whatever they are.
func chargedTo(mech *mechanism, h uint64, base int64) int64 {
	if h == 0 {
		return -1
	}
	if a, ok := mech.Estimator.(adaptive); ok {
		if end := a.Longest(h); end <= uint64(math.MaxInt64-base) {
			return base + int64(end)
		}
		return -1
	}
	var longest, last uint64
	for _, t := range []uint64{1, 2, h - 1, h} {
		if t > 0 && t <= h {
			first, end := mech.Range(t)
			longest, last = max(longest, end-first), end
		}
	}
	if hi, lo := bits.Mul64(h, longest); hi > 0 || lo > uint64(math.MaxInt64-base) {
		return -1
	}
	return base + int64(last)
}

// write repeats a write while there is no room for it.
func (r *runner) write(ctx context.Context, call func() error) error {
	return r.retry(ctx, "disk", func() error {
		err := call()
		if full(err) {
			return &notYet{err}
		}
		return err
	})
}

// unmark takes back the mark of an epoch that is open, or will never be.
func (r *runner) unmark(ctx context.Context, epoch uint64) error {
	opening, err := r.store.marked(epoch)
	if err != nil || !opening {
		return err
	}
	return r.write(ctx, func() error { return removeAll(r.d.disk, r.store.dir, openingName(epoch)) })
}

// begin writes the first checkpoint of an epoch. anchor is a record by which the
// log is known, nil where there is none; one before the epoch counts.
func (r *runner) begin(ctx context.Context, m *manifest, file []byte, mech *mechanism, output int64, anchor *kafka.Anchor) error {
	if anchor != nil && anchor.Offset >= m.Base {
		anchor = nil
	}
	state, err := mech.AppendBinary(nil)
	if err != nil {
		return err
	}
	return r.write(ctx, func() error {
		return r.store.commit(&checkpoint{
			epoch: m.Epoch, manifest: sha256.Sum256(file),
			position: kafka.Position{Next: m.Base, LeaderEpoch: -1, Anchor: anchor}, transcript: transcriptOf(file),
			outputTopic: r.s.Output.Topic, outputPartition: r.s.Output.Partition, output: output,
			ledger: r.d.ledger.headHash(), build: build(), state: state,
		})
	})
}

// resume readies the open epoch of a ledger entry.
func (r *runner) resume(ctx context.Context, opened *Entry) (l *live, err error) {
	m, file, err := r.manifest(opened)
	if err != nil {
		return nil, err
	}
	digest := r.s.Digest(r.task.Partition, versions(r.s))
	if !bytes.Equal(digest[:], m.Digest) {
		changes := config.Diff(m.Config, r.s.Canonical(r.task.Partition))
		for k, v := range versions(r.s) {
			if m.Versions[k] != v {
				changes = append(changes, fmt.Sprintf("version of %s: %s → %s", k, m.Versions[k], v))
			}
		}
		return nil, halted(haltConfiguration, "the configuration is not that of the open epoch %d, which its guarantee depends on:\n  %s\n"+
			"undo the change, or start anew with: streamdp epoch open %s", m.Epoch, strings.Join(changes, "\n  "), r.task.Stream)
	}
	keys, err := r.keys(m)
	if err != nil {
		return nil, err
	}
	defer func() {
		if l == nil {
			keys.Destroy()
		}
	}()
	initial, err := r.initialOf(m.Epoch)
	if err != nil {
		return nil, halted(haltState, "initial parameters of epoch %d: %w", m.Epoch, err)
	}
	mech, err := newMechanism(r.s, m.Plan, initial)
	if err != nil {
		return nil, halted(haltState, "manifest of epoch %d: %w", m.Epoch, err)
	}
	cost, charged := mech.Cost(), opened.Cost
	if !charged.Covers(cost) || !m.Cost.Equal(charged) {
		return nil, halted(haltState, "manifest of epoch %d: it spends what the ledger did not charge", m.Epoch)
	}
	c, err := newCore(r.s, m, file, mech, keys)
	if err != nil {
		return nil, err
	}
	cp, err := r.store.load()
	switch {
	case errors.Is(err, errCheckpoint):
		return nil, halted(haltState, "%w: restore it from a backup, or start anew with: streamdp epoch open %s", err, r.task.Stream)
	case err != nil:
		return nil, err
	case cp == nil:
		// A crash between manifest and checkpoint, or a lost file. What was
		// published since is found in the output and must come out again; of a
		// lost file nothing else tells that the log is the one it read.
		if err := r.recoverable(ctx, opened); err != nil {
			return nil, err
		}
		if err := r.begin(ctx, m, file, mech, unknownOutput, nil); err != nil {
			return nil, err
		}
		if cp, err = r.store.load(); err != nil {
			return nil, err
		}
	case cp.epoch != m.Epoch:
		return nil, halted(haltState, "the checkpoint is of epoch %d, the open one is %d: restore the state directory as a whole", cp.epoch, m.Epoch)
	case cp.manifest != sha256.Sum256(file):
		return nil, halted(haltState, "manifest of epoch %d: it is not the one that the epoch began with", m.Epoch)
	case !r.d.ledger.knows(cp.ledger):
		return nil, halted(haltState, "the checkpoint was written with a newer ledger: the ledger is an old copy; restore the newest one")
	}
	if err := c.resume(cp); err != nil {
		return nil, halted(haltState, "%w", err)
	}
	if err := r.unmark(ctx, m.Epoch); err != nil {
		return nil, err
	}
	if err := r.limit(ctx, m); err != nil {
		return nil, err
	}
	if src, _, _, err := r.input(ctx); err != nil {
		return nil, err
	} else if src != m.Source {
		return nil, halted(haltReplaced, "the cluster's id is %q, that of the epoch's log %q", src.Cluster, m.Source.Cluster)
	}
	published, ahead, err := r.findPublished(ctx, m.Epoch, cp)
	if err != nil {
		return nil, err
	}
	if h := r.s.LastStep(); h > 0 && ahead > h {
		return nil, halted(haltOutput, "%s/%d holds step %d of epoch %d, which ends with step %d: another writer made it; start anew with: streamdp epoch open %s",
			r.s.Output.Topic, r.s.Output.Partition, ahead, m.Epoch, h, r.task.Stream)
	}
	return &live{m: m, core: c, cp: cp, published: published, ahead: ahead}, nil
}

// recoverable halts where an epoch without a checkpoint had one, and the output
// holds no release that running it again would be held against.
func (r *runner) recoverable(ctx context.Context, opened *Entry) error {
	opening, err := r.store.marked(opened.Epoch)
	if err != nil || opening {
		return err
	}
	end, err := r.releasedTo(ctx, opened)
	if err != nil || end >= 0 {
		return err
	}
	return halted(haltState, "the checkpoint of epoch %d is missing, and %s/%d holds no release of it: restore it from a backup, or start anew with: streamdp epoch open %s",
		opened.Epoch, r.s.Output.Topic, r.s.Output.Partition, r.task.Stream)
}

// manifest reads the manifest of an epoch that the ledger knows.
func (r *runner) manifest(opened *Entry) (*manifest, []byte, error) {
	file, err := r.d.disk.ReadFile(r.store.path(manifestName(opened.Epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errNoManifest
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := parseManifest(file)
	if err != nil {
		return nil, nil, halted(haltState, "%w", err)
	}
	if m.task() != r.task || m.Epoch != opened.Epoch || m.Source != opened.Source || hex.EncodeToString(m.Nonce) != opened.Nonce ||
		hex.EncodeToString(m.Digest) != opened.Digest || m.Base != opened.First || m.Incarnation != opened.Incarnation {
		return nil, nil, halted(haltState, "manifest of epoch %d: it is not the one that the ledger charged", opened.Epoch)
	}
	return m, file, nil
}

// keys derives the epoch's keys and proves them before any noise.
func (r *runner) keys(m *manifest) (*dp.Epoch, error) {
	if id := config.KeyID(r.d.key); id != m.KeyID {
		return nil, halted(haltKey, "the key file holds key %s, epoch %d was opened with key %s", id, m.Epoch, m.KeyID)
	}
	file, err := r.d.disk.ReadFile(r.store.path(secretName(m.Epoch)))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(file) != 32 {
		return nil, halted(haltKey, "the secret of epoch %d is missing or damaged: without it the epoch is dead, and a new one pays again: streamdp epoch open %s", m.Epoch, r.task.Stream)
	}
	if err != nil {
		return nil, err
	}
	secret := [32]byte(file)
	clear(file)
	defer clear(secret[:])
	keys, err := dp.NewEpoch(r.d.key, &secret, m.Stream, m.Epoch, [16]byte(m.Nonce), [32]byte(m.Digest))
	if err != nil {
		return nil, err
	}
	if check := keys.Check(); !bytes.Equal(check[:], m.EpochID) {
		return nil, halted(haltKey, "the secret of epoch %d is not the one it was opened with", m.Epoch)
	}
	return keys, nil
}

// limit records a limit that differs from the last one recorded. A raised one
// is the guarantee from now on; one below what is charged is refused.
func (r *runner) limit(ctx context.Context, m *manifest) error {
	p := r.s.Privacy
	return r.write(ctx, func() error {
		return r.d.ledger.setLimit(Entry{
			Kind: kindLimit, Stream: m.Stream, Source: m.Source, Epoch: m.Epoch,
			LimitEpsilon: p.LimitEpsilon, LimitDelta: p.LimitDelta,
		}, p.Adjacency)
	})
}

// void ends an epoch that never began.
func (r *runner) void(ctx context.Context, opened *Entry) error {
	if err := r.write(ctx, func() error {
		return removeAll(r.d.disk, r.store.dir, secretName(opened.Epoch), initialName(opened.Epoch))
	}); err != nil {
		return err
	}
	r.log.Warn("epoch was charged and never began", "epoch", opened.Epoch)
	err := r.write(ctx, func() error {
		return r.d.ledger.append(Entry{
			Kind: kindVoid, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch,
			Reason: "interrupted while opening, before any noise",
		})
	})
	if err != nil {
		return err
	}
	return r.unmark(ctx, opened.Epoch)
}

// closeEpoch ends the open epoch in the ledger, whose charge covers offsets
// below end from then on, −1 for all, and destroys what must not outlive it.
// Its releases must have been acknowledged, or given up.
func (r *runner) closeEpoch(ctx context.Context, opened *Entry, end int64, anchor *kafka.Anchor, reason string) error {
	if err := r.keepFinal(ctx, opened); err != nil {
		return err
	}
	e := Entry{Kind: kindClose, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch, Reason: reason, End: end}
	if anchor != nil {
		e.AnchorOffset, e.Anchor = anchor.Offset, r.anchorMAC(anchor.Hash)
	}
	if err := r.write(ctx, func() error { return r.d.ledger.append(e) }); err != nil {
		return err
	}
	r.log.Info("epoch closed", "epoch", opened.Epoch, "end", e.End, "reason", reason)
	return r.finishClosings(ctx)
}

// finishClosings destroys checkpoints and secrets of closed epochs, and says so
// in the ledger. It is repeated at every start, and before another epoch opens,
// until it is done. It needs no more of the runner than newAbandoned gives it.
func (r *runner) finishClosings(ctx context.Context) error {
	if len(r.d.ledger.undestroyed(r.task)) == 0 {
		return nil
	}
	// The checkpoint is of an epoch that is closed, unless another is open
	// already and has its own, which an old copy of the ledger does not know.
	if r.d.ledger.newest(r.task).Kind == kindClose && r.ledgerIsNewest() == nil {
		if err := r.write(ctx, r.store.erase); err != nil {
			return err
		}
	}
	return r.destroySecrets(ctx)
}

// destroySecrets destroys the secrets of closed epochs whose retention is over.
// It is safe for concurrent use: it touches nothing of an open epoch.
func (r *runner) destroySecrets(ctx context.Context) error {
	r.destroying.Lock()
	defer r.destroying.Unlock()
	for _, e := range r.d.ledger.undestroyed(r.task) {
		if r.d.now().Before(e.Time.Add(r.d.cfg.State.EpochSecretRetention)) {
			continue
		}
		if err := r.write(ctx, func() error {
			return removeAll(r.d.disk, r.store.dir, secretName(e.Epoch), initialName(e.Epoch))
		}); err != nil {
			return err
		}
		err := r.write(ctx, func() error {
			return r.d.ledger.append(Entry{Kind: kindDestroyed, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// anchorMAC hides a record's hash, which anybody who guesses the record could
// confirm, under the master key.
func (r *runner) anchorMAC(hash [32]byte) string {
	key, err := hkdf.Key(sha256.New, r.d.key[:], nil, "streamdp/anchor/v1\x00", 32)
	if err != nil {
		panic(err) // unreachable: 32 bytes
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(hash[:])
	return hex.EncodeToString(mac.Sum(nil))
}

// incarnation returns the number under which the ledger counts this log: the
// last one where the record that the last epoch ended with is still there, and
// the next one where it is not, or nothing proves it. sameLog is the operator's
// word for what retention, or a lost checkpoint, took the proof of. With the
// number comes that record, where it is there.
func (r *runner) incarnation(ctx context.Context, src Source, sameLog bool) (number uint64, anchor *kafka.Anchor, err error) {
	n := uint64(1)
	var last *Entry   // the newest close of this incarnation with an anchor
	unproven := false // a later one covers records and has none
	for _, e := range r.d.ledger.all() {
		if e.Source != src {
			continue
		}
		switch e.Kind {
		case kindOpen:
			if e.Incarnation > n {
				n, last, unproven = e.Incarnation, nil, false
			}
		case kindClose:
			if o := r.d.ledger.opening(e.Task(), e.Epoch); o == nil || o.Incarnation != n {
				continue
			} else if e.Anchor != "" {
				last, unproven = &e, false
			} else if e.End != o.First {
				unproven = true
			}
		}
	}
	log, err := r.offsets(ctx, src.Topic)
	if err != nil {
		return 0, nil, err
	}
	// same, other or gone: what the log says to a record that was read from it.
	const (
		same = iota
		other
		gone
	)
	look := func(offset int64, is func(hash [32]byte) bool) (int, error) {
		switch {
		case offset < log.start:
			return gone, nil
		case offset >= log.end:
			return other, nil
		}
		found := other
		err := r.read(ctx, src.Topic, int32(src.Partition), offset, func(rec *kafka.Record) error {
			if rec.Offset == offset && is(rec.Hash()) {
				found, anchor = same, kafka.AnchorOf(rec)
			}
			return errStop
		})
		var gap *kafka.GapError
		switch {
		case errors.As(err, &gap):
			return gone, nil
		case err != nil && !errors.Is(err, errStop):
			return other, err
		}
		return found, nil
	}
	// Other streams' open epochs have their anchors in their checkpoints, also
	// where this process does not run them.
	for _, t := range r.d.ledger.tasks() {
		opened := r.d.ledger.newest(t)
		if t == r.task || opened == nil || opened.Kind != kindOpen || opened.Source != src || opened.Incarnation != n {
			continue
		}
		cp, err := r.d.checkpointOf(t)
		if errors.Is(err, errCheckpoint) {
			unproven = true
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		if cp == nil || cp.position.Anchor == nil {
			continue // it has read nothing
		}
		a := cp.position.Anchor
		if found, err := look(a.Offset, func(h [32]byte) bool { return h == a.Hash }); err != nil || found == other {
			return n + 1, nil, err
		}
	}
	if last == nil && !unproven {
		return n, anchor, nil
	}
	found := gone
	if last != nil {
		if found, err = look(last.AnchorOffset, func(h [32]byte) bool { return r.anchorMAC(h) == last.Anchor }); err != nil {
			return 0, nil, err
		}
	}
	if found == same && unproven {
		found = gone
	}
	if found == same || found == gone && sameLog {
		return n, anchor, nil
	}
	return n + 1, nil, nil
}

// checkpointOf reads the last commit of a task that may be running: one that is
// damaged because it is being written will soon be whole.
func (d *Daemon) checkpointOf(t Task) (cp *checkpoint, err error) {
	for range 3 {
		if cp, err = (&store{disk: d.disk, dir: d.taskDir(t)}).load(); !errors.Is(err, errCheckpoint) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return cp, err
}

var errStop = errors.New("enough")

// baseOffset resolves where a new epoch begins.
func (r *runner) baseOffset(from string, src Source, incarnation uint64, log offsets) (int64, error) {
	at := r.s.Input.Start
	if last := r.d.ledger.newest(r.task); (from == "" || from == "continue") && last != nil && last.Kind == kindClose && last.Source == src {
		if o := r.d.ledger.opening(r.task, last.Epoch); o != nil && o.Incarnation == incarnation {
			if last.End > log.end {
				return 0, halted(haltTruncated, "%s/%d ends at %d, before offset %d where the last epoch ended: it was truncated; "+
					"start elsewhere with: streamdp epoch open %s --from", src.Topic, src.Partition, log.end, last.End, r.task.Stream)
			}
			return max(last.End, log.start), nil
		}
	}
	if from != "" && from != "continue" {
		if err := at.UnmarshalText([]byte(from)); err != nil {
			return 0, err
		}
	}
	switch at {
	case config.Earliest:
		return log.start, nil
	case config.Latest:
		return log.stable, nil
	}
	if at := int64(at); at < log.start || at > log.stable {
		return 0, halted(haltConfiguration, "%w", notInLog(at, src, log.start, log.stable))
	}
	return int64(at), nil
}

func notInLog(at int64, src Source, start, stable int64) error {
	return fmt.Errorf("start offset %d is not in the log of %s/%d, which holds %d to %d", at, src.Topic, src.Partition, start, stable)
}

// releaseHash identifies a published release: key, value and headers.
func releaseHash(key, value []byte, headers []kafka.Header) [32]byte {
	h := sha256.New()
	field := func(b []byte) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	field(key)
	field(value)
	for _, x := range headers {
		field([]byte(x.Key))
		field(x.Value)
	}
	return [32]byte(h.Sum(nil))
}
