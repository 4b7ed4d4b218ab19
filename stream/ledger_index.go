package stream

import (
	"slices"

	"streamdp/dp"
	"streamdp/stream/core"
)

// ledgerIndex answers the questions of every opening and closing without reading all
// lines again. It is a function of the lines.
type ledgerIndex struct {
	order   []core.Task // by first line
	tasks   map[core.Task]*taskIndex
	sources map[core.Source]*sourceIndex
	ends    map[int]int // opening → what closed or voided it
	keyID   string      // of the master key that the last line is under, "" before the first
}

// taskIndex is the index of one task. Its numbers are indexes of entries.
type taskIndex struct {
	last        uint64         // largest epoch
	openings    map[uint64]int // by epoch
	begun       []int          // openings and closings, without voided ones
	newest      int            // the last of begun, −1 where there is none
	undestroyed []int          // closings
}

// sourceIndex is the index of one source.
type sourceIndex struct {
	openings    []int
	open        []int       // openings that have not ended
	closed      []dp.Charge // of epochs that are closed, ranges of one cost that meet as one
	adjacencies []dp.Adjacency
	limit       int   // the last line that has one, −1 where there is none
	first       int   // the opening that sets aside for sketches, −1 where there is none
	lines       []int // all that concern the source
	history     *budgetHistory

	// About the present incarnation of the source's log: its number; the newest closing with
	// an anchor, −1 if there is none; and whether a later closing covers records and has no
	// anchor.
	incarnation uint64
	topicID     string // "" where no line has one
	anchor      int
	anchorKey   string // of the master key that its anchor is under, "" where no line says
	unproven    bool
}

// add indexes the last line.
func (x *ledgerIndex) add(entries []Entry) {
	if x.tasks == nil {
		x.tasks, x.sources, x.ends = map[core.Task]*taskIndex{}, map[core.Source]*sourceIndex{}, map[int]int{}
	}
	i := len(entries) - 1
	e := &entries[i]
	if e.Key != "" {
		x.keyID = e.Key
	}
	t := x.tasks[e.Task()]
	if t == nil {
		t = &taskIndex{openings: map[uint64]int{}, newest: -1}
		x.tasks[e.Task()] = t
		x.order = append(x.order, e.Task())
	}
	t.last = max(t.last, e.Epoch)
	opening, opened := t.openings[e.Epoch]
	switch e.Kind {
	case kindOpen:
		t.openings[e.Epoch] = i
		t.begun = append(t.begun, i)
	case kindClose:
		t.begun = append(t.begun, i)
		t.undestroyed = append(t.undestroyed, i)
		if opened {
			x.ends[opening] = i
		}
	case kindVoid:
		if opened {
			x.ends[opening] = i
			t.begun = slices.DeleteFunc(t.begun, func(b int) bool { return b == opening })
		}
	case kindDestroyed:
		t.undestroyed = slices.DeleteFunc(t.undestroyed, func(c int) bool { return entries[c].Epoch == e.Epoch })
	}
	t.newest = -1
	if n := len(t.begun); n > 0 {
		t.newest = t.begun[n-1]
	}
	of := e
	if e.Kind == kindVoid && opened {
		of = &entries[opening]
	}
	for _, v := range of.views() {
		v.Kind = e.Kind
		s := x.source(v.Source)
		s.lines = append(s.lines, i)
		s.add(x, entries, i, opening, opened, v)
	}
}

// source returns the index of a source.
func (x *ledgerIndex) source(of core.Source) *sourceIndex {
	s := x.sources[of]
	if s == nil {
		s = &sourceIndex{limit: -1, first: -1, incarnation: 1, anchor: -1}
		x.sources[of] = s
	}
	return s
}

// add indexes the last line, entry i, as it is for the source. opening is the epoch's.
func (s *sourceIndex) add(x *ledgerIndex, entries []Entry, i, opening int, opened bool, e Entry) {
	switch e.Kind {
	case kindOpen:
		s.openings, s.open = append(s.openings, i), append(s.open, i)
		if !slices.Contains(s.adjacencies, e.Cost.Adjacency) {
			s.adjacencies = append(s.adjacencies, e.Cost.Adjacency)
		}
		if s.first < 0 {
			s.first = i
		}
		s.limit = i
		if e.Incarnation > s.incarnation {
			s.incarnation, s.topicID, s.anchor, s.unproven = e.Incarnation, "", -1, false
		}
		if e.Incarnation == s.incarnation && e.TopicID != "" {
			s.topicID = e.TopicID
		}
	case kindLimit:
		s.limit = i
	case kindClose:
		if !opened {
			break
		}
		o, ok := entries[opening].view(e.Source)
		if !ok {
			break
		}
		s.settle(opening, dp.Charge{Log: o.Incarnation, First: o.First, End: e.End, Cost: o.Cost})
		switch {
		case o.Incarnation != s.incarnation:
		case e.Anchor != "":
			s.anchor, s.anchorKey, s.unproven = i, x.keyID, false
		case e.End != o.First:
			s.unproven = true
		}
	case kindVoid:
		if !opened {
			break
		}
		s.open = slices.DeleteFunc(s.open, func(b int) bool { return b == opening })
		// An epoch that never began released nothing. So its part for sketches counts only
		// if it is not empty.
		s.first = -1
		for _, o := range s.openings {
			if end, ended := x.ends[o]; !ended || entries[end].Kind != kindVoid || !entries[o].Reserved.Empty() {
				s.first = o
				break
			}
		}
	}
}

// settle indexes the charge of a closed epoch. Adjacent ranges of one log with the same
// cost are merged; every position pays the same as before.
func (s *sourceIndex) settle(opening int, c dp.Charge) {
	s.open = slices.DeleteFunc(s.open, func(b int) bool { return b == opening })
	if c.End == c.First {
		return
	}
	for i := len(s.closed) - 1; i >= 0; i-- {
		if was := &s.closed[i]; was.Log == c.Log && was.End == c.First && was.Cost.Equal(c.Cost) {
			was.End = c.End
			return
		}
	}
	s.closed = append(s.closed, c)
}
