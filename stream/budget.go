package stream

import (
	"slices"
	"time"

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

// budgetEvents is how many of the newest events of an account a status shows. What was
// charged before them is in the first one.
const budgetEvents = 24

// budgetHistory is how what an account was charged came about, as far as it was read. What was
// charged after a line is worked out from an index of the lines up to it.
type budgetHistory struct {
	then           ledger  // as it was after the last line that was read, without the lines
	read           int     // lines of the account
	epsilon, delta float64 // the last limit, 0 before the first
	events         []BudgetEvent
}

// budgetOf returns the newest events of an account, at most so many (0: all), the oldest
// first.
//
// The newest [budgetEvents] are kept, so that a line more costs a line more, whatever the
// ledger's length.
func (l *ledger) budgetOf(a account, most int) ([]BudgetEvent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.accounts[a]
	if of == nil {
		return nil, nil
	}
	h := new(budgetHistory)
	if most > 0 && most <= budgetEvents {
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
func (h *budgetHistory) readOn(l *ledger, a account, lines []int, most int) error {
	defer func() { h.then.entries = nil }()
	news := lines[h.read:]
	isEvent := func(i int) bool {
		e := &l.entries[i]
		return e.Kind == kindOpen || e.Kind == kindClose || e.Kind == kindVoid || e.Kind == kindLimit
	}
	skip := 0 // events that newer ones push out
	if most > 0 {
		for _, i := range news {
			if isEvent(i) {
				skip++
			}
		}
		skip -= budgetEvents
	}
	for _, i := range news {
		e := &l.entries[i]
		h.read++
		h.then.entries = l.entries[:i+1]
		h.then.index.add(h.then.entries)
		if e.Kind == kindOpen || e.Kind == kindLimit {
			h.epsilon, h.delta = e.LimitEpsilon, e.LimitDelta
		}
		if !isEvent(i) {
			continue
		}
		if skip--; skip >= 0 || h.delta == 0 {
			continue
		}
		x := BudgetEvent{Time: e.Time.UTC(), Kind: e.Kind, Stream: e.Stream, Epoch: e.Epoch, LimitEpsilon: h.epsilon, LimitDelta: h.delta}
		if e.Kind == kindOpen {
			x.Epsilon = e.Epsilon
		}
		if of := h.then.index.accounts[a]; of != nil && len(of.adjacencies) > 0 {
			_, charged, err := h.then.strictest(a, of.adjacencies[0], h.delta)
			if err != nil {
				return err
			}
			x.ChargedEpsilon = core.ToShow(charged)
		}
		h.events = append(h.events, x)
		if most > 0 && len(h.events) > budgetEvents {
			h.events = slices.Delete(h.events, 0, 1)
		}
	}
	return nil
}

// touched returns how many lines concern accounts, all together.
func (l *ledger) touched(all []account) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range all {
		if of := l.index.accounts[a]; of != nil {
			n += len(of.lines)
		}
	}
	return n
}
