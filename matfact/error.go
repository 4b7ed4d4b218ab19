package matfact

import (
	"math"
	"math/bits"
)

// Errors are for sensitivity 1 and noise multiplier 1: with C's column norm in,
// so that factorizations can be compared. Multiply by σΔ, the noise multiplier
// times the sensitivity of one row, for the standard deviation of a coordinate.

// MaxError returns ‖C‖·max_{t≤n} √RowVar(w, t), the largest standard deviation of
// the first n rows. It evaluates all of them: O(n).
func MaxError(f Factorization, w Workload, n uint64) float64 {
	worst, _ := rowErrors(f, n, func(t uint64) float64 { return f.RowVar(w, t) })
	return worst
}

// RMSE returns ‖C‖·√(Σ_{t≤n} RowVar(w, t)/n), the root of the mean variance of the
// first n rows. It evaluates all of them: O(n).
func RMSE(f Factorization, w Workload, n uint64) float64 {
	_, rmse := rowErrors(f, n, func(t uint64) float64 { return f.RowVar(w, t) })
	return rmse
}

func rowErrors(f Factorization, n uint64, variance func(t uint64) float64) (worst, rmse float64) {
	var sum float64
	for t := uint64(1); t <= n; t++ {
		v := variance(t)
		worst = max(worst, v)
		sum += v
	}
	return f.ColNorm() * math.Sqrt(worst), f.ColNorm() * math.Sqrt(sum/float64(n))
}

// TreeError returns the errors of prefix sums by the binary tree mechanism for n
// steps, the usual baseline: every node of a tree over 2^h ≥ n leaves is released
// with independent noise, so one row counts h+1 times. The naive estimator adds
// the nodes that partition [1, t],
//
//	variance = number of one bits of t,
//
// Honaker's also averages each with what lies below it,
//
//	variance = Σ over the one bits l of t of 2^l/(2^(l+1)−1).
//
// Its C is rectangular, so there is no Factorization of it.
func TreeError(n uint64, honaker bool) (worst, rmse float64) {
	if n == 0 {
		return 0, 0
	}
	height := bits.Len64(n - 1)
	var sum, top float64
	for t := uint64(1); t <= n; t++ {
		v := float64(bits.OnesCount64(t))
		if honaker {
			v = 0
			for rest := t; rest != 0; rest &= rest - 1 {
				l := bits.TrailingZeros64(rest)
				v += math.Ldexp(1, l) / (math.Ldexp(1, l+1) - 1)
			}
		}
		top = max(top, v)
		sum += v
	}
	norm := math.Sqrt(float64(height + 1))
	return norm * math.Sqrt(top), norm * math.Sqrt(sum/float64(n))
}

// SumBound returns a lower bound on both errors of n prefix sums, for any C:
// the trace norm of the matrix over n,
//
//	(1/n) Σ_{k=1}^n 1/(2 sin((2k−1)π/(4n+2))).
func SumBound(n uint64) float64 {
	var sum float64
	for k := n; k >= 1; k-- { // smallest terms first
		sum += 0.5 / math.Sin(float64(2*k-1)*math.Pi/float64(4*n+2))
	}
	return sum / float64(n)
}

// ExpOptimum returns the smallest maximal error that any C has for exponential
// weights on an endless stream, (2/π)K(β) = 1/AGM(1, √(1−β²)) with the complete
// elliptic integral K of modulus β. The square root attains it.
func ExpOptimum(decay float64) float64 {
	a, b := 1.0, math.Sqrt((1-decay)*(1+decay))
	for range 64 {
		if a-b <= 0x1p-52*a {
			break
		}
		a, b = (a+b)/2, math.Sqrt(a*b)
	}
	return 1 / a
}

// WindowOptimum returns the smallest maximal error that any C has for sums over
// the last width steps of an endless stream,
//
//	(1/π) ∫_0^π |sin(width·x/2)/sin(x/2)| dx,
//
// by 16-point Gauss–Legendre rules between the zeros of the integrand.
func WindowOptimum(width uint64) float64 {
	w := float64(width)
	var sum float64
	for lobe := uint64(0); 2*lobe < width; lobe++ {
		lo := 2 * math.Pi * float64(lobe) / w
		hi := min(lo+2*math.Pi/w, math.Pi)
		for i, x := range legendreNodes {
			for _, sign := range [2]float64{-1, 1} {
				t := (lo + hi + sign*x*(hi-lo)) / 4 // half of the abscissa
				sum += legendreWeights[i] * (hi - lo) / 2 * math.Abs(math.Sin(w*t)/math.Sin(t))
			}
		}
	}
	return sum / math.Pi
}

// The positive half of the 16-point Gauss–Legendre rule on [−1, 1].
var (
	legendreNodes = [8]float64{
		0.09501250983763744, 0.2816035507792589, 0.45801677765722737, 0.6178762444026438,
		0.755404408355003, 0.8656312023878318, 0.9445750230732326, 0.9894009349916499,
	}
	legendreWeights = [8]float64{
		0.1894506104550685, 0.18260341504492358, 0.16915651939500254, 0.14959598881657674,
		0.12462897125553388, 0.09515851168249279, 0.062253523938647894, 0.027152459411754096,
	}
)
