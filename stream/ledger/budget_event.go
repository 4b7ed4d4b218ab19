package ledger

import (
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// BudgetEvent describes a line of the ledger that changed the charge or the limit of an account: the records of an
// input partition, or the persons of a population. It has the charge and the limit after the line.
type BudgetEvent struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // open, void, close, limit
	Stream string    `json:"stream"`
	Epoch  uint64    `json:"epoch,omitempty"`
	// Epsilon is the ε of the opened epoch by itself; only for openings.
	Epsilon float64 `json:"epsilon,omitempty"`
	// ChargedEpsilon is the ε of the record or person that has paid most, at the limit's delta.
	ChargedEpsilon float64 `json:"charged_epsilon"`
	LimitEpsilon   float64 `json:"limit_epsilon"`
	LimitDelta     float64 `json:"limit_delta"`
}

// newBudgetEvents is how many events of an account a status shows: the newest ones. The first of them includes all
// earlier charges.
const newBudgetEvents = 24

// budgetHistory is the history of an account's charges, as far as the ledger's lines were read. The charge after a line
// is computed from an index of all lines up to that line.
type budgetHistory struct {
	then           Ledger  // the ledger as of the last line read, but without the lines themselves
	read           int     // how many of the account's lines were read
	epsilon, delta float64 // the last limit, 0 before the first
	events         []BudgetEvent
}

// budgetOf returns the newest events of an account, the oldest of them first. `most` is the maximum number; 0: all
// events.
//
// The newest [newBudgetEvents] events are cached, so that the time to process a new line does not grow with the ledger.
// The caller holds the lock.
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

// readOn reads the new lines of the account and keeps the newest events. `most` is the maximum number; 0: all events.
func (h *budgetHistory) readOn(l *Ledger, a Account, lines []int, most int) error {
	defer func() { h.then.Entries = nil }()
	news := lines[h.read:]
	isEvent := func(i int) bool {
		e := &l.Entries[i]
		return e.Kind == KindOpen || e.Kind == KindClose || e.Kind == KindVoid || e.Kind == KindLimit
	}
	skip := 0 // events that newer ones will replace
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

// paid is the cached charge to a task's accounts, as of the ledger's first `lines` lines.
type paid struct {
	lines     int    // number of lines of the ledger
	newest    uint64 // the task's newest opening or closing
	touched   int    // number of lines about its accounts
	adjacency dp.Adjacency
	delta     float64

	epsilon float64
	events  []BudgetEvent
}

// Paid returns the ε, at delta and rounded for display, of the record or person that has paid most in any account of a
// task, and the newest events of that account. An account is the records of an input partition, or the persons of a
// population. Both results include the epochs of other tasks. Paid computes an account again only if the ledger has a
// new line about it.
//
// The ledger is locked for one account at a time, because commits need the lock too.
func (l *Ledger) Paid(t core.Task, adjacency dp.Adjacency, delta float64) (epsilon float64, events []BudgetEvent) {
	p, accounts := l.unread(t, adjacency, delta)
	for i, a := range accounts {
		l.mu.Lock()
		_, spent, _ := l.strictest(a, adjacency, delta) // ε is 0 if it cannot be computed.
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

// unread returns the cached charge of a task, and the accounts about which there are new lines.
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

// touched returns the total number of lines about the accounts.
func (l *Ledger) touched(all []Account) (n int) {
	for _, a := range all {
		if of := l.index.Accounts[a]; of != nil {
			n += len(of.lines)
		}
	}
	return n
}
