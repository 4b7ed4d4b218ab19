package matfact

import "math"

// modes is one phase of C⁻¹, in a basis in which the buffers do not interact.
//
// With unit noise z, a step of the buffers is y = r(z − 1ᵀs), s ← Θs + Ωy, that is,
//
//	s ← (diag θ − ω1ᵀ)s + ωz,   ω = rΩ.
//
// Divided by √ω, s has the symmetric matrix I − (diag a + √ω√ωᵀ), a = 1−θ, whose eigenvectors are orthonormal: V_ij =
// κ_j√ω_i/(â_j−a_i), where â_j solves Σ_i ω_i/(â−a_i) = 1, one in each gap between the a and one above, and κ_j⁻² = Σ_i
// ω_i/(â_j−a_i)². In these coordinates,
//
//	c = Vᵀ(s/√ω),   c_j ← (1−â_j)c_j + κ_jz,   1ᵀs = κᵀc.
//
// The differences â_j−a_i keep full relative accuracy, because the solver's unknown is the distance of a root from its
// nearer pole.
type modes struct {
	scale float64   // r
	gap   []float64 // â
	drive []float64 // κ
	pole  []float64 // a
	omega []float64 // ω
	diff  []float64 // â_j − a_i at j·k+i
}

func newModes(decay []Fixed, ph Phase) *modes {
	k := len(ph.Weight)
	m := &modes{
		scale: ph.Scale,
		gap:   make([]float64, k), drive: make([]float64, k),
		pole: make([]float64, k), omega: make([]float64, k),
		diff: make([]float64, k*k),
	}
	var sum float64
	for i, w := range ph.Weight {
		m.pole[i] = decay[i].gap()
		m.omega[i] = float64(ph.Scale * w.float())
		sum += m.omega[i]
	}
	for j := range k {
		row := m.diff[j*k : (j+1)*k]
		// The root is above pole j and below pole j−1, because decays are sorted.
		origin, width, sign := j, sum, 1.0
		if j > 0 {
			width = poleDistance(decay, j-1, j) / 2
			if excess(decay, m.omega, j, width) > 0 {
				origin, sign = j-1, -1
			}
		}
		near, far := 0.0, width // distances from the origin
		for {
			mid := near + (far-near)/2
			if mid <= near || mid >= far {
				break
			}
			if (excess(decay, m.omega, origin, sign*mid) > 0) == (sign > 0) {
				near = mid
			} else {
				far = mid
			}
		}
		m.gap[j] = m.pole[origin] + sign*far
		var norm float64
		for i := range k {
			row[i] = sign*far + poleDistance(decay, origin, i)
			q := m.omega[i] / row[i]
			norm += q / row[i]
		}
		m.drive[j] = 1 / math.Sqrt(norm)
	}
	return m
}

// poleDistance returns a_o − a_i, from the integers.
func poleDistance(decay []Fixed, o, i int) float64 {
	if decay[i] >= decay[o] {
		return float64(decay[i]-decay[o]) * 0x1p-64
	}
	return -float64(decay[o]-decay[i]) * 0x1p-64
}

// excess returns Σ_i ω_i/(s−a_i) − 1 at s = a_origin + x.
func excess(decay []Fixed, omega []float64, origin int, x float64) float64 {
	f := -1.0
	for i, w := range omega {
		f += w / (x + poleDistance(decay, origin, i))
	}
	return f
}

// shift returns the k'×k matrix R that converts the coordinates of m to those of the next phase: c' = Rc for the same
// s. The buffers that `next` has in addition start empty.
func (m *modes) shift(next *modes) []float64 {
	k, kn := len(m.gap), len(next.gap)
	r := make([]float64, kn*k)
	for l := range kn {
		for j := range k {
			var sum float64
			for i := range k {
				q := m.omega[i] / m.diff[j*k+i]
				sum += q / next.diff[l*kn+i]
			}
			r[l*k+j] = float64(next.drive[l]*m.drive[j]) * sum
		}
	}
	return r
}
