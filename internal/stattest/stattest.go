// Package stattest has statistical assertions. Their tolerance is computed from the number of samples and from alpha,
// the probability of a false alarm. With fixed seeds a test either always passes or always fails. So alpha is the
// probability that a correct program got an unlucky seed when the test was written. No test is ever repeated with
// another seed. Tests and the audits of internal/audit import this package.
//
// The assertions return an error that says how far off the samples are, or nil if the samples are within the tolerance.
// NaN is never within the tolerance.
package stattest

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// Alpha is the default probability of a false alarm. A thousand such assertions a night
// for a thousand years give less than one.
const Alpha = 1e-9

// Normal returns the z with P(|Z| > z) = alpha for a standard Gaussian. (The
// library's Erfcinv subtracts alpha from 1 and loses small ones.)
func Normal(alpha float64) float64 {
	return bisect(0, 40, func(z float64) bool { return math.Erfc(z/math.Sqrt2) <= alpha })
}

// ChiSquared returns two quantiles of χ² with n degrees of freedom: the probability below low is alpha, and so is the
// probability above high.
func ChiSquared(n int, alpha float64) (low, high float64) {
	a, sd := float64(n)/2, math.Sqrt(float64(n)/2)
	// The brackets certainly contain the quantiles: the lower tail falls faster than a Gaussian's, the upper one more
	// slowly than e^(−x/2).
	low = bisect(0, a, func(x float64) bool { return mathext.GammaIncReg(a, x) >= alpha })
	high = bisect(a, a+60*sd+800, func(x float64) bool { return mathext.GammaIncRegComp(a, x) <= alpha })
	return 2 * low, 2 * high
}

// bisect returns the number between lo and hi at which f changes from false to true.
func bisect(lo, hi float64, f func(float64) bool) float64 {
	for range 200 {
		mid := lo + (hi-lo)/2
		if mid <= lo || mid >= hi {
			break
		}
		if f(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// Check is one number that a test computed, and the interval in which it must be.
type Check struct {
	What             string // "variance", "coordinate 3: mean"
	Value, Low, High float64
	Samples          int
	Alpha            float64
}

// Err returns nil if the value is in its interval.
func (c Check) Err() error {
	if c.Value >= c.Low && c.Value <= c.High {
		return nil
	}
	return fmt.Errorf("%s is %.6g, must be in [%.6g, %.6g] (%d samples, alpha %g)", c.What, c.Value, c.Low, c.High,
		c.Samples, c.Alpha)
}

// Used returns the distance of the value from the middle of its interval, divided by half of the interval's length. It
// is above 1 if the value is outside.
func (c Check) Used() float64 {
	return math.Abs(c.Value-(c.Low+c.High)/2) / ((c.High - c.Low) / 2)
}

func (c Check) at(format string, args ...any) Check {
	c.What = fmt.Sprintf(format, args...) + ": " + c.What
	return c
}

// Variance checks independent samples of N(0, 1). Their sum of squares must be between two χ² quantiles, each with
// probability alpha/2 outside.
func Variance(z []float64, alpha float64) error { return VarianceCheck(z, alpha).Err() }

// VarianceCheck returns the check of Variance.
func VarianceCheck(z []float64, alpha float64) Check {
	var sum float64
	for _, x := range z {
		sum += x * x
	}
	return SquaresCheck(sum, len(z), alpha)
}

// SumOfSquares does what Variance does, for n samples whose squares add up to sum.
func SumOfSquares(sum float64, n int, alpha float64) error { return SquaresCheck(sum, n, alpha).Err() }

// SquaresCheck returns the check of SumOfSquares.
func SquaresCheck(sum float64, samples int, alpha float64) Check {
	low, high := ChiSquared(samples, alpha/2)
	n := float64(samples)
	return Check{"variance", sum / n, low / n, high / n, samples, alpha}
}

// Mean checks the mean of independent samples of variance sd², which must be Gaussian or many. The distance of their
// mean from want must be at most sd·z/√n.
func Mean(samples []float64, want, sd, alpha float64) error {
	return mean(samples, want, sd, alpha).Err()
}

func mean(samples []float64, want, sd, alpha float64) Check {
	var sum float64
	for _, x := range samples {
		sum += x - want
	}
	n := float64(len(samples))
	most := sd * Normal(alpha) / math.Sqrt(n)
	return Check{"mean", want + sum/n, want - most, want + most, len(samples), alpha}
}

// Correlation checks two independent sequences of independent Gaussians of mean 0. Their correlation r must have |r|√n
// ≤ z. For alpha below 1 %, r√n has the variance of a standard Gaussian, but lighter tails.
func Correlation(a, b []float64, alpha float64) error { return CorrelationCheck(a, b, alpha).Err() }

// CorrelationCheck returns the check of Correlation.
func CorrelationCheck(a, b []float64, alpha float64) Check {
	var ab, aa, bb float64
	for i, x := range a {
		y := b[i]
		ab += x * y
		aa += x * x
		bb += y * y
	}
	most := Normal(alpha) / math.Sqrt(float64(len(a)))
	return Check{"correlation", ab / math.Sqrt(aa*bb), -most, most, len(a), alpha}
}

// Lag checks independent samples. The correlation of the sequence with itself, shifted by lag, must be as small as that
// of independent sequences.
func Lag(z []float64, lag int, alpha float64) error { return lagged(z, lag, alpha).Err() }

func lagged(z []float64, lag int, alpha float64) Check {
	return CorrelationCheck(z[:len(z)-lag], z[lag:], alpha).at("lag %d", lag)
}

// White checks rows of independent N(0, 1). It returns the checks of Whiteness that fail.
func White(rows [][]float64, lags int, alpha float64) error {
	var errs []error
	for _, c := range Whiteness(rows, lags, alpha) {
		if err := c.Err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// paired is the number of coordinates whose pairs Whiteness checks.
const paired = 64

// Whiteness tests rows of independent N(0, 1), where rows[t] belongs to step t. It tests the variance of all together
// and of each coordinate, means, and the correlations of coordinates with each other and with themselves up to lags
// steps later. If a row is longer than 64, it tests the correlations of 64 coordinates spread evenly over the row.
// alpha is divided among the tests. The first check is the variance of all.
func Whiteness(rows [][]float64, lags int, alpha float64) []Check {
	d, n := len(rows[0]), len(rows)
	columns := make([][]float64, d)
	for j := range columns {
		columns[j] = make([]float64, n)
		for t, row := range rows {
			columns[j][t] = row[j]
		}
	}
	all := slices.Concat(columns...)
	lags = min(lags, n-1)
	k := min(d, paired)
	share := alpha / float64(1+2*d+k*(k-1)/2+k*lags)
	checks := []Check{VarianceCheck(all, share)}
	bounds := VarianceCheck(columns[0], share) // the same for all
	for i, x := range columns {
		v, m := bounds, 0.0
		v.Value = 0
		for _, z := range x {
			v.Value += z * z / float64(n)
			m += z / float64(n)
		}
		most := Normal(share) / math.Sqrt(float64(n))
		checks = append(checks, v.at("coordinate %d", i),
			Check{"mean", m, -most, most, n, share}.at("coordinate %d", i))
	}
	for a := range k {
		i := a * d / k
		for b := range a {
			j := b * d / k
			checks = append(checks, CorrelationCheck(columns[i], columns[j], share).at("coordinates %d, %d", j, i))
		}
		for lag := 1; lag <= lags; lag++ {
			checks = append(checks, lagged(columns[i], lag, share).at("coordinate %d", i))
		}
	}
	return checks
}

// KolmogorovSmirnov checks the distance of the samples' empirical distribution from cdf: it must be at most
// √(ln(2/alpha)/2n), by the Dvoretzky–Kiefer–Wolfowitz inequality with Massart's constant, valid for every n.
func KolmogorovSmirnov(samples []float64, cdf func(float64) float64, alpha float64) error {
	x := slices.Sorted(slices.Values(samples))
	n := float64(len(x))
	var distance float64
	for i, v := range x {
		p := cdf(v)
		distance = max(distance, p-float64(i)/n, float64(i+1)/n-p)
	}
	if most := math.Sqrt(math.Log(2/alpha) / (2 * n)); !(distance <= most) {
		return fmt.Errorf("the Kolmogorov distance is %.6g, must be at most %.3g (%g samples, alpha %g)", distance,
			most, n, alpha)
	}
	return nil
}

// Gaussian is the distribution function of N(0, 1).
func Gaussian(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// Covariance checks rows of independent Gaussian vectors of mean 0 with covariance want. It whitens them with the
// Cholesky factor of want, and checks the result by White, without lags.
func Covariance(rows [][]float64, want [][]float64, alpha float64) error {
	d := len(want)
	l := make([][]float64, d)
	for i := range l {
		l[i] = make([]float64, i+1)
		for j := range i + 1 {
			sum := want[i][j]
			for k := range j {
				sum -= l[i][k] * l[j][k]
			}
			if i > j {
				l[i][j] = sum / l[j][j]
				continue
			}
			if !(sum > 0) {
				return errors.New("the wanted covariance is not positive definite")
			}
			l[i][i] = math.Sqrt(sum)
		}
	}
	white := make([][]float64, len(rows))
	for t, row := range rows {
		z := make([]float64, d)
		for i := range z {
			sum := row[i]
			for k := range i {
				sum -= l[i][k] * z[k]
			}
			z[i] = sum / l[i][i]
		}
		white[t] = z
	}
	return White(white, 0, alpha)
}
