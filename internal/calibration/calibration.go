// Package calibration turns a budget into correlated noise on a lattice. All estimators use it.
//
// An estimator first computes its sensitivity s, and the noise for s, as if it released real numbers. That noise, times
// NoiseRoom, decides the lattices. Arithmetic on lattices can move neighbours further apart. [Charge] adds that
// distance to s, and the noise that is drawn is calibrated to the sum. [Fits] says whether the sums of a step fit their
// integers. When an epoch is resumed, [Factor.Same] and [Near] compare the recorded plan with one that is computed
// again.
package calibration

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Endless is the largest number of noisy coordinates of a mechanism without a horizon: ten million a second for two
// centuries. The rounding of correlated noise is charged for that number, and the mechanism ends there.
const Endless = 1 << 56

const (
	// Lattices are chosen for the noise for real numbers, times NoiseRoom. The factor is less than 1, because the clip
	// norm of a lattice is slightly smaller than the configured one, and so is the noise for that clip norm.
	NoiseRoom = 1 - 0x1p-20
	// Growth is the largest factor by which rounding may increase the noise. The limits of the
	// noise are computed before that factor is known. A plan with a larger factor is refused.
	Growth = 1 + 0x1p-10
	// Noise is calibrated to the budget μ, times BudgetRoom. The product is less than the stated μ, which is
	// dp.LedgerRoom times the budget.
	BudgetRoom = 1 - 0x1p-48
)

// Array is one array of noisy sums of a mechanism. One factorization correlates its noise over
// time.
type Array struct {
	Factor  matfact.Factorization
	Entries int // number of entries of a step
	// Unit is the lattice step, and Deviation the standard deviation of a step's
	// independent draws before rounding is charged, in the same units.
	Unit, Deviation float64
	// Weight is the factor of this array in the joint norm of all arrays.
	Weight float64
	// Symmetric says that the array is the upper triangle of a matrix. Then the entries off the diagonal count twice in
	// the square of the norm.
	Symmetric bool
}

// Coordinates returns the number of coordinates that an array with `entries` entries a step has over all steps. Steps
// end at `last` (0: no end) and at the factorization's horizon. If there is neither, Coordinates returns Endless.
func Coordinates(f matfact.Factorization, last uint64, entries int) float64 {
	if h := f.Horizon(); h > 0 {
		last = h
	}
	if last > 0 {
		return float64(last) * float64(entries)
	}
	return Endless
}

// LastStep returns the last step of a mechanism: the configured one (0: none), or the first at which a factorization
// ends. If neither exists, the last step is the one at which the number of noisy coordinates reaches Endless.
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

// Charge returns the sensitivity to which noise must be calibrated,
//
//	s' = (s·r + squares + Σ_a 2·Rounding_a·Unit_a·Weight_a·√(n_a))·r,   r = dp.RoundUp,
//
// where s is the joint ℓ₂ sensitivity of all arrays for real numbers, squares is the additional sensitivity due to
// rounding sums to a coarser lattice, and n_a is the number of coordinates of array a over all steps. The sum is needed
// because each prediction of correlated noise may have an error of Rounding_a in each of two neighbouring streams. An
// entry of a symmetric array counts for √2. Charge also returns the limits of every array's noise.
//
// Privacy: s' is a sensitivity for every adjacency for which s is one. The caller must draw at most Growth times the
// noise that the arrays state, see Grown.
//
// Errors: noise that exceeds the range of a factorization's integers.
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

// Grown returns an error if rounding made the noise larger than Charge assumed. `before` is the deviation passed to
// Charge, and `after` the one calibrated to Charge's result.
func Grown(after, before float64) error {
	if !(after <= Growth*before) {
		return fmt.Errorf(
			"rounding of correlated noise would cost %.1g of the noise: use another factorization or more lattice_bits",
			after/before-1)
	}
	return nil
}

// Fits reports whether a step's sum, including noise, fits an int64 with one bit to spare. `sum` is an upper bound on
// the sum without noise, in lattice steps.
func Fits(sum float64, limits matfact.Limits) bool { return sum+limits.Noise < 1<<62 }

// Exponent returns the exponent of the largest power of two that is at most 2^−bits·size. That power is the lattice
// step for sums whose clip norm and noise are at least `size`.
func Exponent(size float64, bits int) int {
	_, e := math.Frexp(size) // 2^(e−1) ≤ size < 2^e
	return e - 1 - bits
}
