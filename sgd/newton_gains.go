package sgd

import "math"

// gains returns, for each eigenvector of W, the share of the Newton step that the estimate from s takes; nil means the
// whole step. Let v = VᵀW·ΣW⁻¹u/Σb be the step in the whitened space. In each coordinate it is hδ plus noise, where δ
// is the distance that the mean iterate still has to go, and h ≤ 1 is the share of H that is not ridge
// (newton.Whitening.Share). The step v alone would leave a distance of (1 − h)δ, which is large while iterates still
// move far. The gain
//
//	f_i = h_i/(h_i² + r_i² + σ²/δ²)
//
// minimises the expected square of δ_i − f_iv_i. δ² = max(0, Σ(v_i² − σ²))/Σh_i² stands for each δ_i², σ² is the
// variance of v's noise, and r_i = 0.3√(d/weight)/H_i is the error of h_i that the noise of the matrix causes. h_i
// counts as at least 0.1, and f_i is at least ½.
//
// Privacy: a function of releases.
// Cost: O(d²).
// Source: docs/theory/sgd.md; the constants 0.3, 0.1 and ½ were tuned.
func (e *Newton) gains(s stretches) []float64 {
	if e.asPublished || !(e.weight > 0) { // no matrix was released
		return nil
	}
	d, slots := len(e.w), s.slots()
	u, z := make([]float64, d), make([]float64, d)
	s.gradient(u)
	e.white.Apply(z, u)
	v := u
	e.white.Rotate(v, z)

	// σ² comes from the privacy noise of v and from the scatter of records. About half of the records have a gradient
	// below countedPart·ζ.
	p := &e.plan
	steps := max(1, int(slots/float64(p.batch(e.epoch))))
	noise := p.GradientNoise / p.One * e.zeta / slots
	scatter := countedPart * e.zeta
	variance := float64(noise*noise*windowNoise(p.Factorization.Bands, steps)) +
		float64(scatter*scatter)/(float64(d)*slots)

	var missed, signal float64
	for i, h := range e.white.Share {
		step := v[i] / slots
		missed += float64(step*step) - variance
		signal += float64(h * h)
	}
	gains := z
	for i, h := range e.white.Share {
		f := 0.0
		if missed > 0 {
			h = max(h, gainSignal)
			r := gainMatrix * math.Sqrt(float64(d)/e.weight) / float64(e.white.Scale[i]*e.white.Scale[i])
			f = h / (float64(h*h) + float64(r*r) + variance*signal/missed)
		}
		gains[i] = max(f, gainLeast)
	}
	return gains
}

const (
	gainMatrix = 0.3
	gainSignal = 0.1
	gainLeast  = 0.5
)
