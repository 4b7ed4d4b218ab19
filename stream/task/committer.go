package task

import (
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// When a commit is due, and how much may wait for the broker.
const (
	quietSteps     = 10_000 // steps without a release after which a commit is due
	maxOutbox      = 4 * epoch.MaxPending
	maxOutboxBytes = 4 * epoch.MaxPendingBytes
)

// committer holds the releases of an open epoch that wait: for a commit, which makes them durable, and then for
// the publisher, which sends them to the broker. It writes the commits, at ticks that the loop chooses.
type committer struct {
	r       *Runner
	epoch   *epoch.OpenEpoch
	applier *applier
	pub     *output.Publisher
	dead    *deadLetters  // nil: none are wanted
	period  time.Duration // of commits

	// What waits for a commit.
	pending      []state.Message // built since the last commit
	pendingBytes int
	quiet        int             // steps since the last commit
	archived     []state.Message // acknowledged, and still in the last commit

	// What waits for the broker.
	outbox      []state.Message // durable, not acknowledged
	outboxBytes int
	sent        int  // of outbox: given to the publisher
	comparing   bool // waiting for what the output holds already
	missing     int  // messages that it did not hold, since then

	writing *commit       // a commit that is being written; nil: none is
	failed  bool          // the disk had no room for the last commit
	pause   kafka.Backoff // between commits that the disk has no room for
	state   []byte        // scratch of commits

	trace commitTrace
}

// due reports whether there is something to commit, or to write while commits are deferred.
func (w *committer) due() bool {
	if w.deferred() {
		return w.crowded()
	}
	return len(w.pending) > 0 || w.quiet >= quietSteps || w.failed && w.quiet > 0 || w.crowded()
}

// full reports whether applying must wait for a commit, beside the one that is being written.
func (w *committer) full() bool {
	if w.deferred() {
		return w.crowded()
	}
	if w.period == 0 {
		return len(w.pending) > 0
	}
	n, bytes := w.writing.takes()
	return len(w.pending)-n >= epoch.MaxPending || w.pendingBytes-bytes >= w.r.D.Unpublished(epoch.MaxPendingBytes) ||
		w.crowded()
}

// choked reports whether applying must wait for the broker, which while releases are
// compared gets none.
func (w *committer) choked() bool {
	n, bytes := w.writing.takes()
	return !w.comparing && (len(w.outbox)+n >= maxOutbox || w.outboxBytes+bytes >= w.r.D.Unpublished(maxOutboxBytes))
}

// crowded reports whether persons ask for a commit before the next step begins: much waits to
// be written, or a snapshot is due, or was written and another partition's journal failed after it. It depends
// on numbers of records and the disk alone. So what waits takes no more than PersonsBytes and 20 bytes for each
// record of a step, or for each of max_users where that is less.
func (w *committer) crowded() bool {
	if w.epoch.Users == nil || w.quiet == 0 {
		return false
	}
	waiting := uint64(0)
	for _, m := range w.applier.core.Persons() {
		waiting += m.Waiting()
	}
	return waiting >= state.PersonsBytes || w.epoch.Users.SnapshotDue() || w.applier.merge.Paused()
}

// deferred reports whether nothing may be committed yet: releases of two outputs are compared, and a commit
// says of one only what must be compared after a restart.
func (w *committer) deferred() bool { return w.comparing && w.epoch.Moved }

// take adds the messages of a closed step to what the next commit makes durable. It halts where too many of them
// are missing in an output that is compared.
func (w *committer) take(messages []core.Message) error {
	if w.comparing {
		if w.missing += len(messages); w.missing > epoch.MaxPending || w.pendingBytes > maxOutboxBytes {
			return w.r.Guard.Incomplete()
		}
	}
	for _, m := range messages {
		w.pending = append(w.pending, state.Message{Message: m})
		w.pendingBytes += w.pending[len(w.pending)-1].Size()
	}
	return nil
}

// unpublished is the number of releases that the broker has not acknowledged.
func (w *committer) unpublished() int { return len(w.outbox) + len(w.pending) }

// flush gives the publisher the durable releases that it does not have yet, unless another
// instance may have the shard: then that one publishes them.
func (w *committer) flush() {
	if w.comparing || w.sent == len(w.outbox) || w.r.D.Disk.Lost() {
		return
	}
	w.pub.Enqueue(slices.Clone(w.outbox[w.sent:]), w.trace.committed)
	w.sent = len(w.outbox)
}

// acknowledge removes acknowledged releases from the outbox. The next commit removes them
// from the checkpoint.
func (w *committer) acknowledge() {
	acked := w.pub.Acked.Load()
	n := 0
	for n < w.sent && w.outbox[n].Step <= acked {
		w.outboxBytes -= w.outbox[n].Size()
		n++
	}
	if w.r.D.Cfg.State.Archive {
		w.archived = append(w.archived, w.outbox[:n]...)
	}
	w.outbox = w.outbox[n:]
	w.sent -= n
}

// spill writes to disk what persons contributed, while commits are deferred. The last commit stays.
func (w *committer) spill() (done bool, err error) {
	if err := w.epoch.Users.Spill(); err != nil {
		w.complain(err)
		return w.uncommitted(err)
	}
	w.applier.merge.Unpause()
	w.failed = false
	w.pause.Reset()
	w.r.Recovered("commit")
	return true, nil
}

// beside reports whether steps may be closed, and commits be written, beside the loop. The
// journals of persons follow the steps one by one, and without a period each step waits for its
// commit.
func (w *committer) beside() bool { return w.period > 0 && w.epoch.Users == nil }

// soon returns the next tick of 10 ms.
func (w *committer) soon(now time.Time) time.Time {
	return multiple(w.r.D.Started, now, min(capTick, w.period))
}

// sleep waits for a tick of 10 ms, and settleTime more. Where the system wakes it too late, because others
// compute, it waits for another tick, three in all.
func (w *committer) sleep() {
	for range 3 {
		now := w.r.D.Now()
		at := w.soon(now).Add(settleTime)
		if time.Sleep(at.Sub(now)); w.r.D.Now().Before(at.Add(settleTime)) {
			return
		}
	}
}
