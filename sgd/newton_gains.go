package sgd

import "math"

// gains returns how far the estimate from s goes along each eigenvector of W, nil for all
// of the Newton step. Let v = VᵀW·ΣW⁻¹u/Σb, the step in the whitened space. It is hδ plus
// noise, coordinate by coordinate: δ is what the mean iterate misses, and h ≤ 1 the part
// of H that is not ridge (newton.Whitening.Share). The step v alone leaves (1 − h)δ, which
// is much while iterates still move far. The gain
//
//	f_i = h_i/(h_i² + r_i² + σ²/δ²)
//
// makes the expected square of δ_i − f_iv_i least, where δ² = max(0, Σ(v_i² − σ²))/Σh_i²
// stands for each δ_i², σ² is the variance of v's noise, and r_i = 0.3√(d/weight)/H_i is
// the error of h_i by the noise of the matrix. h_i counts as 0.1 at least, f_i as ½.
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

	// The privacy noise of v, and the scatter of records, of which half have a gradient
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
