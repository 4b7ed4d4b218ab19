package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

// setState sets the state, and the reason of a halt.
func (r *runner) setState(state string, h *halt) {
	if state == stateRunning {
		r.ran.Store(true)
	}
	r.change(func(s *TaskStatus) {
		s.State, s.Reason, s.Message = state, "", ""
		if h != nil {
			s.Reason, s.Message = h.reason, h.Error()
		}
	})
	r.d.stateChanged()
}

// setEpoch shows the epoch that runs.
func (r *runner) setEpoch(l *openEpoch) {
	r.census = newCensus(r.s)
	_, comparing := r.guard.behind()
	r.change(func(s *TaskStatus) {
		s.FewValid = false
		s.Outbox, s.Comparing = len(l.cp.outbox), comparing
		s.Epoch, s.Base, s.Step, s.Horizon = l.m.Epoch, l.m.Base, l.core.Step(), r.s.LastStep()
		s.NextOffset, s.Outbox = l.cp.position.Next, len(l.cp.outbox)
		s.Mu, s.Method, s.Factorization = l.m.Cost.Mu, l.core.Mechanism().Method, l.core.Mechanism().Factorization
		s.Person = core.ProtectedOf(r.s, l.core.Mechanism())
		s.NoiseStddev = l.core.Mechanism().Noise
		s.warmup = l.core.Mechanism().Warmup
		s.Warnings = l.core.Mechanism().Warnings()
		s.Guarantee = append([]string{core.Promise(s.Unit, s.Epsilon, s.Delta)}, l.core.Statements()...)
	})
	r.d.lag.reached(r.task, l.m, l.cp)
	r.setState(stateRunning, nil)
}

// progress shows the owner's progress.
func (r *runner) progress(v view) {
	r.change(func(s *TaskStatus) {
		s.Verdict = v.verdict
		s.Step, s.NextOffset, s.Outbox, s.Comparing = v.step, v.seen, v.unsent, v.comparing
		if v.log.end >= 0 {
			s.logStart, s.LogEnd, s.Lag = v.log.start, v.log.end, v.log.lag
		}
	})
}

// committed shows that a commit of a tick is durable.
func (r *runner) committed(tick time.Time, took time.Duration, bytes int) {
	r.d.metrics.committed(r.task, took, bytes, tick)
	r.change(func(s *TaskStatus) { s.LastCommit = &tick })
}

// Status returns the task's status, including what is being repeated.
func (r *runner) Status() TaskStatus {
	s := *r.status.Load()
	if s.Partition != core.Merged {
		s.Lag = max(s.LogEnd-s.NextOffset, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ChargedEpsilon, s.Budget = r.chargedEpsilon()
	if s.logStart >= 0 {
		headroom := s.NextOffset - s.logStart
		s.Headroom = &headroom
	}
	if !r.d.metrics.public {
		s.NotPrivate = r.d.metrics.notPrivate(r.task)
	}
	if s.Comparing && s.State == stateRunning {
		s.State = stateComparing
	}
	if why := r.repeating(); why != "" && (s.State == stateRunning || s.State == stateComparing || s.State == stateStarting) {
		s.State, s.Message = stateRetrying, why
	}
	if read := s.NextOffset - s.Base; s.State == stateRunning && read < s.warmup {
		s.Message = fmt.Sprintf("the warm-up takes the first %d records of the epoch, of which %d are still to come; numbers are released from then on (the key warmup says how many it takes, plan how many it needs)",
			s.warmup, s.warmup-read)
	}
	return s
}

// chargedEpsilon returns what records of the task's input, or persons of its population, have
// paid, and how that came about. Other tasks charge them too, so it is computed again when the
// ledger has another line about the account.
func (r *runner) chargedEpsilon() (float64, []BudgetEvent) {
	n := r.d.ledger.lines()
	if n == r.charged.lines {
		return r.charged.epsilon, r.charged.events
	}
	r.charged.lines = n
	if last := r.d.ledger.newest(r.task); last == nil {
		r.charged.epsilon, r.charged.events = 0, nil
	} else if accounts := r.d.ledger.accountsOf(last); last.Seq != r.charged.newest || r.d.ledger.touched(accounts) != r.charged.touched {
		r.charged.newest, r.charged.touched = last.Seq, r.d.ledger.touched(accounts)
		r.charged.epsilon, r.charged.events = 0, nil
		for i, a := range accounts {
			spent, _ := r.d.ledger.chargedEpsilon(a, r.s.Privacy.Adjacency, r.s.Privacy.LimitDelta)
			if shown := core.ToShow(spent); i == 0 || shown > r.charged.epsilon {
				r.charged.epsilon = shown
				r.charged.events, _ = r.d.ledger.budgetOf(a, budgetEvents)
			}
		}
	}
	return r.charged.epsilon, r.charged.events
}

// remember keeps published releases for the API. The publisher calls it.
func (r *runner) remember(sent []pending) {
	if len(sent) == 0 {
		return
	}
	now := r.d.now()
	r.change(func(s *TaskStatus) { s.LastRelease = &now })
	r.count(sent)
	for i := range sent {
		if _, epoch, step, ok := core.ParseIdentity(sent[i].Key); ok && bytes.Count(sent[i].Key, []byte("/")) == 3 { // else a piece of one
			r.series.add(epoch, step, sent[i].Value)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := max(0, len(sent)-recentReleases); i < len(sent); i++ {
		// A release in pieces is too large for the API.
		if i > 0 && sent[i].Step == sent[i-1].Step || i+1 < len(sent) && sent[i].Step == sent[i+1].Step {
			continue
		}
		r.recent = append(r.recent, json.RawMessage(sent[i].Value))
	}
	most := r.d.kept(recentBytes)
	size, keep := 0, 0
	for keep < min(len(r.recent), recentReleases) {
		if size += len(r.recent[len(r.recent)-1-keep]); size > most && keep > 0 {
			break
		}
		keep++
	}
	r.recent = slices.Delete(r.recent, 0, len(r.recent)-keep)
}

// count passes published releases to the census.
func (r *runner) count(sent []pending) {
	was := r.status.Load().FewValid
	few := was
	for i := range sent {
		s := sent[i].Shares
		if s == nil { // built by an earlier process
			if read, ok := core.SharesOf(sent[i].Value); ok {
				s = &read
			}
		}
		if s != nil {
			few = r.census.take(sent[i].Step, *s)
		}
	}
	if few == was {
		return
	}
	r.change(func(s *TaskStatus) { s.FewValid = few })
	switch {
	case few && r.s.User != nil:
		r.log.Warn("perhaps no record counts, by the published numbers; are columns, codec, and the key of [user] those of the topic?")
	case few:
		r.log.Warn("hardly a record counts in full, by the published numbers: at most a tenth of the last ones; are columns, codec, centre, scale and clip those of the topic?")
	case r.s.User != nil:
		r.log.Info("records count again, by the published numbers")
	default:
		r.log.Info("more than a tenth of the records count again, by the published numbers")
	}
}

// showHalted shows the epoch of a halted task and its position, from its last commit and
// the ledger.
func (r *runner) showHalted(ctx context.Context) {
	last := r.d.ledger.newest(r.task)
	if last == nil {
		return
	}
	opened := r.d.ledger.opening(r.task, last.Epoch)
	cp, _ := r.d.checkpointOf(r.task) // one that is damaged tells nothing
	r.stoppedAt = map[int]int64{}
	for _, v := range last.views() {
		switch {
		case last.Kind == kindClose && v.End < 0: // nobody knows
		case last.Kind == kindClose:
			r.stoppedAt[v.Partition] = v.End
		case cp != nil && cp.epoch == last.Epoch:
			r.stoppedAt[v.Partition] = cp.of(v.Partition).position.Next
		default:
			r.stoppedAt[v.Partition] = v.First
		}
	}
	r.change(func(s *TaskStatus) {
		if s.Epoch != last.Epoch {
			s.Epoch, s.Step, s.Horizon = last.Epoch, 0, r.s.LastStep()
		}
		if opened != nil {
			s.Base = opened.First
			s.NextOffset = max(s.NextOffset, opened.First)
		}
		s.Outbox, s.Comparing = 0, false
		switch {
		case last.Kind == kindClose:
			s.NextOffset = last.End
		case cp != nil && cp.epoch == last.Epoch:
			s.Step, s.NextOffset, s.Outbox = cp.step, cp.position.Next, len(cp.outbox)
		}
	})
	r.measure(ctx)
}

// measure shows the ends of the log of a task that does not read it at the moment.
func (r *runner) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	var at []int64
	var logs []offsets
	for _, p := range r.lastRead() {
		log, err := r.d.offsetsOf(ctx, r.s.Input.Topic, p)
		if err != nil {
			return // what is shown stays
		}
		reached, known := r.stoppedAt[p]
		if !known {
			reached = log.start // no epoch read it
		}
		at, logs = append(at, reached), append(logs, log)
	}
	if r.task.Partition != core.Merged {
		r.change(func(s *TaskStatus) { s.logStart, s.LogEnd = logs[0].start, logs[0].stable })
		return
	}
	if len(logs) == 0 {
		return
	}
	v := viewOf(at, logs)
	r.change(func(s *TaskStatus) { s.logStart, s.LogEnd, s.Lag = v.start, v.end, v.lag })
}

// lastRead returns the partitions that the task's last epoch read or, where there is none,
// that its next one will; none where only the cluster knows.
func (r *runner) lastRead() (numbers []int) {
	last := r.d.ledger.newest(r.task)
	if last == nil {
		return r.reads()
	}
	for _, src := range last.sources() {
		numbers = append(numbers, src.Partition)
	}
	return numbers
}

// lookForPartitions runs until the context ends. It shows how many partitions of the
// input topic no stream here reads, and warns of those that were added since the epoch
// began. To a merged epoch they belong only from its successor on.
func (r *runner) lookForPartitions(ctx context.Context, m *core.Manifest) {
	known := m.Partitions
	tick := time.NewTicker(r.d.lookEvery)
	defer tick.Stop()
	for {
		t, err := r.d.client.Topic(ctx, r.s.Input.Topic)
		if n := len(t.Partitions); err == nil && n > 0 {
			unread := Unread(r.d.config(), t)
			remedy := "input.partition"
			if m.Partition == core.Merged && r.s.Input.All() {
				unread = unread[:0]
				for p := range t.Partitions {
					if !slices.Contains(m.Numbers(), p) {
						unread = append(unread, p)
					}
				}
				remedy = "the next epoch reads them: streamdp epoch open " + epochArgs(r.task)
			}
			r.change(func(s *TaskStatus) { s.Unread = len(unread) })
			if added := slices.DeleteFunc(slices.Clone(unread), func(p int) bool { return p < known }); len(added) > 0 {
				known = n
				r.log.Warn("the input topic has more partitions than when the epoch began, and no stream of this configuration reads them",
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

// releases returns the newest published releases, at most limit, the newest
// first.
func (r *runner) releases(limit int) []json.RawMessage {
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
	recentReleases = 100
	recentBytes    = 1 << 20
)
