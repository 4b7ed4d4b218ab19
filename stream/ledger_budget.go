package stream

import (
	"fmt"
	"slices"

	"streamdp/dp"
	"streamdp/stream/core"
)

// errBudget says that an opening would exceed the limit.
type errBudget struct {
	source         core.Source
	spent, limit   float64 // ε at the limit's δ
	delta          float64
	adjacency      dp.Adjacency
	alreadyCharged float64
	// reserved is what the limit sets aside for sketches, if that is what is exceeded.
	reserved *dp.Cost
}

func (e *errBudget) Error() string {
	switch r := e.reserved; {
	case r == nil:
	case r.Empty():
		return fmt.Sprintf("%s/%d has nothing set aside for sketches, which its first epoch would have had to, before the first release: only solvers without them can read it",
			e.source.Topic, e.source.Partition)
	default:
		return fmt.Sprintf("what %s/%d has set aside for sketches is spent: with this epoch more would be charged than %s; a solver without them may fit still",
			e.source.Topic, e.source.Partition, core.SketchesInWords(*r))
	}
	return fmt.Sprintf("budget of %s/%d spent: with %s charged to date, this epoch would bring a record to epsilon %s at delta %g (%s), above limit_epsilon %g",
		e.source.Topic, e.source.Partition, core.AtMost(e.alreadyCharged), core.AtMost(e.spent), e.delta, e.adjacency, e.limit)
}

// open charges an epoch: it appends e, unless the records of its source would then pay
// more than the limit. It returns the ε charged so far, including this epoch, at the
// limit's δ.
func (l *ledger) open(e Entry) (charged float64, err error) {
	if !e.chargesOffsets() {
		return 0, fmt.Errorf("internal: epoch %d would charge offsets %d to %d, which are none", e.Epoch, e.First, e.End)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if charged, err = l.fitsAll(&e, nil); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(e.sources(), l.unopenedLocked) {
		e.Reserved = dp.Cost{}
	}
	return charged, l.appendLocked(e)
}

// fitsAll is fits for every source that e charges. It returns the largest ε.
func (l *ledger) fitsAll(e, closing *Entry) (charged float64, err error) {
	for _, v := range e.views() {
		spent, err := l.fits(&v, closing)
		if err != nil {
			return 0, err
		}
		charged = max(charged, spent)
	}
	return charged, nil
}

// affords returns an error if the limit would not allow the epoch e after the task's open
// epoch is closed at end.
func (l *ledger) affords(e Entry, opened *Entry, end []EntryPart) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.fitsAll(&e, opened.closing(end))
	return err
}

// fits returns the ε that records of e's source pay including e. It returns an errBudget
// if that exceeds the limit, in e's adjacency or in another one in which an epoch of the
// source was ever charged.
func (l *ledger) fits(e, closing *Entry) (charged float64, err error) {
	reserved, first := l.reserved(e.Source)
	if first {
		reserved = e.Reserved
	}
	for _, adjacency := range l.adjacencies(e.Source, e.Cost.Adjacency) {
		worst, over, err := l.within(e.Source, adjacency, reserved, e, closing, e.LimitEpsilon, e.LimitDelta)
		if err != nil {
			return 0, err
		}
		spent, err := worst.Epsilon(e.LimitDelta)
		if err != nil {
			return 0, err
		}
		if over != nil {
			if over.alreadyCharged, err = l.epsilon(e.Source, adjacency, e.LimitDelta, closing); err != nil {
				return 0, err
			}
			over.spent = spent
			return 0, over
		}
		if adjacency == e.Cost.Adjacency {
			charged = spent
		}
	}
	return charged, nil
}

// adjacencies returns the adjacencies in which a source was ever charged, and one more.
func (l *ledger) adjacencies(s core.Source, also dp.Adjacency) (all []dp.Adjacency) {
	if of := l.index.sources[s]; of != nil {
		all = slices.Clone(of.adjacencies)
	}
	if !slices.Contains(all, also) {
		all = append(all, also)
	}
	return all
}

// within compares what records of a source pay with the limit (ε, δ) and the part set
// aside. The sum includes extra, and takes the epoch of closing as ended there. It
// returns the largest cost, and over if the limit is exceeded.
func (l *ledger) within(s core.Source, adjacency dp.Adjacency, reserved dp.Cost, extra, closing *Entry, epsilon, delta float64) (worst dp.Cost, over *errBudget, err error) {
	costs, err := dp.MostCharged(l.charges(s, extra, closing), adjacency)
	if err != nil {
		return worst, nil, err
	}
	if worst, err = dp.Parallel(delta, costs...); err != nil {
		return worst, nil, err
	}
	if reserved.Adjacency == 0 { // nothing
		reserved.Adjacency = adjacency
	}
	if reserved, err = reserved.In(adjacency); err != nil {
		return worst, nil, err
	}
	for _, c := range costs {
		// Do not compare ε: an epoch that takes the whole limit must fit, and computing ε
		// rounds.
		ok, err := c.WithinReserve(reserved, epsilon, delta)
		if err != nil {
			return worst, nil, err
		}
		if ok {
			continue
		}
		over = &errBudget{source: s, limit: epsilon, delta: delta, adjacency: adjacency}
		if c.Mu = 0; !reserved.Covers(c) {
			over.reserved = &reserved
		}
		return worst, over, nil
	}
	return worst, nil, nil
}

// reserved returns the part of a source's limit that is set aside for sketches. The first
// opening says it, before any release. first is true if there is no opening yet.
func (l *ledger) reserved(s core.Source) (reserved dp.Cost, first bool) {
	if of := l.index.sources[s]; of != nil && of.first >= 0 {
		return l.entries[of.first].Reserved, false
	}
	return dp.Cost{}, true
}

// unopened reports whether no epoch of the source was ever opened.
func (l *ledger) unopened(s core.Source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unopenedLocked(s)
}

func (l *ledger) unopenedLocked(s core.Source) bool {
	_, first := l.reserved(s)
	return first
}

// setLimit appends a limit that differs from the last one recorded for the source. It
// refuses a limit below what records have paid, in adjacency or in another one in which
// the source was ever charged.
func (l *ledger) setLimit(e Entry, adjacency dp.Adjacency) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(s core.Source) bool {
		of := l.index.sources[s]
		if of == nil || of.limit < 0 {
			return false
		}
		old := &l.entries[of.limit]
		return old.LimitEpsilon == e.LimitEpsilon && old.LimitDelta == e.LimitDelta
	}
	changed := false
	for _, v := range e.views() {
		if same(v.Source) {
			continue
		}
		changed = true
		if err := l.allows(v, adjacency); err != nil {
			return err
		}
	}
	if !changed {
		return nil
	}
	return l.appendLocked(e)
}

// allows returns an error if the limit of e is below what records of its source have paid.
func (l *ledger) allows(e Entry, adjacency dp.Adjacency) error {
	reserved, _ := l.reserved(e.Source)
	for _, adjacency := range l.adjacencies(e.Source, adjacency) {
		worst, over, err := l.within(e.Source, adjacency, reserved, nil, nil, e.LimitEpsilon, e.LimitDelta)
		if err != nil {
			return err
		}
		if over != nil {
			spent, err := worst.Epsilon(e.LimitDelta)
			if err != nil {
				return err
			}
			aside := ""
			if !reserved.Empty() {
				aside = ", beside what is set aside for sketches"
			}
			return halted(haltBudget, "limit_epsilon %g at delta %g is below what records of %s/%d have paid: %s (%s)%s",
				e.LimitEpsilon, e.LimitDelta, e.Topic, e.Partition, core.AtMost(spent), adjacency, aside)
		}
	}
	return nil
}

// charged returns what the worst-off record of a source pays, over all epochs of all
// streams, if the epoch of closing ended there. If several costs cannot be compared, it
// takes the one with the largest ε at delta.
func (l *ledger) charged(s core.Source, adjacency dp.Adjacency, delta float64, closing *Entry) (dp.Cost, error) {
	return dp.Charged(l.charges(s, nil, closing), adjacency, delta)
}

// charges returns all charges of a source, of all epochs of all streams, and extra, if
// the epoch of closing ended there. Within one incarnation of the log charges compose by
// position. Those of different incarnations add up, because these may hold the same
// people.
func (l *ledger) charges(s core.Source, extra, closing *Entry) (charges []dp.Charge) {
	add := func(e *Entry, end int64) {
		charges = append(charges, dp.Charge{Log: e.Incarnation, First: e.First, End: end, Cost: e.Cost})
	}
	if of := l.index.sources[s]; of != nil {
		charges = slices.Clone(of.closed)
		for _, i := range of.open {
			e, _ := l.entries[i].view(s)
			if closing != nil && closing.Task() == l.entries[i].Task() && closing.Epoch == e.Epoch {
				if ended, ok := closing.view(s); ok {
					e.End = ended.End
				}
			}
			add(&e, e.End)
		}
	}
	if extra != nil {
		add(extra, extra.End)
	}
	return charges
}

// epsilon returns the ε at delta of all charges so far, if the epoch of closing ended there.
func (l *ledger) epsilon(s core.Source, adjacency dp.Adjacency, delta float64, closing *Entry) (float64, error) {
	cost, err := l.charged(s, adjacency, delta, closing)
	if err != nil {
		return 0, err
	}
	return cost.Epsilon(delta)
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// chargedEpsilon returns the ε at delta that the worst-off record of a source has paid.
// It takes the given adjacency or, if that gives more, another one in which the source
// was ever charged.
func (l *ledger) chargedEpsilon(s core.Source, adjacency dp.Adjacency, delta float64) (float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, worst, err := l.strictest(s, adjacency, delta)
	return worst, err
}

// strictest looks at an adjacency, and at those in which the source was ever charged. It
// returns the one in which the worst-off record has paid most, and that ε.
func (l *ledger) strictest(s core.Source, also dp.Adjacency, delta float64) (worst dp.Adjacency, most float64, err error) {
	worst = also
	for _, a := range l.adjacencies(s, also) {
		eps, err := l.epsilon(s, a, delta, nil)
		if err != nil {
			return worst, 0, err
		}
		if eps > most {
			worst, most = a, eps
		}
	}
	return worst, most, nil
}
