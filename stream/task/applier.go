package task

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// applier applies the records of an open epoch to its core in the order of the log, and keeps the position in the log.
type applier struct {
	r     *Runner
	epoch *epoch.OpenEpoch
	core  *core.Core

	// Where records come from.
	fetch   *input.Fetcher  // fetches for an unmerged epoch; else nil
	merge   *input.Merger   // merges for a merged epoch; else nil
	readers []*kafka.Reader // of all partitions

	// Records read but not applied.
	current *codec.Batch    // the batch being applied
	next    int             // index of its next record
	whole   []input.StepSum // sums of all partitions that wait to be merged

	// Records applied.
	position kafka.Position // position of the last step boundary before current
	seen     int64          // offsets below it have been applied
	work     monitor.Counts // counts since the last tick
	// refused and clipped are the mechanism's counts when they were last added to work.
	refused, clipped uint64

	closing *closing // a step that another goroutine is closing; nil: none
	before  []byte   // buffer for the state before the step that is being closed
}

// read starts to read the epoch's input, until the context ends.
func (a *applier) read(ctx context.Context, wg *sync.WaitGroup) error {
	r, l := a.r, a.epoch
	if l.M.Partition == core.Merged || l.Bounds != nil || l.Core.Ahead() {
		m, err := input.NewMerger(r.Feed, l.M, l.Core, l.Cp, l.Bounds, a.open, r.D.Partials)
		if err != nil {
			return err
		}
		a.merge = m
		m.Start(ctx, wg)
		return nil
	}
	reader, err := a.open(l.M.Source, r.D.FetchBytes, l.Cp.Position)
	if err != nil {
		return err
	}
	decoder, err := input.NewDecoder(r.D.Schemas, r.S, l.M, l.M.Source.Partition, a.core)
	if err != nil {
		return err
	}
	a.fetch = input.NewFetcher(r.Feed, l.M.Epoch, l.M.Source.Partition, reader, decoder)
	wg.Go(func() { a.fetch.Run(ctx) })
	return nil
}

// open returns a reader of a source. The applier closes it when the epoch stops running.
func (a *applier) open(src core.Source, bytes int, at kafka.Position) (*kafka.Reader, error) {
	reader, err := a.r.OpenInput(src, bytes, at)
	if err == nil {
		a.readers = append(a.readers, reader)
	}
	return reader, err
}

// sources returns the channels that bring records, merged sums, and read errors. If held is true, nothing may be
// applied, and the first two channels are nil.
func (a *applier) sources(held bool) (in chan *codec.Batch, sums chan []input.StepSum, broken chan error) {
	wanted := a.current == nil && a.whole == nil && !held
	if a.merge != nil {
		if wanted {
			sums = a.merge.MergedSums
		}
		return nil, sums, a.merge.Failed
	}
	if wanted {
		in = a.fetch.Full
	}
	return in, nil, a.fetch.Failed
}

// reached returns, by partition, the offset at which the open step begins and the known ends of the log.
func (a *applier) reached() (ends []ledger.EntryPart, logs []kafka.Offsets) {
	if a.merge == nil {
		log := kafka.Offsets{Start: a.r.LogStart.Load(), Stable: a.r.LogEnd.Load(), End: a.r.LogEnd.Load()}
		return []ledger.EntryPart{{End: a.core.First()}}, []kafka.Offsets{log}
	}
	for i, at := range a.merge.At {
		start, end := a.merge.Leaves[i].LogStart.Load(), a.merge.Leaves[i].LogEnd.Load()
		ends = append(ends, ledger.EntryPart{Partition: at.Partition, End: at.Position.Next})
		logs = append(logs, kafka.Offsets{Start: start, Stable: end, End: end})
	}
	return ends, logs
}

// take makes a batch the current one.
func (a *applier) take(b *codec.Batch) {
	a.current, a.next = b, 0
	a.work.Read(b)
}

// waiting reports whether records or sums were read but not applied.
func (a *applier) waiting() bool { return a.current != nil || a.whole != nil }

// add adds records of the current batch to the open step, until pause returns true. It calls pause once per 64 records.
// ended reports whether the batch reaches the step's end, done whether the whole batch is added.
func (a *applier) add(pause func() bool) (ended, done bool) {
	a.next, ended = input.AddRecords(a.core, a.current, a.next, &a.work, pause)
	return ended, !ended && a.next == len(a.current.Records)
}

// finishBatch gives the current batch, which has been applied, back to the fetcher.
func (a *applier) finishBatch() {
	b := a.current
	if a.core.First() >= b.First {
		a.position = b.Position(a.core.First())
	}
	a.count()
	a.current, a.seen = nil, b.Next
	a.fetch.Done(b)
}

// finishSums gives the sums of closed steps back to the merger, and counts their records.
func (a *applier) finishSums(steps []input.StepSum) {
	a.merge.Merged(steps)
	a.merge.Pause(a.epoch.Users)
	a.seen = a.core.First()
	for _, s := range steps {
		a.work.Add(&s.Work)
	}
	a.count()
}

// count adds the mechanism's counts of refused and clipped records to work.
func (a *applier) count() {
	if refused := a.core.Mechanism().Refused; refused != nil {
		why, n := refused()
		a.work.Rejected[why] += int(n - a.refused)
		a.refused = n
	}
	if clipped := a.core.Mechanism().Clipped; clipped != nil {
		n := clipped()
		a.work.Clipped += n - a.clipped
		a.clipped = n
	}
}

// over reports whether no step can follow, because the horizon is reached or the mechanism has ended.
func (a *applier) over() bool {
	if _, ended := a.core.Ended(); ended {
		return true
	}
	h := a.r.S.LastStep()
	return h > 0 && a.core.Step() >= h
}

// edge is a snapshot of the core between two steps.
type edge struct {
	step       uint64
	first      int64 // first offset of the open step
	transcript dp.Transcript
	verdict    string
	state      []byte // the mechanism's state; only if requested
}

// boundary returns the snapshot after the last closed step, without the mechanism's state. While another goroutine
// closes a step, boundary returns the snapshot before that step, because only that goroutine may use the core.
func (a *applier) boundary() edge {
	if a.closing != nil {
		return a.closing.before
	}
	return edge{step: a.core.Step(), first: a.core.First(), transcript: a.core.Transcript(), verdict: a.core.Verdict()}
}

// appendState appends to b the mechanism's state at the boundary.
func (a *applier) appendState(b []byte, at edge) ([]byte, error) {
	if a.closing != nil {
		return append(b, at.state...), nil // copy, because closing the next step overwrites a.before
	}
	return a.core.AppendState(b)
}

// places returns the position in the log at which a snapshot was made and, for a merged epoch, the position in each
// partition.
func (a *applier) places(at edge) (position kafka.Position, parts []state.Place, err error) {
	position = a.position
	if a.merge != nil {
		if position = a.merge.At[0].Position; a.epoch.M.Partition == core.Merged {
			position, parts = kafka.Position{Next: at.first, LeaderEpoch: -1}, a.merge.At
		}
		for i := range parts {
			parts[i].Older = older(a.epoch.Cp.Parts[i], parts[i].Position.Anchor)
		}
	}
	if a.current != nil && at.first >= a.current.First {
		position = a.current.Position(at.first)
	}
	if position.Next != at.first {
		return position, nil, errors.New("internal: the position of the boundary is unknown")
	}
	return position, parts, nil
}

// older returns the older anchors of a partition for the next checkpoint. These are a thinned list of the older anchors
// of the last checkpoint, and its newest anchor if `newest` is a different one.
func older(was state.Place, newest *kafka.Anchor) []kafka.Anchor {
	if newest == nil {
		return nil
	}
	all := slices.Clip(was.Older)
	if a := was.Position.Anchor; a != nil && a.Offset < newest.Offset {
		all = append(all, kafka.Anchor{Offset: a.Offset, Hash: a.Hash, LeaderEpoch: -1})
	}
	return state.Thinned(all, newest.Offset)
}

// log returns the known ends of the logs, and the offset below which all records have been applied, or added to sums.
func (a *applier) log() (log monitor.LogLag, seen int64) {
	if a.merge == nil {
		return monitor.LogLag{Start: a.r.LogStart.Load(), End: a.r.LogEnd.Load()}, a.seen
	}
	if log, seen = a.merge.Log(), a.seen; a.merge.Ahead {
		seen = max(seen, a.merge.Leaves[0].Seen.Load())
	}
	return log, seen
}

// takeWork returns the counts of work since the last call.
func (a *applier) takeWork() monitor.Counts {
	if a.merge != nil && a.merge.Ahead {
		done := a.merge.Leaves[0].Worked()
		a.work.Add(&done)
	}
	done := a.work
	a.work = monitor.Counts{}
	return done
}
