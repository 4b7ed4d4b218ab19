package ledger

import (
	"cmp"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// PopulationSpent is the ledger's report on the persons of one population.
type PopulationSpent struct {
	Unit       string `json:"unit"` // always "person"
	Population string `json:"population"`
	// LimitEpsilon and LimitDelta are the population's limit, as last recorded.
	LimitEpsilon float64 `json:"limit_epsilon"`
	LimitDelta   float64 `json:"limit_delta"`
	// Limits are the changes of the limit, in order.
	Limits []LimitChange `json:"limit_changes,omitempty"`
	// Adjacency is the one in which a person has paid most, of all adjacencies in which the population was ever
	// charged.
	Adjacency dp.Adjacency `json:"adjacency"`
	// OnePartition reports whether every user key counts in one partition only. If so, costs are summed for each
	// partition, and Mu is the largest of these sums; otherwise Mu is the sum over all epochs. A task that protects
	// persons per period counts only its most expensive stretch. A stretch is consecutive epochs that together have at
	// least the steps of a period.
	OnePartition bool `json:"one_partition"`
	// Mu is the cost to the person who has paid most, and ChargedEpsilon is the corresponding ε at LimitDelta.
	Mu             float64 `json:"mu"`
	ChargedEpsilon float64 `json:"charged_epsilon"`
	// Persons gives the ε, at LimitDelta, that protects several persons together. An ε too large for a float64 is null.
	Persons []GroupSpent `json:"persons"`
	// Epochs are the charged epochs, in the order of the ledger.
	Epochs []PopulationEpoch `json:"epochs"`
}

// GroupSpent gives the ε that protects Count persons together.
type GroupSpent struct {
	Count   int      `json:"count"`
	Epsilon *float64 `json:"epsilon"`
}

// PopulationEpoch is the account of one epoch that protects the persons of a population.
type PopulationEpoch struct {
	SpentBy
	Cluster     string       `json:"cluster"`
	Topic       string       `json:"topic"`
	Key         string       `json:"key"`
	Cap         uint64       `json:"cap"`
	Separation  uint64       `json:"separation"`
	PerStep     uint64       `json:"per_step"`
	Period      uint64       `json:"period,omitempty"`
	Partitioner string       `json:"partitioner"`
	Adjacency   dp.Adjacency `json:"adjacency"`
	Mu          float64      `json:"mu"`      // cost of this epoch alone
	Charged     bool         `json:"charged"` // false: the epoch closed without a step
}

// Populations reports the charges to the persons of every population. If stream is not empty, it covers only the
// populations that this stream has read. Each report also has one ε for each number n in groups: the ε that protects n
// persons together.
func (b *Books) Populations(stream string, groups []int) ([]PopulationSpent, error) {
	out := []PopulationSpent{}
	for _, l := range b.Ledgers {
		var accounts []Account
		for i := range l.Entries {
			e := &l.Entries[i]
			if e.Person == nil || stream != "" && e.Stream != stream || slices.Contains(accounts, e.account()) {
				continue
			}
			accounts = append(accounts, e.account())
		}
		for _, a := range accounts {
			p, err := l.population(a, groups)
			if err != nil {
				return nil, err
			}
			out = append(out, *p)
		}
	}
	slices.SortStableFunc(out, func(a, b PopulationSpent) int { return cmp.Compare(a.Population, b.Population) })
	return out, nil
}

// population returns the report on one population.
func (l *Ledger) population(a Account, groups []int) (*PopulationSpent, error) {
	of := l.index.Accounts[a]
	out := &PopulationSpent{Unit: unitPerson, Population: a.Population, OnePartition: of.enforced(nil),
		Persons: []GroupSpent{}, Epochs: []PopulationEpoch{}}
	for _, i := range of.lines {
		e := &l.Entries[i]
		if e.Kind == KindOpen || e.Kind == KindLimit {
			if out.LimitEpsilon > 0 && (e.LimitEpsilon != out.LimitEpsilon || e.LimitDelta != out.LimitDelta) {
				out.Limits = append(out.Limits,
					LimitChange{e.Time, out.LimitEpsilon, out.LimitDelta, e.LimitEpsilon, e.LimitDelta})
			}
			out.LimitEpsilon, out.LimitDelta = e.LimitEpsilon, e.LimitDelta
		}
		end := l.End(i)
		if e.Kind != KindOpen || end != nil && end.Kind == KindVoid {
			continue
		}
		out.Adjacency = e.Cost.Adjacency
		out.Epochs = append(out.Epochs, PopulationEpoch{
			SpentBy: SpentBy{e.Stream, e.Partition, e.Epoch, end == nil, e.Mechanism, e.Epsilon, e.Delta},
			Cluster: e.Cluster, Topic: e.Topic,
			Key: e.Person.Key, Cap: e.Person.Cap, Separation: e.Person.Separation, PerStep: e.Person.PerStep,
			Period: e.Person.Period, Partitioner: e.Person.Partitioner,
			Adjacency: e.Cost.Adjacency, Mu: e.Cost.Mu, Charged: end == nil || end.End != e.First,
		})
	}
	if len(out.Epochs) == 0 { // all openings are void
		out.Adjacency = l.Entries[of.openings[0]].Cost.Adjacency
	}
	var err error
	if out.Adjacency, out.ChargedEpsilon, err = l.strictest(a, out.Adjacency, out.LimitDelta); err != nil {
		return nil, err
	}
	out.ChargedEpsilon = core.ToShow(out.ChargedEpsilon)
	cost, err := l.Charged(a, out.Adjacency, out.LimitDelta, nil)
	if err != nil {
		return nil, err
	}
	out.Mu = cost.Mu
	for _, p := range core.Persons(cost, out.LimitDelta, groups...) {
		out.Persons = append(out.Persons, GroupSpent{p.Records, p.Epsilon})
	}
	return out, nil
}
