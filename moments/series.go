package moments

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// series is one array of the mechanism. It collects the exact integers of a step, adds noise, and accumulates the noisy
// integers under the workload's kernel.
type series struct {
	name     string
	exp      int // lattice step 2^exp
	sd       []float64
	shaper   matfact.Shaper
	shaped   bool
	reach    float64 // bounds |prediction|, in lattice units
	total    accumulator
	integers []int64 // the open step's row

	// The fields below are scratch space for one step.
	noise   []int64
	predict []float64
}

func newSeries(name string, dim int, time *shape, exp int, sd []float64) (*series, error) {
	f := time.factor
	limits, err := f.Limits(slices.Max(sd))
	if err != nil {
		return nil, err
	}
	s := &series{
		name:     name,
		exp:      exp,
		sd:       sd,
		shaper:   f.NewShaper(dim),
		shaped:   f.Kind() != "identity",
		reach:    calibration.Reach(limits, slices.Max(sd)),
		total:    newAccumulator(time.kernel, dim),
		integers: make([]int64, dim),
		noise:    make([]int64, dim),
	}
	if s.shaped {
		s.predict = make([]float64, dim)
	}
	return s, nil
}

// draw adds the step's noise to the integers. Before that they are not public.
func (s *series) draw(n dp.Noise) {
	row := n.Row(s.name, s.integers)
	r := 1.0
	if s.shaped {
		r = s.shaper.Predict(s.predict)
	}
	dp.RoundRow(s.noise, row, s.sd, s.predict, r)
	s.shaper.Push(s.noise)
	for i, w := range s.noise {
		s.integers[i] += w
	}
}

// end adds the noisy integers to the total, and opens the next step.
func (s *series) end() {
	s.total.add(s.integers)
	clear(s.integers)
}

// value returns the total divided by divisor, in scaled units.
func (s *series) value(divisor float64) []float64 {
	x := s.total.read(s.exp)
	for i := range x {
		x[i] /= divisor
	}
	return x
}

// accumulator applies a workload's kernel to noisy rows, which are public.
type accumulator interface {
	add(row []int64)
	read(exp int) []float64 // the total times 2^exp
	appendTo(w *bin.Writer)
	restore(r *bin.Reader, step uint64)
}

func newAccumulator(w matfact.Workload, dim int) accumulator {
	switch w.Kind {
	case "exponential":
		return &decaying{decay: w.Decay, sum: make([]float64, dim)}
	case "window":
		return &windowed{running: running{make([]dp.Wide, dim)}, ring: make([]int64, int(w.Window)*dim)}
	}
	return &running{make([]dp.Wide, dim)}
}

// running is a sum over all steps. It has 128 bits, which cannot overflow.
type running struct{ sum []dp.Wide }

func (a *running) add(row []int64) {
	for i, v := range row {
		a.sum[i].Add(v)
	}
}

func (a *running) read(exp int) []float64 {
	x := make([]float64, len(a.sum))
	step := math.Ldexp(1, exp)
	for i, s := range a.sum {
		if v := int64(s.Lo); s.Hi == v>>63 {
			x[i] = float64(v) * step
		} else {
			x[i] = s.Float(exp)
		}
	}
	return x
}

// decaying computes m ← βm + x. The rows x are exact; the rounding of float64 affects only public numbers.
type decaying struct {
	decay float64
	sum   []float64
}

func (a *decaying) add(row []int64) {
	for i, v := range row {
		a.sum[i] = float64(a.decay*a.sum[i]) + float64(v)
	}
}

func (a *decaying) read(exp int) []float64 {
	x := make([]float64, len(a.sum))
	for i, s := range a.sum {
		x[i] = math.Ldexp(s, exp)
	}
	return x
}

// windowed is the exact sum of the last rows: it adds the new row and subtracts the oldest.
type windowed struct {
	running
	ring []int64 // the row of step t at ((t−1) mod W)·dim
	next int     // where the next row goes
}

func (a *windowed) add(row []int64) {
	old := a.ring[a.next:][:len(row)]
	for i, v := range row {
		a.sum[i].Add(v)
		a.sum[i].Sub(old[i])
	}
	copy(old, row)
	a.next = (a.next + len(row)) % len(a.ring)
}

// oldest returns the row that the next one replaces.
func (a *windowed) oldest() []int64 { return a.ring[a.next:][:len(a.sum)] }

// weight is the public divisor Σ_j a_tj·m_j.
type weight struct {
	kind  string
	decay float64
	sum   float64
	count uint64
	ring  []uint64
	next  int
}

func newWeight(w matfact.Workload) weight {
	x := weight{kind: w.Kind, decay: w.Decay}
	if w.Kind == "window" {
		x.ring = make([]uint64, w.Window)
	}
	return x
}

func (w *weight) close(records uint64) {
	switch w.kind {
	case "exponential":
		w.sum = float64(w.decay*w.sum) + float64(records)
	case "window":
		w.count += records - w.ring[w.next]
		w.ring[w.next] = records
		w.next = (w.next + 1) % len(w.ring)
	default:
		w.count += records
	}
}

func (w *weight) total() float64 {
	if w.kind == "exponential" {
		return w.sum
	}
	return float64(w.count)
}
