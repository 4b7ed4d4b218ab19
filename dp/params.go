package dp

import (
	"errors"
	"fmt"
	"math"
	"math/big"
)

// Params states the privacy that an estimator guarantees. Only LatticeBits has a default.
type Params struct {
	// Epsilon is ε, in (0, ∞). Required unless Mu is set.
	Epsilon float64
	// Delta is δ, in (0, 1). Required unless Mu is set.
	Delta float64
	// Mu > 0 states the budget as Gaussian differential privacy, instead of Epsilon and Delta. It is for library use
	// and reference cases; the daemon's configuration has no key for it.
	Mu float64
	// Adjacency is the relation for which the guarantee holds. Required.
	Adjacency Adjacency
	// LatticeBits, 24–30, sets how fine the lattice is. Its step is at most 2^−LatticeBits times the clip norm, and at
	// most 2^−LatticeBits times the standard deviation of the noise. 0 means 24.
	LatticeBits int
}

// Budget returns μ: Mu if that is set, otherwise the largest μ for which a Gaussian mechanism is (ε, δ)-private,
// rounded down. A δ below LeastDelta is an error. The error joins all faults.
func (p Params) Budget() (mu float64, err error) {
	var errs []error
	if !p.Adjacency.Valid() {
		errs = append(errs, errors.New("adjacency is not set, must be \"zero-out\" or \"replace\""))
	}
	if p.LatticeBits != 0 && (p.LatticeBits < 24 || p.LatticeBits > 30) {
		errs = append(errs, fmt.Errorf("lattice_bits is %d, must be 24–30", p.LatticeBits))
	}
	switch {
	case p.Mu != 0:
		if !(p.Mu > 0) || math.IsInf(p.Mu, 0) {
			errs = append(errs, fmt.Errorf("mu is %g, must be positive and finite", p.Mu))
		}
		mu = p.Mu
	default:
		var e error
		if mu, e = Mu(p.Epsilon, p.Delta); e == nil {
			e = CheckDelta(mu, p.Delta)
		}
		if e != nil {
			errs = append(errs, e)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return mu, nil
}

// Bits returns LatticeBits with its default filled in.
func (p Params) Bits() int {
	if p.LatticeBits == 0 {
		return 24
	}
	return p.LatticeBits
}

// LeastDelta returns the smallest δ that the noise of this package supports for a mechanism with the given μ.
//
// A Gaussian is unbounded, but the noise is cut at ±c standard deviations, c = maxZ. Over N noisy coordinates that
// neighbours shift by at most μ in norm, the cut adds at most
//
//	δ_cut = Q(c − μ) + N·2⁻¹²⁸
//
// to the δ of either direction of the adjacency. LeastDelta is 2¹⁰·δ_cut for N = 2⁵⁶, which is more coordinates than
// any epoch has. So the true δ exceeds the stated one by at most a thousandth. LeastDelta is about 2⁻⁶² up to μ = 3,
// and more than 1 from μ = c on.
//
// Source: docs/theory/dp.md, "The cut".
func LeastDelta(mu float64) float64 {
	tail := 1.0
	if mu < maxZ {
		tail, _ = upperTail(new(big.Rat).SetFloat64(maxZ-mu), 192).Float64()
	}
	return 0x1p10 * (tail*RoundUp + 0x1p-72)
}

// CheckDelta returns an error if δ is below LeastDelta.
func CheckDelta(mu, delta float64) error {
	if least := LeastDelta(mu); delta < least {
		return fmt.Errorf(
			"delta is %g, must be at least %.2g: a smaller delta would not cover that noise is cut off at %g "+
				"standard deviations", delta, least, maxZ)
	}
	return nil
}
