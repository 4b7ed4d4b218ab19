package ledger

import (
	"slices"

	"github.com/streamdp/streamdp/stream/core"
)

// ledgerIndex holds what opening and closing an epoch need to know, so that they need not read all lines again. It
// depends only on the lines.
type ledgerIndex struct {
	order    []core.Task // in the order of their first lines
	Tasks    map[core.Task]*taskIndex
	Sources  map[core.Source]*sourceIndex
	Accounts map[Account]*accountIndex
	topics   map[topic]*topicUnits
	ends     map[int]int // maps an opening to the entry that closed or voided it
	keyID    string      // the master key of the last line, "" before the first
}

// taskIndex is the index of one task. Its integers are indexes of entries, except last.
type taskIndex struct {
	last        uint64         // number of the largest epoch
	openings    map[uint64]int // keyed by epoch number
	begun       []int          // openings and closings, without voided ones
	newest      int            // last element of begun, −1 if there is none
	undestroyed []int          // closings whose secret is not destroyed
	paid        paid
}

// sourceIndex is the index of one source.
type sourceIndex struct {
	openings []int
	open     []int // openings that have not ended

	// These fields describe the current incarnation of the source's log: its number; the newest closing with an anchor,
	// −1 if there is none; and whether a later closing covers records but has no anchor.
	incarnation uint64
	topicID     string // "" if no line has one
	anchor      int
	anchorKey   string // master key of the anchor's MAC, "" if no line says
	unproven    bool
}

// add indexes the last line.
func (x *ledgerIndex) add(entries []Entry) {
	if x.Tasks == nil {
		x.Tasks, x.Sources, x.ends = map[core.Task]*taskIndex{}, map[core.Source]*sourceIndex{}, map[int]int{}
		x.Accounts, x.topics = map[Account]*accountIndex{}, map[topic]*topicUnits{}
	}
	i := len(entries) - 1
	e := &entries[i]
	if e.Key != "" {
		x.keyID = e.Key
	}
	if e.Move != nil {
		return // the line is about no task
	}
	t := x.Tasks[e.Task()]
	if t == nil {
		t = &taskIndex{openings: map[uint64]int{}, newest: -1}
		x.Tasks[e.Task()] = t
		x.order = append(x.order, e.Task())
	}
	t.last = max(t.last, e.Epoch)
	opening, opened := t.openings[e.Epoch]
	switch e.Kind {
	case KindOpen:
		t.openings[e.Epoch] = i
		t.begun = append(t.begun, i)
		x.count(e, 1)
	case KindClose:
		t.begun = append(t.begun, i)
		t.undestroyed = append(t.undestroyed, i)
		if opened {
			x.ends[opening] = i
		}
	case KindVoid:
		if opened {
			x.ends[opening] = i
			x.count(&entries[opening], -1)
			t.begun = slices.DeleteFunc(t.begun, func(b int) bool { return b == opening })
		}
	case KindDestroyed:
		t.undestroyed = slices.DeleteFunc(t.undestroyed, func(c int) bool { return entries[c].Epoch == e.Epoch })
	}
	t.newest = -1
	if n := len(t.begun); n > 0 {
		t.newest = t.begun[n-1]
	}
	var by *Entry // the epoch's opening
	if opened && e.Kind != KindOpen {
		by = &entries[opening]
	}
	of := e
	if e.Kind == KindVoid && by != nil {
		of = by
	}
	for _, v := range of.Views() {
		v.Kind = e.Kind
		x.source(v.Source).add(x, entries, i, opening, by, v)
		if e.Person != nil || by != nil && by.Person != nil {
			continue
		}
		a := x.account(Account{Source: v.Source})
		if by == nil {
			a.add(x, entries, i, opening, nil, v)
		} else if o, ok := by.View(v.Source); ok {
			a.add(x, entries, i, opening, &o, v)
		} else {
			a.add(x, entries, i, opening, nil, v)
		}
	}
	if e.Person != nil {
		x.account(e.account()).add(x, entries, i, opening, nil, *e)
	} else if by != nil && by.Person != nil {
		x.account(by.account()).add(x, entries, i, opening, by, *e)
	}
}

// source returns the index of a source.
func (x *ledgerIndex) source(of core.Source) *sourceIndex {
	s := x.Sources[of]
	if s == nil {
		s = &sourceIndex{incarnation: 1, anchor: -1}
		x.Sources[of] = s
	}
	return s
}

// add indexes entry i, which is the last line. e is the view of this entry for the source. opened is the epoch's
// opening, which is entry number `opening`; it is nil if there is none.
func (s *sourceIndex) add(x *ledgerIndex, entries []Entry, i, opening int, opened *Entry, e Entry) {
	ended := func() {
		s.open = slices.DeleteFunc(s.open, func(b int) bool { return b == opening })
	}
	switch e.Kind {
	case KindOpen:
		s.openings, s.open = append(s.openings, i), append(s.open, i)
		if e.Incarnation > s.incarnation {
			s.incarnation, s.topicID, s.anchor, s.unproven = e.Incarnation, "", -1, false
		}
		if e.Incarnation == s.incarnation && e.TopicID != "" {
			s.topicID = e.TopicID
		}
	case KindClose:
		if opened == nil {
			break
		}
		o, ok := opened.View(e.Source)
		if !ok {
			break
		}
		ended()
		switch {
		case o.Incarnation != s.incarnation:
		case e.Anchor != "":
			s.anchor, s.anchorKey, s.unproven = i, x.keyID, false
		case e.End != o.First:
			s.unproven = true
		}
	case KindVoid:
		if opened != nil {
			ended()
		}
	}
}
