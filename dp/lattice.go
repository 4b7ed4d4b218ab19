package dp

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync"
)

// Lattice is the grid on which records become integers. Its step is g = 2^Exp, and K is the largest norm of a record in
// units of g. The clip norm K·g may be slightly smaller than the configured one. Bound returns K·g; both clipping and
// calibration use it.
type Lattice struct {
	Exp int
	K   int64
}

// NewLattice returns the lattice for records clipped to `bound` and noise of standard deviation sd, in the same units:
//
//	g = 2^e ≤ 2^−bits·min(bound, sd),  K = ⌊bound/g⌋ ≤ 2³⁰
//
// with the largest such e. If K ≤ 2³⁰ needs a coarser step, bits is reduced, to no less than 24.
//
// Errors: a bound or sd that is not positive and finite; bits outside 24–30; noise so much smaller than the bound that
// 24 bits are not possible.
func NewLattice(bound, sd float64, bits int) (Lattice, error) {
	var errs []error
	if !(bound > 0) || !finite(bound) {
		errs = append(errs, fmt.Errorf("clip bound is %g, must be positive and finite", bound))
	}
	if !(sd > 0) || !finite(sd) {
		errs = append(errs, fmt.Errorf("noise standard deviation is %g, must be positive and finite", sd))
	}
	if bits < 24 || bits > 30 {
		errs = append(errs, fmt.Errorf("lattice_bits is %d, must be 24–30", bits))
	}
	if err := errors.Join(errs...); err != nil {
		return Lattice{}, err
	}
	_, e := math.Frexp(min(bound, sd)) // 2^(e−1) ≤ min(bound, sd) < 2^e
	l := Lattice{Exp: e - 1 - bits}
	if l.Exp < -500 || l.Exp > 500 {
		return Lattice{}, fmt.Errorf("lattice step 2^%d is out of range: scale the columns to about 1", l.Exp)
	}
	k := math.Floor(math.Ldexp(bound, -l.Exp)) // exact: a division by a power of two
	for ; k > 1<<30 && bits > 24; bits-- {
		l.Exp++
		k = math.Floor(math.Ldexp(bound, -l.Exp))
	}
	if k > 1<<30 {
		return Lattice{}, fmt.Errorf("noise of standard deviation %g is too small for a clip bound of %g: "+
			"at 24 lattice bits a record would need more than 2^30 lattice steps", sd, bound)
	}
	l.K = int64(k)
	return l, nil
}

// Step returns g.
func (l Lattice) Step() float64 { return math.Ldexp(1, l.Exp) }

// Bound returns K·g, the norm to which records are clipped.
func (l Lattice) Bound() float64 { return math.Ldexp(float64(l.K), l.Exp) }

// Quantise clips x to norm K·g and writes the nearest lattice point to dst. The calibration relies on ‖dst‖₂ ≤ K, so
// this is tested in integers. If x is not finite, or no rounding brings it inside, dst becomes the zero vector and the
// result is false. dst and x have equal length; x is not changed.
//
// Privacy: for records in slots of public position, a sum of quantised rows has ℓ₂ sensitivity exactly K·g under
// ZeroOut and 2K·g under Replace.
// Cost: O(d), no allocation.
func (l Lattice) Quantise(dst []int64, x []float64) bool {
	_, inside := l.QuantiseSquare(dst, x)
	return inside
}

// QuantiseSquare does what Quantise does, and also returns Σ dst_j².
func (l Lattice) QuantiseSquare(dst []int64, x []float64) (square uint64, inside bool) {
	sum := sumOfSquares(x)
	if ordinary(sum) && -500 <= l.Exp && l.Exp <= 500 { // the case of almost every record
		scale, norm := powerOfTwo(-l.Exp), math.Sqrt(sum)
		if norm > float64(l.K)*powerOfTwo(l.Exp) {
			scale = float64(l.K) / norm
		}
		if square, inside = l.roundNear(dst, x, scale); inside {
			return square, true
		}
		if square, inside = l.roundDown(dst, x, scale); inside {
			return square, true
		}
	}
	scale, e, ok := l.scaling(x, sum)
	for i := 0; ok && i < len(shrinks); i++ {
		if square, inside = l.round(dst, x, scale, e, shrinks[i]); inside {
			return square, true
		}
	}
	clear(dst)
	return 0, false
}

// roundNear is round for e = 0 and shrink = toNearest. Up to its last bits, ‖scale·x‖ is at most K. So no integer and
// no sum of squares can overflow, and one test at the end is enough.
func (l Lattice) roundNear(dst []int64, x []float64, scale float64) (sum uint64, inside bool) {
	dst = dst[:len(x)]
	for j, v := range x {
		k := int64(math.Floor(float64(v*scale) + 0.5))
		dst[j] = k
		sum += uint64(k * k)
	}
	return sum, sum <= uint64(l.K)*uint64(l.K)
}

// roundDown is roundNear for shrink = 1.
func (l Lattice) roundDown(dst []int64, x []float64, scale float64) (sum uint64, inside bool) {
	dst = dst[:len(x)]
	for j, v := range x {
		k := int64(float64(v * scale))
		dst[j] = k
		sum += uint64(k * k)
	}
	return sum, sum <= uint64(l.K)*uint64(l.K)
}

// powerOfTwo returns 2^e for |e| ≤ 500.
func powerOfTwo(e int) float64 { return math.Float64frombits(uint64(1023+e) << 52) }

// QuantiseLong does what Quantise does, but uses all processors if x has 2¹⁶ coordinates or more. It sums the norm in
// pieces, so the last bits may differ from those of Quantise. The result does not depend on the number of processors.
// The test in integers does not differ.
//
// Privacy: as Quantise.
// Cost: O(d) over the processors, a few allocations.
func (l Lattice) QuantiseLong(dst []int64, x []float64) bool {
	if len(x) < longRow {
		return l.Quantise(dst, x)
	}
	scale, e, ok := l.scaling(x, sumOfSquaresLong(x))
	for i := 0; ok && i < len(shrinks); i++ {
		if l.roundLong(dst, x, scale, e, shrinks[i]) {
			return true
		}
	}
	clear(dst)
	return false
}

// scaling returns the factor scale·2^−e that brings x into the ball, in lattice units. sum is Σ x_j². ok is false if x
// is not finite.
func (l Lattice) scaling(x []float64, sum float64) (scale float64, e int, ok bool) {
	norm, e, ok := norm2(x, sum) // ‖x‖ = norm·2^e
	if !ok {
		return 0, 0, false
	}
	scale = math.Ldexp(1, e-l.Exp)
	if bound := math.Ldexp(float64(l.K), l.Exp-e); norm > bound {
		scale = float64(l.K) / norm
	}
	return scale, e, true
}

// shrinks are the ways of rounding that round tries in turn. Rounding to nearest leaves the ball for a third of the
// clipped records. Rounding toward zero leaves it only if scale was rounded up. The last way rounds toward zero with a
// margin for that.
var shrinks = [...]float64{toNearest, 1, 1 - 1.0/(1<<40)}

const toNearest = 0

// round writes scale·2^−e·x to dst, rounded to nearest, or multiplied by shrink and rounded toward zero. It returns the
// sum of squares. It stops and returns false as soon as the sum exceeds K².
func (l Lattice) round(dst []int64, x []float64, scale float64, e int, shrink float64) (sum uint64, inside bool) {
	dst = dst[:len(x)]
	for j, v := range x {
		if e != 0 {
			v = math.Ldexp(v, -e)
		}
		if v = float64(v * scale); shrink == toNearest {
			dst[j] = int64(math.Floor(v + 0.5))
		} else {
			dst[j] = int64(float64(v * shrink))
		}
	}
	return l.squares(dst)
}

// roundLong is round on all processors.
func (l Lattice) roundLong(dst []int64, x []float64, scale float64, e int, shrink float64) bool {
	var sums [pieces]uint64
	var inside [pieces]bool
	inPieces(len(x), func(i, from, to int) {
		sums[i], inside[i] = l.round(dst[from:to], x[from:to], scale, e, shrink)
	})
	limit := uint64(l.K) * uint64(l.K)
	var sum uint64
	for i, s := range sums {
		if sum += s; !inside[i] || sum > limit { // at most 2⁶¹
			return false
		}
	}
	return true
}

// Inside reports whether Σ k_j² ≤ K², exactly.
func (l Lattice) Inside(k []int64) bool {
	_, ok := l.squares(k)
	return ok
}

// squares returns Σ k_j², or false if it exceeds K² ≤ 2⁶⁰.
func (l Lattice) squares(k []int64) (sum uint64, ok bool) {
	limit := uint64(l.K) * uint64(l.K)
	for _, v := range k {
		if v > l.K || v < -l.K {
			return 0, false
		}
		if sum += uint64(v * v); sum > limit { // at most 2⁶¹
			return 0, false
		}
	}
	return sum, true
}

// Several goroutines process a row if it has at least longRow coordinates. They cut it into `pieces` parts, a number
// that does not depend on the number of processors.
const (
	longRow = 1 << 16
	pieces  = 64
)

// inPieces calls f with the number and the bounds of each piece of n coordinates, on all processors. It returns when
// all calls have returned.
func inPieces(n int, f func(i, from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * pieces / workers; i < (w+1)*pieces/workers; i++ {
				f(i, n*i/pieces, n*(i+1)/pieces)
			}
		})
	}
	wg.Wait()
}

// ordinary reports whether a sum of squares and its terms stayed in the range of float64.
func ordinary(sum float64) bool { return sum > 1e-280 && sum < 1e300 }

// norm2 returns n and e with ‖x‖₂ = n·2^e. sum is Σ x_j²; e is 0 unless sum has left the range of float64. ok is false
// if x contains a NaN or an infinity.
func norm2(x []float64, sum float64) (n float64, e int, ok bool) {
	if ordinary(sum) {
		return math.Sqrt(sum), 0, true
	}
	var largest float64
	for _, v := range x {
		if !finite(v) {
			return 0, 0, false
		}
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return 0, 0, true
	}
	_, e = math.Frexp(largest)
	sum = 0
	for _, v := range x {
		s := math.Ldexp(v, -e)
		sum += float64(s * s)
	}
	return math.Sqrt(sum), e, true
}

// sumOfSquares returns Σ x_j².
func sumOfSquares(x []float64) (sum float64) {
	for _, v := range x {
		sum += float64(v * v)
	}
	return sum
}

// sumOfSquaresLong is sumOfSquares on all processors.
func sumOfSquaresLong(x []float64) (sum float64) {
	var sums [pieces]float64
	inPieces(len(x), func(i, from, to int) { sums[i] = sumOfSquares(x[from:to]) })
	for _, s := range sums {
		sum += s
	}
	return sum
}

// Wide is a 128-bit two's complement integer, hi·2⁶⁴ + lo. It holds sums over all steps, which could overflow int64.
type Wide struct {
	Hi int64
	Lo uint64
}

// Add adds v.
func (w *Wide) Add(v int64) {
	var carry uint64
	w.Lo, carry = bits.Add64(w.Lo, uint64(v), 0)
	w.Hi += v>>63 + int64(carry)
}

// AddWide adds x.
func (w *Wide) AddWide(x Wide) {
	lo, carry := bits.Add64(w.Lo, x.Lo, 0)
	w.Lo, w.Hi = lo, w.Hi+x.Hi+int64(carry)
}

// Rounded returns the nearest integer to w/2^shift, and rounds halves up. The result must fit int64, and |w| must be
// less than 2¹²⁶.
func (w Wide) Rounded(shift uint) int64 {
	if shift == 0 {
		return int64(w.Lo)
	}
	w.AddWide(Wide{Hi: 0, Lo: 1 << (shift - 1)})
	return int64(w.Lo>>shift | uint64(w.Hi)<<(64-shift))
}

// Sub subtracts v.
func (w *Wide) Sub(v int64) {
	var borrow uint64
	w.Lo, borrow = bits.Sub64(w.Lo, uint64(v), 0)
	w.Hi -= v>>63 + int64(borrow)
}

// AddProduct adds a·b.
func (w *Wide) AddProduct(a, b int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	hi -= uint64(a)&uint64(b>>63) + uint64(b)&uint64(a>>63) // from the unsigned to the signed product
	var carry uint64
	w.Lo, carry = bits.Add64(w.Lo, lo, 0)
	w.Hi += int64(hi + carry)
}

// Float returns the nearest float64 of w·2^exp.
func (w Wide) Float(exp int) float64 {
	if w.Hi == int64(w.Lo)>>63 {
		return math.Ldexp(float64(int64(w.Lo)), exp)
	}
	hi, lo, sign := uint64(w.Hi), w.Lo, 1.0
	if w.Hi < 0 {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
		sign = -1
	}
	// Shift the leading one to the top of hi, and combine the lower bits into a sticky bit, so that the conversion
	// rounds only once. Here hi ≠ 0, or lo ≥ 2⁶³.
	shift := bits.LeadingZeros64(hi)
	top, rest := hi<<shift|lo>>(64-shift), lo<<shift
	if rest != 0 {
		top |= 1
	}
	return math.Ldexp(sign*float64(top), exp+64-shift)
}

// Radius returns a norm, in lattice units. If a vector of d coordinates has at most this norm, it stays inside the ball
// of radius K when each coordinate is rounded to nearest. The norm is K − √d/2 − 1, where the 1 covers the error of a
// computed norm. It is not positive if d is too large for the lattice.
func (l Lattice) Radius(d int) float64 {
	return float64(l.K) - math.Sqrt(float64(d))/2 - 1
}

// Accumulate adds to sum the lattice point k nearest to scale·x, if ‖k‖₂ ≤ K; scale is in lattice units. Otherwise it
// leaves sum unchanged and returns false. A vector within Radius is always added.
//
// All numbers are integers below 2⁵³. float64 adds them without rounding in any order, in half the time of int64.
// |sum_j| ≤ 2⁵² must hold before and after the call. For K ≤ 2²⁶ the test of the norm is exact, because the squares and
// their sum are exact. For larger K the test is stricter by the rounding error of the sum; Radius leaves more room than
// that. sum and x have equal length.
//
// Privacy: as for Quantise. The caller clips, and the test verifies that it did.
// Cost: O(d), one pass, no allocation.
//
// Accumulate panics if an entry of scale·x is not below 2⁵⁰ in absolute value. Then the contents of sum are lost.
func (l Lattice) Accumulate(sum, x []float64, scale float64) bool {
	n := len(x)
	sum = sum[:n]
	var even, odd float64
	i := 0
	for ; i+1 < n; i += 2 {
		k0, k1 := nearest(x[i], scale), nearest(x[i+1], scale)
		sum[i] += k0
		sum[i+1] += k1
		even += float64(k0 * k0)
		odd += float64(k1 * k1)
	}
	if i < n {
		k := nearest(x[i], scale)
		sum[i] += k
		even += float64(k * k)
	}
	square, limit := even+odd, float64(l.K)*float64(l.K)
	if l.K > 1<<26 {
		limit *= 1 - float64(n+8)*0x1p-53
	}
	if square <= limit {
		return true
	}
	if !(square < 1<<100) {
		panic("dp: Accumulate: the vector is far outside the lattice's ball")
	}
	for j, v := range x {
		sum[j] -= nearest(v, scale)
	}
	return false
}

// nearest returns scale·v rounded to an integer, halves to even, if |scale·v| is below 2⁵⁰. Otherwise the result is
// NaN, or at least 2⁵⁰ in absolute value.
func nearest(v, scale float64) float64 { return (float64(v*scale) + magic) - magic }
