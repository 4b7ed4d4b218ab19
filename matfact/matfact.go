// Package matfact factorizes workloads. The releases of a private stream can have independent or correlated noise. A
// factorization says how to correlate the noise so that the released rows are more accurate. The package is linear
// algebra: it draws no noise and charges no budget.
//
// For example, a stream releases running sums over 1000 steps. If each step adds independent noise, the last sum
// contains the noise of 1000 draws. [Auto] chooses a matrix with which later noise cancels most of the earlier noise,
// under the same guarantee:
//
//	f, err := matfact.New(matfact.Auto(matfact.Workload{Kind: "sum"}, 1000), matfact.Workload{Kind: "sum"})
//
// A workload A maps the stream of rows x₁, x₂, … ∈ ℝ^D to the wanted results: sums, means, moving averages. Instead of
// AX a mechanism releases
//
//	A(X + C⁻¹Z) = AX + BZ,   B = AC⁻¹,
//
// with C lower triangular with a positive diagonal and Z independent Gaussians.
//
// Privacy: the released rows are a function of CX + Z that can be computed row by row. So the guarantee equals that of
// one Gaussian mechanism. It also holds if rows are chosen after seeing earlier releases. If two streams differ in one
// row by at most Δ (ℓ₂), their CX differ by at most Δ·ColNorm, so noise of standard deviation σ·Δ·ColNorm has noise
// multiplier σ. ColNorm is the largest norm of a column of C, over all columns and all their rows; a column has
// infinitely many rows unless the factorization has a horizon. A factorization without a horizon stays private on a
// stream that never ends.
//
// The package builds these matrices C:
//
//	identity  C = I: independent noise. No state.
//	sqrt      C = A^½ of a Toeplitz workload: the best Toeplitz matrix for a
//	          known number of steps, O(t·D) time and memory a step.
//	bsr       the first p coefficients of A^½, O(p·D) a step.
//	bisr      the C whose inverse has the first p coefficients of A^−½: better
//	          than bsr at equal p.
//	banded    the best C with p bands. For short streams and exponential
//	          weights; for others a BLT is more accurate at a lower cost.
//	dense     the best of all matrices for up to 300 steps, O(t·D) a step; a
//	          reference for the others.
//	blt       geometric columns from 1–8 buffers: within 1.5 % of sqrt for the
//	          length it is tuned for, O(D) a step, valid for every length.
//	phased    buffers that are added, and get other weights, as the stream
//	          doubles in length: 17–27 % above the best Toeplitz error of
//	          every length from 10 to 10¹¹ at once, O(D log t) a step.
//
// [Auto] chooses one of them. If one person may have many rows, use [AutoPersons]. Identity and sqrt are the usual
// baselines. For comparison there are the errors of the tree mechanism and lower bounds on the error: [TreeError],
// [SumBound], [ExpOptimum], [WindowOptimum].
//
// A Factorization computes C⁻¹Z in two ways. A Shaper computes in integers, with the same bits on every architecture;
// use it for everything that is released. A Filter computes in float64, for simulations. Releases state variances, so
// these too have the same bits on every architecture.
//
// Derivations, error tables and the argument for the fixed-point arithmetic are in docs/theory/matfact.md.
package matfact

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
)

// maxBuffers is the largest number of buffers of a BLT. With 8 buffers the error is within 0.5 % of the error of the
// square root factorization for 10⁹ steps.
const maxBuffers = 8

// defaultBands is the number of bands if none is given.
const defaultBands = 16

// Config selects a factorization.
type Config struct {
	// Kind is "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt" or
	// "phased". Required; see Auto.
	Kind string
	// Horizon is the number of steps of the stream, 0 if it has no end. "sqrt" and "dense" require Horizon, and accept
	// no steps beyond it. "blt" and "banded" of a sum or mean are tuned for Horizon unless Tune is set. The other kinds
	// ignore it.
	Horizon uint64
	// Buffers is the number of buffers of a BLT, 1–8; 0 lets New choose it as Auto does.
	// It must be 0 for the other kinds.
	Buffers int
	// Bands is the number of bands p of "bsr", "bisr" and "banded", including the diagonal: 1–256 or, for "banded",
	// 1–64; 0 means 16. For a window, p is at most its number of steps. It must be 0 for the other kinds.
	Bands int
	// Normalise divides every column of "sqrt", "bsr", "bisr", "banded" or "blt" by its norm down to row Horizon, which
	// must be at most 65536. That gives up to 6 % less noise for a stream that ends at Horizon. It must be false for
	// the other kinds.
	Normalise bool
	// Tune is the number of steps for which the error of "blt" or "banded" of a sum or mean is minimised; 0 means
	// Horizon. It does not limit the stream. The other kinds and workloads ignore it.
	Tune uint64
	// Participation tunes "blt" for all rows of one person together: New minimises the error times the Sensitivity for
	// Participation on an endless stream. The zero value, and a Count of 1, mean that single rows are protected. The
	// other kinds ignore it.
	Participation Participation
	// Stored is the result that Factorization.Stored returned at the beginning of the stream. If it is given, New does
	// not optimise. A restarted stream needs it: on another processor an optimiser may find different last bits, and
	// then the noise would not match the earlier releases.
	Stored *Stored
}

// Auto returns the default factorization for w:
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

// personTune is the number of steps for which AutoPersons tunes sums if the stream does not end.
const personTune = 10_000

// AutoPersons returns the default factorization for w if one person may have several rows. p describes how many, and
// horizon is the number of steps of the stream, 0 if it does not end.
//
//	p.Count 1                        as Auto
//	rows in every step of a sum      identity: no C has a smaller error at the end
//	else                             BLT with as many buffers as Auto's, tuned for p
//
// If the stream does not end, the BLT for sums is tuned for 10 000 steps; it is valid for every length.
func AutoPersons(w Workload, horizon uint64, p Participation) Config {
	p = p.Within(horizon)
	switch {
	case p.Count <= 1:
		return Auto(w, horizon)
	case w.Kernel().Kind == "sum" && p.Count == horizon:
		return Config{Kind: "identity", Horizon: horizon}
	}
	c := Config{Kind: "blt", Horizon: horizon, Participation: p}
	if horizon == 0 && w.Kernel().Kind == "sum" {
		c.Tune = personTune
	}
	c.Buffers = autoBuffers(w, max(horizon, c.Tune))
	return c
}

// autoBuffers returns the number of buffers of a BLT for w, tuned for n steps. For a sum it is the smallest number
// whose error is within 1.5 % of the square root's, where both minimise S(∞)·E(n). TestAuto checks the lengths at which
// the number changes. For rows of persons the error is within 1 % of the error with 8 buffers, which TestPersonBuffers
// checks.
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
// Errors: all faults of c, w and c.Stored, joined.
func New(c Config, w Workload) (Factorization, error) {
	var errs []error
	if err := w.Validate(); err != nil {
		errs = append(errs, err)
	}
	switch c.Kind {
	case "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt", "phased":
	case "auto":
		errs = append(errs, errors.New("factorization is \"auto\": call Auto to choose one"))
	default:
		errs = append(errs,
			fmt.Errorf(
				"factorization is %q, must be \"identity\", \"sqrt\", \"bsr\", \"bisr\", \"banded\", \"dense\", "+
					"\"blt\" or \"phased\"", c.Kind))
	}
	if c.Kind == "blt" {
		if c.Buffers < 0 || c.Buffers > maxBuffers {
			errs = append(errs, fmt.Errorf("buffers is %d, must be 0 (automatic) to %d", c.Buffers, maxBuffers))
		}
	} else if c.Buffers != 0 {
		errs = append(errs, fmt.Errorf("buffers is %d, must be 0: only factorization \"blt\" has buffers", c.Buffers))
	}
	if (c.Kind == "blt" || c.Kind == "banded") && w.Kernel().Kind == "sum" && c.Horizon == 0 && c.Tune == 0 &&
		c.Stored == nil {
		errs = append(errs,
			fmt.Errorf("tune is 0, must be at least 1 step for %s of a sum or mean without a horizon", c.Kind))
	}
	if c.banded() {
		most := maxBands
		if c.Kind == "banded" {
			most = maxBestBands
		}
		if c.Bands < 0 || c.Bands > most {
			errs = append(errs,
				fmt.Errorf("bands is %d, must be 1 to %d, or 0 for the default of 16, for factorization %q",
					c.Bands, most, c.Kind))
		}
	} else if c.Bands != 0 {
		errs = append(errs,
			fmt.Errorf("bands is %d, must be 0: only factorizations \"bsr\", \"bisr\" and \"banded\" have bands",
				c.Bands))
	}
	if c.Participation != (Participation{}) {
		if err := c.Participation.validate(); err != nil {
			errs = append(errs, err)
		}
		if c.Normalise && c.Participation.Count > 1 {
			errs = append(errs,
				errors.New(
					"normalise cannot be combined with participation: it gives each single column the norm 1, but a "+
						"person has several columns, whose joint norm differs"))
		}
	}
	if c.Kind == "sqrt" && (c.Horizon == 0 || c.Horizon > maxSqrtHorizon) {
		errs = append(errs,
			fmt.Errorf("horizon is %d, must be 1–%d for factorization \"sqrt\"", c.Horizon, maxSqrtHorizon))
	}
	if c.Kind == "dense" && (c.Horizon == 0 || c.Horizon > maxDenseHorizon) {
		errs = append(errs,
			fmt.Errorf("horizon is %d, must be 1–%d for factorization \"dense\"", c.Horizon, maxDenseHorizon))
	}
	if c.Normalise {
		if c.Kind == "identity" || c.Kind == "phased" || c.Kind == "dense" {
			errs = append(errs, fmt.Errorf("normalise cannot be combined with factorization %q", c.Kind))
		}
		if c.Horizon == 0 || c.Horizon > maxNormalised {
			errs = append(errs,
				fmt.Errorf("horizon is %d, must be 1–%d if columns are normalised", c.Horizon, maxNormalised))
		}
	}
	if c.Stored != nil && c.Normalise != (c.Stored.Height > 0) ||
		c.Normalise && c.Stored != nil && c.Stored.Height != c.Horizon {
		errs = append(errs, fmt.Errorf("stored factorization: is normalised to %d rows (0: not normalised), which "+
			"differs from the configuration", c.Stored.Height))
	}
	if c.Stored != nil && c.Stored.Kind != c.Kind {
		errs = append(errs, fmt.Errorf("stored factorization is %q, must be %q", c.Stored.Kind, c.Kind))
	}
	if c.Stored != nil && c.Stored.Fraction != 0 {
		if c.Kind != "blt" || c.Normalise {
			errs = append(errs,
				errors.New("stored factorization: fraction belongs to \"blt\" without normalised columns"))
		}
		if c.Participation != (Participation{}) {
			errs = append(errs, errors.New("stored factorization: fraction cannot be combined with participation"))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	f, err := c.build(w)
	if err != nil || !c.Normalise {
		return f, err
	}
	if ph := f.Stored().Phases; len(ph) > 0 && ph[0].Scale != 1 {
		return nil, fmt.Errorf("stored factorization: has scale %g, must be 1 if columns are normalised",
			ph[0].Scale)
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

// banded reports whether the kind uses Bands.
func (c Config) banded() bool { return c.Kind == "bsr" || c.Kind == "bisr" || c.Kind == "banded" }

// Factorization is a lower triangular matrix C with a positive diagonal. Its coefficients are defined by integers. All
// methods compute from these integers, not from the float64 numbers that an optimiser found.
//
// A Factorization caches intermediate results of its variances, and is not safe for concurrent use. The Shapers and
// Filters that it makes share no memory with it.
type Factorization interface {
	// Kind returns the Kind that selects the factorization in Config.
	Kind() string
	// Horizon returns the number of rows of C; 0: C is valid for every length.
	Horizon() uint64
	// ColNorm returns the largest column norm of C, over all columns and full
	// height, rounded up by a factor 1+2⁻⁴⁰ that covers float64 rounding.
	ColNorm() float64
	// NewShaper returns a Shaper for rows of length dim ≥ 1.
	NewShaper(dim int) Shaper
	// NewFilter returns a Filter for rows of length dim ≥ 1.
	NewFilter(dim int) Filter
	// RowVar returns Σ_j (AC⁻¹)²_tj, the variance in row t of w for unit noise. The result has the same bits on every
	// architecture, regardless of earlier calls. t ≥ 1; 0 gives 0. RowVar, CinvVar and Cov panic if t is beyond the
	// horizon or the workload is invalid.
	RowVar(w Workload, t uint64) float64
	// CinvVar returns Σ_j (C⁻¹)²_tj, the variance of the noise in row t before
	// the workload.
	CinvVar(t uint64) float64
	// Cov returns Σ_j (AC⁻¹)_tj (AC⁻¹)_uj, the covariance of rows t and u of w.
	Cov(w Workload, t, u uint64) float64
	// Limits returns bounds on the numbers of a Shaper, for independent noise of standard
	// deviation sd in lattice units. It returns an error if the fixed-point state could
	// overflow.
	Limits(sd float64) (Limits, error)
	// Stored returns the integers that define C.
	Stored() *Stored
}

// Limits are bounds on the numbers of a Shaper. They hold at every step, if all draws have |Z| ≤ 14. Both bounds are in
// lattice units.
type Limits struct {
	// Noise is an upper bound on |w|.
	Noise float64
	// Rounding is an upper bound on |ŝ_t − s_t|, where Predict returns ŝ_t and s_t is the exact number. The states of
	// two neighbouring streams may be rounded differently: over n steps of D coordinates that adds 2·Rounding·√(nD) to
	// the sensitivity.
	Rounding float64
}

// Shaper turns independent Gaussian noise into integer noise correlated by C⁻¹. It solves CW = Z row by row. Step t is
//
//	r := Predict(s)                           s_t = Σ_{j<t} C_tj w_j,  r_t = 1/C_tt
//	w_t = ⌊ r_t(σZ_t/g − s_t) + ½ ⌋           by the caller
//	Push(w)
//
// Privacy: adding w_t to an integer row x_t gives ⌊r_t([Cx]_t + σZ_t/g − Σ_{j<t} C_tj(x_j+w_j)) + ½⌋. The result is a
// function of the real-valued Gaussian mechanism's output and of past releases, so rounding costs no privacy. This
// holds only if the caller subtracts exactly the s that Predict returned, and pushes exactly the w that it added.
//
// The state consists of integers. They are converted to float64 with a single rounding, so every architecture gets the
// same s.
//
// A Shaper is not safe for concurrent use.
type Shaper interface {
	// Predict writes s_t of the next step t into s, in lattice units, and returns r_t. It
	// changes no state.
	Predict(s []float64) (r float64)
	// Push ends the step. w is the integer row that the caller added to its sums; each entry must be within
	// Limits.Noise. Push panics beyond the horizon.
	Push(w []int64)
	// AppendBinary appends the state. It is as secret as the rows that the
	// noise hides.
	encoding.BinaryAppender
	// UnmarshalBinary restores a state that a Shaper of the same factorization and
	// dimension wrote. If it returns an error, the Shaper is unchanged.
	encoding.BinaryUnmarshaler
}

// Filter computes C⁻¹Z in float64, for reference cases, planning and simulation. Do not use it to protect data: the
// last bits of a sum of data and float64 noise can reveal the data.
//
// A Filter is not safe for concurrent use.
type Filter interface {
	// Next writes the next row of C⁻¹Z into dst, given the next row z of Z. dst
	// may be z.
	Next(dst, z []float64)
}
