package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// stretches says what the epochs of one task cost what a person has in a period of N steps. Epochs that
// follow one another are one stretch until they have N steps together; the next one begins another. The
// unit that pays is what one user key has in one period of each epoch of one stretch. Its records are in no
// other stretch, so it pays the sum of a stretch, and all units pay at most the dearest one.
//
// A stretch has N steps at least, whoever ends epochs: many short ones are one stretch, and add up.
//
// That needs records that are in one stretch only, and periods that mean the same. So where an epoch reads
// an offset again, or may; where it reads another log or topic; where its steps have another length or its
// adjacency is another one: all epochs of the task add up, from then on and for ever.
//
// Streams and partitions are tasks of their own. What they cost adds up.
type stretches struct {
	of      stretchesOf
	reached map[int]reached          // by partition
	mixed   bool                     // all adds up
	all     map[dp.Adjacency]dp.Cost // of all epochs
	ended   dp.Cost                  // of stretches that have ended: one that covers each
	present dp.Cost                  // of the last stretch
	steps   uint64                   // and how many it has, at least
}

// stretchesOf is what all epochs of stretches have in common.
type stretchesOf struct {
	cluster, topic string
	step           string
	period         uint64
	adjacency      dp.Adjacency
}

// reached is where a task's last epoch ended in a partition; −1: nobody knows.
type reached struct {
	incarnation uint64
	end         int64
}

// stretches reports whether an opening's charge is of a stretch of its task.
func (e *Entry) stretches() bool {
	return e.Person != nil && e.Person.Period > 0 && e.Person.Step != ""
}

func (e *Entry) stretchesOf() stretchesOf {
	return stretchesOf{e.Cluster, e.Topic, e.Person.Step, e.Person.Period, e.Cost.Adjacency}
}

// newStretches returns those of the task of an opening, without an epoch.
func newStretches(e *Entry) *stretches {
	return &stretches{of: e.stretchesOf(), reached: map[int]reached{}, all: map[dp.Adjacency]dp.Cost{}}
}

// clone returns a copy, nil of nil.
func (s *stretches) clone() *stretches {
	if s == nil {
		return nil
	}
	c := *s
	c.reached, c.all = maps.Clone(s.reached), maps.Clone(s.all)
	return &c
}

// add takes the next epoch of the task, of which end is the closing, nil where it is open. Epochs that
// closed without a step are not for it.
func (s *stretches) add(opened, end *Entry) {
	s.all[opened.Cost.Adjacency] = composed(s.all[opened.Cost.Adjacency], opened.Cost)
	s.mixed = s.mixed || opened.stretchesOf() != s.of
	for _, v := range opened.Views() {
		was, known := s.reached[v.Partition]
		s.mixed = s.mixed || known && (v.Incarnation != was.incarnation || was.end < 0 || v.First < was.end)
		now := reached{v.Incarnation, -1}
		if end != nil {
			if w, ok := end.View(v.Source); ok {
				now.end = w.End
			}
		}
		s.reached[v.Partition] = now
	}
	if s.mixed {
		return
	}
	if s.steps >= s.of.period {
		s.ended, s.present, s.steps = dearest(s.ended, s.present), dp.Cost{}, 0
	}
	s.present = composed(s.present, opened.Cost)
	if end != nil {
		s.steps += min(end.Steps, s.of.period) // without overflow
	}
}

// costs returns what the worst-off person pays for the task: one cost or, where adjacencies differ, one for
// each. They are the zero value and none before the first epoch.
func (s *stretches) costs() (all []dp.Cost) {
	if !s.mixed {
		return []dp.Cost{dearest(s.ended, s.present)}
	}
	return slices.SortedFunc(maps.Values(s.all),
		func(a, b dp.Cost) int { return cmp.Compare(a.Adjacency, b.Adjacency) })
}

// dearest returns a cost that covers both, one of them where it can. One may be the zero value.
func dearest(a, b dp.Cost) dp.Cost {
	switch {
	case a.Adjacency == 0 || b.Adjacency != 0 && b.Covers(a):
		return b
	case b.Adjacency == 0 || a.Covers(b):
		return a
	}
	return dp.Compose(a, b)
}

// compareTasks orders tasks by stream and partition.
func compareTasks(a, b core.Task) int {
	return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
}
