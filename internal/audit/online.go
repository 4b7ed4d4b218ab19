package audit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Online describes online Newton steps. Its arrays are newton/boot for two searches; newton/locate, only with an
// intercept, for the search for a median between them; newton/grad for sums of clipped gradients; newton/count for a
// count with each sum and a count of null records; and newton/hist and newton/gram, which are released at the end of an
// epoch.
type Online struct {
	Mechanism
	// Closed is the number of steps that the mechanism has closed. Runs begin
	// with the next one.
	Closed uint64
	// Mu is the promised μ. Budget is the μ for which the noise is calibrated; 0: Mu.
	Mu, Budget float64
	Adjacency  dp.Adjacency
	Bits       int // resolution of the lattices, in bits
	Features   int // number of features d, including the constant
	C          Matrix
	// Gradient is the standard deviation of a gradient's independent draws, in lattice units. Count is the standard
	// deviation of the count released with it. Locate is the standard deviation of the counts in a median search, in
	// units of 2^(Bits−4) per record; it is 0 without an intercept.
	Gradient, Count, Locate float64
	// Person, if not zero, says in which steps a person has records. Then all records of a person together count as one
	// record, and in searches too, gradients use a column of C.
	Person matfact.Participation
	// Epoch returns the number of steps of the open epoch. It is called only if Person is not zero.
	Epoch func() uint64
	// Course returns values that follow from earlier releases: the quantile and the slots of the open search, and R²,
	// the squared norm to which the open epoch's matrix shortens rows.
	Course func() (quantile float64, slots uint64, squared float64)
	// Released is like Subject.Released.
	Released func(b []byte) []byte
}

// Subject returns the mechanism in the form that Coupling audits. Other audits do not apply, because everything depends
// on earlier releases.
func (o Online) Subject() *Subject {
	mu := o.Budget
	if mu == 0 {
		mu = o.Mu
	}
	factor, unit := o.Adjacency.Factor(), math.Exp2(float64(o.Bits-4))
	const rungs, questions = 32, 6
	several := o.several()
	search := math.Sqrt(questions) / mu * unit * several("search")
	// A search for a median asks ten counts: first among 64 intervals, then among 16 parts of one of them.
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

// several returns the factor by which a person with m records in each of k steps moves counts and matrices more than a
// single record does. A sum over one epoch contains at most as many of the k steps as the epoch has, and the sum over
// epochs of (steps/√(k·most))² is at most 1. Under replace, the null records of the two persons are in up to 2k steps.
// In a search in which one of them has records, they count as at most 0.8 of a record.
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
			if two && what == "matrix" { // the blocks of the two persons are rounded separately
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

// Filled returns m with a record in every empty slot. These records are made from keys, have features of norm up to
// about clip, and are the same in all runs.
func Filled(m Mechanism, keys *Keys, clip float64) Mechanism {
	return &filled{Mechanism: m, keys: keys, clip: clip, given: map[uint64][]float64{}}
}

type filled struct {
	Mechanism
	keys  *Keys
	clip  float64
	step  uint64
	given map[uint64][]float64 // the records of the open step, by slot
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
