package matfact

// bufferedFilter computes C⁻¹Z in the modes of the current phase, in float64:
//
//	y = r(z − Σ_j κ_j²u_j),   u_j ← (1−â_j)u_j + z
//
// with u = c/κ. No output is fed back, so rounding errors do not add up over time. If a gap â is below 2⁻²⁴, u is
// multiplied by â itself, because 1−â would lose its digits. When a new phase begins, u is converted to its modes. The
// rows are within 10⁻⁸ of the exact ones over 10⁹ steps; float32 would not be accurate enough.
type bufferedFilter struct {
	matrix *buffered
	modes  *modes
	weight []float64 // κ²
	decay  []float64 // 1−â of the modes with large gaps; these modes come first
	phase  int
	step   uint64
	dim    int
	state  [][]float64 // [mode][coordinate]
	copied []float64   // scratch
}

// NewFilter implements Factorization.
func (b *buffered) NewFilter(dim int) Filter {
	checkDim(dim)
	own := *b // a copy, because enter adds modes, which must not be shared
	own.modes = make([]*modes, len(b.modes))
	f := &bufferedFilter{matrix: &own, dim: dim, copied: make([]float64, min(block, dim))}
	f.enter(0)
	return f
}

// enter begins phase p: it converts the state to the modes of p. With c_j = κ_ju_j, the new coordinates are c' = Rc.
func (f *bufferedFilter) enter(p int) {
	next := f.matrix.mode(p)
	state := make([][]float64, len(next.gap))
	for l := range state {
		state[l] = make([]float64, f.dim)
	}
	if f.modes != nil {
		shift := f.modes.shift(next)
		for l, to := range state {
			for j, from := range f.state {
				m := shift[l*len(f.state)+j] * f.modes.drive[j] / next.drive[l]
				for i, x := range from {
					to[i] += m * x
				}
			}
		}
	}
	f.phase, f.modes, f.state = p, next, state
	f.weight, f.decay = make([]float64, len(state)), nil
	for j, k := range next.drive {
		f.weight[j] = k * k
		if next.gap[j] >= 0x1p-24 {
			f.decay = append(f.decay, 1-next.gap[j])
		}
	}
}

// Next implements Filter.
func (f *bufferedFilter) Next(dst, z []float64) {
	f.step++
	if p := f.phase + 1; p < len(f.matrix.stored.Phases) && f.matrix.stored.Phases[p].Start == f.step {
		f.enter(p)
	}
	dst, z = dst[:f.dim], z[:f.dim]
	// dst may be z, so keep a copy of z if it must be read a second time.
	again := len(f.state) > 1 && (len(f.state) != len(f.decay) || len(f.state) != 2 && len(f.state) != 4)
	for first := 0; first < f.dim; first += block {
		last := min(first+block, f.dim)
		in, out := z[first:last], dst[first:last]
		if again {
			in = f.copied[:copy(f.copied, in)]
		}
		base, j := in, 0 // z minus the outputs of the modes before j
		for ; j+4 <= len(f.decay); j += 4 {
			filter4(out, base, in, f.state[j:], f.weight[j:], f.decay[j:], first)
			base = out
		}
		for ; j+2 <= len(f.decay); j += 2 {
			filter2(out, base, in, f.state[j:], f.weight[j:], f.decay[j:], first)
			base = out
		}
		for ; j < len(f.state); j++ {
			filter1(out, base, in, f.state[j][first:last], f.weight[j], f.modes.gap[j])
			base = out
		}
		if j == 0 {
			copy(out, in)
		}
		if r := f.modes.scale; r != 1 {
			for i := range out {
				out[i] *= r
			}
		}
	}
}

// filter1 advances one mode with gap a by one step: out = base − w·u, u ← u + (z − a·u).
func filter1(out, base, z, u []float64, w, a float64) {
	out, base, u = out[:len(z)], base[:len(z)], u[:len(z)]
	for i, x := range z {
		v := u[i]
		out[i] = base[i] - w*v
		u[i] = v + (x - a*v)
	}
}

// filter2 advances the modes numbered `first` and `first`+1 by one step.
func filter2(out, base, z []float64, u [][]float64, w, d []float64, first int) {
	n := len(z)
	u0, u1 := u[0][first:first+n], u[1][first:first+n]
	w0, w1, d0, d1 := w[0], w[1], d[0], d[1]
	out, base = out[:n], base[:n]
	u0, u1 = u0[:n], u1[:n]
	for i, x := range z {
		v0, v1 := u0[i], u1[i]
		out[i] = base[i] - (w0*v0 + w1*v1)
		u0[i] = d0*v0 + x
		u1[i] = d1*v1 + x
	}
}

// filter4 advances the four modes from number `first` on by one step.
func filter4(out, base, z []float64, u [][]float64, w, d []float64, first int) {
	n := len(z)
	u0, u1, u2, u3 := u[0][first:first+n], u[1][first:first+n], u[2][first:first+n], u[3][first:first+n]
	w0, w1, w2, w3 := w[0], w[1], w[2], w[3]
	d0, d1, d2, d3 := d[0], d[1], d[2], d[3]
	out, base = out[:n], base[:n]
	u0, u1, u2, u3 = u0[:n], u1[:n], u2[:n], u3[:n]
	for i, x := range z {
		v0, v1, v2, v3 := u0[i], u1[i], u2[i], u3[i]
		out[i] = base[i] - ((w0*v0 + w1*v1) + (w2*v2 + w3*v3))
		u0[i] = d0*v0 + x
		u1[i] = d1*v1 + x
		u2[i] = d2*v2 + x
		u3[i] = d3*v3 + x
	}
}

func checkDim(dim int) {
	if dim < 1 {
		panic("matfact: the dimension must be positive")
	}
}
