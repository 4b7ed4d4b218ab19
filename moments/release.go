package moments

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// release returns the release of the step that was just closed.
func (e *Estimator) release() (*dp.Release, error) {
	d := len(e.cfg.Columns)
	name, first, second := "mean", 1.0, 1.0
	if e.shapes.first.normalised {
		first = max(1, e.weight.total())
		second = first
	} else {
		name = "sum"
	}
	if w := e.secondWeight; w != nil {
		if second = 1; e.shapes.second.normalised {
			second = max(1, w.total())
		}
	}
	unit2 := float64(e.unit * e.unit)
	v := e.variances(e.overlap, e.step, first, second, float64(e.weight.count)).in(unit2)

	mean := e.first.value(first / e.unit)
	moment, raw := e.moments(&v, first/unit2, second/unit2)
	shape := []int{d, d}
	symmetric := func(name string, data, se []float64) dp.Value {
		return dp.Value{Name: name, Shape: shape, Layout: "upper", Data: data, SE: se}
	}
	diagonal, off := math.Sqrt(v.diagonal), math.Sqrt(v.off)
	values := []dp.Value{
		{Name: name, Shape: []int{d}, Data: mean, SE: []float64{math.Sqrt(v.mean)}},
		symmetric("second_moment", moment, upper(d, func(i, j int) float64 {
			if i == j {
				return diagonal
			}
			return off
		})),
	}
	var covariance, covarianceSE []float64
	if *e.cfg.Covariance {
		n := -1
		covariance = upper(d, func(i, j int) float64 {
			n++
			c := raw[n] - float64(mean[i]*mean[j])
			if i == j {
				c += v.debias // corrects the bias: squared noise has its variance as mean
			}
			return c
		})
		covarianceSE = upper(d, func(i, j int) float64 { return v.covariance(mean[i], mean[j], i == j) })
		values = append(values, symmetric("covariance", covariance, covarianceSE))
	}
	if e.cfg.PSDFloor != nil {
		psd, err := ProjectPSD(covariance, d, *e.cfg.PSDFloor)
		if err != nil {
			return nil, err
		}
		values = append(values, symmetric("covariance_psd", psd, nil))
	}
	if e.cfg.Project {
		weight := e.weight.total()
		if e.secondWeight != nil {
			weight = e.secondWeight.total()
		}
		projected, err := ProjectMoment(moment, d, float64(e.plan.Clip*e.plan.Clip)*unit2*weight/second)
		if err != nil {
			return nil, err
		}
		values = append(values, symmetric("second_moment_projected", projected, nil))
	}
	if e.cfg.scaled() && e.shapes.first.normalised {
		centre, scale := e.cfg.Centre, e.cfg.Scale
		if e.found != nil {
			centre, scale = e.found.Centre, e.found.Scale
		}
		original, se := make([]float64, d), make([]float64, d)
		for i := range original {
			original[i] = at(centre, i, 0) + float64(at(scale, i, 1)*mean[i])
			se[i] = at(scale, i, 1) * math.Sqrt(v.mean)
		}
		values = append(values, dp.Value{Name: "mean_original", Shape: []int{d}, Data: original, SE: se})
		if *e.cfg.Covariance {
			both := func(x []float64) []float64 {
				n := -1
				return upper(d, func(i, j int) float64 {
					n++
					return float64(at(scale, i, 1)*at(scale, j, 1)) * x[n]
				})
			}
			values = append(values, symmetric("covariance_original", both(covariance), both(covarianceSE)))
		}
	}
	if e.count != nil {
		count := e.count.value(1)
		values = append(values, dp.Value{Name: "valid_count", Shape: []int{1}, Data: count, SE: []float64{v.count}})
		if e.cfg.personal() {
			values = append(values, e.countedValues(count[0], v.count, mean, math.Sqrt(v.mean), first)...)
		}
	}
	share := max(1, e.weight.total())
	values = append(values,
		dp.Value{Name: "full_share", Shape: []int{1}, Data: e.full.value(share), SE: []float64{v.full / share}})
	for _, v := range values {
		if !vector.Finite(v.Data) || !vector.Finite(v.SE) {
			return nil, errors.New("a released value exceeds the range of float64: scale the columns to about 1")
		}
	}
	r := &dp.Release{Step: e.parts() + e.step, Rows: e.rows, Values: values}
	if e.found != nil {
		last := &values[len(values)-1]
		e.withClipping(values)
		b := e.bounds(last.Data[0], last.SE[0])
		r.Notes, r.Verdict = []dp.Note{{Name: "bounds", Value: b}}, b.Verdict
	}
	return r, nil
}

// moments returns two second moments. `moment` is the one to release. `raw` is for computing the covariance: it has the
// covariance's weight of joint estimation, and its bias is not removed.
func (e *Estimator) moments(v *variances, first, second float64) (moment, raw []float64) {
	var joint []float64
	if e.second != nil {
		joint = e.second.value(second)
	}
	if e.products == nil {
		return joint, joint
	}
	squares := e.products.value(e.plan.Lattice.Exp, first)
	d := len(e.cfg.Columns)
	mix := func(weight, bias float64) []float64 {
		n := -1
		return upper(d, func(i, j int) float64 {
			n++
			x := squares[n]
			if i == j {
				x -= bias
			}
			if joint != nil {
				x = float64(weight*joint[n]) + float64((1-weight)*x)
			}
			return x
		})
	}
	return mix(v.weight, v.bias), mix(v.mixed, 0)
}

// variances holds the variances of the entries of one release, and the public numbers that turn noisy sums into it.
type variances struct {
	mean          float64
	diagonal, off float64 // variances of the second moment; upper bounds for squared rows
	count         float64 // standard error of the number of valid records
	full          float64 // standard error of the number of rows that are not shortened

	// weight is the weight of joint estimation in the second moment. bias is the bias of squared rows, which is added
	// to the diagonal.
	weight, bias float64
	// mixed is the weight of joint estimation in the covariance. debias is the correction that is added to the
	// covariance's diagonal.
	mixed, debias float64
	// linear and quartic are upper bounds on what rows and noise contribute to the variance of an off-diagonal
	// covariance entry. joint is the variance of such an entry in the second moment of joint estimation. The three are
	// used only if rows are squared.
	squared                bool
	linear, quartic, joint float64
}

// in converts the variances to another unit. square is the square of the factor.
func (v variances) in(square float64) variances {
	fourth := float64(square * square)
	v.mean *= square
	v.bias *= square
	v.debias *= square
	for _, x := range []*float64{&v.diagonal, &v.off, &v.linear, &v.quartic, &v.joint} {
		*x *= fourth
	}
	return v
}

// variances returns the variances of release t with the given divisors. records is the number of records that its
// workload covers.
func (e *Estimator) variances(g *overlap, t uint64, first, second, records float64) variances {
	square := func(x, u float64) float64 { return float64(float64(x*x) * u) }
	p := &e.plan
	u1 := e.shapes.first.variance(t)
	u2 := u1
	if e.shapes.second != e.shapes.first {
		u2 = e.shapes.second.variance(t)
	}
	v := variances{
		mean: square(p.First/first, u1), diagonal: square(p.Diagonal/second, u2), off: square(p.OffDiagonal/second, u2),
		weight: 1, mixed: 1,
	}
	v.debias = v.mean
	v.count, v.full = p.Count*math.Sqrt(u1), p.Full*math.Sqrt(u1)
	if !p.squares() {
		return v
	}
	gains, bias := e.shapes.gains(g, t, first, second)
	n := Noise{First: p.First, Diagonal: p.Diagonal}
	d := len(e.cfg.Columns)
	tau2 := float64(p.First * p.First)
	lambda, mu := float64(float64(tau2*p.Clip)*p.Clip), float64(tau2*tau2)
	scatter := e.shapes.scatter(gains, t, records, first)
	v.squared, v.joint = true, v.off
	if v.weight, v.mixed = 0, 0; p.joint() {
		_, joint := ExpectedError("jme", n, p.Clip, d, gains)
		_, processed := ExpectedError("pp_debiased", n, p.Clip, d, gains)
		v.weight, _ = Combine(joint, processed)
		v.mixed = scatter.weight(n, p.Clip, d)
	}
	if p.Method != "pp" {
		v.bias = float64(tau2 * bias)
	}
	own, other := float64(v.weight*v.weight), float64((1-v.weight)*(1-v.weight))
	fourth, cross := float64(mu*gains.Fourth), float64(lambda*gains.Cross)
	v.diagonal = float64(own*v.diagonal) + float64(other*(2*fourth+4*cross))
	v.off = float64(own*v.off) + float64(other*(fourth+cross))
	v.debias = v.mean - float64((1-v.mixed)*float64(tau2*bias))
	linear, quartic := scatter.spread(1 - v.mixed)
	v.linear, v.quartic = float64(lambda*linear), float64(mu*quartic)
	return v
}

// covariance returns the standard error of an entry of the covariance. a and b are the entries of the mean for the row
// and the column of that entry.
func (v *variances) covariance(a, b float64, diagonal bool) float64 {
	if v.squared {
		joint := float64(float64(v.mixed*v.mixed) * v.joint)
		if diagonal {
			return math.Sqrt(2*joint + 4*v.linear + 2*v.quartic)
		}
		return math.Sqrt(joint + v.linear + v.quartic)
	}
	if diagonal {
		return math.Sqrt(v.diagonal + float64(float64(4*v.mean)*float64(a*a)) + float64(float64(2*v.mean)*v.mean))
	}
	return math.Sqrt(v.off + float64(v.mean*(float64(a*a)+float64(b*b))) + float64(v.mean*v.mean))
}

// upper builds the upper triangle of a symmetric matrix, row by row.
func upper(d int, entry func(i, j int) float64) []float64 {
	x := make([]float64, 0, d*(d+1)/2)
	for i := range d {
		for j := i; j < d; j++ {
			x = append(x, entry(i, j))
		}
	}
	return x
}

func at(x []float64, i int, missing float64) float64 {
	if len(x) == 0 {
		return missing
	}
	return x[i]
}
