package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// stretches computes how much one task's epochs cost when they protect the records of a person in a period of N steps.
// Consecutive epochs form one stretch until they have N steps together; the next epoch then begins another stretch. The
// protected unit is all records that one user key has in one period of each epoch of one stretch. These records are in
// no other stretch. So a unit pays the sum of the costs in its stretch, and no unit pays more than the most expensive
// stretch costs.
//
// A stretch has at least N steps, no matter who ends epochs or when: many short epochs form one stretch, and their
// costs add up.
//
// This is valid only if every record is in one stretch, and if all periods have the same meaning. So all epochs of the
// task add up as soon as one of them reads, or may read, an offset again, reads another log or topic, or differs in
// step length or adjacency.
//
// Streams and partitions are separate tasks, and their costs add up.
type stretches struct {
	of      stretchesOf
	reached map[int]reached          // by partition
	mixed   bool                     // the costs of all epochs add up; stretches no longer count
	all     map[dp.Adjacency]dp.Cost // sum over all epochs
	ended   dp.Cost                  // a cost that covers each stretch that has ended
	present dp.Cost                  // sum over the current stretch
	steps   uint64                   // lower bound on the steps of the current stretch
}

// stretchesOf lists the properties that all epochs of a task must share to form stretches.
type stretchesOf struct {
	cluster, topic string
	step           string
	period         uint64
	adjacency      dp.Adjacency
}

// reached is the position in a partition at which the task's last epoch ended; −1: unknown.
type reached struct {
	incarnation uint64
	end         int64
}

// stretches reports whether an opening's charge belongs to a stretch of its task.
func (e *Entry) stretches() bool {
	return e.Person != nil && e.Person.Period > 0 && e.Person.Step != ""
}

func (e *Entry) stretchesOf() stretchesOf {
	return stretchesOf{e.Cluster, e.Topic, e.Person.Step, e.Person.Period, e.Cost.Adjacency}
}

// newStretches returns the stretches of an opening's task, before any epoch.
func newStretches(e *Entry) *stretches {
	return &stretches{of: e.stretchesOf(), reached: map[int]reached{}, all: map[dp.Adjacency]dp.Cost{}}
}

// clone returns a copy, or nil if s is nil.
func (s *stretches) clone() *stretches {
	if s == nil {
		return nil
	}
	c := *s
	c.reached, c.all = maps.Clone(s.reached), maps.Clone(s.all)
	return &c
}

// add adds the next epoch of the task. end is the entry that closed it, or nil if it is open. Callers must not add an
// epoch that closed without a step.
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
		s.steps += min(end.Steps, s.of.period) // min prevents overflow
	}
}

// costs returns the cost of the task to the person who pays most: one cost or, if epochs differ in adjacency, one cost
// for each adjacency. Before the first epoch it returns one zero value or an empty slice.
func (s *stretches) costs() (all []dp.Cost) {
	if !s.mixed {
		return []dp.Cost{dearest(s.ended, s.present)}
	}
	return slices.SortedFunc(maps.Values(s.all),
		func(a, b dp.Cost) int { return cmp.Compare(a.Adjacency, b.Adjacency) })
}

// dearest returns a cost that covers both a and b. If one of the two covers the other, it returns that one. Either may
// be the zero value.
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
