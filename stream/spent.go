package stream

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"streamdp/dp"
)

// Spent is what the ledger says of one input partition.
type Spent struct {
	Source
	// The limit of the partition, as it was last recorded.
	LimitEpsilon float64      `json:"limit_epsilon"`
	LimitDelta   float64      `json:"limit_delta"`
	Adjacency    dp.Adjacency `json:"adjacency"`
	// Reserved is how the limit is divided, if something is set aside for sketches.
	Reserved *Reserved `json:"reserved,omitempty"`
	// ChargedEpsilon is what the worst-off record pays at LimitDelta, over all
	// incarnations of the log.
	ChargedEpsilon float64 `json:"charged_epsilon"`
	// Ranges are the offsets that are charged, in order.
	Ranges []SpentRange `json:"ranges"`
}

// SpentRange is a range of offsets whose records all pay the same.
type SpentRange struct {
	Incarnation uint64 `json:"incarnation"`
	First       int64  `json:"first"`
	End         int64  `json:"end"` // −1: open end
	// By are the epochs that charge it.
	By []SpentBy `json:"by"`
	// Cost is what they charge a record together, in the partition's adjacency.
	Cost    dp.Cost `json:"cost"`
	Epsilon float64 `json:"epsilon"` // at LimitDelta
	// Persons says what protects a person with several records in the range.
	Persons []Person `json:"persons"`
}

// SpentBy names an epoch that charges.
type SpentBy struct {
	Stream    string  `json:"stream"`
	Partition int     `json:"partition"`
	Epoch     uint64  `json:"epoch"`
	Open      bool    `json:"open"`
	Mechanism string  `json:"mechanism"`
	Epsilon   float64 `json:"epsilon"` // of the epoch by itself, at Delta
	Delta     float64 `json:"delta"`
}

// Person is what protects a person with that many records: Epsilon, at the δ of
// what it is part of, nil where there is none. It is rounded up to four digits.
type Person struct {
	Records int      `json:"records"`
	Epsilon *float64 `json:"epsilon"`
}

// persons returns what a cost means for persons with several records.
func persons(c dp.Cost, delta float64, records ...int) (all []Person) {
	for _, k := range records {
		p := Person{Records: k}
		if eps, err := c.GroupEpsilon(k, delta); err == nil {
			if up, err := roundUp(eps, 4); err == nil {
				p.Epsilon = &up
			}
		}
		all = append(all, p)
	}
	return all
}

// roundUp rounds a positive number up to so many decimal digits.
func roundUp(x float64, digits int) (float64, error) {
	text := strconv.FormatFloat(x, 'e', digits-1, 64)
	y, err := strconv.ParseFloat(text, 64)
	if err != nil || y >= x {
		return y, err
	}
	// One more in the last digit.
	mantissa, exponent, _ := strings.Cut(text, "e")
	m, err := strconv.Atoi(strings.Replace(mantissa, ".", "", 1))
	if err != nil {
		return 0, err
	}
	e, err := strconv.Atoi(exponent)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(fmt.Sprintf("%de%d", m+1, e-digits+1), 64)
}

// AtMost writes an ε with six digits, rounded up, where something is said to be at
// most that.
func AtMost(epsilon float64) string {
	if up, err := roundUp(epsilon, 6); err == nil {
		epsilon = up
	}
	return strconv.FormatFloat(epsilon, 'g', -1, 64)
}

// ReadSpent reports what the ledger of a state directory has charged, also while
// a daemon runs on it: for every input partition, or for those that the named
// stream has read, by ranges of offsets, with what a person with each of the
// numbers of records in a range is guaranteed.
func ReadSpent(dir, stream string, records []int) ([]Spent, error) {
	l, err := readLedger(dir)
	if err != nil {
		return nil, err
	}
	var sources []Source
	for i := range l.entries {
		e := &l.entries[i]
		if e.Kind == kindOpen && (stream == "" || e.Stream == stream) && !slices.Contains(sources, e.Source) {
			sources = append(sources, e.Source)
		}
	}
	slices.SortFunc(sources, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Cluster, b.Cluster))
	})
	out := []Spent{}
	for _, s := range sources {
		spent, err := l.spent(s, records)
		if err != nil {
			return nil, err
		}
		out = append(out, *spent)
	}
	return out, nil
}

// spent reports on one source.
func (l *ledger) spent(s Source, records []int) (*Spent, error) {
	out := &Spent{Source: s, Ranges: []SpentRange{}}
	type charge struct {
		log        uint64
		first, end int64
		cost       dp.Cost
		by         SpentBy
	}
	var charges []charge
	for i := range l.entries {
		e := &l.entries[i]
		if e.Source != s {
			continue
		}
		switch e.Kind {
		case kindOpen:
			out.LimitEpsilon, out.LimitDelta, out.Adjacency = e.LimitEpsilon, e.LimitDelta, e.Cost.Adjacency
			c := charge{e.Incarnation, e.First, e.End, e.Cost, SpentBy{e.Stream, e.Partition, e.Epoch, true, e.Mechanism, e.Epsilon, e.Delta}}
			if end := l.end(i); end != nil {
				if end.Kind == kindVoid {
					continue
				}
				c.end, c.by.Open = end.End, false
			}
			charges = append(charges, c)
		case kindLimit:
			out.LimitEpsilon, out.LimitDelta = e.LimitEpsilon, e.LimitDelta
		}
	}
	reserved, _ := l.reserved(s)
	if !reserved.Empty() {
		in, err := reserved.In(out.Adjacency)
		if err != nil {
			return nil, err
		}
		mu, err := dp.ReservedMu(in, out.LimitEpsilon, out.LimitDelta)
		if err != nil {
			return nil, err
		}
		out.Reserved = &Reserved{in, mu}
	}
	var err error
	if out.ChargedEpsilon, err = l.epsilon(s, out.Adjacency, out.LimitDelta, nil); err != nil {
		return nil, err
	}
	// A range begins wherever a charge begins or ends.
	type edge struct {
		log uint64
		at  int64
	}
	var edges []edge
	for _, c := range charges {
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
		for _, c := range charges {
			if c.log != from.log || c.first > from.at || c.end >= 0 && c.end <= from.at {
				continue
			}
			cost, err := c.cost.In(out.Adjacency)
			if err != nil {
				return nil, err
			}
			costs, r.By = append(costs, cost), append(r.By, c.by)
		}
		if len(costs) == 0 {
			continue
		}
		r.Cost = dp.Compose(costs...)
		if r.Epsilon, err = r.Cost.Epsilon(out.LimitDelta); err != nil {
			return nil, err
		}
		r.Persons = persons(r.Cost, out.LimitDelta, records...)
		out.Ranges = append(out.Ranges, r)
	}
	return out, nil
}
