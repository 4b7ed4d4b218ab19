package matfact

// bufferedFilter solves CY = Z by y = r(z − Σs_i), s_i ← Θ_is_i + Ω_iy in
// float64, writing the decay as s − as. Within 10⁻⁸ of the exact rows over 10⁹
// steps; float32 would not do.
type bufferedFilter struct {
	decay  []Fixed
	phases []Phase
	step   uint64
	dim    int
	state  [][]float64
}

// NewFilter implements Factorization.
func (b *buffered) NewFilter(dim int) Filter {
	checkDim(dim)
	return &bufferedFilter{decay: b.stored.Decay, phases: b.stored.Phases, dim: dim}
}

// Next implements Filter.
func (f *bufferedFilter) Next(dst, z []float64) {
	f.step++
	if len(f.phases) > 1 && f.phases[1].Start <= f.step {
		f.phases = f.phases[1:]
	}
	ph := f.phases[0]
	for len(f.state) < len(ph.Weight) {
		f.state = append(f.state, make([]float64, f.dim))
	}
	for j := range f.dim {
		y := z[j]
		for _, s := range f.state {
			y -= s[j]
		}
		y *= ph.Scale
		dst[j] = y
		for i, s := range f.state {
			s[j] += ph.Weight[i].float()*y - f.decay[i].gap()*s[j]
		}
	}
}

func checkDim(dim int) {
	if dim < 1 {
		panic("matfact: dimension is not positive")
	}
}
