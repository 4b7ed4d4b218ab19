package audit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Online describes online Newton steps: two searches, newton/boot, with an intercept one
// of a median between them, newton/locate, steps with a sum of clipped gradients,
// newton/grad, beside a count and a count of null records, newton/count, and the two
// releases of an epoch's end, newton/hist and newton/gram.
type Online struct {
	Mechanism
	// Closed is the number of steps that the mechanism has closed. Runs begin
	// with the next one.
	Closed uint64
	// Mu is what is promised; Budget is what the noise is calibrated for, 0 for Mu.
	Mu, Budget float64
	Adjacency  dp.Adjacency
	Bits       int // of the lattices
	Features   int // d, the constant included
	C          Matrix
	// Gradient is the standard deviation of a gradient's independent draws, in
	// lattice units, Count that of the count beside it and Locate that of the counts of
	// a median, in counts of 2^(Bits−4) a record. Without an intercept Locate is 0.
	Gradient, Count, Locate float64
	// Person, if not zero, says in which steps a person has records: then all of a person's
	// are one record, and gradients take a column of C in searches, too.
	Person matfact.Participation
	// Epoch returns the number of steps of the open epoch. It is asked where there is a Person.
	Epoch func() uint64
	// Course returns what earlier releases led to: the quantile and the slots of the open
	// search, and R², the squared norm to which rows are shortened in the open epoch's matrix.
	Course func() (quantile float64, slots uint64, squared float64)
	// Released is as in a Subject.
	Released func(b []byte) []byte
}

// Subject returns the mechanism in the form that is audited. All of it depends on
// releases, so it is for Coupling.
func (o Online) Subject() *Subject {
	mu := o.Budget
	if mu == 0 {
		mu = o.Mu
	}
	factor, unit := o.Adjacency.Factor(), math.Exp2(float64(o.Bits-4))
	const rungs, questions = 32, 6
	several := o.several()
	search := math.Sqrt(questions) / mu * unit * several("search")
	// A median is sought among 64 intervals and then 16 parts of one, by ten counts.
	const intervals, parts = 64, 16
	matrix := 1.0
	if o.Locate > 0 { // a constant of half the features' norm
		matrix = 1.25
	}
	l := &listener{
		Descent: Descent{Mechanism: o.Mechanism, Closed: o.Closed, Search: search, Rungs: rungs, Unit: int64(unit),
			arrays: []string{"newton/boot", "newton/locate"}}}
	return &Subject{
		Mechanism: l, Mu: o.Mu, Released: o.Released,
		Array: func(name string, _ uint64) (Array, bool) {
			quantile, slots, squared := o.Course()
			switch name {
			case "newton/locate":
				l.Threshold, l.Null = quantile*float64(slots), int64(unit)/2
				return Array{Deviations: []float64{o.Locate}, Signal: func(j int, bins []int64) int64 {
					c, found := l.bisect(bins, intervals-1, 0, j, o.Locate,
						func(i int) int { return i*parts + parts - 1 })
					if j >= questions {
						c, _ = l.bisect(bins, parts-1, questions, j, o.Locate,
							func(i int) int { return found*parts + i })
					}
					return c
				}}, o.Locate > 0
			case "newton/boot":
				l.Threshold, l.Null = quantile*float64(slots), int64(math.Floor(quantile*unit+0.5))
				return Array{Deviations: []float64{search}, Signal: l.question}, true
			case "newton/count":
				return Array{Deviations: []float64{o.Count, unit / (0.2 * mu) * several("nulls")}}, true
			case "newton/grad":
				return Array{Deviations: []float64{o.Gradient}, C: o.C}, true
			case "newton/hist":
				return Array{Deviations: []float64{math.Sqrt(factor/0.03) / mu * unit * several("epoch")}}, true
			case "newton/gram":
				squared *= matrix
				sd := math.Sqrt(factor/0.12) * squared / mu * several("matrix")
				return matrixArray(o.Features, o.Bits, squared, sd, sd/math.Sqrt2), true
			}
			return Array{}, false
		},
	}
}

// several returns how much more a person moves counts and matrices than a record does: m
// records in each of k steps. What one epoch sums up has at most its number of steps of these,
// and the sum over epochs of (steps/√(k·most))² is at most 1. Two persons have null records in
// 2k steps, and searches in which one of them has records count at most 0.8 of a record.
func (o Online) several() func(what string) float64 {
	p := o.Person
	if p.Count == 0 {
		return func(string) float64 { return 1 }
	}
	k, two := float64(p.Count), o.Adjacency == dp.Replace
	return func(what string) float64 {
		square, m := k, float64(max(1, p.PerStep))
		switch {
		case what == "epoch" || what == "matrix":
			square = k * min(k, float64(o.Epoch()))
			if two && what == "matrix" { // blocks are rounded for each of two persons
				m *= 1 + math.Ldexp(float64(o.Features), -o.Bits)/2
			}
		case two && what == "nulls":
			square = 2 * k
		case two && what == "search":
			square = 2 * 0.8 * 0.8 * k
		}
		return m * math.Sqrt(square)
	}
}

// Filled returns a mechanism in which every slot without a record gets one. The records
// are made from keys, have features of norm up to about clip, and are the same in all
// runs.
func Filled(m Mechanism, keys *Keys, clip float64) Mechanism {
	return &filled{Mechanism: m, keys: keys, clip: clip, given: map[uint64][]float64{}}
}

type filled struct {
	Mechanism
	keys  *Keys
	clip  float64
	step  uint64
	given map[uint64][]float64 // of the open step
}

func (f *filled) Add(slot uint64, row []float64) { f.given[slot] = row }

func (f *filled) Close(n dp.Noise) (*dp.Release, error) {
	f.step++
	first, end := f.Range(f.step)
	d := f.Columns()
	z, made := f.keys.row("filling", f.step, int(end-first)*d), make([]float64, d)
	for slot := first; slot < end; slot++ {
		row, ok := f.given[slot]
		if !ok {
			for j := range made {
				made[j] = z[int(slot-first)*d+j] * f.clip / 2 / math.Sqrt(float64(d))
			}
			row = made
		}
		f.Mechanism.Add(slot, row)
	}
	clear(f.given)
	return f.Mechanism.Close(n)
}

func (f *filled) UnmarshalBinary(b []byte) error {
	f.step = 0
	clear(f.given)
	return f.Mechanism.UnmarshalBinary(b)
}
