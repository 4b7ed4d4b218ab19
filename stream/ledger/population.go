package ledger

import (
	"cmp"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// PopulationSpent is what the ledger says about the persons of one population.
type PopulationSpent struct {
	Unit       string `json:"unit"` // "person"
	Population string `json:"population"`
	// LimitEpsilon and LimitDelta are the population's limit, as last recorded.
	LimitEpsilon float64 `json:"limit_epsilon"`
	LimitDelta   float64 `json:"limit_delta"`
	// Limits are the changes of the limit, in order.
	Limits []LimitChange `json:"limit_changes,omitempty"`
	// Adjacency is the adjacency, among those in which the population was ever charged, in which its worst-off person
	// has paid most.
	Adjacency dp.Adjacency `json:"adjacency"`
	// OnePartition reports whether every user key counts in one partition only. If so, Mu is the largest sum of a
	// partition; otherwise it is the sum over all epochs. A task whose persons are protected per period counts only its
	// dearest stretch: consecutive epochs with as many steps as a period.
	OnePartition bool `json:"one_partition"`
	// Mu is what the worst-off person has paid, and ChargedEpsilon is its ε at LimitDelta.
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

// PopulationEpoch is an epoch of a population.
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
	Mu          float64      `json:"mu"`      // of the epoch by itself
	Charged     bool         `json:"charged"` // false: it closed without a step
}

// Populations reports what the persons of every population were charged or, if stream is not empty, only of those
// populations that the stream has read. For each number in groups it adds the ε that protects this number of persons
// together.
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
