package moments

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/matfact"
)

// ExpectedError returns the expected squared errors of both moments in releases whose gains are g. The error of the
// first moment is in Euclidean norm, that of the second in Frobenius norm. The first moment's draws have standard
// deviation τ. The second moment's draws have variance v on the diagonal, and v/2 off it. Then
//
//	first                      d·τ²·First
//	second of jme, ime, cs     d(d+1)/2·v·Second
//	       of pp_debiased      d(d+1)τ⁴·Fourth + 2(d+1)τ²ζ²·Cross     at most
//	       of pp               that and dτ⁴·Bias                      at most
//	       of combined         v_J v_P/(v_J + v_P)                    at most
//
// An error that depends on the rows is bounded over all rows of norm at most clip. The bound for combined holds for one
// release, or for several with the same ratio v_J/v_P.
//
// Source: Kalinin, Upadhyay, Lampert, Theorem 3.3, Lemma 3.8, Corollary 3.9, all corrected: docs/theory/moments.md,
// docs/errata.md. The combination is ours.
func ExpectedError(method string, n Noise, clip float64, d int, g Gains) (first, second float64) {
	dim := float64(d)
	square := float64(n.First * n.First)
	first = float64(dim * float64(square*g.First))
	joint := float64(dim * (dim + 1) / 2 * float64(float64(n.Diagonal*n.Diagonal)*g.Second))
	switch method {
	case "pp", "pp_debiased", "combined":
		quartic, linear := float64(square*square), float64(float64(square*clip)*clip)
		second = float64(dim*(dim+1)*float64(quartic*g.Fourth)) + float64(2*(dim+1)*float64(linear*g.Cross))
		if method == "pp" {
			second += float64(dim * float64(quartic*g.Bias))
		}
		if method == "combined" {
			_, second = Combine(joint, second)
		}
		return first, second
	}
	return first, joint
}

// ReleaseGains adds up the gains of the releases `first` … `last` of a workload, including its row scaling. c1 and c2
// correlate the noise.
//
// Errors: the gains of post-processing are not known for the first moment's factorization; then the other gains are
// returned nevertheless.
// Cost: O(last²) for squares over correlated noise.
func ReleaseGains(w matfact.Workload, c1, c2 matfact.Factorization, first, last uint64) (sum Gains, err error) {
	s := shapes{shape{factor: c1, kernel: w.Kernel()}, shape{factor: c2, kernel: w.Kernel()}}
	var g *overlap
	if reason := checkSquares(c1.Kind(), c1.Stored().Height > 0, last); reason != "" {
		err = errors.New(reason)
	} else {
		g = newOverlap(c1, w.Kernel())
	}
	for t := first; t <= last; t++ {
		divisor := 1.0
		if w.Kind == "mean" {
			divisor = float64(t)
		}
		one, _ := s.gains(g, t, divisor, divisor)
		sum = sum.Plus(one)
	}
	return sum, err
}

// ExpectedCovarianceError is for running means with steps of one record. It returns an upper bound on the expected
// squared error, in Frobenius norm, of the debiased covariance in release t. The method is joint estimation, which
// attains the bound, post-processing, or their best combination.
//
// Errors: for methods that square rows, those of ReleaseGains.
// Source: Kalinin, Upadhyay, Lampert, Theorems 4.1 and 4.2, corrected; the combination is ours. See
// docs/theory/moments.md.
func ExpectedCovarianceError(method string, c matfact.Factorization, n Noise, clip float64, d int,
	t uint64) (float64, error) {
	mean := matfact.Workload{Kind: "mean"}
	g, err := ReleaseGains(mean, c, c, t, t)
	s := shapes{shape{c, mean.Kernel(), true}, shape{c, mean.Kernel(), true}}
	x := s.scatter(g, t, float64(t), float64(t))
	switch method {
	case "pp", "pp_debiased":
		return covarianceError(0, n, clip, d, x), err
	case "combined":
		return covarianceError(x.weight(n, clip, d), n, clip, d, x), err
	}
	x.slots, x.white = 0, false // the mean's noise is independent of the second moment's
	return covarianceError(1, n, clip, d, x), nil
}

// Combine finds the best combination of two independent unbiased estimates, whose squared errors are `joint` and
// `processed`. It returns the weight of the first estimate and the squared error of the combination.
func Combine(joint, processed float64) (weight, combined float64) {
	weight = processed / (joint + processed)
	return weight, float64(weight * joint)
}

// scatter holds the numbers, apart from the noise, on which the covariance of post-processed rows depends. With the
// release's normalised weights a and the weight w of joint estimation, Σ̂ = wŜ_J + Σ_kl H_kl x̂_k x̂_lᵀ − E[noise], H =
// (1−w)diag(a) − aaᵀ.
type scatter struct {
	gains Gains
	total float64 // Σ_k a_k over all slots
	white bool    // Q = I
	// If all weights equal 1/divisor, slots is the number of slots, and records the number of records in them. For
	// other weights slots is 0. peak is the largest weight.
	slots, records, divisor, peak float64
}

// spread returns upper bounds on what H contributes to the error, for c = 1 − w. linear is an upper bound on
// tr(XᵀHQHX)/ζ² over rows of norm at most ζ, and quartic one on tr((HQ)²). An entry of the covariance has a variance of
// at most
//
//	w²v₂ + 4τ²ζ²·linear + 2τ⁴·quartic    on the diagonal
//	w²v₂/2 + τ²ζ²·linear + τ⁴·quartic    off it
//
// where v₂ is the variance of a diagonal entry in the second moment of joint estimation.
func (s *scatter) spread(c float64) (linear, quartic float64) {
	u := s.gains.First
	if s.white && s.slots > 0 {
		// M²·tr(XᵀH²X) = c²Σ‖x‖² + (slots − 2cM)‖Y‖², where empty slots have x = 0 and ‖Y‖ ≤ ζ·records/M; Y may be 0 if
		// there is more than one record.
		share := s.records / s.divisor
		mean := float64(s.slots-float64(float64(2*c)*s.divisor)) * float64(share*share)
		if s.records > 1 {
			mean = max(mean, 0)
		}
		linear = (float64(float64(c*c)*s.records) + mean) / float64(s.divisor*s.divisor)
	} else {
		root, inner := s.norms()
		norm := root + float64(c*(inner-root))
		linear = norm * norm
	}
	// tr((HQ)²) = c²·Fourth − 2c·Σ_k a_k(Qa)_k² + u², and the sum is at least u²/Σa.
	quartic = float64(float64(c*c)*s.gains.Fourth) - float64(float64(2*c)*float64(u*u))/s.total + float64(u*u)
	return linear, max(quartic, 0)
}

// norms returns upper bounds on ‖aYᵀ‖_Q and ‖(diag(a) − aaᵀ)X‖_Q for ζ = 1. ‖HX‖_Q is at most w times the first bound
// plus c times the second.
func (s *scatter) norms() (root, inner float64) {
	root = math.Sqrt(s.gains.First)
	inner = math.Sqrt(s.gains.Cross) + root
	if s.white {
		inner = min(inner, math.Sqrt(s.peak*max(1, s.total-1)))
	}
	return root, inner
}

// weight returns the w in [0, 1] for which the bound on the covariance's squared error is smallest. At this w the
// derivative is zero, or the bound has a kink.
func (s *scatter) weight(n Noise, clip float64, d int) float64 {
	dim, square := float64(d), float64(n.First*n.First)
	joint := float64(dim * (dim + 1) / 2 * float64(float64(n.Diagonal*n.Diagonal)*s.gains.Second))
	k1 := float64(2*(dim+1)) * float64(float64(square*clip)*clip)
	k2 := float64(dim*(dim+1)) * float64(square*square)
	u := s.gains.First
	quartic := float64(k2*float64(u*u)) / s.total
	slope := func(numerator, denominator float64) float64 {
		return (joint + numerator + quartic) / (joint + denominator + float64(k2*s.gains.Fourth))
	}
	var c float64
	if s.white && s.slots > 0 {
		m, share := s.divisor, s.records/s.divisor
		square := float64(k1*s.records) / float64(m*m)
		c = slope(float64(k1*float64(share*share))/m, square)
		if kink := s.slots / (2 * m); s.records > 1 && c > kink {
			c = max(kink, slope(0, square))
		}
	} else {
		root, inner := s.norms()
		c = slope(float64(k1*float64(root*(root-inner))), float64(k1*float64((inner-root)*(inner-root))))
	}
	return 1 - min(max(c, 0), 1)
}

// covarianceError returns an upper bound on the expected squared Frobenius error of the
// covariance, at weight w of joint estimation. For w = 1, equal weights and no empty slot the
// error equals the bound:
//
//	d(d+1)/2·v₂ + 2(d+1)τ²u·ζ² + d(d+1)τ⁴u²
//
// Source: Theorems 4.1 and 4.2 of the paper, corrected.
func covarianceError(w float64, n Noise, clip float64, d int, s *scatter) float64 {
	dim, square := float64(d), n.First*n.First
	linear, quartic := s.spread(1 - w)
	return w*w*dim*(dim+1)/2*n.Diagonal*n.Diagonal*s.gains.Second + 2*(dim+1)*square*clip*clip*linear +
		dim*(dim+1)*square*square*quartic
}
