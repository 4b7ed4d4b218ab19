package stream

import (
	"slices"
	"time"

	"streamdp/stream/core"
)

// BudgetEvent is a line of the ledger that changed what records of an input partition have
// paid or may pay, and both after it.
type BudgetEvent struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // open, void, close, limit
	Stream string    `json:"stream"`
	Epoch  uint64    `json:"epoch,omitempty"`
	// Epsilon is that of the epoch by itself, of an opening.
	Epsilon        float64 `json:"epsilon,omitempty"`
	ChargedEpsilon float64 `json:"charged_epsilon"` // of the worst-off record, at the limit's delta
	LimitEpsilon   float64 `json:"limit_epsilon"`
	LimitDelta     float64 `json:"limit_delta"`
}

// budgetEvents is how many of the newest events of a source a status shows. What was
// charged before them is in the first one.
const budgetEvents = 24

// budgetOf returns the newest events of a source, at most so many (0: all), the oldest
// first.
//
// What was charged after a line is worked out from the source's lines up to it, so the cost is
// that of reading them once, and of adding up what they charge for each event.
func (l *ledger) budgetOf(s core.Source, most int) (events []BudgetEvent, err error) {
	entries := l.concerning(s)
	var at []int
	for i := range entries {
		if e := &entries[i]; e.concerns(s) && (e.Kind == kindOpen || e.Kind == kindClose || e.Kind == kindVoid || e.Kind == kindLimit) {
			at = append(at, i)
		}
	}
	show := at
	if most > 0 {
		show = at[max(0, len(at)-most):]
	}
	if len(show) == 0 {
		return nil, nil
	}
	var then ledger // as it was after each line
	var last *Entry // with a limit
	for i := range entries[:at[len(at)-1]+1] {
		e := &entries[i]
		then.entries = entries[:i+1]
		then.index.add(then.entries)
		if !e.concerns(s) {
			continue
		}
		if e.Kind == kindOpen || e.Kind == kindLimit {
			last = e
		}
		if last == nil || !slices.Contains(show, i) {
			continue
		}
		x := BudgetEvent{Time: e.Time.UTC(), Kind: e.Kind, Stream: e.Stream, Epoch: e.Epoch, LimitEpsilon: last.LimitEpsilon, LimitDelta: last.LimitDelta}
		if e.Kind == kindOpen {
			x.Epsilon = e.Epsilon
		}
		if of := then.index.sources[s]; of != nil && len(of.adjacencies) > 0 {
			_, charged, err := then.strictest(s, of.adjacencies[0], last.LimitDelta)
			if err != nil {
				return nil, err
			}
			x.ChargedEpsilon = core.ToShow(charged)
		}
		events = append(events, x)
	}
	return events, nil
}

// concerning returns a copy of the lines that concern a source. What a source was charged
// depends on no others.
func (l *ledger) concerning(s core.Source) (lines []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.index.sources[s]; of != nil {
		lines = make([]Entry, len(of.lines))
		for n, i := range of.lines {
			lines[n] = l.entries[i]
		}
	}
	return lines
}

// touched returns how many lines concern sources, all together.
func (l *ledger) touched(all []core.Source) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range all {
		if of := l.index.sources[s]; of != nil {
			n += len(of.lines)
		}
	}
	return n
}
