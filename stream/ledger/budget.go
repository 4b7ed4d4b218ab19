package ledger

import (
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// ErrBudget is the error of an opening that would exceed the limit.
type ErrBudget struct {
	account        Account
	spent, limit   float64 // ε at the limit's δ
	delta          float64
	adjacency      dp.Adjacency
	alreadyCharged float64
	// reserved is the part of the limit that is set aside for sketches, if the epoch exceeds that part; else nil.
	reserved *dp.Cost
}

func (e *ErrBudget) Error() string {
	switch r := e.reserved; {
	case r == nil:
	case r.Empty():
		return fmt.Sprintf(
			"no budget of %s is set aside for sketches, and only the first epoch charged to it can set some aside, "+
				"before the first release: use a solver without sketches", e.account)
	default:
		return fmt.Sprintf(
			"the budget that %s has set aside for sketches is spent: with this epoch, sketches would be charged more "+
				"than %s; a solver without sketches may still fit",
			e.account, core.SketchesInWords(*r))
	}
	return fmt.Sprintf(
		"budget of %s spent: with %s charged to date, this epoch would bring %s to epsilon %s at delta %g (%s), "+
			"above limit_epsilon %g",
		e.account, core.AtMost(e.alreadyCharged), e.account.payer(), core.AtMost(e.spent), e.delta,
		e.adjacency, e.limit)
}

// fitsAll calls fits for every account that e charges, and returns the largest ε.
func (l *Ledger) fitsAll(e, closing *Entry) (charged float64, err error) {
	if err := l.agrees(e); err != nil {
		return 0, err
	}
	for _, v := range e.charged() {
		spent, err := l.fits(&v, closing)
		if err != nil {
			return 0, err
		}
		charged = max(charged, spent)
	}
	return charged, nil
}

// Affords returns an error if the limit would not allow epoch e after the task's open epoch is closed at the given
// ends. steps is a lower bound on the steps of the open epoch.
func (l *Ledger) Affords(e Entry, opened *Entry, end []EntryPart, steps uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.fitsAll(&e, opened.closing(end, steps))
	return err
}

// fits returns the ε that e's account has paid, including e. It returns an ErrBudget if this exceeds the limit in e's
// adjacency, or in any other adjacency in which the account was ever charged.
func (l *Ledger) fits(e, closing *Entry) (charged float64, err error) {
	a := e.account()
	reserved, first := l.reserved(a)
	if first {
		reserved = e.Reserved
	}
	for _, adjacency := range l.adjacencies(a, e.Cost.Adjacency) {
		worst, over, err := l.within(a, adjacency, reserved, e, closing, e.LimitEpsilon, e.LimitDelta)
		if err != nil {
			return 0, err
		}
		spent, err := worst.Epsilon(e.LimitDelta)
		if err != nil {
			return 0, err
		}
		if over != nil {
			if over.alreadyCharged, err = l.Epsilon(a, adjacency, e.LimitDelta, closing); err != nil {
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

// adjacencies returns the adjacencies in which an account was ever charged. It also includes the adjacency passed in
// `also`.
func (l *Ledger) adjacencies(a Account, also dp.Adjacency) (all []dp.Adjacency) {
	if of := l.index.Accounts[a]; of != nil {
		all = slices.Clone(of.adjacencies)
	}
	if !slices.Contains(all, also) {
		all = append(all, also)
	}
	return all
}

// within compares the charges to an account with the limit (ε, δ) and with the part set aside for sketches. The charges
// include extra, and assume that the epoch of closing ended at closing. within returns the largest cost; over is an
// error if the limit is exceeded.
func (l *Ledger) within(a Account, adjacency dp.Adjacency, reserved dp.Cost, extra, closing *Entry, epsilon,
	delta float64) (worst dp.Cost, over *ErrBudget, err error) {
	costs, err := dp.MostCharged(l.charges(a, extra, closing), adjacency)
	if err != nil {
		return worst, nil, err
	}
	if worst, err = dp.Parallel(delta, costs...); err != nil {
		return worst, nil, err
	}
	if reserved.Adjacency == 0 { // nothing is set aside
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
		over = &ErrBudget{account: a, limit: epsilon, delta: delta, adjacency: adjacency}
		if c.Mu = 0; !reserved.Covers(c) {
			over.reserved = &reserved
		}
		return worst, over, nil
	}
	return worst, nil, nil
}

// reserved returns the part of an account's limit that is set aside for sketches. The account's first opening sets this
// part, before any release. first is true if there is no opening yet.
func (l *Ledger) reserved(a Account) (reserved dp.Cost, first bool) {
	if of := l.index.Accounts[a]; of != nil && of.first >= 0 {
		return l.Entries[of.first].Reserved, false
	}
	return dp.Cost{}, true
}

// Unopened reports whether no epoch of the account was ever opened.
func (l *Ledger) Unopened(a Account) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unopenedLocked(a)
}

func (l *Ledger) unopenedLocked(a Account) bool {
	_, first := l.reserved(a)
	return first
}

// limits reports whether the limit in e differs from the last one recorded. It returns an error if the limit is below
// what was already paid.
func (l *Ledger) limits(e Entry, adjacency dp.Adjacency) (changed bool, err error) {
	same := func(a Account) bool {
		of := l.index.Accounts[a]
		if of == nil || of.limit < 0 {
			return false
		}
		old := &l.Entries[of.limit]
		return old.LimitEpsilon == e.LimitEpsilon && old.LimitDelta == e.LimitDelta
	}
	about := e
	if of := l.index.Tasks[e.Task()]; of != nil {
		if i, known := of.openings[e.Epoch]; known {
			about.Person = l.Entries[i].Person
		}
	}
	for _, a := range about.accounts() {
		if same(a) {
			continue
		}
		changed = true
		if err := l.allows(a, &e, adjacency); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// allows returns an error if the limit in e is below what was already paid from an account.
func (l *Ledger) allows(a Account, e *Entry, adjacency dp.Adjacency) error {
	reserved, _ := l.reserved(a)
	for _, adjacency := range l.adjacencies(a, adjacency) {
		worst, over, err := l.within(a, adjacency, reserved, nil, nil, e.LimitEpsilon, e.LimitDelta)
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
				aside = ", not counting what is set aside for sketches"
			}
			return failure.Haltf(failure.Budget, "limit_epsilon %g at delta %g is below what %s paid: %s (%s)%s",
				e.LimitEpsilon, e.LimitDelta, a.payers(), core.AtMost(spent), adjacency, aside)
		}
	}
	return nil
}

// Charged returns the cost to the record of a source, or to the person of a population, that pays most for all epochs
// of all streams. It assumes that the epoch of closing ended at closing. If several costs cannot be compared, it
// returns the one with the largest ε at delta.
func (l *Ledger) Charged(a Account, adjacency dp.Adjacency, delta float64, closing *Entry) (dp.Cost, error) {
	return dp.Charged(l.charges(a, nil, closing), adjacency, delta)
}

// charges returns all charges to an account, by all epochs of all streams and by extra. It assumes that the epoch of
// closing ended at closing. Charges to records add up at each position, within one incarnation of the log. Charges in
// different incarnations add up at all positions, because both may hold data of the same people. Charges to persons
// come from personCharges.
func (l *Ledger) charges(a Account, extra, closing *Entry) (charges []dp.Charge) {
	of := l.index.Accounts[a]
	if a.Population != "" {
		if of == nil {
			of = new(accountIndex)
		}
		return l.personCharges(of, extra, closing)
	}
	add := func(e *Entry, end int64) {
		charges = append(charges, dp.Charge{Log: e.Incarnation, First: e.First, End: end, Cost: e.Cost})
	}
	if of != nil {
		charges = slices.Clone(of.Closed)
		for _, i := range of.open {
			e, _ := l.Entries[i].View(a.Source)
			if closing != nil && closing.Task() == l.Entries[i].Task() && closing.Epoch == e.Epoch {
				if ended, ok := closing.View(a.Source); ok {
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

// Epsilon returns the ε at delta of all charges so far. It assumes that the epoch of closing ended at closing.
func (l *Ledger) Epsilon(a Account, adjacency dp.Adjacency, delta float64, closing *Entry) (float64, error) {
	cost, err := l.Charged(a, adjacency, delta, closing)
	if err != nil {
		return 0, err
	}
	return cost.Epsilon(delta)
}

// chargedEpsilon returns the ε, at delta, of the record or person of the account that has paid most. It is the maximum
// over the given adjacency and all adjacencies in which the account was ever charged.
func (l *Ledger) chargedEpsilon(a Account, adjacency dp.Adjacency, delta float64) (float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, worst, err := l.strictest(a, adjacency, delta)
	return worst, err
}

// strictest compares the given adjacency and all adjacencies in which the account was ever charged. It returns the
// adjacency in which most was paid, and the ε paid in it.
func (l *Ledger) strictest(of Account, also dp.Adjacency, delta float64) (worst dp.Adjacency, most float64, err error) {
	worst = also
	for _, a := range l.adjacencies(of, also) {
		eps, err := l.Epsilon(of, a, delta, nil)
		if err != nil {
			return worst, 0, err
		}
		if eps > most {
			worst, most = a, eps
		}
	}
	return worst, most, nil
}
