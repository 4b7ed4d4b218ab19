package sgd

import (
	"errors"
	"math"
)

// Intervals returns confidence intervals from m nearly independent estimates: their mean and,
// for each coordinate, the half-width
//
//	t_{(1+level)/2, m−1}·s/√m,   s² = Σ_l (θ_l − mean)²/(m−1)
//
// For iterates of a descent on clipped losses, the intervals cover the minimiser of those losses on the sample. They
// account for the noise, but not for the sampling error.
//
// Privacy: a function of releases, at no cost.
// Source: Brown and others (2024), section 3, where t is the upper quantile.
//
// For reproduction only: the releases of an online estimator have intervals of their own.
func Intervals(estimates [][]float64, level float64) (centre, half []float64, err error) {
	m := len(estimates)
	if m < 2 || !(level > 0 && level < 1) {
		return nil, nil, errors.New("intervals need at least two estimates and a level in (0, 1)")
	}
	centre = meanOf(estimates)
	half = make([]float64, len(centre))
	t := StudentQuantile((1+level)/2, float64(m-1))
	for j := range half {
		var square float64
		for _, theta := range estimates {
			off := theta[j] - centre[j]
			square += float64(off * off)
		}
		half[j] = t * math.Sqrt(square/float64(m-1)/float64(m))
	}
	return centre, half, nil
}

// RunMeans returns the mean of each path after its first burnIn iterates.
//
// For reproduction only: it makes estimates for [Intervals].
func RunMeans(paths [][][]float64, burnIn int) ([][]float64, error) {
	var means [][]float64
	for _, path := range paths {
		if burnIn < 0 || len(path) <= burnIn {
			return nil, errors.New("a path, which is the list of iterates of one run, is not longer than the burn-in")
		}
		means = append(means, meanOf(path[burnIn:]))
	}
	return means, nil
}

// Checkpoints returns m iterates of a path, at equal distances, after its first burnIn.
//
// For reproduction only: it makes estimates for [Intervals].
func Checkpoints(path [][]float64, m, burnIn int) ([][]float64, error) {
	length, err := spacing(path, m, burnIn)
	if err != nil {
		return nil, err
	}
	var points [][]float64
	for l := 1; l <= m; l++ {
		points = append(points, path[burnIn+l*length-1])
	}
	return points, nil
}

// BatchedMeans returns the means of m successive parts of a path after its first burnIn iterates. To be nearly
// independent, parts need 6(2−ησ)/(ησ) iterates each, where σ is the smallest eigenvalue of the curvature.
//
// For reproduction only: it makes estimates for [Intervals].
func BatchedMeans(path [][]float64, m, burnIn int) ([][]float64, error) {
	length, err := spacing(path, m, burnIn)
	if err != nil {
		return nil, err
	}
	var means [][]float64
	for l := range m {
		means = append(means, meanOf(path[burnIn+l*length:burnIn+(l+1)*length]))
	}
	return means, nil
}

func spacing(path [][]float64, m, burnIn int) (int, error) {
	if m < 1 || burnIn < 0 || len(path) < burnIn+m {
		return 0, errors.New("each run's path must have, after the burn-in, at least one iterate per estimate")
	}
	return (len(path) - burnIn) / m, nil
}

func meanOf(all [][]float64) []float64 {
	mean := make([]float64, len(all[0]))
	for _, theta := range all {
		for j, v := range theta {
			mean[j] += v
		}
	}
	for j := range mean {
		mean[j] /= float64(len(all))
	}
	return mean
}
