package matfact

import (
	"math"
	"math/bits"
)

// The errors in this file are for sensitivity 1 and noise multiplier 1. They include C's column norm, so that
// factorizations can be compared. To get the standard deviation of a coordinate, multiply an error by σΔ, the noise
// multiplier times the sensitivity of one row.

// MaxError returns ‖C‖·max_{t≤n} √RowVar(w, t), the largest standard deviation in the first n rows. It evaluates every
// row, in O(n).
func MaxError(f Factorization, w Workload, n uint64) float64 {
	worst, _ := rowErrors(f, n, func(t uint64) float64 { return f.RowVar(w, t) })
	return worst
}

// RMSE returns ‖C‖·√(Σ_{t≤n} RowVar(w, t)/n), the root of the mean variance of the first n rows. It evaluates every
// row, in O(n).
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

// Errors returns MaxError and RMSE quickly for any n. Beyond 1024 rows it evaluates only 512 rows for each doubling of
// n, and interpolates the variance linearly between them. The relative error of the results is less than 10⁻⁵, or 10⁻³
// for windows under the phased scheme, whose variance has peaks.
func Errors(f Factorization, w Workload, n uint64) (worst, rmse float64) {
	if n <= 1024 {
		return rowErrors(f, n, func(t uint64) float64 { return f.RowVar(w, t) })
	}
	var sum, last float64
	for t, at := uint64(1), uint64(0); at < n; t += 1 + t>>9 {
		t = min(t, n)
		v := f.RowVar(w, t)
		// Rows at+1 … t are interpolated on the line from `last` to v.
		step := float64(t - at)
		sum += step*v - (v-last)*(step-1)/2
		worst, last, at = max(worst, v), v, t
	}
	return f.ColNorm() * math.Sqrt(worst), f.ColNorm() * math.Sqrt(sum/float64(n))
}

// TreeError returns the errors of prefix sums by the binary tree mechanism for n steps, the usual baseline. Every node
// of a tree over 2^h ≥ n leaves is released with independent noise, so each row is part of h+1 nodes. The naive
// estimator adds the nodes that partition [1, t],
//
//	variance = number of one bits of t,
//
// Honaker's estimator also averages each node with the nodes below it,
//
//	variance = Σ over the one bits l of t of 2^l/(2^(l+1)−1).
//
// There is no Factorization of the tree mechanism, because its C is not square.
// Cost: O(log n).
func TreeError(n uint64, honaker bool) (worst, rmse float64) {
	if n == 0 {
		return 0, 0
	}
	// The largest variance occurs at step n, or at n with one of its one bits cleared and all lower bits set.
	top := treeVar(n, honaker)
	for rest := n; rest != 0; rest &= rest - 1 {
		low := rest & -rest
		top = max(top, treeVar((n&^(2*low-1))|(low-1), honaker))
	}
	// In the steps up to n, bit l is set in complete runs of 2^l steps, and possibly in a part of one more run.
	var sum float64
	for l := range bits.Len64(n) {
		run := uint64(1) << l
		count := (n >> l >> 1) << l
		if n&run != 0 {
			count += n&(run-1) + 1
		}
		sum += treeVar(run, honaker) * float64(count)
	}
	norm := math.Sqrt(float64(bits.Len64(n-1) + 1))
	return norm * math.Sqrt(top), norm * math.Sqrt(sum/float64(n))
}

// TreeErrorAt returns the error of the tree mechanism for n steps at step t ≤ n.
func TreeErrorAt(n, t uint64, honaker bool) float64 {
	return math.Sqrt(float64(bits.Len64(n-1)+1) * treeVar(t, honaker))
}

func treeVar(t uint64, honaker bool) (v float64) {
	for ; t != 0; t &= t - 1 {
		if l := bits.TrailingZeros64(t); honaker {
			v += math.Ldexp(1, l) / (math.Ldexp(1, l+1) - 1)
		} else {
			v++
		}
	}
	return v
}

// SumBound returns a lower bound on MaxError and RMSE of n prefix sums, for any C. It is the trace norm of the matrix
// of prefix sums, divided by n:
//
//	(1/n) Σ_{k=1}^n 1/(2 sin((2k−1)π/(4n+2))).
//
// If there are more than 10⁵ terms, it computes the rest as an integral, exact to 10⁻¹¹.
//
// For comparison: no result of [New] has a smaller error.
func SumBound(n uint64) float64 {
	const terms = 100000
	var sum float64
	unit := math.Pi / float64(4*n+2)
	if n > terms {
		sum = math.Log(math.Tan(float64(2*n)*unit/2)/math.Tan(float64(2*terms)*unit/2)) / (4 * unit)
	}
	for k := min(n, terms); k >= 1; k-- { // smallest terms first
		sum += 0.5 / math.Sin(float64(2*k-1)*unit)
	}
	return sum / float64(n)
}

// ExpOptimum returns the smallest MaxError of any C, for exponential weights on an endless stream. It is (2/π)K(β) =
// 1/AGM(1, √(1−β²)) with the complete elliptic integral K of modulus β. The square root attains it.
//
// For comparison: no result of [New] has a smaller error.
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

// WindowOptimum returns the smallest MaxError of any C, for sums over the last `width` steps of an endless stream. It
// is
//
//	(1/π) ∫_0^π |sin(width·x/2)/sin(x/2)| dx,
//
// computed by 16-point Gauss–Legendre rules between the zeros of the integrand.
//
// For comparison: no result of [New] has a smaller error.
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

// These are the positive nodes of the 16-point Gauss–Legendre rule on [−1, 1], and their weights.
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
