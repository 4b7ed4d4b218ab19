package matfact

// bandedFilter keeps the last p−1 rows. If C has the bands, y_t = z_t − Σ_k m_k y_{t−k}, and it keeps rows of Y. If C⁻¹
// has them, y_t = z_t − Σ_k m_k z_{t−k}, and it keeps rows of Z.
type bandedFilter struct {
	bands   []float64
	inverse bool
	dim     int
	step    int
	ring    []float64 // the row of step t at ((t−1) mod (p−1))·dim
	past    []float64 // scratch
}

// NewFilter implements Factorization.
func (b *banded) NewFilter(dim int) Filter {
	checkDim(dim)
	f := &bandedFilter{
		inverse: b.stored.Kind == "bisr", dim: dim,
		ring: make([]float64, len(b.stored.Bands)*dim), past: make([]float64, min(block, dim)),
	}
	for _, m := range b.stored.Bands {
		f.bands = append(f.bands, m.float())
	}
	return f
}

// Next implements Filter.
func (f *bandedFilter) Next(dst, z []float64) {
	depth := len(f.bands)
	dst, z = dst[:f.dim], z[:f.dim]
	if depth == 0 {
		copy(dst, z)
		return
	}
	for first := 0; first < f.dim; first += block {
		last := min(first+block, f.dim)
		row := func(k int) []float64 { // the row of step t−k
			return f.ring[(f.step+depth-k)%depth*f.dim:][first:last]
		}
		sum := f.past[:last-first]
		clear(sum)
		k, known := 1, min(f.step, depth)
		for ; k+3 <= known; k += 4 {
			add4(sum, row(k), row(k+1), row(k+2), row(k+3), f.bands[k-1:k+3])
		}
		for ; k <= known; k++ {
			m := f.bands[k-1]
			for j, x := range row(k) {
				sum[j] += m * x
			}
		}
		kept := row(depth) // the place of the oldest row, which is no longer needed
		in, out := z[first:last], dst[first:last]
		for j, x := range sum {
			y := in[j] - x
			kept[j] = y
			if f.inverse {
				kept[j] = in[j]
			}
			out[j] = y
		}
	}
	f.step++
}

// add4 adds m₀a + m₁b + m₂c + m₃d to sum.
func add4(sum, a, b, c, d, m []float64) {
	m0, m1, m2, m3 := m[0], m[1], m[2], m[3]
	a, b, c, d = a[:len(sum)], b[:len(sum)], c[:len(sum)], d[:len(sum)]
	for j := range sum {
		sum[j] += (m0*a[j] + m1*b[j]) + (m2*c[j] + m3*d[j])
	}
}
