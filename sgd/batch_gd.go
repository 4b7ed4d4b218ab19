package sgd

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// Descent describes full-batch gradient descent.
type Descent struct {
	// Steps is the number T of iterations. Required.
	Steps int
	// Rate is the step size η. Required.
	Rate float64
	// Clip is the clip norm γ of the gradients, the same in all steps. 0: the clip norm is tracked.
	Clip float64
	// Zeta is the first clip norm. Required if the clip norm is tracked.
	Zeta float64
	// Quantile is the share of records that tracking leaves unclipped. Default 0.6.
	Quantile float64
	// Kappa is the gain of tracking. Default 1.
	Kappa float64
	// Fraction is the share of μ² that the counts of tracking cost. Default 0.1.
	Fraction float64
	// ZetaLow and ZetaHigh bound the clip norm. Default 2^−32 and 2^32.
	ZetaLow, ZetaHigh float64
	// Start is the first iterate θ₀. Nil: 0.
	Start []float64
}

// Path holds the releases of a descent.
type Path struct {
	// Iterates are θ₁ … θ_T.
	Iterates [][]float64
	// Zeta are the clip norms of the steps.
	Zeta []float64
	// Mu is the μ that every record pays for all iterates and clip norms.
	Mu float64
	// Clipped is the exact share of gradients that were clipped. It is not private: do not release it.
	Clipped float64
}

// Average returns the mean of the iterates after the first half.
func (p *Path) Average() []float64 {
	mean := make([]float64, len(p.Iterates[0]))
	last := p.Iterates[len(p.Iterates)/2:]
	for _, theta := range last {
		for j, v := range theta {
			mean[j] += v / float64(len(last))
		}
	}
	return mean
}

// GradientDescent releases the iterates of gradient descent on clipped losses (DP-GD). For n records, r_i = ⟨x_i,
// θ_{t−1}⟩ − y_i and T steps it computes
//
//	θ_t = θ_{t−1} − η(ζ_t/n)(Σ_i clip(r_ix_i/ζ_t) + Z_t),   Z_t ~ N(0, τ²I)
//
// where ζ_t = γ and τ = S√T/μ. With a tracked clip norm, τ = S√(T/(1−f))/μ and
//
//	ζ_{t+1} = ζ_t·exp(−κ(c̃_t/n − q)),   c̃_t = #unclipped + q·#null + N(0, T/(fμ²))
//
// S is 1 under zero-out and 2 under replacement. The descent minimises a sum of Huber losses, one for each record.
//
// Privacy: all iterates and clip norms together are μ-Gaussian private for one of n records, nulled or replaced; n is
// public.
// Cost: O(nd) time a step, for null records too; O(n) memory in addition to the sample.
// Errors: all faults of d and p, joined.
// Source: Brown, Dvijotham, Evans, Liu, Smith, Thakurta (2024), "Private Gradient
// Descent for Linear Regression", Algorithm 1, which has fixed γ. Deviations:
// exact calibration, tracking, integer noise; docs/theory/sgd.md.
func GradientDescent(s *Sample, d Descent, p dp.Params, noise dp.Noise) (*Path, error) {
	d.defaults(s.D)
	mu, err := p.Budget()
	if err = errors.Join(s.validate(), d.validate(s.D), err); err != nil {
		return nil, err
	}
	n := s.Len()
	lattice, one, sd, counting, err := d.rounding(s.D, n, mu, p)
	if err != nil {
		return nil, err
	}

	squares := s.squares()
	theta := append([]float64(nil), d.Start...)
	sums, draws := newGradients(lattice, one, s.D), make([]int64, s.D)
	path := &Path{Mu: mu}
	zeta := d.Clip
	if zeta == 0 {
		zeta = d.Zeta
	}
	clipped := 0
	for t := range d.Steps {
		sums.open(zeta)
		var nulls int64
		for i, square := range squares {
			x := s.row(i)
			r := vector.Dot4(theta, x) - s.Y[i]
			if r-r != 0 {
				nulls++ // an overflow makes a null record
				continue
			}
			// A null record takes as much time as others: its zeros are added with residual 1 and square 1, and it is
			// not counted. Integers are chosen without a branch.
			null, bits, inside := int64(math.Float64bits(square)>>63), math.Float64bits(r), sums.inside
			if null != 0 {
				bits = bitsOfOne
			}
			sums.add(x, math.Float64frombits(bits), math.Abs(square), 1)
			sums.inside -= null * (sums.inside - inside)
			nulls += null
		}
		clipped += n - int(sums.inside+nulls)
		sum := sums.integers()
		dp.RoundRow(draws, noise.Row(numbered("dp-gd/grad", t), sum), sd, nil, 1)
		step := float64(d.Rate*zeta) / float64(float64(n)*one)
		next := make([]float64, s.D)
		for j := range next {
			next[j] = theta[j] - float64(step*float64(sum[j]+draws[j]))
		}
		if vector.Finite(next) {
			theta = next
		}
		path.Iterates = append(path.Iterates, theta)
		path.Zeta = append(path.Zeta, zeta)
		if d.Clip == 0 {
			total := sums.inside*counting.Unit + nulls*counting.Null
			total += dp.RoundAt(noise.Row(numbered("dp-gd/clip", t), []int64{total}), 0, counting.SD)
			part := min(max(float64(total)/float64(float64(counting.Unit)*float64(n)), 0), 1)
			zeta = min(max(float64(zeta*newton.Exp(float64(-d.Kappa*(part-d.Quantile)))), d.ZetaLow), d.ZetaHigh)
		}
	}
	path.Clipped = float64(clipped) / float64(n*d.Steps)
	return path, nil
}

// bitsOfOne is 1 in float64, as bits.
const bitsOfOne = 0x3ff << 52

// rounding returns the lattice l of the gradients of n records, the number one of lattice steps of the clip norm, the
// standard deviation sd of a gradient sum's noise in lattice steps, and how unclipped records are counted.
//
// Errors: the budget or the number of records takes integers out of their range.
func (d *Descent) rounding(features, n int, mu float64, p dp.Params) (l dp.Lattice, one float64, sd []float64,
	c ladder.Counting, err error) {
	gradient, count := mu/math.Sqrt(float64(d.Steps)), 0.0
	if d.Clip == 0 {
		count = gradient * math.Sqrt(d.Fraction)
		gradient *= math.Sqrt(1 - d.Fraction)
	}
	if l, one, err = unitLattice(features, p.Adjacency.Factor()/gradient, p.Bits()); err != nil {
		return l, one, nil, c, err
	}
	sd = []float64{p.Adjacency.Factor() * float64(l.K) / gradient * dp.RoundUp}
	c.Unit = 1 << (p.Bits() - 4)
	c.Null = int64(math.Floor(d.Quantile*float64(c.Unit) + 0.5))
	if count > 0 {
		c.SD = float64(c.Unit) / count * dp.RoundUp
	}
	if !(dp.MaxDraw*max(sd[0], c.SD) < 1<<50 && float64(n)*float64(l.K) < room) {
		err = errors.New("noise or sums would leave their range: raise epsilon, or use fewer records or lattice bits")
	}
	return l, one, sd, c, err
}

func (d *Descent) defaults(features int) {
	number := func(x *float64, def float64) {
		if *x == 0 {
			*x = def
		}
	}
	number(&d.Quantile, 0.6)
	number(&d.Kappa, 1)
	number(&d.Fraction, 0.1)
	number(&d.ZetaLow, 0x1p-32)
	number(&d.ZetaHigh, 0x1p32)
	if d.Start == nil {
		d.Start = make([]float64, features)
	}
}

func (d *Descent) validate(features int) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(d.Steps >= 1, "steps is %d, must be at least 1", d.Steps)
	check(vector.Positive(d.Rate), "rate is %g, must be positive and finite", d.Rate)
	const low, high = 0x1p-400, 0x1p400
	scale := func(name string, x float64) {
		check(x >= low && x <= high,
			"%s is %g, must be positive, and no farther from 1 than a factor of 2^400", name, x)
	}
	if d.Clip != 0 {
		scale("clip", d.Clip)
		check(d.Zeta == 0, "zeta is %g, must be 0 because clip is fixed", d.Zeta)
	} else {
		scale("zeta", d.Zeta)
		scale("least zeta", d.ZetaLow)
		scale("largest zeta", d.ZetaHigh)
		check(d.ZetaLow <= d.ZetaHigh, "least zeta is %g, must be at most the largest zeta, %g", d.ZetaLow, d.ZetaHigh)
	}
	check(d.Quantile > 0 && d.Quantile < 1, "quantile is %g, must be in (0, 1)", d.Quantile)
	check(d.Fraction > 0 && d.Fraction < 1, "fraction is %g, must be in (0, 1)", d.Fraction)
	check(vector.Positive(d.Kappa) && d.Kappa <= 100, "kappa is %g, must be positive and at most 100", d.Kappa)
	check(len(d.Start) == features && vector.Finite(d.Start), "start must be %d numbers", features)
	return errors.Join(errs...)
}

// Refit fits a regression to a table by gradient descent. It needs only the sample's bounds. It spends a tenth of μ² on
// the largest curvature of the features, and the rest on steps with a tracked clip norm. The constant feature gets the
// value with which it has that curvature. radius bounds the norm of the coefficients, and with it the clip norm; 0
// means unknown. Refit returns the path, and theta: the path's Average as coefficients of the features and of a
// constant of 1.
//
// Privacy: as GradientDescent. The curvature λ_max(XᵀX) is paid from the same μ. Its sensitivity is the squared bound
// of one record, under both adjacencies.
// Cost: O(nd² + Tnd), T at most 200.
// Source: docs/theory/sgd.md.
func Refit(s *Sample, radius float64, p dp.Params, noise dp.Noise) (theta []float64, path *Path, err error) {
	mu, err := p.Budget()
	if err = errors.Join(s.validate(), err); err != nil {
		return nil, nil, err
	}
	if !vector.Positive(s.Bound.X) || !vector.Positive(s.Bound.Y) || !(radius >= 0) || math.IsInf(radius, 0) {
		return nil, nil, fmt.Errorf("bounds %g and %g must be positive and finite, radius %g at least 0", s.Bound.X,
			s.Bound.Y, radius)
	}
	bound, h := s.Bound.X, 0.0
	if s.Constant == 0 || s.D > 1 {
		if h, err = curvature(s, curvatureMu(mu), noise); err != nil {
			return nil, nil, err
		}
	} else {
		h = bound * bound // the constant is the only feature
	}
	if s.Constant != 0 {
		s = s.withConstant(math.Sqrt(h))
		bound = math.Sqrt(float64(bound*bound) + h)
	}
	rest := descentMu(mu)
	size := float64(bound * s.Bound.Y)
	high := size * 0x1p16
	if radius > 0 {
		high = size + float64(bound*bound*radius)
	}
	path, err = GradientDescent(s, Descent{
		Steps: refitSteps(s.Len(), rest), Rate: 0.5 / h,
		Zeta: 0.1 * size, ZetaLow: size * 0x1p-32, ZetaHigh: high, Fraction: refitFraction,
	}, dp.Params{Mu: rest, Adjacency: p.Adjacency, LatticeBits: p.LatticeBits}, noise)
	if err != nil {
		return nil, nil, err
	}
	path.Mu = mu
	return s.Coefficients(path.Average()), path, nil
}

// RefitFits reports whether Refit can fit every table of 1 to n records with the given number of features, which
// includes the constant one.
//
// Errors: a number of records, or the budget, takes integers out of their range.
func RefitFits(features int, constant bool, n int, p dp.Params) error {
	mu, err := p.Budget()
	if err != nil {
		return err
	}
	free := features
	if constant {
		free--
	}
	if free > 0 {
		if _, err = curvatureSD(free, n, curvatureMu(mu)); err != nil {
			return fmt.Errorf("%d records: %w", n, err)
		}
	}
	rest := descentMu(mu)
	last := refitSteps(n, rest)
	for steps := refitSteps(1, rest); steps <= last; steps++ {
		records := n // the largest number of records for which refitSteps returns steps
		if steps < last {
			records = int(min(float64(n), math.Sqrt(float64(steps+1))/halfCount(1, rest)+1))
		}
		d := Descent{Steps: steps, Fraction: refitFraction}
		d.defaults(features)
		if _, _, _, _, err := d.rounding(features, records, rest, p); err != nil {
			return fmt.Errorf("%d records: %w", records, err)
		}
	}
	return nil
}

// refitShare is the share of μ² that Refit spends on the curvature. refitFraction is the share of its steps' μ² that
// the counts cost.
const refitShare, refitFraction = 0.1, 0.1

// leastSteps and mostSteps bound the number T of the steps of Refit.
const leastSteps, mostSteps = 10, 200

func curvatureMu(mu float64) float64 { return mu * math.Sqrt(refitShare) }

func descentMu(mu float64) float64 { return mu * math.Sqrt(1-refitShare) * (1 - 0x1p-48) }

// refitSteps returns T for n records. It keeps the noise of a count, √(T/f)/μ, below n/2 unless T is leastSteps.
func refitSteps(n int, mu float64) int {
	half := halfCount(n, mu)
	return int(min(mostSteps, max(leastSteps, half*half)))
}

func halfCount(n int, mu float64) float64 { return float64(n) * mu * math.Sqrt(refitFraction) / 2 }

// curvature releases an upper estimate of the largest eigenvalue of XᵀX/n, without the constant feature: the noisy
// eigenvalue plus one standard deviation of its noise, but at most the squared bound.
func curvature(s *Sample, mu float64, noise dp.Noise) (float64, error) {
	n, d, bound := s.Len(), s.D, s.Bound.X
	if s.Constant != 0 {
		d--
	}
	// Rows become integers, so that the sum of n products is exact: n·K² < 2⁶².
	width := 24
	for width > 8 && math.Ldexp(float64(n), 2*width) >= 1<<62 {
		width--
	}
	rows := dp.Lattice{Exp: -width, K: 1 << width}
	gram := make([]int64, d*d)
	k, x := make([]int64, d), make([]float64, d)
	for i := range n {
		for j, v := range s.row(i)[:d] {
			x[j] = v / bound
		}
		rows.Quantise(k, x)
		for j, v := range k {
			row := gram[j*d : (j+1)*d]
			for l, u := range k[:j+1] {
				row[l] += v * u
			}
		}
	}
	m := mat.NewSymDense(d, nil)
	for j := range d {
		for l := range j + 1 {
			m.SetSym(j, l, math.Ldexp(float64(gram[j*d+l]), -2*width))
		}
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(m, false) {
		return 0, errors.New("the eigenvalues did not converge")
	}
	values := eigen.Values(nil)
	largest := values[len(values)-1]
	sd, err := curvatureSD(d, n, mu)
	if err != nil {
		return 0, err
	}
	const unit = curvatureUnit
	total := int64(math.Floor(largest*unit + 0.5))
	total += dp.RoundAt(noise.Row("dp-gd/lambda", []int64{total}), 0, sd)
	released, deviation := float64(total)/unit, sd/unit
	return bound * bound * min(1, max(released+deviation, deviation)/float64(n)), nil
}

// curvatureUnit is the integer that stands for 1 when the curvature is rounded.
const curvatureUnit = 1 << 20

// curvatureSD returns the standard deviation of the curvature's noise for n records, in units of bound²/curvatureUnit.
//
// Errors: the noise is out of its range.
func curvatureSD(d, n int, mu float64) (float64, error) {
	// One record moves the eigenvalue by at most 1. In each of two neighbours, computing it is off by less than
	// n·d·2⁻⁴⁰.
	sensitivity := (1+2*float64(n)*float64(d)*0x1p-40)*curvatureUnit + 1
	sd := sensitivity / mu * dp.RoundUp
	if !(dp.MaxDraw*sd < 1<<50) {
		return 0, errors.New("noise of the curvature would leave its range: raise epsilon")
	}
	return sd, nil
}
