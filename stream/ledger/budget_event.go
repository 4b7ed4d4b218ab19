package ledger

import (
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// BudgetEvent is a line of the ledger that changed what records of an input partition, or
// persons of a population, have paid or may pay, and both after it.
type BudgetEvent struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // open, void, close, limit
	Stream string    `json:"stream"`
	Epoch  uint64    `json:"epoch,omitempty"`
	// Epsilon is that of the epoch by itself, of an opening.
	Epsilon        float64 `json:"epsilon,omitempty"`
	ChargedEpsilon float64 `json:"charged_epsilon"` // of the worst-off record or person, at the limit's delta
	LimitEpsilon   float64 `json:"limit_epsilon"`
	LimitDelta     float64 `json:"limit_delta"`
}

// newBudgetEvents is how many of the newest events of an account a status shows. What was
// charged before them is in the first one.
const newBudgetEvents = 24

// budgetHistory is how what an account was charged came about, as far as it was read. What was
// charged after a line is worked out from an index of the lines up to it.
type budgetHistory struct {
	then           Ledger  // as it was after the last line that was read, without the lines
	read           int     // lines of the account
	epsilon, delta float64 // the last limit, 0 before the first
	events         []BudgetEvent
}

// budgetOf returns the newest events of an account, at most so many (0: all), the oldest
// first.
//
// The newest [newBudgetEvents] are kept, so that a line more costs a line more, whatever the
// ledger's length. The caller has the lock.
func (l *Ledger) budgetOf(a Account, most int) ([]BudgetEvent, error) {
	of := l.index.Accounts[a]
	if of == nil {
		return nil, nil
	}
	h := new(budgetHistory)
	if most > 0 && most <= newBudgetEvents {
		if of.history == nil {
			of.history = h
		}
		h = of.history
	} else {
		h.events = make([]BudgetEvent, 0, len(of.lines))
	}
	if err := h.readOn(l, a, of.lines, most); err != nil {
		of.history = nil
		return nil, err
	}
	events := slices.Clone(h.events)
	if most > 0 {
		events = events[max(0, len(events)-most):]
	}
	return events, nil
}

// readOn reads the lines of the account that are new, and keeps at most so many events (0: all).
func (h *budgetHistory) readOn(l *Ledger, a Account, lines []int, most int) error {
	defer func() { h.then.Entries = nil }()
	news := lines[h.read:]
	isEvent := func(i int) bool {
		e := &l.Entries[i]
		return e.Kind == KindOpen || e.Kind == KindClose || e.Kind == KindVoid || e.Kind == KindLimit
	}
	skip := 0 // events that newer ones push out
	if most > 0 {
		for _, i := range news {
			if isEvent(i) {
				skip++
			}
		}
		skip -= newBudgetEvents
	}
	for _, i := range news {
		e := &l.Entries[i]
		h.read++
		h.then.Entries = l.Entries[:i+1]
		h.then.index.add(h.then.Entries)
		if e.Kind == KindOpen || e.Kind == KindLimit {
			h.epsilon, h.delta = e.LimitEpsilon, e.LimitDelta
		}
		if !isEvent(i) {
			continue
		}
		if skip--; skip >= 0 || h.delta == 0 {
			continue
		}
		x := BudgetEvent{Time: e.Time.UTC(), Kind: e.Kind, Stream: e.Stream, Epoch: e.Epoch, LimitEpsilon: h.epsilon,
			LimitDelta: h.delta}
		if e.Kind == KindOpen {
			x.Epsilon = e.Epsilon
		}
		if of := h.then.index.Accounts[a]; of != nil && len(of.adjacencies) > 0 {
			_, charged, err := h.then.strictest(a, of.adjacencies[0], h.delta)
			if err != nil {
				return err
			}
			x.ChargedEpsilon = core.ToShow(charged)
		}
		h.events = append(h.events, x)
		if most > 0 && len(h.events) > newBudgetEvents {
			h.events = slices.Delete(h.events, 0, 1)
		}
	}
	return nil
}

// paid is what a task's accounts were charged when the ledger had so many lines.
type paid struct {
	lines     int    // of the ledger
	newest    uint64 // the task's newest opening or closing
	touched   int    // lines about its accounts
	adjacency dp.Adjacency
	delta     float64

	epsilon float64
	events  []BudgetEvent
}

// Paid returns the ε at delta, as it is shown, that the worst-off record of a task's input has paid, or the
// worst-off person of its population, and the newest events of that account. Epochs of other tasks are in both.
// An account is read again only where the ledger has another line about it.
//
// The ledger is locked for one account at a time, because a commit needs it too.
func (l *Ledger) Paid(t core.Task, adjacency dp.Adjacency, delta float64) (epsilon float64, events []BudgetEvent) {
	p, accounts := l.unread(t, adjacency, delta)
	for i, a := range accounts {
		l.mu.Lock()
		_, spent, _ := l.strictest(a, adjacency, delta) // 0 where it can't be computed
		if shown := core.ToShow(spent); i == 0 || shown > p.epsilon {
			p.epsilon = shown
			p.events, _ = l.budgetOf(a, newBudgetEvents)
		}
		l.mu.Unlock()
	}
	if len(accounts) > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		if of := l.index.Tasks[t]; of != nil && of.paid.lines <= p.lines {
			of.paid = p
		}
	}
	return p.epsilon, p.events
}

// unread returns what a task is known to have paid, and the accounts that must be read again for it.
func (l *Ledger) unread(t core.Task, adjacency dp.Adjacency, delta float64) (p paid, accounts []Account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Tasks[t]
	if of == nil || of.newest < 0 {
		return paid{}, nil
	}
	p = of.paid
	if p.adjacency != adjacency || p.delta != delta {
		p = paid{adjacency: adjacency, delta: delta}
	}
	if p.lines == len(l.Entries) {
		return p, nil
	}
	p.lines = len(l.Entries)
	last := &l.Entries[of.newest]
	accounts = l.accountsOf(last)
	touched := l.touched(accounts)
	if last.Seq == p.newest && touched == p.touched {
		of.paid = p
		return p, nil
	}
	p.newest, p.touched, p.epsilon, p.events = last.Seq, touched, 0, nil
	return p, accounts
}

// touched returns how many lines concern accounts, all together.
func (l *Ledger) touched(all []Account) (n int) {
	for _, a := range all {
		if of := l.index.Accounts[a]; of != nil {
			n += len(of.lines)
		}
	}
	return n
}
