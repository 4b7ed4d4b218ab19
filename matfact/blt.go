package matfact

import "math"

// newBLT optimises a buffered linear Toeplitz matrix for w and returns its integers.
//
// C is Toeplitz with c_0 = 1 and c_j = Σ_i ω_i θ_i^(j−1), so that C⁻¹ needs one buffer of the size of a row for each
// θ_i. The column norm is √S(∞), S(∞) = Σ_j c_j² over all j. It is finite, so C is valid on a stream of any length. For
// sums and means the error is minimised at the length c.Tune or c.Horizon; far beyond that length it grows like √t. For
// exponential weights and windows the error of an endless stream is minimised. If c.Participation is set, the column
// norm is replaced by the largest joint norm of one person's columns.
func newBLT(c Config, w Workload) (*Stored, error) {
	length := c.Tune
	if length == 0 {
		length = c.Horizon
	}
	o := bltObjective{pole: w.pole(), sens: math.Inf(1), length: float64(length)}
	if c.Normalise { // columns end at the horizon
		o.sens = float64(c.Horizon)
	}
	if p := c.Participation.Within(c.Horizon); p.Count > 1 {
		o.count, o.separation = float64(p.Count), float64(p.Separation)
	}
	switch w.Kind {
	case "exponential":
		o.length = math.Inf(1)
	case "window":
		o.window = float64(w.Window)
	}
	buffers := c.Buffers
	if buffers == 0 {
		buffers = autoBuffers(w, length)
	}
	a, ahat, _, err := optimiseBLT(buffers, o)
	if err != nil {
		return nil, err
	}
	return storeBLT(a, ahat), nil
}

// storeBLT rounds a BLT to the integers Θ_i = ⌊2⁶⁴θ_i⌋, Ω_i = ⌊2⁶⁴ω_i⌋. From then on C is the matrix of these integers.
//
// If fewer buffers are enough, for example for short windows, the optimiser lets the weight of a buffer go to 0, or
// makes two buffers equal. Buffer i adds ω_i/√a_i to the norm of a column. storeBLT drops it if that is less than 10⁻⁹,
// because it would make the modes ill-conditioned.
func storeBLT(a, ahat []float64) *Stored {
	omega := residues(ahat, a)
	s := &Stored{Kind: "blt"}
	ph := Phase{Start: 1, Scale: 1}
	for i := len(a) - 1; i >= 0; i-- { // fastest decay first
		decay, weight := floorDecay(a[i]), floorFixed(omega[i])
		n := len(s.Decay)
		if decay == 0 || weight == 0 || n > 0 && decay <= s.Decay[n-1] || omega[i] < 1e-9*math.Sqrt(a[i]) {
			continue
		}
		s.Decay = append(s.Decay, decay)
		ph.Weight = append(ph.Weight, weight)
	}
	s.Phases = []Phase{ph}
	return s
}

// floorFixed returns ⌊2⁶⁴x⌋ for x in [0, 1), 0 for smaller x, and 2⁶⁴−1 for larger x. The product is exact.
func floorFixed(x float64) Fixed {
	switch {
	case !(x > 0):
		return 0
	case x >= 1:
		return math.MaxUint64
	}
	return Fixed(math.Ldexp(x, 64))
}

// floorDecay returns ⌊2⁶⁴(1−a)⌋ for a gap a in (0, 1], without computing 1−a in float64.
func floorDecay(a float64) Fixed {
	up := math.Ceil(math.Ldexp(a, 64))
	if !(up < 0x1p64) {
		return 0
	}
	return -Fixed(up)
}
