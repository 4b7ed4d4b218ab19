package estimatortest

import (
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/persons"
)

// Slot is one record of a log. User is its person, 0 for none. Row is nil for an invalid record.
type Slot struct {
	User int
	Row  []float64
}

// Persons tests the map of persons and an estimator together. It compares whole logs in which all records of one person
// are replaced.
type Persons struct {
	Rule persons.Rule
	// Slots holds the number of slots of each step.
	Slots []int
	// Quiet is used by Everywhere: it is the number of steps before the person's first record.
	Quiet int
	// Replace says that the person's records are replaced by those of another person, at other slots.
	Replace bool
	// Random draws the row of another person.
	Random func(source *rand.Rand) []float64
	// Worst are the most influential rows of a person; Other are rows that may replace them.
	Worst, Other [][]float64
	// Apart returns the distance of two streams in units of μ. x and y are their rows, by step.
	Apart func(x, y [][][]float64) (float64, error)
}

// Counted passes a log through a map of persons with the rule r, as the daemon does, and returns the rows that reach
// the estimator, by step. Before the step with number `restart` (from 0) it replaces the map by an empty one, as if the
// map had been lost. If restart is −1, it keeps the map.
func (p *Persons) Counted(t testing.TB, r persons.Rule, log []Slot, restart int) [][][]float64 {
	t.Helper()
	var m *persons.Map
	all := make([][][]float64, len(p.Slots))
	for step, slots := range p.Slots {
		if step == 0 || step == restart {
			var err error
			if m, err = persons.NewMap(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Open(uint64(step) + 1); err != nil {
			t.Fatal(err)
		}
		for _, x := range log[:slots] {
			row := x.Row
			if m.Take(persons.Tag{0: byte(x.User)}) != persons.Counts {
				row = nil
			}
			all[step] = append(all[step], row)
		}
		log = log[slots:]
		if err := m.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// apart returns the distance of two logs after the map of persons, in units of μ.
func (p *Persons) apart(t testing.TB, r persons.Rule, x, y []Slot, restart int) float64 {
	t.Helper()
	d, err := p.Apart(p.Counted(t, r, x, restart), p.Counted(t, r, y, restart))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Neighbours returns the largest distance between the logs of a pair, over random pairs of neighbouring logs, in units
// of μ. The other records may have a person or none, and a row or none.
func (p *Persons) Neighbours(t testing.TB, seed uint64, pairs int) (worst float64) {
	t.Helper()
	source := rand.New(rand.NewPCG(seed, 20))
	one := func(rows [][]float64) []float64 { return rows[source.IntN(len(rows))] }
	for range pairs {
		var x, y []Slot
		for _, n := range p.Slots {
			for range n {
				a := Slot{source.IntN(4), p.Random(source)}
				if source.IntN(8) == 0 {
					a.Row = nil
				}
				if a.User == 1 {
					a.Row = one(p.Worst)
				}
				b := a
				if a.User == 1 {
					b = Slot{}
				}
				if p.Replace && a.User <= 1 && source.IntN(2) == 0 {
					// The new person's record may also replace a null record.
					if b = (Slot{9, one(p.Other)}); a.User == 0 {
						a.Row = nil
					}
				}
				x, y = append(x, a), append(y, b)
			}
		}
		worst = max(worst, p.apart(t, p.Rule, x, y, -1))
	}
	return worst
}

// Everywhere is about a person who writes into every slot after the quiet steps. It returns how far this person can
// move the estimator's rows through a map with the rule r, in units of μ. The person writes the first of the worst
// rows. The other log has nobody in these slots or, under replace, another person. The map is replaced by an empty one
// before the step with number `restart` (from 0), or never if restart is −1.
func (p *Persons) Everywhere(t testing.TB, r persons.Rule, restart int) float64 {
	t.Helper()
	var x, y []Slot
	for step, n := range p.Slots {
		for range n {
			if step < p.Quiet {
				x, y = append(x, Slot{}), append(y, Slot{})
				continue
			}
			x = append(x, Slot{1, p.Worst[0]})
			if y = append(y, Slot{}); p.Replace {
				y[len(y)-1] = Slot{9, p.Other[0]}
			}
		}
	}
	return p.apart(t, r, x, y, restart)
}
