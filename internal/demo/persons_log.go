package demo

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"github.com/streamdp/streamdp/internal/feed"
	"github.com/streamdp/streamdp/internal/kafka"
)

// personLog is a made-up log. It has the writer of each record and its amount. The amounts of one person are similar,
// and busy persons have larger ones, so the mean over records differs from the mean over persons.
type personLog struct {
	records []personAmount
	busiest int // number of records of the busiest person

	persons int     // number of persons with at least one record
	top     float64 // share of the records that the busiest 1 % of persons wrote
	median  int     // number of records of the median person
	// The first three are means: over records, over persons (each with their own mean), and over the records that
	// count. counted is the share of records that count.
	overRecords, overPersons, overCounted, counted float64
}

type personAmount struct {
	person int
	amount float64
}

// newPersonLog creates a log.
func newPersonLog(seed uint64) *personLog {
	source := rand.New(rand.NewPCG(seed, 2))
	weights, level, sum := make([]float64, personsUsers), make([]float64, personsUsers), 0.0
	for u := range weights {
		busy := source.NormFloat64()
		sum += math.Exp(2 * busy)
		weights[u], level[u] = sum, 34+8*busy+4*source.NormFloat64()
	}
	l := &personLog{}
	for range personsStep * personsSteps {
		u := min(sort.SearchFloat64s(weights, sum*source.Float64()), personsUsers-1)
		amount := math.Round(100*min(max(level[u]+8*source.NormFloat64(), 0), 100)) / 100
		l.records = append(l.records, personAmount{u, amount})
	}
	l.describe()
	return l
}

// describe computes the truth by plain arithmetic that shares no code with the daemon.
func (l *personLog) describe() {
	type person struct {
		records, last int
		sum           float64
	}
	all := map[int]*person{}
	var total, countedSum, counted float64
	for i, r := range l.records {
		p := all[r.person]
		if p == nil {
			p = &person{last: -personsSeparation}
			all[r.person] = p
		}
		p.records++
		p.sum += r.amount
		total += r.amount
		if step := i / personsStep; step-p.last >= personsSeparation {
			p.last = step
			counted++
			countedSum += r.amount
		}
	}
	var many []int
	for _, p := range all {
		many = append(many, p.records)
		l.overPersons += p.sum / float64(p.records)
	}
	slices.Sort(many)
	slices.Reverse(many)
	l.persons, l.busiest, l.median = len(many), many[0], many[len(many)/2]
	for _, n := range many[:max(1, l.persons/100)] {
		l.top += float64(n)
	}
	n := float64(len(l.records))
	l.top /= n
	l.overRecords, l.overPersons = total/n, l.overPersons/float64(l.persons)
	l.overCounted, l.counted = countedSum/counted, counted/n
}

// send writes the log to a topic and calls tell with the number of records sent.
func (l *personLog) send(ctx context.Context, client *kafka.Client, topic string, tell func(n int)) error {
	s := feed.NewSender(client, topic, 0, 0)
	for i, r := range l.records {
		if err := s.Send(ctx, fmt.Appendf(nil, "person-%d", r.person),
			fmt.Appendf(nil, `{"amount":%g}`, r.amount)); err != nil {
			return err
		}
		if i%1000 == 999 {
			tell(i + 1)
		}
	}
	return s.Flush(ctx)
}
