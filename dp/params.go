package dp

import (
	"errors"
	"fmt"
	"math"
)

// Params is the privacy that an estimator is built for. Nothing in it has a
// default but LatticeBits.
type Params struct {
	// Epsilon, in (0, ∞). Required unless Mu is set.
	Epsilon float64
	// Delta, in (0, 1). Required unless Mu is set.
	Delta float64
	// Mu > 0 states the budget as Gaussian differential privacy and replaces
	// Epsilon and Delta. For library use and reference cases; the
	// configuration of the daemon does not offer it.
	Mu float64
	// Adjacency. Required.
	Adjacency Adjacency
	// LatticeBits is the number of bits by which the lattice step is finer
	// than the clip norm and the noise, 24–30. 0 means 24.
	LatticeBits int
}

// Budget returns μ: the largest one whose Gaussian mechanism is (ε, δ)-private,
// rounded down, or Mu where that is set. All faults are reported at once.
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
		if mu, e = Mu(p.Epsilon, p.Delta); e != nil {
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
