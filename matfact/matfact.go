// Package matfact factorizes workloads, so that the noise of a stream of
// private releases is correlated where that makes the released rows more
// accurate. It is linear algebra: it draws no noise and charges no budget.
//
// A workload A maps the stream of rows x₁, x₂, … ∈ ℝ^D to what is wanted: sums,
// means, moving averages. Instead of AX a mechanism releases
//
//	A(X + C⁻¹Z) = AX + BZ,   B = AC⁻¹,
//
// with C lower triangular with a positive diagonal and Z independent Gaussians.
//
// Privacy: the released rows are a function of the Gaussian mechanism's output
// CX + Z, computable row by row, so the guarantee is that of one Gaussian
// mechanism, also where rows are chosen after seeing earlier releases. If two
// streams differ in one row by at most Δ (ℓ₂), CX moves by at most Δ·ColNorm:
// noise of standard deviation σ·Δ·ColNorm has noise multiplier σ. ColNorm is the
// largest column norm of C over all columns and its full height, in most cases
// infinite. Everything in this package that is valid for every length stays
// private on a stream that never ends.
//
// These matrices C are built:
//
//	identity  C = I: independent noise. No state.
//	sqrt      C = A^½ of a Toeplitz workload: the best Toeplitz matrix for a
//	          known number of steps, O(t·D) time and memory a step.
//	bsr       the first p coefficients of A^½, O(p·D) a step.
//	bisr      the C whose inverse has the first p coefficients of A^−½: better
//	          than bsr at equal p.
//	banded    the best C with p bands. For short streams and exponential
//	          weights; else a BLT does more with less.
//	dense     the best of all matrices for up to 300 steps, O(t·D) a step; to
//	          measure the others against.
//	blt       geometric columns from 1–8 buffers: within 1.5 % of sqrt for the
//	          length it is tuned for, O(D) a step, valid for every length.
//	phased    buffers that are added, and injected into with other weights, as
//	          the stream doubles in length: 17–27 % above the best Toeplitz
//	          error of every length from 10 to 10¹¹ at once, O(D log t) a step.
//
// Auto chooses. Identity and sqrt are the usual baselines; the errors of the
// tree mechanism and lower bounds are there for comparison.
//
// A Factorization gives two realisations of C⁻¹Z: a Shaper, in integers and
// bit-identical on every architecture, for everything that is released; and a
// Filter in float64 for simulations. Its variances are exact and bit-identical
// as well, because releases state them.
//
// Derivations, error tables and the argument for the fixed-point arithmetic are
// in docs/theory/matfact.md.
package matfact

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
)

// maxBuffers is the largest number of buffers of a BLT: 8 are within 0.5 % of
// the square root for 10⁹ steps.
const maxBuffers = 8

// defaultBands is the number of bands where none is given.
const defaultBands = 16

// Config selects a factorization.
type Config struct {
	// Kind is "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt" or
	// "phased". Required; see Auto.
	Kind string
	// Horizon is the number of steps of the stream, 0 where there is none.
	// Required for "sqrt" and "dense", which refuse further steps. "blt" and "banded" of a
	// sum or mean are tuned for it unless Tune is set; the others do not use it.
	Horizon uint64
	// Buffers is the number of buffers of a BLT, 1–8; 0 chooses it as Auto
	// does. 0 for the other kinds.
	Buffers int
	// Bands is the number of bands p of "bsr", "bisr" and "banded", the diagonal
	// included, 1–256 or, for "banded", 1–64; 0 means 16. A window has no more
	// bands than steps. 0 for the other kinds.
	Bands int
	// Normalise divides every column of "sqrt", "bsr", "bisr", "banded" or "blt" by
	// its norm down to row Horizon, which must be at most 65536: up to 6 % less
	// noise for a stream that ends there. False for the other kinds.
	Normalise bool
	// Tune is the number of steps for which the error of "blt" or "banded" of a
	// sum or mean is minimised; 0 means Horizon. It does not limit the stream. The other kinds
	// and workloads do not use it.
	Tune uint64
	// Stored is what Factorization.Stored returned when the stream began. Where
	// it is given nothing is optimised: an optimiser finds other last bits on
	// another processor, and noise would no longer fit what was released.
	Stored *Stored
}

// Auto returns the factorization to use for w where nothing else is asked for:
//
//	sum, mean, no horizon   phased
//	sum, mean, horizon N    BLT, the fewest buffers within 1.5 % of the
//	                        horizon's best Toeplitz error
//	exponential             BLT of 2 buffers, 3 for a decay above 0.99
//	window                  BLT of 3 buffers
func Auto(w Workload, horizon uint64) Config {
	c := Config{Kind: "blt", Horizon: horizon}
	if horizon == 0 && w.Kernel().Kind == "sum" {
		c.Kind = "phased"
		return c
	}
	c.Buffers = autoBuffers(w, horizon)
	return c
}

// autoBuffers returns the number of buffers of a BLT for w, tuned for n steps.
// For a sum it is the smallest within 1.5 % of the square root's error, both
// optimised for S(∞)·E(n) (TestAuto checks the borders).
func autoBuffers(w Workload, n uint64) int {
	switch w.Kind {
	case "exponential":
		if w.Decay <= 0.99 {
			return 2
		}
		return 3
	case "window":
		return 3
	}
	switch {
	case n <= 1e2:
		return 2
	case n <= 1e4:
		return 3
	case n <= 1e5:
		return 4
	case n <= 1e7:
		return 5
	case n <= 1e8:
		return 6
	case n <= 1e9:
		return 7
	}
	return 8
}

// New returns the factorization that c asks for, made for w.
//
// Errors: all that is wrong with c, w and c.Stored, joined.
func New(c Config, w Workload) (Factorization, error) {
	var errs []error
	if err := w.Validate(); err != nil {
		errs = append(errs, err)
	}
	switch c.Kind {
	case "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt", "phased":
	case "auto":
		errs = append(errs, errors.New("factorization is \"auto\", must be resolved by Auto first"))
	default:
		errs = append(errs, fmt.Errorf("factorization is %q, must be \"identity\", \"sqrt\", \"bsr\", \"bisr\", \"banded\", \"dense\", \"blt\" or \"phased\"", c.Kind))
	}
	if c.Kind == "blt" {
		if c.Buffers < 0 || c.Buffers > maxBuffers {
			errs = append(errs, fmt.Errorf("buffers is %d, must be 0 (chosen) to %d", c.Buffers, maxBuffers))
		}
	} else if c.Buffers != 0 {
		errs = append(errs, fmt.Errorf("buffers is %d, belongs to factorization \"blt\"", c.Buffers))
	}
	if (c.Kind == "blt" || c.Kind == "banded") && w.Kernel().Kind == "sum" && c.Horizon == 0 && c.Tune == 0 && c.Stored == nil {
		errs = append(errs, fmt.Errorf("tune is 0, must be at least 1 step for %s of a sum or mean without a horizon", c.Kind))
	}
	if c.banded() {
		most := maxBands
		if c.Kind == "banded" {
			most = maxBestBands
		}
		if c.Bands < 0 || c.Bands > most {
			errs = append(errs, fmt.Errorf("bands is %d, must be 0 (16) to %d for factorization %q", c.Bands, most, c.Kind))
		}
	} else if c.Bands != 0 {
		errs = append(errs, fmt.Errorf("bands is %d, belongs to factorizations \"bsr\", \"bisr\" and \"banded\"", c.Bands))
	}
	if c.Kind == "sqrt" && (c.Horizon == 0 || c.Horizon > maxSqrtHorizon) {
		errs = append(errs, fmt.Errorf("horizon is %d, must be 1–%d for factorization \"sqrt\"", c.Horizon, maxSqrtHorizon))
	}
	if c.Kind == "dense" && (c.Horizon == 0 || c.Horizon > maxDenseHorizon) {
		errs = append(errs, fmt.Errorf("horizon is %d, must be 1–%d for factorization \"dense\"", c.Horizon, maxDenseHorizon))
	}
	if c.Normalise {
		if c.Kind == "identity" || c.Kind == "phased" || c.Kind == "dense" {
			errs = append(errs, fmt.Errorf("normalise does not go with factorization %q", c.Kind))
		}
		if c.Horizon == 0 || c.Horizon > maxNormalised {
			errs = append(errs, fmt.Errorf("horizon is %d, must be 1–%d where columns are normalised", c.Horizon, maxNormalised))
		}
	}
	if c.Stored != nil && c.Normalise != (c.Stored.Height > 0) || c.Normalise && c.Stored != nil && c.Stored.Height != c.Horizon {
		errs = append(errs, fmt.Errorf("stored factorization: normalised to %d rows", c.Stored.Height))
	}
	if c.Stored != nil && c.Stored.Kind != c.Kind {
		errs = append(errs, fmt.Errorf("stored factorization is %q, must be %q", c.Stored.Kind, c.Kind))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	f, err := c.build(w)
	if err != nil || !c.Normalise {
		return f, err
	}
	if ph := f.Stored().Phases; len(ph) > 0 && ph[0].Scale != 1 {
		return nil, fmt.Errorf("stored factorization: has scale %g, must be 1 where columns are normalised", ph[0].Scale)
	}
	return newNormalised(f.(toeplitz), f.Stored(), int(c.Horizon)), nil
}

// build returns the factorization without normalisation.
func (c Config) build(w Workload) (Factorization, error) {
	if c.Kind == "sqrt" {
		return newRoot(c.Stored, w, c.Horizon)
	}
	s := c.Stored
	if s == nil {
		switch c.Kind {
		case "identity":
			s = identity()
		case "blt":
			var err error
			if s, err = newBLT(c, w); err != nil {
				return nil, err
			}
		case "phased":
			s = phased(w)
		case "bsr", "bisr":
			s = rootBands(c.Kind, w, cmp.Or(c.Bands, defaultBands))
		case "banded":
			var err error
			if s, err = newBandedOptimum(c, w); err != nil {
				return nil, err
			}
		case "dense":
			var err error
			if s, err = newDenseOptimum(w, int(c.Horizon)); err != nil {
				return nil, err
			}
		}
	}
	if c.Kind == "dense" {
		return newDense(s, c.Horizon)
	}
	if c.banded() {
		return newBanded(s)
	}
	return newBuffered(s)
}

// banded reports whether the kind is one that Bands belongs to.
func (c Config) banded() bool { return c.Kind == "bsr" || c.Kind == "bisr" || c.Kind == "banded" }

// Factorization is a lower triangular matrix C with a positive diagonal. What
// it holds is exact: coefficients are integers, and everything below is computed
// from them, never from the numbers an optimiser returned.
//
// A Factorization caches what its variances need and is not safe for
// concurrent use. The Shapers and Filters it makes are independent of it.
type Factorization interface {
	// Kind returns the name by which New knows the factorization.
	Kind() string
	// Horizon returns the number of rows of C; 0: valid for every length.
	Horizon() uint64
	// ColNorm returns the largest column norm of C, over all columns and full
	// height, rounded up by a factor 1+2⁻⁴⁰ that covers float64 rounding.
	ColNorm() float64
	// NewShaper returns a realisation in integers for rows of length dim ≥ 1.
	NewShaper(dim int) Shaper
	// NewFilter returns a realisation in float64 for rows of length dim ≥ 1.
	NewFilter(dim int) Filter
	// RowVar returns Σ_j (AC⁻¹)²_tj, the variance in row t of w for unit noise.
	// It is the same number, to the last bit, on every architecture and
	// whatever was asked before. t ≥ 1; 0 gives 0. RowVar, CinvVar and Cov panic
	// beyond the horizon and on an invalid workload.
	RowVar(w Workload, t uint64) float64
	// CinvVar returns Σ_j (C⁻¹)²_tj, the variance of the noise in row t before
	// the workload.
	CinvVar(t uint64) float64
	// Cov returns Σ_j (AC⁻¹)_tj (AC⁻¹)_uj, the covariance of rows t and u of w.
	Cov(w Workload, t, u uint64) float64
	// Limits bounds what a Shaper can reach where the independent noise has
	// standard deviation sd, in lattice units. It returns an error where the
	// fixed-point state could overflow.
	Limits(sd float64) (Limits, error)
	// Stored returns the integers that C is made of.
	Stored() *Stored
}

// Limits bounds the release path, for ever or up to the horizon, for draws
// |Z| ≤ 14. Both are in lattice units.
type Limits struct {
	// Noise is the largest |w| that can occur.
	Noise float64
	// Rounding bounds |ŝ_t − s_t|, the difference between the number that
	// Predict returns and the exact one. Two neighbouring streams may round
	// differently: over n steps of D coordinates the sensitivity grows by
	// 2·Rounding·√(nD).
	Rounding float64
}

// Shaper turns independent Gaussian noise into integer noise correlated by C⁻¹,
// by solving CW = Z row by row. Step t is
//
//	r := Predict(s)                           s_t = Σ_{j<t} C_tj w_j,  r_t = 1/C_tt
//	w_t = ⌊ r_t(σZ_t/g − s_t) + ½ ⌋           by the caller
//	Push(w)
//
// Privacy: adding w_t to an integer row x_t gives ⌊r_t([Cx]_t + σZ_t/g −
// Σ_{j<t} C_tj(x_j+w_j)) + ½⌋, a function of the real-valued Gaussian
// mechanism's output and of past releases. So rounding costs no privacy, but
// only if the w that was used is what is pushed, and the s that Predict
// returned is what was subtracted.
//
// All state is integers, and the one conversion to float64 is exact up to its
// final rounding: every architecture gets the same s.
//
// A Shaper is not safe for concurrent use.
type Shaper interface {
	// Predict writes s_t of the step about to be drawn into s, in lattice
	// units, and returns r_t. It changes nothing.
	Predict(s []float64) (r float64)
	// Push takes the integer row that was used, each entry within
	// Limits.Noise, and ends the step. It panics beyond the horizon.
	Push(w []int64)
	// AppendBinary appends the state. It is as secret as the rows that the
	// noise hides.
	encoding.BinaryAppender
	// UnmarshalBinary restores a state that a Shaper of the same factorization
	// and dimension wrote, and leaves the Shaper as it was where it reports an
	// error.
	encoding.BinaryUnmarshaler
}

// Filter is C⁻¹Z in float64: for reference cases, planning and simulation. It
// must not protect data, for float64 noise added to data does not.
//
// A Filter is not safe for concurrent use.
type Filter interface {
	// Next writes the next row of C⁻¹Z into dst, given the next row z of Z. dst
	// may be z.
	Next(dst, z []float64)
}
