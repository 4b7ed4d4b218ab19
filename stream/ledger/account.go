package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// unitPerson is the unit of an opening that protects persons. One that protects records, and
// every line of older builds, has none.
const unitPerson = "person"

// EntryPerson is what an opening says of the persons that it protects.
type EntryPerson struct {
	// Population is the name of the account: what its epochs cost a person is added up.
	Population string `json:"population"`
	Key        string `json:"key"` // where a record's user key is
	Cap        uint64 `json:"cap"`
	Separation uint64 `json:"separation"`
	PerStep    uint64 `json:"per_step"`
	// Period is the number of steps after which every person begins anew: the account is then of the records that
	// somebody has in one period of each epoch of a stretch; see stretches. 0: of all records.
	Period uint64 `json:"period,omitempty"`
	// Step is the length of a step, with a period: steps of other lengths make other periods. "" in lines that
	// did not say it, whose epochs are in every stretch.
	Step string `json:"step,omitempty"`
	// Partitioner is "murmur2" where a user key counts in one partition only, which follows
	// from the key and the number of Partitions of the topic; else "none".
	Partitioner string `json:"partitioner"`
	Partitions  int    `json:"partitions"`
	// Refuses says that max_users may be reached. Then who leaves a partition lets somebody else in
	// there, and who comes to another one may put somebody out.
	Refuses bool `json:"refuses,omitempty"`
}

// PersonOf returns what an opening says of a stream's persons, and its unit; none where
// records are protected. The input topic has so many partitions.
func PersonOf(s *config.Stream, partitions int) (unit string, p *EntryPerson) {
	u := s.User
	if u == nil {
		return "", nil
	}
	rule, step := s.Participation(), ""
	if u.Period > 0 {
		step = s.StepLength()
	}
	return unitPerson, &EntryPerson{
		Population: u.Population, Key: u.Key, Cap: rule.Count, Separation: rule.Separation, PerStep: rule.PerStep,
		Period: u.Period, Step: step,
		Partitioner: u.Partitioner, Partitions: partitions, Refuses: s.Refuses(),
	}
}

// soundUnit reports whether an entry says whom it protects as a line of its kind must.
func (e *Entry) soundUnit() bool {
	switch {
	case e.Person == nil:
		return e.Unit == ""
	case e.Kind != KindOpen || e.Unit != unitPerson:
		return false
	}
	p := e.Person
	if p.Step != "" && p.Period == 0 {
		return false
	}
	return p.Population != "" && p.Key != "" &&
		(p.Partitioner == "none" || p.Partitioner == "murmur2" && p.Key == config.UserRecordKey) && p.Partitions > 0
}

// Account is what a limit is about, and what charges add up for: the records of a source,
// or the persons of a population.
type Account struct {
	core.Source        // of records
	Population  string // of persons; "": it is of records
}

// String names the account in messages.
func (a Account) String() string {
	if a.Population != "" {
		return "population " + a.Population
	}
	return fmt.Sprintf("%s/%d", a.Topic, a.Partition)
}

// payer names one who pays from the account.
func (a Account) payer() string {
	if a.Population != "" {
		return "a person"
	}
	return "a record"
}

// payers names all who do, with their verb.
func (a Account) payers() string {
	if a.Population != "" {
		return "persons of population " + a.Population + " have"
	}
	return "records of " + a.String() + " have"
}

// account returns what an opening, or a view of one, is charged to. Offsets don't separate
// persons: whoever has a record at one offset may have one at any other.
func (e *Entry) account() Account {
	if e.Person != nil {
		return Account{Population: e.Person.Population}
	}
	return Account{Source: e.Source}
}

// charged returns an opening as it is for each account that it is charged to.
func (e *Entry) charged() []Entry {
	if e.Person != nil {
		return []Entry{*e} // a merged epoch counts a person once, over all its partitions
	}
	return e.Views()
}

// accounts returns what an opening is charged to.
func (e *Entry) accounts() (all []Account) {
	for _, v := range e.charged() {
		all = append(all, v.account())
	}
	return all
}

// accountsOf returns what the epoch of a line is charged to.
func (l *Ledger) accountsOf(e *Entry) []Account {
	if of := l.index.Tasks[e.Task()]; of != nil {
		if i, known := of.openings[e.Epoch]; known {
			e = &l.Entries[i]
		}
	}
	return e.accounts()
}

// accountIndex is the index of one account. Its numbers are indexes of entries.
type accountIndex struct {
	openings    []int
	open        []int       // openings that have not ended
	Closed      []dp.Charge // records: of closed epochs, ranges of one cost that meet as one
	Settled     map[share]dp.Cost
	stretches   map[core.Task]*stretches // persons of a period: of closed epochs
	layouts     map[layout]int           // persons: of openings that are not void, how many have it
	adjacencies []dp.Adjacency
	limit       int   // the last line that has one, −1 where there is none
	first       int   // the opening that sets aside for sketches, −1 where there is none
	lines       []int // all that concern the account
	history     *budgetHistory
}

// share is what a partition of a closed epoch adds to what persons pay; the partition is
// core.Merged of an epoch over several ones.
type share struct {
	partition int
	adjacency dp.Adjacency
}

func compareShares(a, b share) int {
	return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.adjacency, b.adjacency))
}

// layout is what decides whether all that a person changes is in one partition, or in two by half.
//
// Under replace the one who comes may be at home in another partition than the one who goes. Both
// partitions change then, each by one person who comes or goes. That is at most 1/√2 of what the
// partition is charged, for a charge is for one who goes and one who comes: so both together cost no
// more than the larger one. With a full table each of the two also moves somebody else over its edge,
// and each partition pays all of its charge. Under zero-out nobody comes to another partition.
type layout struct {
	cluster, topic string
	partitions     int
	enforced       bool
}

func (e *Entry) layout() layout {
	return layout{e.Cluster, e.Topic, e.Person.Partitions, e.Person.Partitioner == "murmur2" &&
		!(e.Person.Refuses && e.Cost.Adjacency == dp.Replace)}
}

// account returns the index of an account.
func (x *ledgerIndex) account(of Account) *accountIndex {
	a := x.Accounts[of]
	if a == nil {
		a = &accountIndex{limit: -1, first: -1}
		if of.Population != "" {
			a.Settled, a.layouts, a.stretches = map[share]dp.Cost{}, map[layout]int{}, map[core.Task]*stretches{}
		}
		x.Accounts[of] = a
	}
	return a
}

// add indexes the last line, entry i, as it is for the account. opened is the epoch's opening,
// entry number opening, as it is for the account; nil where there is none.
func (a *accountIndex) add(x *ledgerIndex, entries []Entry, i, opening int, opened *Entry, e Entry) {
	a.lines = append(a.lines, i)
	ended := func() {
		a.open = slices.DeleteFunc(a.open, func(b int) bool { return b == opening })
	}
	switch e.Kind {
	case KindOpen:
		a.openings, a.open = append(a.openings, i), append(a.open, i)
		if !slices.Contains(a.adjacencies, e.Cost.Adjacency) {
			a.adjacencies = append(a.adjacencies, e.Cost.Adjacency)
		}
		if a.first < 0 {
			a.first = i
		}
		a.limit = i
		if e.Person != nil {
			a.layouts[e.layout()]++
		}
	case KindLimit:
		a.limit = i
	case KindClose:
		if opened == nil {
			break
		}
		ended()
		a.settle(opened, &e)
	case KindVoid:
		if opened == nil {
			break
		}
		ended()
		if opened.Person != nil {
			if a.layouts[opened.layout()]--; a.layouts[opened.layout()] == 0 {
				delete(a.layouts, opened.layout())
			}
		}
		// An epoch that never began released nothing. So its part for sketches counts only
		// if it is not empty.
		a.first = -1
		for _, o := range a.openings {
			if end, ended := x.ends[o]; !ended || entries[end].Kind != KindVoid || !entries[o].Reserved.Empty() {
				a.first = o
				break
			}
		}
	}
}

// settle indexes the charge of a closed epoch. An epoch without a step released nothing and
// charges nothing. Of records, adjacent ranges of one log with the same cost are merged; every
// position pays the same as before.
func (a *accountIndex) settle(opened, end *Entry) {
	if end.End == opened.First {
		return
	}
	if opened.stretches() {
		s := a.stretches[opened.Task()]
		if s == nil {
			s = newStretches(opened)
			a.stretches[opened.Task()] = s
		}
		s.add(opened, end)
		return
	}
	if opened.Person != nil {
		at := share{opened.Partition, opened.Cost.Adjacency}
		a.Settled[at] = composed(a.Settled[at], opened.Cost)
		return
	}
	c := dp.Charge{Log: opened.Incarnation, First: opened.First, End: end.End, Cost: opened.Cost}
	for i := len(a.Closed) - 1; i >= 0; i-- {
		if was := &a.Closed[i]; was.Log == c.Log && was.End == c.First && was.Cost.Equal(c.Cost) {
			was.End = c.End
			return
		}
	}
	a.Closed = append(a.Closed, c)
}

// composed adds a cost to a sum, which is the zero value before the first.
func composed(sum, c dp.Cost) dp.Cost {
	if sum.Adjacency == 0 {
		return c
	}
	return dp.Compose(sum, c)
}

// enforced reports whether a person pays for one partition only: all of the population's
// epochs, and extra, see to it, and agree on where that is. extra may be nil.
func (a *accountIndex) enforced(extra *Entry) bool {
	all := slices.Collect(maps.Keys(a.layouts))
	if extra != nil && !slices.Contains(all, extra.layout()) {
		all = append(all, extra.layout())
	}
	return len(all) == 1 && all[0].enforced
}

// personCharges returns the charges of a population, and extra, if the epoch of closing ended
// there. Of a task whose persons are those of a period it takes the dearest stretch. What persons of all
// partitions pay is at all positions; where every user key counts in one partition only, a partition is a
// position. So [dp.MostCharged] adds up all of it, or takes the largest sum of a partition.
func (l *Ledger) personCharges(a *accountIndex, extra, closing *Entry) (charges []dp.Charge) {
	enforced := a.enforced(extra)
	sums := map[share]dp.Cost{}
	add := func(at share, c dp.Cost) {
		if !enforced {
			at.partition = core.Merged
		}
		sums[at] = composed(sums[at], c)
	}
	for _, at := range slices.SortedFunc(maps.Keys(a.Settled), compareShares) {
		add(at, a.Settled[at])
	}
	begun := map[core.Task]*stretches{} // of tasks that have an epoch beside the closed ones
	pays := func(e, end *Entry) {
		if !e.stretches() {
			add(share{e.Partition, e.Cost.Adjacency}, e.Cost)
			return
		}
		s := begun[e.Task()]
		if s == nil {
			if s = a.stretches[e.Task()].clone(); s == nil {
				s = newStretches(e)
			}
			begun[e.Task()] = s
		}
		s.add(e, end)
	}
	for _, i := range a.open {
		e := &l.Entries[i]
		if closing == nil || closing.Task() != e.Task() || closing.Epoch != e.Epoch {
			pays(e, nil)
		} else if closing.End != e.First {
			pays(e, closing)
		}
	}
	if extra != nil {
		pays(extra, nil)
	}
	tasks := maps.Clone(a.stretches)
	if tasks == nil {
		tasks = begun
	}
	maps.Copy(tasks, begun)
	for _, t := range slices.SortedFunc(maps.Keys(tasks), compareTasks) {
		for _, c := range tasks[t].costs() {
			add(share{t.Partition, c.Adjacency}, c)
		}
	}
	order := slices.SortedFunc(maps.Keys(sums), compareShares)
	one := !slices.ContainsFunc(order, func(at share) bool { return at.adjacency != order[0].adjacency })
	for _, at := range order {
		c := dp.Charge{First: 0, End: -1, Cost: sums[at]}
		if at.partition != core.Merged {
			c.First, c.End = int64(at.partition), int64(at.partition)+1
			// Of a thousand partitions most pay the same. What another one covers decides nothing.
			if n := len(charges) - 1; one && n >= 0 && charges[n].End >= 0 {
				if charges[n].Cost.Covers(c.Cost) {
					continue
				}
				if c.Cost.Covers(charges[n].Cost) {
					charges = charges[:n]
				}
			}
		}
		charges = append(charges, c)
	}
	return charges
}

// topic is a topic of a cluster.
type topic struct{ cluster, name string }

// protected is who the persons of a topic are.
type protected struct {
	population, key string
	period          uint64
}

// topicUnits counts a topic's openings that are not void, by whom they protect.
type topicUnits struct {
	records int
	persons map[protected]int
}

// count adds n openings like e.
func (x *ledgerIndex) count(e *Entry, n int) {
	at := topic{e.Cluster, e.Topic}
	t := x.topics[at]
	if t == nil {
		t = &topicUnits{persons: map[protected]int{}}
		x.topics[at] = t
	}
	if e.Person == nil {
		t.records += n
		return
	}
	of := protected{e.Person.Population, e.Person.Key, e.Person.Period}
	if t.persons[of] += n; t.persons[of] == 0 {
		delete(t.persons, of)
	}
}

// unitOf names what a person's records are protected in.
func unitOf(period uint64) string {
	if period == 0 {
		return "a whole epoch"
	}
	return fmt.Sprintf("a period of %d steps", period)
}

// agrees returns an error if an opening protects others than the epochs that its topic had.
// What persons pay would not contain what these cost them: an epoch that protects records
// bounds nothing for somebody with many of them, and one with other user keys bounds what
// others pay.
func (l *Ledger) agrees(e *Entry) error {
	if e.Person != nil {
		for at, t := range l.index.topics {
			for was := range t.persons {
				if was.population == e.Person.Population && was.period != e.Person.Period {
					return failure.Haltf(failure.Configuration,
						"population %s has epochs, over topic %s, that protect what a person has in %s, this one "+
							"would protect what one has in %s: "+
							"nothing would bound what both cost a person; configure period as it was", was.population,
						at.name, unitOf(was.period), unitOf(e.Person.Period))
				}
			}
		}
	}
	t := l.index.topics[topic{e.Cluster, e.Topic}]
	if t == nil {
		return nil
	}
	if e.Person == nil {
		if len(t.persons) > 0 {
			return failure.Haltf(failure.Configuration,
				"topic %s has epochs that protect persons, so no epoch may protect its records alone: "+
					"nothing would bound what that costs a person; add [stream.%s.user] as the others have it",
				e.Topic, e.Stream)
		}
		return nil
	}
	if t.records > 0 {
		return failure.Haltf(failure.Configuration,
			"topic %s has epochs that protect single records, so no epoch may protect its persons: "+
				"nothing bounds what they cost a person, so limit_epsilon would be no bound; leave [stream.%s.user] "+
				"out, or copy what is to come to another topic", e.Topic, e.Stream)
	}
	for was := range t.persons {
		if was != (protected{e.Person.Population, e.Person.Key, e.Person.Period}) {
			return failure.Haltf(failure.Configuration,
				"topic %s has epochs that protect persons of population %s by key %q, this one would protect those "+
					"of population %s by key %q: "+
					"nothing would bound what both cost a person; configure population and key as they were", e.Topic,
				was.population, was.key, e.Person.Population, e.Person.Key)
		}
	}
	return nil
}
