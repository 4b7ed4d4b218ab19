package audit

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
)

// Sensitivity runs two neighbouring streams under the same noise. It returns the whitened distance between their
// releases, over the run and all later time, which is the share of μ that the pair uses. It needs Recover, and a
// mechanism whose computations do not depend on its releases. Other mechanisms must be audited by Coupling.
//
// Cost: two runs.
func (s *Subject) Sensitivity(x, y Stream, keys *Keys) (distance float64, err error) {
	var asked error
	first, err := s.rows(x, keys.unbound(&asked))
	if err != nil {
		return 0, err
	}
	second, err := s.rows(y, keys.unbound(&asked))
	if err == nil {
		err = asked
	}
	if err != nil {
		return 0, err
	}
	return s.Distance(first, second)
}

// Distance returns √Σ|C(y−x)/σ|² over all arrays and coordinates, which is the distance of two sequences of rows in
// units of the noise.
func (s *Subject) Distance(x, y map[string][][]float64) (float64, error) {
	var sum float64
	for name, rows := range x {
		sequences, err := s.sequences(name, rows)
		if err != nil {
			return 0, err
		}
		for j, q := range sequences {
			for i, t := range q.steps {
				q.x[i] = (y[name][t][j] - q.x[i]) / q.sd[i]
			}
			white, _ := Whiten(q.whitener, q.x)
			for _, v := range white {
				sum += v * v
			}
			sum += q.whitener.Later()
		}
	}
	return math.Sqrt(sum), nil
}

// sequence is one coordinate of an array over time.
type sequence struct {
	steps    []int // the steps, from 0, in which the mechanism opens the array
	x, sd    []float64
	whitener Whitener
}

// sequences splits the rows of an array into one sequence per coordinate.
func (s *Subject) sequences(name string, rows [][]float64) ([]sequence, error) {
	var all []sequence
	for t, row := range rows {
		if row == nil {
			continue
		}
		a, ok := s.Array(name, uint64(t)+1)
		if !ok {
			return nil, fmt.Errorf("step %d: array %s should not be opened", t+1, name)
		}
		for j, v := range row {
			if j == len(all) {
				all = append(all, sequence{whitener: a.whitener()})
			}
			q := &all[j]
			q.steps, q.x, q.sd = append(q.steps, t), append(q.x, v), append(q.sd, a.deviation(j))
		}
	}
	return all, nil
}

// Coupling runs a stream under chosen noise, and then its neighbour under the noise that gives the same releases: w' =
// w + x − x' in integers, which moves the Gaussians by C(x−x')/σ. Coupling returns the distance by which the Gaussians
// moved, which is the share of μ that the pair uses. It returns an error if the releases of the two runs differ in any
// bit, because then they are not a function of integers with the described noise.
//
// The squares of sketches stay the same: the neighbour's draws are chosen such that they give the same square under the
// neighbour's covariance. The suite's A3 tests the distance of the two covariances.
//
// Coupling works for mechanisms that adapt to their releases in any way, because both runs have the same releases. It
// does not need Recover. A draw cannot move by more than about 11 standard deviations.
//
// Cost: two runs.
func (s *Subject) Coupling(x, y Stream, keys *Keys) (distance float64, err error) {
	return s.couple(x, y, &coupling{keys: keys})
}

// Unlike runs x without noise, and then y under the noise that gives the same releases, as Coupling does. The two
// streams need not be neighbours: all their records may differ, as long as no sum of a step differs by more than a draw
// can. Unlike returns an error if the releases, the steps' slots, or the state that follows from releases differ.
//
// Unlike detects a rule that depends on an exact count instead of a released one. Coupling detects such a rule only if
// the single record of its pair changes the decision.
//
// Cost: two runs.
func (s *Subject) Unlike(x, y Stream) error {
	_, err := s.couple(x, y, &coupling{still: true})
	return err
}

// couple does what Coupling does, with first as the noise of x's run.
func (s *Subject) couple(x, y Stream, first *coupling) (distance float64, err error) {
	first.subject, first.err = s, new(error)
	a, err := s.run(x, first.source)
	if err == nil {
		err = *first.err
	}
	if err != nil {
		return 0, err
	}
	second := &coupling{subject: s, err: new(error), other: first}
	b, err := s.run(y, second.source)
	if err == nil {
		err = *second.err
	}
	if err != nil {
		return second.distance(), err
	}
	return second.distance(), difference(a, b)
}

// coupling is the noise of one of two coupled runs.
type coupling struct {
	subject *Subject
	keys    *Keys
	// still is true if the first run has fixed instead of keyed noise: its draws are those of lean (0 without lean),
	// and squares of sketches have their expected value.
	still  bool
	lean   func(array string) []float64
	other  *coupling // in the second run: the coupling of the first run
	arrays map[string]*coupledArray
	opened []*coupledRow // in order of opening
	moved  float64       // sum of the squared moves of all draws so far
	// sketched is the number of sketch rows by step.
	sketched map[uint64]int
	err      *error
}

// coupledArray tracks the integer noise of an array and, in the second run, its distance from the noise of the first
// run.
type coupledArray struct {
	noise, moved []Whitener
}

// coupledRow holds the hidden integers and the chosen noise of an array in one step, by coordinate.
type coupledRow struct {
	array string
	drawn []draw
	// covariance is used only in an array of squares. It is Σ. bartlett, used in the first run, is A.
	covariance *mat.SymDense
	bartlett   *mat.TriDense
}

type draw struct {
	made          bool
	signal, noise int64
}

// at returns coordinate j. The row grows if a mechanism draws more numbers than it hides.
func (r *coupledRow) at(j int) *draw {
	if j >= len(r.drawn) {
		r.drawn = append(r.drawn, make([]draw, j+1-len(r.drawn))...)
	}
	return &r.drawn[j]
}

func (c *coupling) source(t uint64) dp.Noise {
	return noiseFunc(func(name string, hidden []int64) dp.Row { return c.open(t, name, hidden) })
}

func (c *coupling) open(t uint64, name string, hidden []int64) dp.Row {
	desc, ok := c.subject.Array(name, t)
	if !ok {
		fail(c.err, fmt.Errorf("step %d: array %s should not be opened", t, name))
		return newGiven(c.err, len(hidden), func(int) float64 { return 0 })
	}
	if c.arrays == nil {
		c.arrays = map[string]*coupledArray{}
	}
	a := c.arrays[name]
	if a == nil {
		a = &coupledArray{}
		c.arrays[name] = a
	}
	row := &coupledRow{array: name, drawn: make([]draw, len(hidden))}
	c.opened = append(c.opened, row)
	var before *coupledRow
	if c.other != nil {
		if n := len(c.opened); n > len(c.other.opened) || c.other.opened[n-1].array != name {
			fail(c.err, fmt.Errorf("step %d: the neighbour opens array %s, but the stream does not", t, name))
			return newGiven(c.err, len(hidden), func(int) float64 { return 0 })
		}
		before = c.other.opened[len(c.opened)-1]
	}
	if desc.Squares != nil {
		if c.sketched == nil {
			c.sketched = map[uint64]int{}
		}
		return c.square(name, t, desc.Squares, hidden, before, row)
	}
	var small []float64
	if before == nil {
		switch {
		case !c.still:
			small = slices.Clone(c.keys.row(name, t, max(1, len(hidden))))
			for j, z := range small {
				small[j] = math.Remainder(z, 1)
			}
		case c.lean != nil:
			small = c.lean(name)
		}
		if len(small) == 0 {
			small = []float64{0}
		}
	}
	return newGiven(c.err, len(hidden), func(j int) float64 {
		for len(a.noise) <= j {
			a.noise, a.moved = append(a.noise, desc.whitener()), append(a.moved, desc.whitener())
		}
		sd, signal := desc.deviation(j), desc.signal(j, hidden)
		diagonal, ahead := a.noise[j].Ahead()
		var w int64
		if before == nil {
			// Any noise is allowed here. Small noise leaves the most room to move it.
			w = int64(math.Round((sd*small[j%len(small)] - ahead) / diagonal))
		} else {
			first := before.at(j)
			if !first.made {
				fail(c.err,
					fmt.Errorf("step %d: the neighbour draws coordinate %d of %s, but the stream does not", t, j, name))
			}
			w = first.noise + first.signal - signal
			moved := float64(first.signal-signal) / sd
			d, s := a.moved[j].Ahead()
			c.moved += (d*moved + s) * (d*moved + s)
			a.moved[j].Push(moved)
		}
		*row.at(j) = draw{true, signal, w}
		a.noise[j].Push(float64(w))
		// z is the middle of the interval that rounds to w.
		z := (diagonal*float64(w) + ahead) / sd
		if math.Abs(z) > maxDraw {
			fail(c.err,
				fmt.Errorf(
					"step %d: coordinate %d of %s would need the draw %.3g, which is outside the generator's range", t,
					j, name, z))
		}
		return z
	})
}

// maxDraw is an upper bound on the absolute value of the generator's draws.
const maxDraw = 13

// distance returns the distance by which the noise moved, including the steps after the run.
func (c *coupling) distance() float64 {
	sum := c.moved
	for _, a := range c.arrays {
		for _, w := range a.moved {
			sum += w.Later()
		}
	}
	return math.Sqrt(sum)
}
