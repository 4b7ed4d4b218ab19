package moments

import (
	"math"

	"github.com/streamdp/streamdp/matfact"
)

// shape says how a moment is spread over time: which steps a release sums, and how its noise is correlated.
type shape struct {
	factor     matfact.Factorization
	kernel     matfact.Workload // without the row scaling of a mean
	normalised bool             // the sum is divided by the number of records, as in all workloads except "sum"
}

func newShape(cfg *Config, f matfact.Factorization) shape {
	return shape{f, cfg.workload().Kernel(), cfg.Workload != "sum"}
}

// variance returns the variance in release t for noise of variance 1.
func (s *shape) variance(t uint64) float64 { return s.factor.RowVar(s.kernel, t) }

// divisor returns the divisor of release t if every slot holds a record.
func (s *shape) divisor(t, slots uint64) float64 {
	if !s.normalised {
		return 1
	}
	return float64(slots) * weights(s.kernel, t)
}

// shapes holds the shapes of both moments.
type shapes struct{ first, second shape }

// gains returns the gains of release t with the given divisors. g is nil if rows are not
// squared.
func (s *shapes) gains(g *overlap, t uint64, first, second float64) (gains Gains, bias float64) {
	x := Gains{First: s.first.variance(t)}.over(first)
	y := Gains{Second: s.second.variance(t)}
	if g != nil {
		bias, y.Fourth, y.Cross = g.at(t)
		bias /= second
	}
	y = y.over(second)
	y.Bias = float64(bias * bias)
	return x.Plus(y), bias
}

// total returns the gains of the release of step t, if every slot holds a record. If `all` is true, it returns the sum
// of gains over all releases up to step t.
func (s *shapes) total(g *overlap, t, slots uint64, all bool) (sum Gains) {
	from := t
	if all {
		from = 1
	}
	for ; from <= t; from++ {
		one, _ := s.gains(g, from, s.first.divisor(from, slots), s.second.divisor(from, slots))
		sum = sum.Plus(one)
	}
	return sum
}

// scatter returns the scatter of release t with gains g. records is the number of records in the steps that the release
// covers. divisor is their number weighted by the workload.
func (s *shapes) scatter(g Gains, t uint64, records, divisor float64) *scatter {
	all := weights(s.first.kernel, t)
	c := &scatter{gains: g, total: all / divisor, white: s.first.factor.Kind() == "identity", divisor: divisor,
		peak: 1 / divisor}
	if s.first.kernel.Kind != "exponential" {
		c.slots, c.records = all, math.Round(records)
	}
	return c
}
