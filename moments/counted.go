package moments

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// leastCounted is a ratio: a mean is divided by the released number of valid records only if that number is at least
// leastCounted of its standard deviations.
const leastCounted = 8

// countedValues returns the values that are released in addition to the number of valid records if persons are
// protected. Then most records may be left out, so the mean over all records shrinks toward 0. N̂ is the noisy number
// of valid records, with standard deviation σ; m is the number of all records, under the workload's weights; Ŝ is the
// noisy sum, with standard deviation τ:
//
//	counted_share  N̂/m, of deviation σ/m
//	mean_counted   ŷ = Ŝ/N̂, of deviation √(τ² + ŷ_i²σ²)/N̂ in entry i
//
// The deviation comes from the first-order expansion: the noises of sum and number are independent, and N̂(ŷ − S/N) =
// (Ŝ − S) − (S/N)(N̂ − N). If N̂ is below 8σ, mean_counted is not released: N might be near 0 and the expansion wrong.
//
// mean and se are the released mean and its standard deviation, and divisor is the number by which both were divided.
//
// Privacy: a function of released numbers and the public number of records.
func (e *Estimator) countedValues(count, sigma float64, mean []float64, se, divisor float64) []dp.Value {
	records, d := max(1, e.weight.total()), len(mean)
	values := []dp.Value{
		{Name: "counted_share", Shape: []int{1}, Data: []float64{count / records}, SE: []float64{sigma / records}}}
	if !(count >= leastCounted*sigma) {
		return values
	}
	own, errs := make([]float64, d), make([]float64, d)
	for i := range own {
		own[i] = mean[i] * divisor / count
		sum, number := float64(se*divisor), float64(own[i]*sigma)
		errs[i] = math.Sqrt(float64(sum*sum)+float64(number*number)) / count
	}
	values = append(values, dp.Value{Name: "mean_counted", Shape: []int{d}, Data: own, SE: errs})
	if !e.cfg.scaled() {
		return values
	}
	original, errsOriginal := make([]float64, d), make([]float64, d)
	for i := range original {
		scale := at(e.cfg.Scale, i, 1)
		original[i] = at(e.cfg.Centre, i, 0) + float64(scale*own[i])
		errsOriginal[i] = scale * errs[i]
	}
	return append(values, dp.Value{Name: "mean_counted_original", Shape: []int{d}, Data: original, SE: errsOriginal})
}

// RecordCost returns the cost of all releases for one record whose content changes, but not its user key. If persons
// are protected, whether a record counts depends only on user keys and positions. So changing the record changes only
// one row of its step, and
//
//	μ₁ = μ·(s − ζ(P−α)√Square)/s
//
// with s the charged sensitivity, P of matfact.Sensitivity, and α the largest column norm of C. This equals μα/P,
// except that the part of s due to rounding is charged in full. If single records are protected, RecordCost equals
// Cost.
func (e *Estimator) RecordCost() dp.Cost {
	c := e.Cost()
	p := e.plan.Person
	if p == nil {
		return c
	}
	t := e.cfg.tradeoff(e.plan.Method, e.plan.Nu, e.params.Adjacency)
	less := e.plan.Clip * (p.Norm - e.shapes.first.factor.ColNorm()) * math.Sqrt(t.Square)
	// The margin is larger than the rounding error of the difference.
	c.Mu = min(c.Mu, c.Mu*(max(0, e.plan.Sensitivity-less)/e.plan.Sensitivity+0x1p-40))
	return c
}
