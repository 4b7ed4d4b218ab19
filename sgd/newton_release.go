package sgd

import (
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// unit returns the divisor that turns coordinate j of an iterate, after uncentre, into a coefficient.
func (e *Newton) unit(j int) float64 {
	if *e.cfg.Intercept && j == len(e.w)-1 {
		return 1
	}
	return e.cfg.ClipX
}

func allFinite(r *dp.Release) bool {
	for _, v := range r.Values {
		if !vector.Finite(v.Data) || !vector.Finite(v.SE) {
			return false
		}
	}
	return true
}

// recent returns the stretches that the estimate uses. It includes the open epoch if open is set.
func (e *Newton) recent(open bool) stretches {
	most := 2
	if e.epoch >= 5 {
		most = 3
	}
	return e.blocks.newest(most, open)
}

// release returns the release of a gradient step with the given number of rows.
func (e *Newton) release(rows uint64) *dp.Release {
	d := len(e.w)
	recent := e.recent(true)
	var gains []float64
	if len(recent) > 0 {
		gains = e.gains(recent)
		recent.estimate(e.mean, e.white, gains)
	} else {
		copy(e.mean, e.w)
	}
	e.uncentre(e.mean)
	shape := []int{d}
	average := dp.Value{Name: "theta_average", Shape: shape, Data: e.coefficients(e.mean)}
	var low, high []float64
	if *e.cfg.Intervals && len(recent) > 0 && e.sinceRestart() >= UsefulSteps {
		if parts := recent.errors(e.total, e.mean, e.white, gains, e.uncentre); parts > 0 {
			average.SE = e.coefficients(e.total)
			for j, v := range average.Data {
				half := float64(e.plan.Student[parts] * average.SE[j])
				low, high = append(low, v-half), append(high, v+half)
			}
		}
	}
	copy(e.total, e.w)
	e.uncentre(e.total)
	values := []dp.Value{{Name: "theta", Shape: shape, Data: e.coefficients(e.total)}, average}
	if low != nil {
		values = append(values, dp.Value{Name: "interval_low", Shape: shape, Data: low},
			dp.Value{Name: "interval_high", Shape: shape, Data: high})
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"zeta", e.used}, {"whitening", float64(e.epoch)}, {"restarts", float64(e.restarts)},
		{"drift_restarts", float64(e.drifts)},
		{"iteration", float64(e.iteration)}, {"slots", float64(e.slots)},
	} {
		values = append(values, dp.Value{Name: v.name, Shape: []int{1}, Data: []float64{v.value}})
	}
	if e.cfg.scaled() {
		original := e.cfg.original(average.Data)
		values = append(values, dp.Value{Name: "theta_average_original", Shape: []int{len(original)}, Data: original})
	}
	return &dp.Release{Step: e.step, Rows: rows, Values: values}
}

// coefficients converts an iterate, after uncentre, to coefficients of the features and of a constant of 1.
func (e *Newton) coefficients(w []float64) []float64 {
	theta := make([]float64, len(w))
	for j, v := range w {
		theta[j] = v / e.unit(j)
	}
	return theta
}
