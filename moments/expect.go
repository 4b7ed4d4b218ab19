package moments

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
)

// Errors holds the standard errors of the entries of one release, in scaled units, and the root of each value's
// expected squared error: in Euclidean norm for the mean, in Frobenius norm for the others. If an error depends on the
// rows, the field is an upper bound over all rows.
type Errors struct {
	Mean                  float64 `json:"mean"`
	Diagonal              float64 `json:"second_moment_diagonal"`
	OffDiagonal           float64 `json:"second_moment_off_diagonal"`
	CovarianceDiagonal    float64 `json:"covariance_diagonal,omitempty"`
	CovarianceOffDiagonal float64 `json:"covariance_off_diagonal,omitempty"`
	ValidCount            float64 `json:"valid_count,omitempty"`
	FullShare             float64 `json:"full_share"`

	RMSEMean         float64 `json:"rmse_mean"`
	RMSESecondMoment float64 `json:"rmse_second_moment"`
	RMSECovariance   float64 `json:"rmse_covariance,omitempty"`
}

// Expect returns the errors that the release of step t will state if every slot holds a record. They are known before
// the first record. The errors of the covariance depend on the mean; Expect assumes a mean of the largest possible
// norm.
//
// Cost: that of a release; O(t²) with post-processing over correlated noise.
func (e *Estimator) Expect(t uint64) Errors {
	d, slots := len(e.cfg.Columns), e.cfg.Step
	first, second := e.shapes.first.divisor(t, slots), e.shapes.second.divisor(t, slots)
	var g *overlap
	if e.plan.squares() {
		g = newOverlap(e.shapes.first.factor, e.shapes.first.kernel)
	}
	v := e.variances(g, t, first, second, float64(slots)*weights(e.shapes.first.kernel, t))
	x := Errors{Mean: math.Sqrt(v.mean), Diagonal: math.Sqrt(v.diagonal), OffDiagonal: math.Sqrt(v.off),
		ValidCount: v.count}
	x.FullShare = v.full / max(1, float64(slots)*weights(e.shapes.first.kernel, t))
	gains, _ := e.shapes.gains(g, t, first, second)
	n := Noise{First: e.plan.First, Diagonal: e.plan.Diagonal}
	mean, moment := ExpectedError(e.plan.Method, n, e.plan.Clip, d, gains)
	x.RMSEMean, x.RMSESecondMoment = math.Sqrt(mean), math.Sqrt(moment)
	if *e.cfg.Covariance {
		x.CovarianceDiagonal = v.covariance(e.plan.Clip, 0, true)
		x.CovarianceOffDiagonal = v.covariance(e.plan.Clip, 0, false)
		s := e.shapes.scatter(gains, t, float64(slots)*weights(e.shapes.first.kernel, t), first)
		if !e.plan.squares() {
			// The mean's noise is independent of the second moment's.
			s.slots, s.white = 0, false
		}
		x.RMSECovariance = math.Sqrt(covarianceError(v.mixed, n, e.plan.Clip, d, s))
	}
	return x
}

// Covariances are the covariances of the noise of an entry in one release with the noise of the same entry in another
// release. The noise of different entries is independent.
type Covariances struct{ Mean, Diagonal, OffDiagonal float64 }

// Across returns the covariances of the noise of releases t and u, if every slot holds a
// record: τ²·Σ_j (AC⁻¹)_tj(AC⁻¹)_uj for entries of the mean, and the same with the
// deviations of the second moment.
//
// Errors: a step beyond the horizon; squared rows, whose covariances depend on the rows.
func (e *Estimator) Across(t, u uint64) (Covariances, error) {
	switch {
	case t == 0 || u == 0 || max(t, u) > e.horizon:
		return Covariances{}, dp.ErrExhausted
	case e.plan.squares():
		return Covariances{}, errors.New("the covariances over time of squared rows depend on the rows")
	}
	slots := e.cfg.Step
	between := func(s *shape) float64 {
		return s.factor.Cov(s.kernel, t, u) / s.divisor(t, slots) / s.divisor(u, slots)
	}
	first, second := between(&e.shapes.first), between(&e.shapes.second)
	return Covariances{
		Mean:        e.plan.First * e.plan.First * first,
		Diagonal:    e.plan.Diagonal * e.plan.Diagonal * second,
		OffDiagonal: e.plan.OffDiagonal * e.plan.OffDiagonal * second,
	}, nil
}
