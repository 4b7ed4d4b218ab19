// Package calibration turns a budget into correlated noise on a lattice. All estimators
// use it.
//
// An estimator computes its sensitivity s, and the noise for it, as if numbers were real.
// That noise, times NoiseRoom, decides the lattices. Then [Charge] adds to s what
// arithmetic on these lattices can add to the distance of neighbours, and the noise that
// is drawn is calibrated to the sum. [Fits] says whether the sums of a step fit their
// integers. When an epoch is resumed, [Same] and [Near] compare the recorded plan with
// one that is computed again.
package calibration

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Endless is the number of noisy coordinates for which the rounding of correlated noise
// is charged if there is no horizon: ten million a second for two centuries. A mechanism
// ends there.
const Endless = 1 << 56

const (
	// Lattices are chosen for NoiseRoom times the noise for real numbers. The clip norm of a
	// lattice is a little less than the configured one, and so is the noise for it.
	NoiseRoom = 1 - 0x1p-20
	// Growth is the largest factor by which rounding may increase the noise. The limits of the
	// noise are computed before that factor is known. A plan with a larger factor is refused.
	Growth = 1 + 0x1p-10
	// BudgetRoom times the budget is the μ to which noise is calibrated. It is less than the μ
	// that is stated, which is dp.LedgerRoom times the budget.
	BudgetRoom = 1 - 0x1p-48
)

// Array is one array of noisy sums of a mechanism. One factorization correlates its noise over
// time.
type Array struct {
	Factor  matfact.Factorization
	Entries int // of a step
	// Unit is the lattice step, and Deviation the standard deviation of a step's
	// independent draws before rounding is charged, in the same units.
	Unit, Deviation float64
	// Weight is the factor of this array in the joint norm of all arrays.
	Weight float64
	// Symmetric says that the array is the upper triangle of a matrix. Then the entries beside
	// the diagonal count twice in the square of the norm.
	Symmetric bool
}

// Coordinates returns the number of coordinates, over all steps, of an array with so many
// entries a step. Steps end at last (0: none) and at the factorization's horizon; if
// there is neither, it returns Endless.
func Coordinates(f matfact.Factorization, last uint64, entries int) float64 {
	if h := f.Horizon(); h > 0 {
		last = h
	}
	if last > 0 {
		return float64(last) * float64(entries)
	}
	return Endless
}

// LastStep returns the step after which a mechanism ends: the configured one (0: none), or the
// first at which a factorization ends; if there is none, the step at which so many noisy
// coordinates a step have reached Endless.
func LastStep(configured uint64, entries int, factors ...matfact.Factorization) uint64 {
	last := configured
	for _, f := range factors {
		if f == nil {
			continue
		}
		if h := f.Horizon(); h > 0 && (last == 0 || h < last) {
			last = h
		}
	}
	if last == 0 {
		last = Endless / uint64(entries)
	}
	return last
}

// Charge returns the sensitivity to calibrate noise to,
//
//	s' = (s·r + squares + Σ_a 2·Rounding_a·Unit_a·Weight_a·√(n_a))·r,   r = dp.RoundUp,
//
// where s is the joint ℓ₂ sensitivity of all arrays for real numbers, squares is what the
// rounding of sums to a coarser lattice adds, and n_a counts the coordinates of array a
// through all steps: each prediction of correlated noise may err by its Rounding on
// either side of two neighbours. An entry of a symmetric array counts for √2. It also
// returns the limits of every array's noise.
//
// Privacy: for every adjacency for which s is a sensitivity. The caller must use at most
// Growth times the noise in the arrays, see Grown.
//
// Errors: noise that leaves the range of a factorization's integers.
func Charge(s, squares float64, last uint64, arrays ...Array) (float64, []matfact.Limits, error) {
	s = float64(s*dp.RoundUp) + squares
	all := make([]matfact.Limits, len(arrays))
	var errs []error
	for i, a := range arrays {
		limits, err := a.Factor.Limits(Growth * a.Deviation / a.Unit)
		errs = append(errs, err)
		all[i] = limits
		unit := a.Unit
		if a.Symmetric {
			unit *= math.Sqrt2
		}
		s += float64(2 * limits.Rounding * unit * a.Weight * math.Sqrt(Coordinates(a.Factor, last, a.Entries)))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, nil, err
	}
	return float64(s * dp.RoundUp), all, nil
}

// Grown refuses noise that rounding made larger than Charge allowed for. before is the
// deviation that Charge was given, after the one calibrated to Charge's sensitivity.
func Grown(after, before float64) error {
	if !(after <= Growth*before) {
		return fmt.Errorf(
			"rounding of correlated noise would cost %.1g of the noise: use another factorization or more lattice_bits",
			after/before-1)
	}
	return nil
}

// Fits reports whether a step's sum fits an int64 with one bit to spare. Before the noise
// it is at most so many lattice steps.
func Fits(sum float64, limits matfact.Limits) bool { return sum+limits.Noise < 1<<62 }

// Exponent returns the exponent of the largest power of two that is at most 2^−bits·size.
// It is the lattice of sums whose clip norm and noise are of that size.
func Exponent(size float64, bits int) int {
	_, e := math.Frexp(size) // 2^(e−1) ≤ size < 2^e
	return e - 1 - bits
}
