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

// Limits for the next commit, and for what may wait for the broker.
const (
	quietSteps     = 10_000 // steps without a release after which a commit is due
	maxOutbox      = 4 * epoch.MaxPending
	maxOutboxBytes = 4 * epoch.MaxPendingBytes
)

// committer holds the releases of an open epoch. They wait first for a commit, which makes them durable, and then for
// the publisher, which sends them to the broker. The committer writes commits at ticks that the loop chooses.
type committer struct {
	r       *Runner
	epoch   *epoch.OpenEpoch
	applier *applier
	pub     *output.Publisher
	dead    *deadLetters  // writer of dead letters; nil: the stream writes none
	period  time.Duration // time between commits

	// Releases that wait for a commit.
	pending      []state.Message // built since the last commit
	pendingBytes int
	quiet        int             // steps since the last commit
	archived     []state.Message // acknowledged by the broker, but still in the last commit

	// Releases that wait for the broker.
	outbox      []state.Message // durable, not acknowledged
	outboxBytes int
	sent        int  // number of releases in outbox that the publisher has
	comparing   bool // releases are being compared with those in the output, which is ahead
	missing     int  // messages missing in the output since comparing began

	writing *commit       // the commit being written; nil: none
	failed  bool          // the disk was too full for the last commit
	pause   kafka.Backoff // between attempts to commit while the disk is full
	state   []byte        // buffer for the state in commits

	trace commitTrace
}

// due reports whether there is something to commit or, while commits are deferred, something to spill to disk.
func (w *committer) due() bool {
	if w.deferred() {
		return w.crowded()
	}
	return len(w.pending) > 0 || w.quiet >= quietSteps || w.failed && w.quiet > 0 || w.crowded()
}

// full reports whether applying must wait for another commit. The releases in the commit being written do not count.
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

// choked reports whether applying must wait for the broker. It returns false while releases are compared, because none
// is sent then.
func (w *committer) choked() bool {
	n, bytes := w.writing.takes()
	return !w.comparing && (len(w.outbox)+n >= maxOutbox || w.outboxBytes+bytes >= w.r.D.Unpublished(maxOutboxBytes))
}

// crowded reports whether the files of persons need a commit before the next step begins: much data waits to be
// written, a snapshot is due, or a snapshot was written and then another partition's journal failed. The answer depends
// only on numbers of records and on the disk. The waiting data stays below PersonsBytes plus 20 bytes per record of a
// step, or per person of max_users if that is fewer.
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

// deferred reports whether nothing may be committed yet. Commits are deferred while the releases of two outputs are
// compared. A checkpoint can name only one output, so after a restart the other one would not be compared.
func (w *committer) deferred() bool { return w.comparing && w.epoch.Moved }

// take adds the messages of a closed step to the next commit. It halts if the output that is being compared lacks too
// many of them.
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

// unpublished returns the number of releases that the broker has not acknowledged.
func (w *committer) unpublished() int { return len(w.outbox) + len(w.pending) }

// flush gives the publisher the durable releases that it does not have yet. If the shard may be lost, flush gives it
// none, because the new owner publishes them.
func (w *committer) flush() {
	if w.comparing || w.sent == len(w.outbox) || w.r.D.Disk.Lost() {
		return
	}
	w.pub.Enqueue(slices.Clone(w.outbox[w.sent:]), w.trace.committed)
	w.sent = len(w.outbox)
}

// acknowledge removes acknowledged releases from the outbox. The next commit removes them from the checkpoint.
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

// spill writes the contributions of persons to disk while commits are deferred. It leaves the last commit as it is.
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

// concurrent reports whether other goroutines may close steps and write commits while the loop continues. If the stream
// protects persons, they may not, because the journals of persons follow the steps one by one. With period 0 they may
// not either, because each step waits for its commit.
func (w *committer) concurrent() bool { return w.period > 0 && w.epoch.Users == nil }

// soon returns the next multiple of 10 ms, the tick for work outside the regular period.
func (w *committer) soon(now time.Time) time.Time {
	return multiple(w.r.D.Started, now, min(capTick, w.period))
}

// sleep waits until settleTime after a tick of 10 ms. If the system wakes it too late because the processors are busy,
// it waits for another tick. It waits for at most three ticks.
func (w *committer) sleep() {
	for range 3 {
		now := w.r.D.Now()
		at := w.soon(now).Add(settleTime)
		if time.Sleep(at.Sub(now)); w.r.D.Now().Before(at.Add(settleTime)) {
			return
		}
	}
}
