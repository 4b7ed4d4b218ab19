package adam

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
)

// price returns how much the squares of a mean over m vectors add to its sensitivity: with weight ν, the squared
// sensitivity of mean and squares together is (1 + price·ν) times that of the mean alone.
func price(m uint64, adjacency dp.Adjacency) float64 {
	n := float64(m)
	if adjacency == dp.ZeroOut {
		return (2*n - 1) * (2*n - 1) / (n * n)
	}
	return 4 * (n - 1) * (n - 1) / (n * n)
}

// batchSensitivity returns the ℓ₂ sensitivity of (x, √λ·x∘x) to one of the m vectors, of norm at most clip, in the sum
// x = Σ_j g_j ∈ ℝᵈ:
//
//	replace, m ≥ 2: 2ζ√(1 + 4νb²), b = m−1;   m = 1: ζ√r(ν);   ν = λζ²
//	zero-out:       ζ√(1 + ν(2m−1)²)
//
// in the unit of x; λ has the unit 1/x². For the mean x/m, divide the result by m and pass λ/m² for λ. With m ≥ 2 the
// squares are never free: they are squares of a sum, and one vector moves them by 4(m−1)ζ². Lemma 3.5 of the source
// applies only to a single vector.
//
// Privacy: exact; one pair attains both suprema. The sensitivity also holds for steps with fewer than m vectors, and
// for matrices xxᵀ instead of the squares.
// Source: docs/theory/adam.md, §3.
func batchSensitivity(m uint64, lambda, clip float64, d int, adjacency dp.Adjacency) float64 {
	nu := lambda * clip * clip
	if m == 1 {
		return clip * math.Sqrt(calibration.SquaresSensitivity(nu, d, adjacency))
	}
	n := float64(m)
	return adjacency.Factor() * clip * math.Sqrt(1+float64(nu*price(m, adjacency)*n*n))
}

// clippedMeanSensitivity returns the ℓ₂ sensitivity of (x, √λ·x∘x) for vectors x ∈ ℝᵈ of norm at most bound, where
// neighbouring vectors are at most distance ≤ 2·bound apart:
//
//	s² = max_{0≤D≤distance} D²(1 + λ·max((2ρ−D)², 2ρ²−D²/2)),   ρ = bound;
//
// For d = 1 the second argument of the maximum is omitted. A mean of m vectors of norm at most ζ, clipped again to ρ,
// has distance 2ζ/m, under zero-out ζ/m.
//
// Privacy: exact for this set of pairs, and an upper bound for means.
// Source: docs/theory/adam.md, §3.
func clippedMeanSensitivity(bound, distance, lambda float64, d int) float64 {
	limit := min(distance, 2*bound)
	top := 0.0
	try := func(x float64) {
		if !(x > 0 && x <= limit) {
			return
		}
		k := (2*bound - x) * (2*bound - x)
		if d >= 2 {
			k = max(k, float64(2*bound*bound)-float64(x*x/2))
		}
		top = max(top, x*x*(1+float64(lambda*k)))
	}
	try(limit)
	// The points where the derivatives of the two branches are 0:
	// D² − 3ρD + 2ρ² + 1/(2λ) = 0 and D² = 2ρ² + 1/λ.
	if root := float64(bound*bound/4) - 1/(2*lambda); root >= 0 {
		try(float64(1.5*bound) - math.Sqrt(root))
		try(float64(1.5*bound) + math.Sqrt(root))
	}
	if d >= 2 {
		try(math.Sqrt(float64(2*bound*bound) + 1/lambda))
		try(2 * bound / 3) // where the branches meet, 3D² − 8ρD + 4ρ² = 0
	}
	return math.Sqrt(top)
}

// stepNoise is the result of a calibration. It holds the standard deviations of the independent draws for the means of
// one step, before the draws are correlated.
type stepNoise struct {
	Lambda      float64 // weight of the second moment, 1/x²; 0 if there is none
	Sensitivity float64 // joint ℓ₂ sensitivity of ([C₁x], √λ[C₂q]), x
	First       float64 // ρ₁, for every entry of x̂, in the unit of x
	Second      float64 // ρ₂ = ρ₁/√λ, for every entry of q̂, in the unit of x²; 0 if there is none
}

// sensitivity returns λ and the joint sensitivity of the two means of a step, for column norms alpha and beta of C₁ and
// C₂. With m = c.Step, f = 1 or 2 and λ = να²/(ζ²β²) it is
//
//	pp, pp_debiased, momentum     fζα/m
//	jme, jme_per_example          ζα√r(ν)/m
//	jme_batch                     fζα√(1 + price·ν)/m        (m = 1, replace: as jme)
//	joint_clip                    fζ·max(α, β)/m             (λ = τ)
//
// For persons it is personSensitivity, with alpha = beta = P. spare is added to the distance of neighbouring means if
// the means are clipped again.
func (c *Config) sensitivity(nu, clip, alpha, beta, spare float64, adjacency dp.Adjacency) (lambda, s float64) {
	if c.personal() {
		return c.personSensitivity(nu, clip, alpha, spare, adjacency)
	}
	m, f := float64(c.Step), adjacency.Factor()
	lambda = nu * alpha * alpha / (clip * clip * beta * beta)
	switch c.Method {
	case "jme", "jme_per_example":
		return lambda, clip * alpha * math.Sqrt(calibration.SquaresSensitivity(nu, c.Parameters(), adjacency)) / m
	case "jme_batch":
		ratio := beta * beta / (alpha * alpha)
		if c.MeanClip > 0 {
			return lambda, alpha * clippedMeanSensitivity(c.MeanClip, f*clip/m+spare, lambda*ratio, c.Parameters())
		}
		return lambda, alpha * batchSensitivity(c.Step, lambda*ratio/(m*m), clip, c.Parameters(), adjacency) / m
	case "joint_clip":
		return c.Tau, f * clip * max(alpha, beta) / m
	}
	return 0, f * clip * alpha / m
}

// calibrated returns the noise with which the releases of the configured method are μ-Gaussian private. nu is the
// relative weight of the second moment, for methods that have one; alpha and beta are the column norms of C₁ and C₂.
// The small addition for the arithmetic of a lattice is not included.
func (c *Config) calibrated(mu, nu, alpha, beta float64, adjacency dp.Adjacency) stepNoise {
	lambda, s := c.sensitivity(nu, c.Clip, alpha, beta, 0, adjacency)
	return spread(lambda, s, mu)
}

func spread(lambda, s, mu float64) stepNoise {
	n := stepNoise{Lambda: lambda, Sensitivity: s, First: s / mu}
	if lambda > 0 {
		n.Second = n.First / math.Sqrt(lambda)
	}
	return n
}
