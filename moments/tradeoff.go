package moments

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
)

// Tradeoff says how a method divides one budget between the two moments. Nu is the relative weight of the second
// moment, and Square the squared sensitivity that the method charges, in units of (ζα)². With noise multiplier σ, clip
// norm ζ and column norms α and β, the noise of an entry of the first moment has variance First·σ²ζ²α² before it is
// correlated. The noise of a diagonal entry of the second moment has variance Second·σ²ζ⁴β².
type Tradeoff struct {
	Nu     float64 // 0: only the first moment gets noise
	Square float64
}

// First returns the factor of the first moment's variance.
func (t Tradeoff) First() float64 { return t.Square }

// Second returns the factor of the second moment's variance.
func (t Tradeoff) Second() float64 { return t.Square / t.Nu }

// Joint returns the tradeoff of joint estimation. It charges r(ν), the exact squared sensitivity of both moments
// together. Under replacement no other way to divide a budget between noise for the two moments gives smaller errors in
// both.
func Joint(nu float64, d int, adjacency dp.Adjacency) Tradeoff {
	return Tradeoff{nu, calibration.SquaresSensitivity(nu, d, adjacency)}
}

// Single returns the tradeoff of noise for the first moment alone, from which post-processing computes both moments. It
// charges 4 under replacement, 1 under zero-out.
func Single(adjacency dp.Adjacency) Tradeoff {
	return Tradeoff{0, calibration.SquaresSensitivity(0, 2, adjacency)}
}

// Split returns the tradeoff of independent estimation: one Gaussian mechanism for each moment. The first has share·μ²
// and the second (1−share)·μ², with share in (0, 1). The factors First and Second are k₁/share and k₂/(1−share), with
// k₁ = 4 and k₂ = 2 (1 for d = 1) under replacement, and k₁ = k₂ = 1 under zero-out.
//
// It equals joint estimation that charges the sum of two suprema instead of the supremum of the sum. Under replacement
// it charges more. Under zero-out the errors are equal, at ν = (1−share)/share.
// Source: Kalinin, Upadhyay, Lampert, Algorithm 4, which splits (ε, δ) by basic composition instead; see SplitBasic.
func Split(share float64, d int, adjacency dp.Adjacency) Tradeoff {
	return Single(adjacency).split(share, d, adjacency)
}

// split adds the mechanism of the second moment.
func (t Tradeoff) split(share float64, d int, adjacency dp.Adjacency) Tradeoff {
	second := 1.0
	if adjacency == dp.Replace && d > 1 {
		second = 2
	}
	square := t.Square / share
	return Tradeoff{square * (1 - share) / second, square}
}

// SplitBasic returns the noise multipliers of the two mechanisms into which the paper's
// Algorithm 4 splits (ε, δ): (aε, aδ) and ((1−a)ε, (1−a)δ) for share a. At (1, 10⁻⁶) and
// a = ½ both are 8.35; Split needs 5.97. For reproduction only.
func SplitBasic(share, epsilon, delta float64) (first, second float64, err error) {
	if first, err = dp.Sigma(share*epsilon, share*delta, 1); err != nil {
		return 0, 0, err
	}
	second, err = dp.Sigma((1-share)*epsilon, (1-share)*delta, 1)
	return first, second, err
}

// CS returns the tradeoff of concatenation and split. The noise is for one vector, (x, √λ·vec xxᵀ), and calibrated to a
// bound on its norm: √(1+ν)·ζ with ν = λζ², or twice that under replacement. Both moments have the same matrix C.
//
// CS equals joint estimation with a cruder sensitivity; under zero-out its sensitivity is exact.
// Source: Kalinin, Upadhyay, Lampert, Algorithm 5, with the factor ‖C‖ that it lacks.
func CS(nu float64, adjacency dp.Adjacency) Tradeoff {
	return Tradeoff{nu, Single(adjacency).Square * (1 + nu)}
}

// withCount adds the number of valid records as a third coordinate, of weight κζ². An invalid record counts as the zero
// row. So the number changes only if a row x replaces the zero row, or the reverse. Then the square of the change in
// the other coordinates is at most 1 + ν. So under replacement the number is free if 1 + ν + κ ≤ r(ν).
func (t Tradeoff) withCount(kappa float64) Tradeoff {
	if kappa > 0 {
		t.Square = max(t.Square, 1+t.Nu+kappa)
	}
	return t
}

// Noise returns the standard deviations that make the method μ-Gaussian-private for rows of norm at most clip and
// matrices with column norms alpha and beta:
//
//	λ = να²/(ζ²β²),  s = ζα√Square,  τ = s/μ;  τ,  τ/√λ,  τ/√(2λ)
//
// Off-diagonal entries have half the variance of diagonal ones, because the symmetric matrix is released in coordinates
// x_i², √2·x_ix_j.
// Source: docs/theory/moments.md.
func (t Tradeoff) Noise(mu, clip, alpha, beta float64) Noise {
	lambda := t.Nu * alpha * alpha / (clip * clip * beta * beta)
	return spread(lambda, clip*alpha*math.Sqrt(t.Square), mu)
}
