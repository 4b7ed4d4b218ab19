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

// unitPerson is the Unit of an opening that protects persons. The Unit is empty in openings that protect records, and
// in every line of older builds.
const unitPerson = "person"

// EntryPerson is the part of an opening that describes the protected persons.
type EntryPerson struct {
	// Population is the name of the account. The costs to a person of all epochs with this name add up.
	Population string `json:"population"`
	Key        string `json:"key"` // the part of a record that has the user key
	Cap        uint64 `json:"cap"`
	Separation uint64 `json:"separation"`
	PerStep    uint64 `json:"per_step"`
	// Period is a number of steps. The account then protects the records that a person has in one period of each epoch
	// of a stretch; see stretches. 0: it protects all records of a person.
	Period uint64 `json:"period,omitempty"`
	// Step is the length of a step. It is set if there is a period, because a period with steps of another length is a
	// different period. It is "" in lines of older builds, which did not record it; their epochs count in every
	// stretch.
	Step string `json:"step,omitempty"`
	// Partitioner is "murmur2" if each user key counts in one partition only; the key and the topic's number of
	// Partitions determine which. Otherwise Partitioner is "none".
	Partitioner string `json:"partitioner"`
	Partitions  int    `json:"partitions"`
	// Refuses reports whether max_users may be reached, so that further users are refused. A user who leaves a
	// partition may then make room for another user there, and a user who moves to another partition may displace one.
	Refuses bool `json:"refuses,omitempty"`
}

// PersonOf returns the unit and the description of persons for the entry that opens a stream's epoch. If the stream
// protects records, it returns "" and nil. partitions is the number of partitions of the input topic.
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

// soundUnit reports whether an entry's unit and person are valid for a line of its kind.
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

// Account identifies a budget: the records of a source, or the persons of a population. An account has one limit, and
// charges to it add up.
type Account struct {
	core.Source        // of the records; unused if Population is set
	Population  string // of the persons; "": the account is for records
}

// String names the account in messages.
func (a Account) String() string {
	if a.Population != "" {
		return "population " + a.Population
	}
	return fmt.Sprintf("%s/%d", a.Topic, a.Partition)
}

// payer names a single payer of the account.
func (a Account) payer() string {
	if a.Population != "" {
		return "a person"
	}
	return "a record"
}

// payers names all payers of the account, followed by "have".
func (a Account) payers() string {
	if a.Population != "" {
		return "persons of population " + a.Population + " have"
	}
	return "records of " + a.String() + " have"
}

// account returns the account that an opening, or a view of one, is charged to. Charges to persons cannot be separated
// by offset, because a person with a record at one offset may have records at any other.
func (e *Entry) account() Account {
	if e.Person != nil {
		return Account{Population: e.Person.Population}
	}
	return Account{Source: e.Source}
}

// charged returns one view of an opening for each account that it is charged to.
func (e *Entry) charged() []Entry {
	if e.Person != nil {
		return []Entry{*e} // a merged epoch is charged once for a person, not once per partition
	}
	return e.Views()
}

// accounts returns the accounts that an opening is charged to.
func (e *Entry) accounts() (all []Account) {
	for _, v := range e.charged() {
		all = append(all, v.account())
	}
	return all
}

// accountsOf returns the accounts that the epoch of a line is charged to.
func (l *Ledger) accountsOf(e *Entry) []Account {
	if of := l.index.Tasks[e.Task()]; of != nil {
		if i, known := of.openings[e.Epoch]; known {
			e = &l.Entries[i]
		}
	}
	return e.accounts()
}

// accountIndex is the index of one account. Its integers are indexes of entries.
type accountIndex struct {
	openings    []int
	open        []int       // openings that have not ended
	Closed      []dp.Charge // for records: charges of closed epochs; adjacent ranges of equal cost are merged
	Settled     map[share]dp.Cost
	stretches   map[core.Task]*stretches // for persons with a period: stretches of closed epochs
	layouts     map[layout]int           // for persons: number of openings with each layout, without void ones
	adjacencies []dp.Adjacency
	limit       int   // index of the last line that sets a limit, −1 if there is none
	first       int   // index of the opening that sets aside a part of the limit for sketches, −1 if there is none
	lines       []int // all lines that concern the account
	history     *budgetHistory
}

// share identifies one sum: the charges to persons by all closed epochs over one partition. partition is core.Merged
// for epochs over several partitions.
type share struct {
	partition int
	adjacency dp.Adjacency
}

func compareShares(a, b share) int {
	return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.adjacency, b.adjacency))
}

// layout has the properties of an epoch that decide whether changing one person affects only one partition, or may
// affect two.
//
// Under replace, the person who is added may belong to another partition than the person who is removed. Two partitions
// change then, and in each only one person is added or removed. A partition's charge covers one removal and one
// addition, so one of the two costs at most 1/√2 of it. Both together thus cost no more than the larger of the two
// charges. If the user table is full, however, each of the two persons also displaces another user, and each partition
// pays its whole charge. Under zero-out nobody is added to another partition.
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

// add indexes entry i, which is the last line. e is the view of this entry for the account. opened is the account's
// view of the epoch's opening, which is entry number `opening`; it is nil if there is none.
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
		// A voided epoch released nothing, so its part for sketches counts only if it is not empty.
		a.first = -1
		for _, o := range a.openings {
			if end, ended := x.ends[o]; !ended || entries[end].Kind != KindVoid || !entries[o].Reserved.Empty() {
				a.first = o
				break
			}
		}
	}
}

// settle indexes the charge of a closed epoch. An epoch without a step released nothing and charges nothing. For
// records, settle merges adjacent ranges of one log that have the same cost; this does not change what any position
// pays.
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

// composed adds cost c to sum. The sum before the first cost is the zero value.
func composed(sum, c dp.Cost) dp.Cost {
	if sum.Adjacency == 0 {
		return c
	}
	return dp.Compose(sum, c)
}

// enforced reports whether a person pays for one partition only. This holds if all epochs of the population, and extra,
// enforce it and have the same layout. extra may be nil.
func (a *accountIndex) enforced(extra *Entry) bool {
	all := slices.Collect(maps.Keys(a.layouts))
	if extra != nil && !slices.Contains(all, extra.layout()) {
		all = append(all, extra.layout())
	}
	return len(all) == 1 && all[0].enforced
}

// personCharges returns the charges to a population, including those of extra. It assumes that the epoch of closing
// ended at closing. A task that protects persons per period is charged for its most expensive stretch. If every user
// key counts in one partition only, each partition becomes one position of the result; otherwise every charge covers
// all positions. So [dp.MostCharged] returns the largest sum of any partition in the first case, and the sum of all
// charges in the second.
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
	begun := map[core.Task]*stretches{} // the stretches of tasks with open epochs
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
			// Most of a thousand partitions pay equally. A charge that another one covers cannot be the largest, so
			// drop it.
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

// protected identifies the persons that epochs over a topic protect.
type protected struct {
	population, key string
	period          uint64
}

// topicUnits counts the openings over a topic that are not void, by what they protect.
type topicUnits struct {
	records int
	persons map[protected]int
}

// count adds n, which may be negative, to the count of openings that protect the same as e.
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

// unitOf describes which records of a person are protected together.
func unitOf(period uint64) string {
	if period == 0 {
		return "a whole epoch"
	}
	return fmt.Sprintf("a period of %d steps", period)
}

// agrees returns an error if an opening protects other units than earlier epochs of its topic. The charges to its
// persons would not include the cost of those epochs: an epoch that protects records gives no bound for a person with
// many records, and an epoch with other user keys bounds the cost to other units.
func (l *Ledger) agrees(e *Entry) error {
	if e.Person != nil {
		for at, t := range l.index.topics {
			for was := range t.persons {
				if was.population == e.Person.Population && was.period != e.Person.Period {
					return failure.Haltf(failure.Configuration,
						"epochs of population %s over topic %s protect what a person has in %s, but this epoch would "+
							"protect what a person has in %s: the total cost to a person would have no bound; set "+
							"period back to its former value", was.population,
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
				"earlier epochs over topic %s protect persons, so no epoch may protect only its records: the cost "+
					"to a person would have no bound; add [stream.%s.user] as in those epochs",
				e.Topic, e.Stream)
		}
		return nil
	}
	if t.records > 0 {
		return failure.Haltf(failure.Configuration,
			"earlier epochs over topic %s protect single records, so no epoch may protect its persons: their cost "+
				"to a person has no bound, so limit_epsilon could not hold; remove [stream.%s.user], or copy new "+
				"records to another topic and read that", e.Topic, e.Stream)
	}
	for was := range t.persons {
		if was != (protected{e.Person.Population, e.Person.Key, e.Person.Period}) {
			return failure.Haltf(failure.Configuration,
				"earlier epochs over topic %s protect persons of population %s by key %q, but this epoch would "+
					"protect persons of population %s by key %q: the total cost to a person would have no bound; set "+
					"population and key back to their former values", e.Topic,
				was.population, was.key, e.Person.Population, e.Person.Key)
		}
	}
	return nil
}
