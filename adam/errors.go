package adam

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// ExpectedError returns the sum over the first steps of E‖v_t − v(x)_t‖², where v_t = Σ_k (1−β₂)β₂^(t−k) q̂_k ∈ ℝᵈ,
// without bias correction. Steps have one gradient of norm at most clip, the noise has the ratio mu, and f correlates
// the noise of both moments:
//
//	jme          dρ₂²Σ_t u_t                   ν is the free weight under replacement, otherwise 1
//	pp_debiased  2dρ₁⁴Σ_t s_t + 4ρ₁²ζ²Σ_t κ_t  the second term is a bound over all gradients
//	pp           the terms of pp_debiased, and dρ₁⁴Σ_t b_t²
//
// Here u_t is the variance of linear noise, s_t = Σ_kl a_ka_lQ_kl², b_t = Σ_k a_kQ_kk and κ_t = Σ_kl a_ka_l|Q_kl|. The
// bound is exact if f is the identity.
//
// Cost: O(steps²) unless f is the identity.
// Source: Kalinin, Upadhyay, Lampert, Lemma 4.4, in noise multipliers;
// docs/theory/adam.md, §5.
//
// For reproduction only: [Estimator.Expect] returns the noise of an optimiser's steps.
func ExpectedError(method string, f matfact.Factorization, beta2, clip, mu float64, adjacency dp.Adjacency, d int,
	steps uint64) (float64, error) {
	c := Config{Method: method, Clip: clip, Dim: d, Step: 1, Beta2: beta2, Mode: "gradients"}
	n, alpha := float64(d), f.ColNorm()
	if method == "jme" {
		nu := 1.0
		if adjacency == dp.Replace {
			nu = calibration.FreeSquares(d)
		}
		sd := c.calibrated(mu, nu, alpha, alpha, adjacency).Second
		var sum float64
		for t := uint64(1); t <= steps; t++ {
			sum += f.RowVar(exponential(beta2), t)
		}
		return n * sd * sd * (1 - beta2) * (1 - beta2) * sum, nil
	}
	if method != "pp" && method != "pp_debiased" {
		return 0, fmt.Errorf("method is %q, must be \"jme\", \"pp\" or \"pp_debiased\"", method)
	}
	variance := math.Pow(c.calibrated(mu, 0, alpha, 1, adjacency).First, 2)
	s := newSquared(f, beta2)
	response := f.NewFilter(1)
	var coef, cov []float64 // the same as the fields of impulse
	var kappa, sum float64
	for range steps {
		s.advance()
		term := 2 * s.pairs
		if method == "pp" {
			term += s.mean * s.mean
		}
		z := []float64{0}
		if len(coef) == 0 {
			z[0] = 1
		}
		response.Next(z, z)
		coef, cov = append(coef, z[0]), append(cov, 0)
		var cross float64
		for h := len(cov) - 1; h >= 0; h-- {
			cov[h] += z[0] * coef[len(coef)-1-h]
			if h > 0 {
				cross = beta2 * (cross + math.Abs(cov[h]))
			}
		}
		kappa = beta2*beta2*kappa + (1-beta2)*(1-beta2)*(cov[0]+2*cross)
		sum += n*variance*variance*term + 4*variance*clip*clip*kappa
	}
	return sum, nil
}
