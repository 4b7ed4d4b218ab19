package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// Spent is the ledger's report on one input partition.
type Spent struct {
	core.Source
	// LimitEpsilon and LimitDelta are the partition's limit, as last recorded.
	LimitEpsilon float64 `json:"limit_epsilon"`
	LimitDelta   float64 `json:"limit_delta"`
	// Limits are the changes of the limit, in order.
	Limits []LimitChange `json:"limit_changes,omitempty"`
	// Adjacency is the one in which a record has paid most, of all adjacencies in which the partition was ever charged.
	Adjacency dp.Adjacency `json:"adjacency"`
	// Reserved says how the limit is divided, if a part is set aside for sketches.
	Reserved *core.Reserved `json:"reserved,omitempty"`
	// ChargedEpsilon is the ε, at LimitDelta, of the record that has paid most, over all incarnations of the log.
	ChargedEpsilon float64 `json:"charged_epsilon"`
	// Ranges are the charged offsets, in order.
	Ranges []SpentRange `json:"ranges"`
}

// LimitChange is a change of a limit.
type LimitChange struct {
	Time            time.Time `json:"time"`
	OldLimitEpsilon float64   `json:"old_limit_epsilon"`
	OldLimitDelta   float64   `json:"old_limit_delta"`
	LimitEpsilon    float64   `json:"limit_epsilon"`
	LimitDelta      float64   `json:"limit_delta"`
}

// SpentRange is a range of offsets in which every record pays the same amount.
type SpentRange struct {
	Incarnation uint64 `json:"incarnation"`
	First       int64  `json:"first"`
	End         int64  `json:"end"` // −1: open end
	// By are the epochs that charge the range.
	By []SpentBy `json:"by"`
	// Cost is the total cost of these epochs to a record of the range, in the partition's adjacency.
	Cost    dp.Cost `json:"cost"`
	Epsilon float64 `json:"epsilon"` // ε of Cost, at LimitDelta
	// Persons gives the ε that protects a person with several records in the range.
	Persons []core.Person `json:"persons"`
}

// SpentBy is an epoch that charges a range.
type SpentBy struct {
	Stream    string  `json:"stream"`
	Partition int     `json:"partition"`
	Epoch     uint64  `json:"epoch"`
	Open      bool    `json:"open"`
	Mechanism string  `json:"mechanism"`
	Epsilon   float64 `json:"epsilon"` // ε of this epoch alone, at Delta
	Delta     float64 `json:"delta"`
}

// Spent reports the charges to the records of every input partition, by ranges of offsets. If stream is not empty, it
// covers only the partitions that this stream has read. Each range also has one ε for each number n in records: the ε
// that protects a person with n records in the range.
func (b *Books) Spent(stream string, records []int) ([]Spent, error) {
	out := []Spent{}
	for _, l := range b.Ledgers {
		for _, s := range l.sourcesOf(stream) {
			spent, err := l.spent(s, records)
			if err != nil {
				return nil, err
			}
			out = append(out, *spent)
		}
	}
	slices.SortStableFunc(out, func(a, b Spent) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition),
			cmp.Compare(a.Cluster, b.Cluster))
	})
	return out, nil
}

// sourcesOf returns the input partitions in which some epoch protects records. If stream is not empty, it returns only
// those that the stream has read.
func (l *Ledger) sourcesOf(stream string) (sources []core.Source) {
	for i := range l.Entries {
		e := &l.Entries[i]
		if e.Kind != KindOpen || e.Person != nil || stream != "" && e.Stream != stream {
			continue
		}
		for _, s := range e.Sources() {
			if !slices.Contains(sources, s) {
				sources = append(sources, s)
			}
		}
	}
	return sources
}

// spending is the charge of one epoch, for [Spent].
type spending struct {
	log        uint64 // incarnation
	first, end int64
	cost       dp.Cost
	by         SpentBy
}

// spent returns the report on one source.
func (l *Ledger) spent(s core.Source, records []int) (*Spent, error) {
	out := &Spent{Source: s, Ranges: []SpentRange{}}
	all := l.spendings(s, out)
	var err error
	a := Account{Source: s}
	if out.Adjacency, out.ChargedEpsilon, err = l.strictest(a, out.Adjacency, out.LimitDelta); err != nil {
		return nil, err
	}
	out.ChargedEpsilon = core.ToShow(out.ChargedEpsilon)
	reserved, _ := l.reserved(a)
	if !reserved.Empty() {
		in, err := reserved.In(out.Adjacency)
		if err != nil {
			return nil, err
		}
		mu, err := dp.ReservedMu(in, out.LimitEpsilon, out.LimitDelta)
		if err != nil {
			return nil, err
		}
		out.Reserved = &core.Reserved{Sketches: in, Mu: mu}
	}
	return out, out.divide(all, records)
}

// spendings returns the charge of each epoch over a source. It also sets the limit in out.
func (l *Ledger) spendings(s core.Source, out *Spent) (all []spending) {
	for i := range l.Entries {
		e, concerns := l.Entries[i].View(s)
		if !concerns {
			continue
		}
		if e.Kind == KindOpen || e.Kind == KindLimit {
			if out.LimitEpsilon > 0 && (e.LimitEpsilon != out.LimitEpsilon || e.LimitDelta != out.LimitDelta) {
				out.Limits = append(out.Limits,
					LimitChange{e.Time, out.LimitEpsilon, out.LimitDelta, e.LimitEpsilon, e.LimitDelta})
			}
			out.LimitEpsilon, out.LimitDelta = e.LimitEpsilon, e.LimitDelta
		}
		if e.Kind == KindOpen {
			out.Adjacency = e.Cost.Adjacency
			c := spending{e.Incarnation, e.First, e.End, e.Cost,
				SpentBy{e.Stream, l.Entries[i].Partition, e.Epoch, true, e.Mechanism, e.Epsilon, e.Delta}}
			if end := l.End(i); end != nil {
				if end.Kind == KindVoid {
					continue
				}
				closed, _ := end.View(s)
				c.end, c.by.Open = closed.End, false
			}
			all = append(all, c)
		}
	}
	return all
}

// divide sets the ranges of the report. A new range begins wherever a charge begins or ends.
func (out *Spent) divide(all []spending, records []int) (err error) {
	type edge struct {
		log uint64
		at  int64
	}
	var edges []edge
	for _, c := range all {
		edges = append(edges, edge{c.log, c.first})
		if c.end >= 0 {
			edges = append(edges, edge{c.log, c.end})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.log, b.log), cmp.Compare(a.at, b.at)) })
	edges = slices.Compact(edges)
	for i, from := range edges {
		r := SpentRange{Incarnation: from.log, First: from.at, End: -1}
		if i+1 < len(edges) && edges[i+1].log == from.log {
			r.End = edges[i+1].at
		}
		var costs []dp.Cost
		for _, c := range all {
			if c.log != from.log || c.first > from.at || c.end >= 0 && c.end <= from.at {
				continue
			}
			cost, err := c.cost.In(out.Adjacency)
			if err != nil {
				return err
			}
			costs, r.By = append(costs, cost), append(r.By, c.by)
		}
		if len(costs) == 0 {
			continue
		}
		r.Cost = dp.Compose(costs...)
		if r.Epsilon, err = r.Cost.Epsilon(out.LimitDelta); err != nil {
			return err
		}
		r.Persons = core.Persons(r.Cost, out.LimitDelta, records...)
		out.Ranges = append(out.Ranges, r)
	}
	return nil
}
