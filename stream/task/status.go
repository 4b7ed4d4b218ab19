package task

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// setState sets the state, and the reason of a halt.
func (r *Runner) setState(state string, h *failure.Halt) {
	if state == monitor.StateRunning {
		r.Ran.Store(true)
	}
	r.change(func(s *monitor.TaskStatus) {
		s.State, s.Reason, s.Message = state, "", ""
		if h != nil {
			s.Reason, s.Message = h.Reason, h.Error()
		}
	})
	r.D.StateChanged()
}

// setEpoch shows the epoch that runs.
func (r *Runner) setEpoch(l *epoch.OpenEpoch) {
	r.census = monitor.NewValidityCheck(r.S)
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

// progress shows the owner's progress.
func (r *Runner) progress(v monitor.Progress) {
	r.change(func(s *monitor.TaskStatus) {
		s.Verdict = v.Verdict
		s.Step, s.NextOffset, s.Outbox, s.Comparing = v.Step, v.Seen, v.Unsent, v.Comparing
		if v.Log.End >= 0 {
			s.LogStart, s.LogEnd, s.Lag = v.Log.Start, v.Log.End, v.Log.Lag
		}
	})
}

// committed shows that a commit of a tick is durable.
func (r *Runner) committed(tick time.Time, took time.Duration, bytes int) {
	r.D.Metrics.Committed(r.Task, took, bytes, tick)
	r.change(func(s *monitor.TaskStatus) { s.LastCommit = &tick })
}

// Status returns the task's status, including what is being repeated.
func (r *Runner) Status() monitor.TaskStatus {
	s := *r.Shown.Load()
	if s.Partition != core.Merged {
		s.Lag = max(s.LogEnd-s.NextOffset, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ChargedEpsilon, s.Budget = r.chargedEpsilon()
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
	if why := r.Waiting(); why != "" && (s.State == monitor.StateRunning || s.State == monitor.StateComparing || s.State == monitor.StateStarting) {
		s.State, s.Message = monitor.StateRetrying, why
	}
	if read := s.NextOffset - s.Base; s.State == monitor.StateRunning && read < s.Warmup {
		s.Message = fmt.Sprintf("the warm-up takes the first %d records of the epoch, of which %d are still to come; numbers are released from then on (the key warmup says how many it takes, plan how many it needs)",
			s.Warmup, s.Warmup-read)
	}
	return s
}

// chargedEpsilon returns what records of the task's input, or persons of its population, have
// paid, and how that came about. Other tasks charge them too, so it is computed again when the
// ledger has another line about the account.
func (r *Runner) chargedEpsilon() (float64, []ledger.BudgetEvent) {
	n := r.D.Ledger.Lines()
	if n == r.charged.lines {
		return r.charged.epsilon, r.charged.events
	}
	r.charged.lines = n
	if last := r.D.Ledger.Newest(r.Task); last == nil {
		r.charged.epsilon, r.charged.events = 0, nil
	} else if accounts := r.D.Ledger.AccountsOf(last); last.Seq != r.charged.newest || r.D.Ledger.Touched(accounts) != r.charged.touched {
		r.charged.newest, r.charged.touched = last.Seq, r.D.Ledger.Touched(accounts)
		r.charged.epsilon, r.charged.events = 0, nil
		for i, a := range accounts {
			spent, _ := r.D.Ledger.ChargedEpsilon(a, r.S.Privacy.Adjacency, r.S.Privacy.LimitDelta)
			if shown := core.ToShow(spent); i == 0 || shown > r.charged.epsilon {
				r.charged.epsilon = shown
				r.charged.events, _ = r.D.Ledger.BudgetOf(a, ledger.NewBudgetEvents)
			}
		}
	}
	return r.charged.epsilon, r.charged.events
}

// remember keeps published releases for the API. The publisher calls it.
func (r *Runner) remember(sent []state.Message) {
	if len(sent) == 0 {
		return
	}
	now := r.D.Now()
	r.change(func(s *monitor.TaskStatus) { s.LastRelease = &now })
	r.count(sent)
	for i := range sent {
		if _, epoch, step, ok := core.ParseIdentity(sent[i].Key); ok && bytes.Count(sent[i].Key, []byte("/")) == 3 { // else a piece of one
			r.series.Add(epoch, step, sent[i].Value)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := max(0, len(sent)-RecentReleases); i < len(sent); i++ {
		// A release in pieces is too large for the API.
		if i > 0 && sent[i].Step == sent[i-1].Step || i+1 < len(sent) && sent[i].Step == sent[i+1].Step {
			continue
		}
		r.recent = append(r.recent, json.RawMessage(sent[i].Value))
	}
	most := r.D.Kept(recentBytes)
	size, keep := 0, 0
	for keep < min(len(r.recent), RecentReleases) {
		if size += len(r.recent[len(r.recent)-1-keep]); size > most && keep > 0 {
			break
		}
		keep++
	}
	r.recent = slices.Delete(r.recent, 0, len(r.recent)-keep)
}

// count passes published releases to the census.
func (r *Runner) count(sent []state.Message) {
	was := r.Shown.Load().FewValid
	few := was
	for i := range sent {
		s := sent[i].Shares
		if s == nil { // built by an earlier process
			if read, ok := core.SharesOf(sent[i].Value); ok {
				s = &read
			}
		}
		if s != nil {
			few = r.census.Take(sent[i].Step, *s)
		}
	}
	if few == was {
		return
	}
	r.change(func(s *monitor.TaskStatus) { s.FewValid = few })
	switch {
	case few && r.S.User != nil:
		r.Log.Warn("perhaps no record counts, by the published numbers; are columns, codec, and the key of [user] those of the topic?")
	case few:
		r.Log.Warn("hardly a record counts in full, by the published numbers: at most a tenth of the last ones; are columns, codec, centre, scale and clip those of the topic?")
	case r.S.User != nil:
		r.Log.Info("records count again, by the published numbers")
	default:
		r.Log.Info("more than a tenth of the records count again, by the published numbers")
	}
}

// showHalted shows the epoch of a halted task and its position, from its last commit and
// the ledger.
func (r *Runner) showHalted(ctx context.Context) {
	last := r.D.Ledger.Newest(r.Task)
	if last == nil {
		return
	}
	opened := r.D.Ledger.Opening(r.Task, last.Epoch)
	cp, _ := r.D.CheckpointOf(r.Task) // one that is damaged tells nothing
	r.stoppedAt = map[int]int64{}
	for _, v := range last.Views() {
		switch {
		case last.Kind == ledger.KindClose && v.End < 0: // nobody knows
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

// measure shows the ends of the log of a task that does not read it at the moment.
func (r *Runner) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, epoch.MeasureTime)
	defer cancel()
	var at []int64
	var logs []kafka.Offsets
	for _, p := range r.lastRead() {
		log, err := r.D.Client.Offsets(ctx, r.S.Input.Topic, int32(p))
		if err != nil {
			return // what is shown stays
		}
		reached, known := r.stoppedAt[p]
		if !known {
			reached = log.Start // no epoch read it
		}
		at, logs = append(at, reached), append(logs, log)
	}
	if r.Task.Partition != core.Merged {
		r.change(func(s *monitor.TaskStatus) { s.LogStart, s.LogEnd = logs[0].Start, logs[0].Stable })
		return
	}
	if len(logs) == 0 {
		return
	}
	v := monitor.LogLagOf(at, logs)
	r.change(func(s *monitor.TaskStatus) { s.LogStart, s.LogEnd, s.Lag = v.Start, v.End, v.Lag })
}

// lastRead returns the partitions that the task's last epoch read or, where there is none,
// that its next one will; none where only the cluster knows.
func (r *Runner) lastRead() (numbers []int) {
	last := r.D.Ledger.Newest(r.Task)
	if last == nil {
		return r.Reads()
	}
	for _, src := range last.Sources() {
		numbers = append(numbers, src.Partition)
	}
	return numbers
}

// lookForPartitions runs until the context ends. It shows how many partitions of the
// input topic no stream here reads, and warns of those that were added since the epoch
// began. To a merged epoch they belong only from its successor on.
func (r *Runner) lookForPartitions(ctx context.Context, m *core.Manifest) {
	known := m.Partitions
	tick := time.NewTicker(r.D.LookEvery)
	defer tick.Stop()
	for {
		t, err := r.D.Client.Topic(ctx, r.S.Input.Topic)
		if n := len(t.Partitions); err == nil && n > 0 {
			unread := connect.Unread(r.D.Config(), t)
			remedy := "input.partition"
			if m.Partition == core.Merged && r.S.Input.All() {
				unread = unread[:0]
				for p := range t.Partitions {
					if !slices.Contains(m.Numbers(), p) {
						unread = append(unread, p)
					}
				}
				remedy = "the next epoch reads them: streamdp epoch open " + failure.EpochArgs(r.Task)
			}
			r.change(func(s *monitor.TaskStatus) { s.Unread = len(unread) })
			if added := slices.DeleteFunc(slices.Clone(unread), func(p int) bool { return p < known }); len(added) > 0 {
				known = n
				r.Log.Warn("the input topic has more partitions than when the epoch began, and no stream of this configuration reads them",
					"topic", t.Name, "partitions", added, "remedy", remedy)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Releases returns the newest published releases, at most limit, the newest
// first.
func (r *Runner) Releases(limit int) []json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(limit, len(r.recent))
	out := slices.Clone(r.recent[len(r.recent)-n:])
	slices.Reverse(out)
	return out
}

// A task remembers its newest published releases for the API: so many, and so
// many bytes; one of many tasks fewer.
const (
	RecentReleases = 100
	recentBytes    = 1 << 20
)
