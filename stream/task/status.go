package task

import (
	"context"
	"fmt"
	"time"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// change replaces the status by a changed copy.
func (r *Runner) change(f func(*monitor.TaskStatus)) {
	for {
		old := r.shown.Load()
		s := *old
		f(&s)
		if r.shown.CompareAndSwap(old, &s) {
			break
		}
	}
	if r.D.Observe != nil {
		r.D.Observe()
	}
}

// setState sets the state, and the reason of a halt if h is not nil.
func (r *Runner) setState(state string, h *failure.Halt) {
	if state == monitor.StateRunning {
		r.ran.Store(true)
	}
	r.change(func(s *monitor.TaskStatus) {
		s.State, s.Reason, s.Message = state, "", ""
		if h != nil {
			s.Reason, s.Message = h.Reason, h.Error()
		}
	})
	r.D.StateChanged()
}

// setEpoch puts the running epoch into the status.
func (r *Runner) setEpoch(l *epoch.OpenEpoch) {
	r.validity = monitor.NewValidityCheck(r.S)
	_, comparing := r.Guard.Behind()
	r.change(func(s *monitor.TaskStatus) {
		s.FewValid = false
		s.Outbox, s.Comparing = len(l.Cp.Outbox), comparing
		s.Epoch, s.Base, s.Step, s.Horizon = l.M.Epoch, l.M.Base, l.Core.Step(), r.S.LastStep()
		s.NextOffset, s.Outbox = l.Cp.Position.Next, len(l.Cp.Outbox)
		s.Mu, s.Method, s.Factorization = l.M.Cost.Mu, l.Core.Mechanism().Method, l.Core.Mechanism().Factorization
		s.Person = core.ProtectedOf(r.S, l.Core.Mechanism())
		s.NoiseStddev = l.Core.Mechanism().Noise
		s.Warmup = l.Core.Mechanism().Warmup
		s.Warnings = l.Core.Mechanism().Warnings()
		s.Guarantee = append([]string{core.Promise(s.Unit, s.Epsilon, s.Delta)}, l.Core.Statements()...)
	})
	r.D.Lag.Reached(r.Task, l.M, l.Cp)
	r.setState(monitor.StateRunning, nil)
}

// progress puts the owner's progress into the status.
func (r *Runner) progress(v monitor.Progress) {
	r.change(func(s *monitor.TaskStatus) {
		s.Verdict = v.Verdict
		s.Step, s.NextOffset, s.Outbox, s.Comparing = v.Step, v.Seen, v.Unsent, v.Comparing
		if v.Log.End >= 0 {
			s.LogStart, s.LogEnd, s.Lag = v.Log.Start, v.Log.End, v.Log.Lag
		}
	})
}

// committed puts into the status that the commit of a tick is durable.
func (r *Runner) committed(tick time.Time, took time.Duration, bytes int) {
	r.D.Metrics.Committed(r.Task, took, bytes, tick)
	r.change(func(s *monitor.TaskStatus) { s.LastCommit = &tick })
}

// Shown returns the status as of the last change, without the fields that [Runner.Status] adds. The caller must not
// change it.
func (r *Runner) Shown() *monitor.TaskStatus { return r.shown.Load() }

// Ran reports whether an epoch of the task has run in this process, even for a moment. It becomes true before the
// status shows any state that follows "running".
func (r *Runner) Ran() bool { return r.ran.Load() }

// Status returns the task's status, including calls that are being retried.
func (r *Runner) Status() monitor.TaskStatus {
	s := *r.shown.Load()
	if s.Partition != core.Merged {
		s.Lag = max(s.LogEnd-s.NextOffset, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ChargedEpsilon, s.Budget = r.D.Ledger.Paid(r.Task, r.S.Privacy.Adjacency, r.S.Privacy.LimitDelta)
	if s.LogStart >= 0 {
		headroom := s.NextOffset - s.LogStart
		s.Headroom = &headroom
	}
	if !r.D.Metrics.Public {
		s.NotPrivate = r.D.Metrics.NotPrivate(r.Task)
	}
	if s.Comparing && s.State == monitor.StateRunning {
		s.State = monitor.StateComparing
	}
	if why := r.Waiting(); why != "" &&
		(s.State == monitor.StateRunning || s.State == monitor.StateComparing || s.State == monitor.StateStarting) {
		s.State, s.Message = monitor.StateRetrying, why
	}
	if read := s.NextOffset - s.Base; s.State == monitor.StateRunning && read < s.Warmup {
		s.Message = fmt.Sprintf(
			"the warm-up takes the first %d records of the epoch; %d are still to come. Releases have values only "+
				"after the warm-up (see the key warmup; streamdp plan shows how many records it needs)",
			s.Warmup, s.Warmup-read)
	}
	return s
}

// showHalted puts the epoch and position of a halted task into the status. It gets them from the last commit and the
// ledger.
func (r *Runner) showHalted(ctx context.Context) {
	last := r.D.Ledger.Newest(r.Task)
	if last == nil {
		return
	}
	opened := r.D.Ledger.Opening(r.Task, last.Epoch)
	cp, _ := r.D.CheckpointOf(r.Task) // a damaged checkpoint is ignored
	r.stoppedAt = map[int]int64{}
	for _, v := range last.Views() {
		switch {
		case last.Kind == ledger.KindClose && v.End < 0: // the end is unknown
		case last.Kind == ledger.KindClose:
			r.stoppedAt[v.Partition] = v.End
		case cp != nil && cp.Epoch == last.Epoch:
			r.stoppedAt[v.Partition] = cp.Of(v.Partition).Position.Next
		default:
			r.stoppedAt[v.Partition] = v.First
		}
	}
	r.change(func(s *monitor.TaskStatus) {
		if s.Epoch != last.Epoch {
			s.Epoch, s.Step, s.Horizon = last.Epoch, 0, r.S.LastStep()
		}
		if opened != nil {
			s.Base = opened.First
			s.NextOffset = max(s.NextOffset, opened.First)
		}
		s.Outbox, s.Comparing = 0, false
		switch {
		case last.Kind == ledger.KindClose:
			s.NextOffset = last.End
		case cp != nil && cp.Epoch == last.Epoch:
			s.Step, s.NextOffset, s.Outbox = cp.Step, cp.Position.Next, len(cp.Outbox)
		}
	})
	r.measure(ctx)
}
