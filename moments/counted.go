package moments

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// leastCounted is by how many of its standard deviations the number of valid records must be
// above 0, for a mean to be divided by it.
const leastCounted = 8

// counted returns what is released beside the number of valid records where persons are
// protected. Most records may then not count, and the mean over all of them shrinks toward 0 by
// their share. With the noisy number N̂ of those that do, of deviation σ, over all records m under
// the workload's weights, and the noisy sum Ŝ of deviation τ:
//
//	counted_share  N̂/m, of deviation σ/m
//	mean_counted   ŷ = Ŝ/N̂, of deviation √(τ² + ŷ_i²σ²)/N̂ in entry i
//
// The deviation is that of the first-order expansion: the noises of sum and number are
// independent, and N̂(ŷ − S/N) = (Ŝ − S) − (S/N)(N̂ − N). Below 8σ there is no mean_counted, for the
// number might be near 0 and the expansion be wrong.
//
// mean and se are the released mean and its deviation, and divisor what they were divided by.
//
// Privacy: a function of released numbers and the public number of records.
func (e *Estimator) counted(count, sigma float64, mean []float64, se, divisor float64) []dp.Value {
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

// RecordCost returns what all releases cost one record of a person whose user key stays as it
// is. Records of persons count by their places alone, so such a record changes one row of its
// step, and
//
//	μ₁ = μ·(s − ζ(P−α)√Square)/s
//
// for the charged sensitivity s, P of matfact.Sensitivity and the largest column norm α of C. That
// is μα/P, but for what rounding adds to s, which is charged to a record as to a person. Where
// records are protected it is Cost.
func (e *Estimator) RecordCost() dp.Cost {
	c := e.Cost()
	p := e.plan.Person
	if p == nil {
		return c
	}
	t := e.cfg.tradeoff(e.plan.Method, e.plan.Nu, e.params.Adjacency)
	less := e.plan.Clip * (p.Norm - e.shapes.first.factor.ColNorm()) * math.Sqrt(t.Square)
	// More than a few last bits of the difference.
	c.Mu = min(c.Mu, c.Mu*(max(0, e.plan.Sensitivity-less)/e.plan.Sensitivity+0x1p-40))
	return c
}
