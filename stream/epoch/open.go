package epoch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// opening holds the parameters of an epoch that is being opened.
type opening struct {
	req        OpenRequest
	initial    []float64 // parameters that its mechanism begins with
	mech       *core.Mechanism
	src        core.Source
	partitions int
	topicID    string                  // id of the input topic; "" if the brokers have no ids
	output     int64                   // end of the output
	boundaries *ledger.EntryBoundaries // of steps by the clock; else nil
	s          *config.Stream          // the stream, over the partitions that the epoch reads
	parts      []begin                 // one, or one per partition of a merged epoch
	epoch      uint64
	secret     [32]byte
	nonce      [16]byte
	digest     [32]byte
	charged    float64 // ε in the ledger, including this epoch
}

// begin is where an epoch begins in one partition.
type begin struct {
	partition int
	// incarnation is the log's number. anchor is a record that identifies the log; nil: none.
	incarnation uint64
	anchor      *kafka.Anchor
	base        int64
}

// bases returns the first offsets.
func bases(parts []begin) (all []int64) {
	for _, p := range parts {
		all = append(all, p.base)
	}
	return all
}

// Open charges a new epoch and makes its files, all at once or, on a disk, in this order: mark, ledger, secret,
// manifest, first checkpoint. Each is durable before the next is written, so a crash cannot lead to noise without a
// charge. If a crash interrupts the opening, the mark allows the next start to take the charge back.
func (k *Keeper) Open(ctx context.Context, req OpenRequest) error {
	if err := k.D.ledgerIsNewest(); err != nil {
		return err
	}
	o, err := k.planOpening(ctx, req)
	if err != nil {
		return err
	}
	defer clear(o.secret[:])
	if !req.automatic {
		k.Guard.Forget()
	}
	if err := k.D.Openings.Begin(ctx); err != nil {
		return err
	}
	defer k.D.Openings.End()
	var m *core.Manifest
	if err := k.Atomically(func() (err error) {
		m, err = k.create(ctx, o)
		return err
	}); err != nil {
		return err
	}
	p := k.S.Privacy
	k.D.Metrics.Opened(k.Task)
	k.Log.Info("epoch opened", "epoch", o.epoch, "base", m.Base, "incarnation", m.Incarnation, "reason", req.Reason,
		"epsilon", p.Epsilon, "delta", p.Delta, "adjacency", p.Adjacency.String(), "charged_epsilon", o.charged,
		"limit_epsilon", p.LimitEpsilon)
	return nil
}

// create charges an epoch, makes its files, and returns its manifest.
func (k *Keeper) create(ctx context.Context, o *opening) (*core.Manifest, error) {
	if err := k.checkRoom(o); err != nil {
		return nil, err
	}
	if err := k.chargeOpening(ctx, o); err != nil {
		return nil, err
	}
	if err := k.claim(ctx, o); err != nil {
		return nil, err
	}
	if err := k.DoDisk(ctx, func() error { return k.Store.PutSecret(o.epoch, o.secret[:]) }); err != nil {
		return nil, err
	}
	if err := k.keepInitial(ctx, o.epoch, o.initial); err != nil {
		return nil, err
	}
	m, err := k.manifestFor(o)
	if err != nil {
		return nil, err
	}
	file, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if err := k.DoDisk(ctx, func() error { return k.Store.PutManifest(o.epoch, file) }); err != nil {
		return nil, err
	}
	if err := k.Begin(ctx, m, file, o.mech, o.output, o.parts); err != nil {
		return nil, err
	}
	if err := k.Store.Prune(o.epoch); err != nil {
		return nil, err
	}
	return m, k.unmark(ctx, o.epoch)
}

// checkRoom halts if the shard keeps its state in logs and has no room for the epoch's state. Otherwise the log would
// later refuse the commits of this task and of all other tasks of the shard.
func (k *Keeper) checkRoom(o *opening) error {
	state, err := o.mech.AppendBinary(nil)
	if err != nil {
		return err
	}
	return k.D.Disk.Fits(len(o.parts), len(state))
}

// planOpening determines the parameters of a new epoch, and draws the random ones. It writes nothing.
func (k *Keeper) planOpening(ctx context.Context, req OpenRequest) (*opening, error) {
	o := &opening{req: req}
	var err error
	if o.initial, err = k.initial(); err != nil {
		return nil, failure.Haltf(failure.Configuration, "%w", err)
	}
	var logs []partLog
	if o.src, o.partitions, logs, err = k.input(ctx, k.Reads()); err != nil {
		return nil, err
	}
	var numbers []int
	for _, log := range logs {
		numbers = append(numbers, log.partition)
	}
	o.s = k.S.Over(numbers)
	if o.mech, err = core.NewMechanism(o.s, nil, o.initial); err != nil {
		return nil, failure.Haltf(failure.Configuration, "%w", err)
	}
	if o.output, err = k.Out.End(ctx); err != nil {
		return nil, err
	}
	if k.S.Step.Clock() > 0 {
		if n := len(logs); k.S.Slots() < uint64(n) {
			return nil, failure.Haltf(failure.Configuration,
				"step_max = %d is less than the %d partitions: each needs at least one of these slots", k.S.Slots(), n)
		}
		if o.boundaries, err = k.boundaryTopic().Opened(ctx); err != nil {
			return nil, err
		}
	}
	if o.topicID, err = k.topicID(ctx); err != nil {
		return nil, err
	}
	sources := []core.Source{o.src}
	for _, log := range logs {
		p := begin{partition: log.partition}
		src := o.src
		src.Partition = p.partition
		sources = append(sources, src)
		if p.incarnation, p.anchor, err = k.incarnation(ctx, src, o.topicID, req.SameLog); err != nil {
			return nil, err
		}
		if p.base, err = k.baseOffset(req.From, src, p.incarnation, log.Offsets); err != nil {
			return nil, err
		}
		o.parts = append(o.parts, p)
	}
	if o.epoch, err = k.nextEpoch(ctx, req); err != nil {
		return nil, err
	}
	if n := k.D.Mirror.Others(k.Task.Stream, sources); n > 0 && (!req.automatic || k.lastEpoch() < n) {
		if req.automatic {
			return nil, k.D.Mirror.Taken(k.Task, n)
		}
		o.epoch = max(o.epoch, n+1)
	}
	o.secret, o.nonce = k.D.entropy(k.Task, o.epoch)
	o.digest = o.s.Digest(k.Task.Partition, core.Versions(o.s))
	return o, nil
}

// chargeOpening marks the epoch as being opened and charges it. If it cannot charge, it removes the mark.
func (k *Keeper) chargeOpening(ctx context.Context, o *opening) error {
	e, err := k.charge(o.mech, o.src, o.partitions, o.parts)
	if err != nil {
		return err
	}
	e.Epoch, e.TopicID, e.Boundaries, e.Reason = o.epoch, o.topicID, o.boundaries, o.req.Reason
	e.Nonce, e.Digest = hex.EncodeToString(o.nonce[:]), hex.EncodeToString(o.digest[:])
	if err := k.DoDisk(ctx, func() error { return k.Store.Mark(o.epoch) }); err != nil {
		return err
	}
	err = k.DoDisk(ctx, func() (err error) {
		o.charged, err = k.D.Ledger.Open(e)
		return err
	})
	if err == nil {
		return nil
	}
	if err := k.unmark(ctx, o.epoch); err != nil {
		return err
	}
	if budget := (*ledger.ErrBudget)(nil); errors.As(err, &budget) {
		return failure.Haltf(failure.Budget, "%w", err)
	}
	return err
}

// claim makes sure, before any noise, that no other state directory opens the epoch. If another one does, claim takes
// this directory's charge back.
func (k *Keeper) claim(ctx context.Context, o *opening) error {
	opened := k.D.Ledger.Opening(k.Task, o.epoch)
	err := k.D.Mirror.Sync(ctx)
	if err == nil {
		err = k.D.Mirror.Ours(opened)
	}
	if lost := (*failure.Halt)(nil); errors.As(err, &lost) {
		if err := k.takeBack(ctx, opened); err != nil {
			return err
		}
	}
	return err
}

// manifestFor returns the manifest of a charged epoch.
func (k *Keeper) manifestFor(o *opening) (*core.Manifest, error) {
	keys, err := dp.NewEpoch(k.D.Key, &o.secret, k.Task.Stream, o.epoch, o.nonce, o.digest)
	if err != nil {
		return nil, err
	}
	defer keys.Destroy()
	check := keys.Check()
	p := k.S.Privacy
	m := &core.Manifest{
		Format: core.ManifestFormat, Stream: k.Task.Stream, Epoch: o.epoch, Source: o.src, Nonce: o.nonce[:],
		KeyID: credentials.KeyID(k.D.Key), EpochID: check[:],
		Config: o.s.Canonical(k.Task.Partition), Versions: core.Versions(o.s), Digest: o.digest[:],
		Incarnation: o.parts[0].incarnation, Base: o.parts[0].base, Partitions: o.partitions,
		Mechanism: o.mech.Name, Plan: o.mech.Plan, Cost: o.mech.Cost(),
		LimitEpsilon: p.LimitEpsilon, LimitDelta: p.LimitDelta, ChargedEpsilonAtOpen: o.charged,
		Persons:  core.Persons(o.mech.Cost(), p.Delta, 2, 10),
		Insecure: k.D.Insecure != nil, Version: k.D.Version,
	}
	if m.Partition == core.Merged {
		m.Incarnation, m.Base = 0, 0
		for _, p := range o.parts {
			m.Parts = append(m.Parts, core.Part{Partition: p.partition, Incarnation: p.incarnation, Base: p.base})
			m.Base += p.base
		}
	}
	return m, nil
}

// nextEpoch returns the number of the epoch to open. That is the next number in the ledger. If the output already has
// releases of that epoch or of a later one, the state is an old copy. It must then neither open an epoch by itself nor
// use a number again.
func (k *Keeper) nextEpoch(ctx context.Context, req OpenRequest) (uint64, error) {
	next := k.D.Ledger.NextEpoch(k.Task)
	if req.automatic && k.Guard.Epoch > 0 {
		return next, k.Guard.CheckClosed(ctx) // this process ran the last epoch
	}
	newest, err := k.Out.NewestEpoch(ctx, req.SearchFrom)
	switch {
	case err != nil || newest < next:
		return next, err
	case req.automatic:
		return 0, k.Out.UnknownEpoch(newest)
	}
	k.Log.Warn("the output holds releases of an epoch that is not in this ledger: no budget counts its charge",
		"epoch", newest)
	return newest + 1, nil
}

// lastEpoch returns the number of the task's last epoch, or 0 if it has none.
func (k *Keeper) lastEpoch() uint64 {
	if last := k.D.Ledger.Newest(k.Task); last != nil {
		return last.Epoch
	}
	return 0
}

// charge returns the ledger's entry for an epoch that begins at these offsets of a topic. The entry has no end if the
// end would exceed the largest offset. The first entry of an account records which part of the limit is reserved for
// sketches.
func (k *Keeper) charge(mech *core.Mechanism, src core.Source, partitions int, parts []begin) (ledger.Entry, error) {
	p := k.S.Privacy
	e := ledger.Entry{
		Kind: ledger.KindOpen, Stream: k.Task.Stream, Source: src, Mechanism: mech.Name, Cost: mech.Cost(),
		Epsilon: p.Epsilon, Delta: p.Delta, LimitEpsilon: p.LimitEpsilon, LimitDelta: p.LimitDelta,
		Output: &ledger.EntryOutput{Topic: k.S.Output.Topic, Partition: k.S.Output.Partition},
	}
	e.Unit, e.Person = ledger.PersonOf(k.S, partitions)
	var ends []int64
	if src.Partition == core.Merged {
		ends = core.ChargedParts(mech, k.S.LastStep(), bases(parts))
	} else {
		ends = []int64{core.ChargedTo(mech, k.S.LastStep(), parts[0].base)}
	}
	var charged []ledger.EntryPart
	for i, p := range parts {
		charged = append(charged,
			ledger.EntryPart{Partition: p.partition, Incarnation: p.incarnation, First: p.base, End: ends[i]})
	}
	e.Charge(charged)
	err := k.D.Ledger.Reserve(&e, k.D.Config(), k.S)
	return e, err
}

// unmark removes the mark of an epoch whose opening is complete or has been taken back.
func (k *Keeper) unmark(ctx context.Context, epoch uint64) error {
	opening, err := k.Store.Marked(epoch)
	if err != nil || !opening {
		return err
	}
	return k.DoDisk(ctx, func() error { return k.Store.Unmark(epoch) })
}

// Begin writes the first checkpoint of an epoch. parts holds the anchors that identify the logs, or is nil if none is
// known. An anchor is used only if it lies before the epoch.
func (k *Keeper) Begin(ctx context.Context, m *core.Manifest, file []byte, mech *core.Mechanism, output int64,
	parts []begin) error {
	first, err := k.First(m, file, mech, output, parts)
	if err != nil {
		return err
	}
	return k.DoDisk(ctx, func() error { return k.Store.Commit(first) })
}

// First returns the checkpoint that Begin writes.
func (k *Keeper) First(m *core.Manifest, file []byte, mech *core.Mechanism, output int64,
	parts []begin) (*state.Checkpoint, error) {
	position := kafka.Position{Next: m.Base, LeaderEpoch: -1}
	var all []state.Place
	for i, p := range m.Parts {
		all = append(all, state.Place{Partition: p.Partition, Position: kafka.Position{Next: p.Base, LeaderEpoch: -1}})
		if parts != nil {
			all[i].Position.Anchor = parts[i].before()
		}
	}
	if parts != nil && all == nil {
		position.Anchor = parts[0].before()
	}
	st, err := mech.AppendBinary(nil)
	topic := ""
	if k.S.Step.Clock() > 0 {
		topic = k.D.Cfg.Kafka.BoundaryTopic
		if opened := k.D.Ledger.Opening(k.Task, m.Epoch); opened != nil && opened.Boundaries != nil {
			topic = opened.Boundaries.Topic // the ledger's topic, even if the configuration names another one now
		}
	}
	var users [][]byte
	if k.S.User != nil {
		users = state.NoPersons(max(1, len(all)))
	}
	return &state.Checkpoint{
		BoundaryTopic: topic, Boundary: state.UnknownBoundary, Users: users,
		Epoch: m.Epoch, Manifest: sha256.Sum256(file), Parts: all,
		Position: position, Transcript: core.TranscriptOf(file),
		OutputTopic: k.S.Output.Topic, OutputPartition: k.S.Output.Partition, Output: output,
		Ledger: k.D.Ledger.HeadHash(), Build: Build(), State: st,
	}, err
}

// before returns the anchor if it lies before the epoch, else nil.
func (b *begin) before() *kafka.Anchor {
	if b.anchor == nil || b.anchor.Offset >= b.base {
		return nil
	}
	return b.anchor
}

// predecessor finds the stream's last epoch that read a source. It returns the epoch's closing and the incarnation that
// it read, or nil if there is none. Later epochs that did not read the source are skipped: a merged stream may leave
// out a partition for some epochs. A stream that becomes merged or unmerged continues where its former tasks ended.
// predecessor halts if an epoch of a former task is open, because the same records would be charged twice.
func (k *Keeper) predecessor(src core.Source) (last *ledger.Entry, incarnation uint64, err error) {
	last, incarnation, open := k.D.Ledger.LastReader(k.Task, src)
	if open != nil {
		t := open.Task()
		return nil, 0, failure.Haltf(failure.Configuration,
			"epoch %[3]d of task %[4]s is open and reads %[1]s/%[2]d: close it first: streamdp epoch close %[5]s",
			src.Topic, src.Partition, open.Epoch, t, failure.EpochArgs(t))
	}
	return last, incarnation, nil
}

// errMergedFrom returns the halt for a request to begin a merged stream at an offset.
func errMergedFrom() error {
	return failure.Haltf(failure.Configuration,
		"an epoch of a merged stream must begin at \"continue\", \"earliest\" or \"latest\", not at an offset: each "+
			"partition has its own offsets")
}

// baseOffset returns the offset at which a new epoch begins in a partition.
func (k *Keeper) baseOffset(from string, src core.Source, incarnation uint64, log kafka.Offsets) (int64, error) {
	at := k.S.Input.Start
	last, was, err := k.predecessor(src)
	if err != nil {
		return 0, err
	}
	if (from == "" || from == "continue") && last != nil {
		if was == incarnation {
			if last.End > log.End {
				return 0, failure.Haltf(failure.Truncated,
					"%s/%d ends at %d, before offset %d where the last epoch ended: it was truncated; "+
						"choose another start: streamdp epoch open %s --from", src.Topic, src.Partition, log.End,
					last.End, failure.EpochArgs(k.Task))
			}
			return max(last.End, log.Start), nil
		}
	}
	if from != "" && from != "continue" {
		if err := at.UnmarshalText([]byte(from)); err != nil {
			return 0, err
		}
	}
	switch at {
	case config.Earliest:
		return log.Start, nil
	case config.Latest:
		return log.Stable, nil
	}
	if k.Task.Partition == core.Merged {
		return 0, errMergedFrom()
	}
	if at := int64(at); at < log.Start || at > log.Stable {
		return 0, failure.Haltf(failure.Configuration, "%w", notInLog(at, src, log.Start, log.Stable))
	}
	return int64(at), nil
}

func notInLog(at int64, src core.Source, start, stable int64) error {
	return fmt.Errorf("start offset %d is not in the log of %s/%d, which has offsets %d to %d", at, src.Topic,
		src.Partition, start, stable)
}
