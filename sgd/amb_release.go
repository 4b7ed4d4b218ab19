package sgd

import (
	"errors"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// release updates the averages with the new iterate and returns the release. slots is the number of slots of all closed
// steps.
func (e *AMB) release(slots uint64) (*dp.Release, error) {
	if e.drift != nil {
		jumped := e.plan.Jump > 0 && e.jump.observe(e.used)
		if e.drift.observe(e.w) || jumped {
			e.restart()
		}
	}
	e.average.add(e.w)
	if e.batches != nil {
		e.batches.add(e.w)
	}

	after := e.average.mean(e.mean)
	average := dp.Value{Name: "theta_average", Shape: []int{len(e.w)}, Data: e.coefficients(e.mean)}
	var low, high []float64
	if e.batches != nil {
		if t := e.plan.Student[e.batches.error(e.standardErrors)]; t > 0 {
			average.SE = e.coefficients(e.standardErrors)
			for j, v := range average.Data {
				half := float64(t * average.SE[j])
				low, high = append(low, v-half), append(high, v+half)
			}
		}
	}
	values := []dp.Value{{Name: "theta", Shape: average.Shape, Data: e.coefficients(e.w)}, average}
	if low != nil {
		values = append(values, dp.Value{Name: "interval_low", Shape: average.Shape, Data: low},
			dp.Value{Name: "interval_high", Shape: average.Shape, Data: high})
	}
	one := func(name string, v float64) {
		values = append(values, dp.Value{Name: name, Shape: []int{1}, Data: []float64{v}})
	}
	one("zeta", e.used)
	one("average_start", float64(e.began+after))
	one("iteration", float64(e.iteration))
	one("slots", float64(slots))
	if e.cfg.scaled() {
		original := e.cfg.original(average.Data)
		values = append(values, dp.Value{Name: "theta_average_original", Shape: []int{len(original)}, Data: original})
	}
	for _, v := range values {
		if !vector.Finite(v.Data) || !vector.Finite(v.SE) {
			return nil, errors.New("a released value is outside the range of float64: scale the columns to about 1")
		}
	}
	return &dp.Release{Step: e.step, Rows: e.rows, Values: values}, nil
}

// coefficients returns w as coefficients of the features and of the constant 1.
func (e *AMB) coefficients(w []float64) []float64 {
	theta := slices.Clone(w)
	if last := len(theta) - 1; e.plan.Constant > 0 {
		theta[last] = float64(theta[last] * e.plan.Constant)
	}
	return theta
}
