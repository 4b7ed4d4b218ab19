package stream

import (
	"encoding/json"
	"slices"
	"time"
)

// The states of a task.
const (
	stateStarting  = "starting"
	stateRunning   = "running"
	stateRetrying  = "retrying"
	stateHalted    = "halted"
	stateExhausted = "exhausted"
	stateClosed    = "closed"
)

var states = []string{stateStarting, stateRunning, stateRetrying, stateHalted, stateExhausted, stateClosed}

// TaskStatus is what the outside sees of a task. Nothing in it is a function of
// a record's content.
type TaskStatus struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`  // of a halt
	Message   string `json:"message,omitempty"` // in words
	Mechanism string `json:"mechanism"`
	Method    string `json:"method,omitempty"` // what "auto" resolved to

	Factorization string `json:"factorization,omitempty"`

	Topic      string `json:"topic"`
	Output     string `json:"output"`
	Epoch      uint64 `json:"epoch,omitempty"`
	Base       int64  `json:"base"`
	Step       uint64 `json:"step"`
	Horizon    uint64 `json:"horizon,omitempty"`
	NextOffset int64  `json:"next_offset"`
	LogEnd     int64  `json:"log_end_offset"`
	logStart   int64  // −1 while it is not known
	Lag        int64  `json:"lag_records"`
	// Outbox counts releases that are not acknowledged yet.
	Outbox int `json:"outbox_releases"`
	// Comparing says that the state is older than its output and repeats
	// releases to compare them.
	Comparing bool `json:"comparing,omitempty"`

	Epsilon        float64            `json:"epsilon"`
	Delta          float64            `json:"delta"`
	Mu             float64            `json:"mu,omitempty"`
	Adjacency      string             `json:"adjacency"`
	ChargedEpsilon float64            `json:"charged_epsilon"`
	LimitEpsilon   float64            `json:"limit_epsilon"`
	LimitDelta     float64            `json:"limit_delta"`
	NoiseStddev    map[string]float64 `json:"noise_stddev,omitempty"`
	LastCommit     *time.Time         `json:"last_commit,omitempty"`
	LastRelease    *time.Time         `json:"last_release,omitempty"`
}

// A task remembers its newest published releases for the API: so many, and so
// many bytes.
const (
	recentReleases = 100
	recentBytes    = 1 << 20
)

// change replaces the status by a changed copy.
func (r *runner) change(f func(*TaskStatus)) {
	for {
		old := r.status.Load()
		s := *old
		f(&s)
		if r.status.CompareAndSwap(old, &s) {
			break
		}
	}
	if r.d.observe != nil {
		r.d.observe()
	}
}

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
	r.d.stateChanged(r)
}

// setLive shows the epoch that runs.
func (r *runner) setLive(l *live) {
	r.change(func(s *TaskStatus) {
		s.Epoch, s.Base, s.Step, s.Horizon = l.m.Epoch, l.m.Base, l.core.step, r.s.LastStep()
		s.NextOffset = l.cp.position.Next
		s.Mu, s.Method, s.Factorization = l.m.Cost.Mu, l.core.mech.method, l.core.mech.factorization
		s.NoiseStddev = l.core.mech.noise
	})
	r.setState(stateRunning, nil)
}

// progress shows how far the owner is. outbox counts the releases that are
// committed and not acknowledged.
func (r *runner) progress(v view, outbox int) {
	r.change(func(s *TaskStatus) {
		s.Step, s.NextOffset, s.Outbox, s.Comparing = v.step, v.seen, outbox+v.pending, v.comparing
		if v.logEnd >= 0 {
			s.logStart, s.LogEnd = v.logStart, v.logEnd
		}
	})
}

// committed shows a durable commit.
func (r *runner) committed(took time.Duration, bytes int) {
	now := r.d.now()
	r.d.metrics.committed(r.task, took, bytes, now)
	r.change(func(s *TaskStatus) { s.LastCommit = &now })
}

// Status returns the task's status, with what is being repeated.
func (r *runner) Status() TaskStatus {
	s := *r.status.Load()
	s.Lag = max(s.LogEnd-s.NextOffset, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ChargedEpsilon = r.chargedEpsilon()
	if len(r.troubles) > 0 && (s.State == stateRunning || s.State == stateStarting) {
		s.State = stateRetrying
		for _, what := range slices.Sorted(keys(r.troubles)) {
			if s.Message != "" {
				s.Message += "; "
			}
			s.Message += what + ": " + r.troubles[what]
		}
	}
	return s
}

// chargedEpsilon returns what records of the task's input have paid. Other
// streams charge them too, so it follows the ledger.
func (r *runner) chargedEpsilon() float64 {
	if n := r.d.ledger.lines(); n != r.charged.lines {
		r.charged.lines = n
		if last := r.d.ledger.newest(r.task); last != nil {
			r.charged.epsilon, _ = r.d.ledger.chargedEpsilon(last.Source, r.s.Privacy.Adjacency, r.s.Privacy.LimitDelta)
		}
	}
	return r.charged.epsilon
}

// remember keeps published releases for the API.
func (r *runner) remember(sent []pending) {
	if len(sent) == 0 {
		return
	}
	now := r.d.now()
	r.change(func(s *TaskStatus) { s.LastRelease = &now })
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := max(0, len(sent)-recentReleases); i < len(sent); i++ {
		// A release in pieces is too large for the API.
		if i > 0 && sent[i].step == sent[i-1].step || i+1 < len(sent) && sent[i].step == sent[i+1].step {
			continue
		}
		r.recent = append(r.recent, json.RawMessage(sent[i].value))
	}
	size, keep := 0, 0
	for keep < min(len(r.recent), recentReleases) {
		if size += len(r.recent[len(r.recent)-1-keep]); size > recentBytes && keep > 0 {
			break
		}
		keep++
	}
	r.recent = slices.Delete(r.recent, 0, len(r.recent)-keep)
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
