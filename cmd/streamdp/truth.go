package main

import (
	"math"

	"streamdp/config"
)

// truth computes, in plain float64, what the releases of a stream estimate: the
// workload's moments of the clipped, scaled rows. It is the demonstration's
// yardstick and shares no code with the estimator.
type truth struct {
	s     *config.Stream
	first string // "mean" or "sum"
	row   []float64
	open  moments2 // of the open step
	steps []moments2
	count uint64 // rows in the open step
}

// moments2 are sums, or means, of rows and of the upper triangle of their
// squares.
type moments2 struct{ mean, second []float64 }

func newTruth(s *config.Stream) *truth {
	t := &truth{s: s, first: "mean", row: make([]float64, len(s.Input.Columns))}
	if s.Moments.Workload == "sum" {
		t.first = "sum"
	}
	t.open = t.zero()
	return t
}

func (t *truth) zero() moments2 {
	d := len(t.row)
	return moments2{make([]float64, d), make([]float64, d*(d+1)/2)}
}

// add adds a row; a cell that is no finite number makes it the zero row.
func (t *truth) add(cells []string) {
	norm := 0.0
	for j := range t.row {
		v, ok := number(cells[j])
		v = (v - t.s.Centre[j]) / t.s.Scale[j]
		if !ok || math.IsInf(v, 0) || math.IsNaN(v) {
			clear(t.row)
			norm = 0
			break
		}
		t.row[j] = v
		norm = math.Hypot(norm, v)
	}
	if clip := t.s.Moments.Clip; norm > clip {
		for j := range t.row {
			t.row[j] *= clip / norm
		}
	}
	n := 0
	for i, x := range t.row {
		t.open.mean[i] += x
		for _, y := range t.row[i:] {
			t.open.second[n] += x * y
			n++
		}
	}
	if t.count++; t.count == t.s.Step {
		t.close()
	}
}

// close turns the open step's sums into the workload's value.
func (t *truth) close() {
	m := t.s.Moments
	keep := 1.0 // weight of what came before
	if m.Workload == "exponential" {
		keep = m.Decay
	}
	total := t.open
	if n := len(t.steps); n > 0 {
		before := t.steps[n-1]
		for i := range total.mean {
			total.mean[i] += keep * before.mean[i]
		}
		for i := range total.second {
			total.second[i] += keep * before.second[i]
		}
	}
	t.steps = append(t.steps, total)
	t.open, t.count = t.zero(), 0
}

// at returns the value of step n ≥ 1, false where it is not complete. Every
// slot holds a record, so that the divisor is the number of rows.
func (t *truth) at(n uint64) (moments2, bool) {
	if n == 0 || n > uint64(len(t.steps)) {
		return moments2{}, false
	}
	m, b := t.s.Moments, float64(t.s.Step)
	now, divisor := t.steps[n-1], 1.0
	var before *moments2
	switch m.Workload {
	case "mean":
		divisor = b * float64(n)
	case "exponential":
		divisor = b * (1 - math.Pow(m.Decay, float64(n))) / (1 - m.Decay)
	case "window":
		divisor = b * float64(min(n, m.Window))
		if n > m.Window {
			before = &t.steps[n-1-m.Window]
		}
	}
	out := t.zero()
	for i := range out.mean {
		out.mean[i] = now.mean[i]
		if before != nil {
			out.mean[i] -= before.mean[i]
		}
		out.mean[i] /= divisor
	}
	for i := range out.second {
		out.second[i] = now.second[i]
		if before != nil {
			out.second[i] -= before.second[i]
		}
		out.second[i] /= divisor
	}
	return out, true
}
