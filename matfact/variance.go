package matfact

import (
	"math"
	"math/bits"
)

// This is how variances are computed. The noise of a workload with kernel 1/(1−(1−a₀)x) is filtered unit noise z. The
// filter has the states of C⁻¹ and one more, the kernel's own accumulator P,
//
//	P ← (1−a₀)P + y,   y = r(z − κᵀc).
//
// The state π in P = π + χᵀc, χ_j = rκ_j/(â_j−a₀), does not depend on the modes:
//
//	π ← (1−a₀)π + r(1 − Σ_j κ_j²/(â_j−a₀))z,
//
// So the states decay independently, and the covariance that n steps add has a closed form:
// drive_i·drive_l·(1−(1−D_il)ⁿ)/D_il, D = p+q−pq. Powers are stored as gaps, 1−(1−p)ⁿ. n is doubled by g ← g(2−g),
// which loses no accuracy. For sums every term is positive. If some â_j is near a₀ (which happens only for exponential
// kernels), its mode stays coupled to π, by λ_j = −rκ_j.
//
// A variance is computed by walking backwards in time. The wanted rows are linear functionals f and g of the state.
// Going back n steps adds f·Q·gᵀ to the covariance and turns f into fM. For a window, the accumulator at its start is
// subtracted. At the beginning of a phase, the covariance of the state is known from the phase before.
//
// Results depend only on the stored integers and t, not on earlier calls. All operations have the same bits on every
// architecture: see buffered.

// RowVar implements Factorization. It costs O(k² + k log t) for k buffers, 0.3 to 4 µs, and
// allocates nothing. The first call in a phase costs O(k⁴) more.
func (b *buffered) RowVar(w Workload, t uint64) float64 { return b.Cov(w, t, t) }

// CinvVar implements Factorization. It is the variance of a window of one step.
func (b *buffered) CinvVar(t uint64) float64 { return b.walk(0, 1, t, t) }

// Cov implements Factorization.
func (b *buffered) Cov(w Workload, t, u uint64) float64 {
	w.must()
	t, u = min(t, u), max(t, u)
	return b.walk(w.pole(), w.Window, t, u) * (w.scale(t) * w.scale(u))
}

// system is the modes of one phase together with a kernel's accumulator. State
// 0 is π, state j+1 is mode j.
type system struct {
	gap, drive []float64
	read       []float64 // P = read·state
	lambda     []float64 // π ← … + Σ_j λ_j·state_j; nil: no mode is coupled
}

func newSystem(m *modes, pole float64) *system {
	k := len(m.gap)
	s := &system{gap: make([]float64, k+1), drive: make([]float64, k+1), read: make([]float64, k+1)}
	s.gap[0], s.read[0] = pole, 1
	copy(s.gap[1:], m.gap)
	copy(s.drive[1:], m.drive)
	product, remainder := m.scale, 1.0
	for j, gap := range m.gap {
		product *= (m.pole[j] - pole) / (gap - pole)
		if math.Abs(gap-pole) < 0.25*(gap+pole) {
			if s.lambda == nil {
				s.lambda = make([]float64, k+1)
			}
			s.lambda[j+1] = -m.scale * m.drive[j]
			continue
		}
		s.read[j+1] = float64(m.scale*m.drive[j]) / (gap - pole)
		remainder -= float64(m.drive[j]*m.drive[j]) / (gap - pole)
	}
	s.drive[0] = product
	if s.lambda != nil {
		s.drive[0] = m.scale * remainder
	}
	return s
}

// walker holds the effect of n steps of a system on its state, and scratch space.
type walker struct {
	sys  *system
	gap  []float64 // 1 − (1−p)ⁿ
	mix  []float64 // λ_j Σ_{m<n} (1−a₀)^(n−1−m) (1−â_j)^m: the coefficient of state j in π
	cov  []float64 // Q, (k+1)²
	old  []float64
	f, g []float64 // functionals
}

// steps sets w to the effect of n steps of s.
func (w *walker) steps(s *system, n uint64) {
	k := len(s.gap)
	w.sys = s
	w.gap, w.mix, w.cov = resize(w.gap, k), resize(w.mix, k), resize(w.cov, k*k)
	for bit := bits.Len64(n) - 1; bit >= 0; bit-- {
		if s.lambda != nil {
			w.doubleCoupled()
		}
		for i, g := range w.gap {
			w.gap[i] = g * (2 - g)
		}
		if n>>bit&1 == 0 {
			continue
		}
		if s.lambda != nil {
			w.stepCoupled()
		}
		for i, g := range w.gap {
			w.gap[i] = g + float64(s.gap[i]*(1-g))
		}
	}
	for i := range k {
		for l := range i + 1 {
			if l > 0 || s.lambda == nil {
				w.cov[l*k+i] = w.modeCov(i, l, n)
			}
			w.cov[i*k+l] = w.cov[l*k+i]
		}
	}
}

// modeCov returns the covariance of states i and l after n steps, if both decay independently. w.gap holds the gaps
// after n steps.
func (w *walker) modeCov(i, l int, n uint64) float64 {
	s := w.sys
	num := w.gap[i] + float64(w.gap[l]*(1-w.gap[i]))
	den := s.gap[i] + float64(s.gap[l]*(1-s.gap[i]))
	if den == 0 {
		num, den = float64(n), 1
	}
	return float64(s.drive[i]*s.drive[l]) * (num / den)
}

// doubleCoupled doubles the number of steps that mix and row 0 of cov, the covariances of π, stand for. The caller
// doubles the gaps afterwards.
func (w *walker) doubleCoupled() {
	row := w.cov[:len(w.gap)]
	w.old = append(w.old[:0], row...)
	w.carry(w.mix, w.gap)
	for l, x := range w.old {
		row[l] += x
	}
	for j, x := range w.mix {
		w.mix[j] = x * ((1 - w.gap[0]) + (1 - w.gap[j]))
	}
}

// stepCoupled adds one step to mix and to row 0 of cov.
func (w *walker) stepCoupled() {
	s, row := w.sys, w.cov[:len(w.gap)]
	w.carry(s.lambda, s.gap)
	for l, x := range s.drive {
		row[l] += float64(s.drive[0] * x)
	}
	for j, x := range w.mix {
		w.mix[j] = float64((1-s.gap[0])*x) + float64(s.lambda[j]*(1-w.gap[j]))
	}
}

// carry applies some steps to row 0 of cov. In these steps, state l is multiplied by 1−gap_l, and Σ_j gain_j·state_j is
// added to π.
func (w *walker) carry(gain, gap []float64) {
	row, own := w.cov[:len(w.gap)], 1-gap[0]
	var cross, square float64
	for j, x := range gain {
		cross += float64(x * row[j])
	}
	for l := 1; l < len(row); l++ {
		var g float64
		for j, x := range gain {
			if x != 0 {
				g += float64(x * w.modeCov(j, l, 0))
			}
		}
		square += float64(gain[l] * g)
		row[l] = (1 - gap[l]) * (float64(own*row[l]) + g)
	}
	row[0] = float64(own*float64(own*row[0])) + 2*float64(own*cross) + square
}

// form returns f·Q·gᵀ.
func form(q, f, g []float64) float64 {
	var sum float64
	for i, fi := range f {
		var row float64
		for l, gl := range g {
			row += float64(q[i*len(g)+l] * gl)
		}
		sum += float64(fi * row)
	}
	return sum
}

// back turns f, a functional of the state after the steps of w, into a functional of the state before them.
func (w *walker) back(f []float64) {
	first := f[0]
	for i := range f {
		f[i] = float64(f[i]*(1-w.gap[i])) + float64(first*w.mix[i])
	}
}

// chain holds, for one kernel, the systems of all phases so far and the covariance of the state at the beginning of
// each phase.
type chain struct {
	pole    float64
	systems []*system
	start   [][]float64 // covariance before the phase's first step
	basis   [][]float64 // the matrix from the state of the phase before to the state of the phase
}

// chain returns the chain of a kernel, extended to phase p. It costs O(k⁴) for every new
// phase, about 0.1 ms for 14 buffers.
func (b *buffered) chain(pole float64, p int) *chain {
	const kept = 4
	at := len(b.chains)
	for i, c := range b.chains {
		if c.pole == pole {
			at = i
		}
	}
	switch {
	case at < len(b.chains):
	case at < kept:
		b.chains = append(b.chains, &chain{pole: pole})
	default:
		at--
		b.chains[at] = &chain{pole: pole}
	}
	c := b.chains[at]
	copy(b.chains[1:at+1], b.chains[:at])
	b.chains[0] = c
	for len(c.systems) <= p {
		b.extend(c)
	}
	return c
}

// extend appends the next phase to c.
func (b *buffered) extend(c *chain) {
	p := len(c.systems)
	m := b.mode(p)
	next := newSystem(m, c.pole)
	kn := len(next.gap)
	start, basis := make([]float64, kn*kn), []float64(nil)
	if p > 0 {
		// c' = Rc and π' + χ'c' = π + χc.
		last, k := c.systems[p-1], len(c.systems[p-1].gap)
		shift := b.mode(p - 1).shift(m)
		basis = make([]float64, kn*k)
		copy(basis, last.read)
		for l := 1; l < kn; l++ {
			for j := 1; j < k; j++ {
				r := shift[(l-1)*(k-1)+j-1]
				basis[l*k+j] = r
				basis[j] -= float64(next.read[l] * r)
			}
		}
		var w walker
		w.steps(last, b.stored.Phases[p].Start-b.stored.Phases[p-1].Start)
		before := append([]float64(nil), basis...)
		for i := range kn {
			w.back(before[i*k : (i+1)*k])
		}
		for i := range kn {
			for l := 0; l <= i; l++ {
				v := form(w.cov, basis[i*k:(i+1)*k], basis[l*k:(l+1)*k]) +
					form(c.start[p-1], before[i*k:(i+1)*k], before[l*k:(l+1)*k])
				start[i*kn+l], start[l*kn+i] = v, v
			}
		}
	}
	c.systems = append(c.systems, next)
	c.start = append(c.start, start)
	c.basis = append(c.basis, basis)
}

// walk returns the covariance of rows t ≤ u for the kernel 1/(1−(1−pole)x). If window > 0 (then pole is 0), the kernel
// is a window of that number of steps. Row 0 is 0.
func (b *buffered) walk(pole float64, window, t, u uint64) float64 {
	if t == 0 {
		return 0
	}
	p := b.phase(u)
	c := b.chain(pole, p)
	w := &b.scratch
	k := len(c.systems[p].gap)
	rows := [2][]float64{resize(w.f, k), resize(w.g, k)} // functionals of u and t
	w.f, w.g = rows[0], rows[1]

	// An event is a time at which an accumulator is read into a row. Before its first step the accumulator is 0 and
	// need not be read.
	type event struct {
		at   uint64
		row  int
		sign float64
	}
	events := make([]event, 0, 4)
	for row, at := range [2]uint64{u, t} {
		events = append(events, event{at, row, 1})
		if window > 0 && at > window {
			events = append(events, event{at - window, row, -1})
		}
	}
	read := func(pos uint64) {
		for _, e := range events {
			if e.at == pos {
				for l, x := range c.systems[p].read {
					rows[e.row][l] += float64(e.sign * x)
				}
			}
		}
	}
	var cov float64
	pos := u
	read(pos)
	for {
		base := b.stored.Phases[p].Start - 1
		next, pending := base, false
		for _, e := range events {
			if e.at < pos {
				pending = true
				next = max(next, e.at)
			}
		}
		switch {
		case pos > base:
			w.steps(c.systems[p], pos-next)
			cov += form(w.cov, rows[0], rows[1])
			w.back(rows[0])
			w.back(rows[1])
			pos = next
			read(pos)
		case pending:
			k := len(c.systems[p-1].gap)
			rows[0], rows[1] = transform(rows[0], c.basis[p], k), transform(rows[1], c.basis[p], k)
			p--
		default:
			return cov + form(c.start[p], rows[0], rows[1])
		}
	}
}

// transform converts the functional f to the basis of the phase before: it returns f·B.
func transform(f, basis []float64, k int) []float64 {
	out := make([]float64, k)
	for i, x := range f {
		for j := range out {
			out[j] += float64(x * basis[i*k+j])
		}
	}
	return out
}

// resize returns a slice of length n, zeroed.
func resize(x []float64, n int) []float64 {
	if cap(x) < n {
		return make([]float64, n)
	}
	x = x[:n]
	clear(x)
	return x
}
