// Package stattest holds statistical assertions whose tolerance follows from the
// number of samples and from a stated probability of a false alarm. With fixed
// seeds a test either always passes or always fails; alpha is the chance that a
// correct program got an unlucky seed, once, when the test was written. Nothing
// is ever retried. Imported by tests only.
//
// Every function returns an error that says how far off the samples are, nil
// where they are within the tolerance. NaN is never within it.
package stattest

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// Alpha is the probability of a false alarm where nothing else is said: a
// thousand such assertions a night for a thousand years give less than one.
const Alpha = 1e-9

// Normal returns the z with P(|Z| > z) = alpha for a standard Gaussian. (The
// library's Erfcinv subtracts alpha from 1 and loses small ones.)
func Normal(alpha float64) float64 {
	return bisect(0, 40, func(z float64) bool { return math.Erfc(z/math.Sqrt2) <= alpha })
}

// ChiSquared returns the quantiles of χ² with n degrees of freedom of mass alpha
// below low and of mass alpha above high.
func ChiSquared(n int, alpha float64) (low, high float64) {
	a, sd := float64(n)/2, math.Sqrt(float64(n)/2)
	// From the bracket that certainly holds it: the tails fall faster than a
	// Gaussian's below, slower than e^(−x/2) above.
	low = bisect(0, a, func(x float64) bool { return mathext.GammaIncReg(a, x) >= alpha })
	high = bisect(a, a+60*sd+800, func(x float64) bool { return mathext.GammaIncRegComp(a, x) <= alpha })
	return 2 * low, 2 * high
}

// bisect returns where f becomes true between lo and hi.
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

// Variance reports samples of N(0, 1), independent, whose sum of squares is
// outside the χ² quantiles of mass alpha/2 each.
func Variance(z []float64, alpha float64) error {
	var sum float64
	for _, x := range z {
		sum += x * x
	}
	return SumOfSquares(sum, len(z), alpha)
}

// SumOfSquares is Variance of n samples whose squares add up to sum.
func SumOfSquares(sum float64, n int, alpha float64) error {
	low, high := ChiSquared(n, alpha/2)
	if !(sum >= low && sum <= high) {
		return fmt.Errorf("variance is %.6g, must be in [%.6g, %.6g] (%d samples, alpha %g)", sum/float64(n), low/float64(n), high/float64(n), n, alpha)
	}
	return nil
}

// Mean reports samples of variance sd², independent and Gaussian or many, whose
// mean is farther from want than sd·z/√n.
func Mean(samples []float64, want, sd, alpha float64) error {
	var sum float64
	for _, x := range samples {
		sum += x - want
	}
	n := float64(len(samples))
	if got, most := sum/n, sd*Normal(alpha)/math.Sqrt(n); !(math.Abs(got) <= most) {
		return fmt.Errorf("mean is %.6g, must be %.6g ± %.3g (%g samples, alpha %g)", want+got, want, most, n, alpha)
	}
	return nil
}

// Correlation reports two sequences of mean 0, independent of each other and
// each of independent Gaussians, whose correlation r has |r|√n > z. r√n has the
// variance of a standard Gaussian and lighter tails, for alpha below 1 %.
func Correlation(a, b []float64, alpha float64) error {
	var ab, aa, bb float64
	for i, x := range a {
		y := b[i]
		ab += x * y
		aa += x * x
		bb += y * y
	}
	n := float64(len(a))
	if r, most := ab/math.Sqrt(aa*bb), Normal(alpha)/math.Sqrt(n); !(math.Abs(r) <= most) {
		return fmt.Errorf("correlation is %.6g, must be within ±%.3g (%g samples, alpha %g)", r, most, n, alpha)
	}
	return nil
}

// Lag reports a sequence whose correlation with itself, lag later, is too large
// for independent samples.
func Lag(z []float64, lag int, alpha float64) error {
	if err := Correlation(z[:len(z)-lag], z[lag:], alpha); err != nil {
		return fmt.Errorf("lag %d: %w", lag, err)
	}
	return nil
}

// White reports everything that rows of independent N(0, 1) cannot show: rows[t]
// is step t. It tests the variance of each coordinate and of all together, their
// means, their correlations with each other and with themselves up to lags later.
// alpha is shared out among these tests.
func White(rows [][]float64, lags int, alpha float64) error {
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
	tests := 1 + 2*d + d*(d-1)/2 + d*lags
	share := alpha / float64(tests)
	errs := []error{Variance(all, share)}
	note := func(err error, format string, args ...any) {
		if err != nil {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, err)...))
		}
	}
	for i, x := range columns {
		note(Variance(x, share), "coordinate %d", i)
		note(Mean(x, 0, 1, share), "coordinate %d", i)
		for j := range i {
			note(Correlation(x, columns[j], share), "coordinates %d, %d", j, i)
		}
		for lag := 1; lag <= lags; lag++ {
			note(Lag(x, lag, share), "coordinate %d", i)
		}
	}
	return errors.Join(errs...)
}

// KolmogorovSmirnov reports samples whose empirical distribution is farther from
// cdf than √(ln(2/alpha)/2n): the Dvoretzky–Kiefer–Wolfowitz inequality with
// Massart's constant, valid for every n.
func KolmogorovSmirnov(samples []float64, cdf func(float64) float64, alpha float64) error {
	x := slices.Sorted(slices.Values(samples))
	n := float64(len(x))
	var distance float64
	for i, v := range x {
		p := cdf(v)
		distance = max(distance, p-float64(i)/n, float64(i+1)/n-p)
	}
	if most := math.Sqrt(math.Log(2/alpha) / (2 * n)); !(distance <= most) {
		return fmt.Errorf("Kolmogorov distance is %.6g, must be at most %.3g (%g samples, alpha %g)", distance, most, n, alpha)
	}
	return nil
}

// Gaussian is the distribution function of N(0, 1).
func Gaussian(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

// Covariance reports rows of independent Gaussian vectors of mean 0 whose
// covariance is not want: whitened by want's Cholesky factor, they must be
// White without lags.
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
