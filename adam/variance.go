package adam

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/matfact"
)

// squared computes mean and variance of the noise in the second moment, for methods that square noisy means. Let y =
// C⁻¹z be the noise of one coordinate from unit draws, Q_kl its covariances, and a_k = (1−β)β^(i−k) the weights of step
// i without bias correction. Then
//
//	mean     Σ_k a_k Q_kk            of Σ_k a_k y_k²
//	variance 2Σ_kl a_ka_l Q_kl²      of the same sum
//
// Neither depends on data.
// Source: docs/theory/adam.md, §5.
type squared struct {
	beta  float64
	step  uint64
	mean  float64
	pairs float64 // Σ_kl a_ka_l Q_kl²
	lag   lags
}

// lags computes the covariances Q step by step.
type lags interface {
	// next returns, for the next step i, Q_ii and Σ_{k<i} β^(i−k) Q_ik².
	next(beta float64) (own, cross float64)
	appendTo(w *bin.Writer)
	// restore sets the state to the state after the given number of steps.
	restore(r *bin.Reader, step uint64)
}

func newSquared(f matfact.Factorization, beta float64) *squared {
	s := &squared{beta: beta}
	switch stored := f.Stored(); f.Kind() {
	case "identity":
		s.lag = white{}
	case "blt":
		s.lag = newBuffers(stored)
	default:
		s.lag = &impulse{factor: f, response: f.NewFilter(1)}
	}
	return s
}

// advance moves to the next step.
func (s *squared) advance() {
	own, cross := s.lag.next(s.beta)
	p := 1 - s.beta
	s.step++
	s.mean = float64(s.beta*s.mean) + float64(p*own)
	s.pairs = float64(float64(s.beta*s.beta)*s.pairs) + float64(float64(p*p)*(float64(own*own)+2*cross))
}

func (s *squared) appendTo(w *bin.Writer) {
	w.Float(s.mean)
	w.Float(s.pairs)
	s.lag.appendTo(w)
}

func (s *squared) restore(r *bin.Reader, step uint64) {
	s.step, s.mean, s.pairs = step, r.Float(), r.Float()
	s.lag.restore(r, step)
}

// white is independent noise.
type white struct{}

func (white) next(float64) (own, cross float64) { return 1, 0 }
func (white) appendTo(*bin.Writer)              {}
func (white) restore(*bin.Reader, uint64)       {}

// buffers is the noise of a BLT. Its buffers s follow
//
//	y = z − 1ᵀs,  s ← Θs + Ωy,   and so s ← As + Ωz,  A = diag Θ − Ω1ᵀ.
//
// So Q_li = −1ᵀA^(i−l−1)g_l for l < i, where g_l = E[s_l y_l]. The sum of the squares is 1ᵀG1, where G_i = Σ_{l<i}
// β^(i−l) A^(i−l−1)g_lg_lᵀ(A^(i−l−1))ᵀ follows G ← β(AGAᵀ + ggᵀ). G has k² numbers for k buffers, whatever the length
// of the stream.
type buffers struct {
	gap    []float64 // 1 − Θ
	weight []float64 // Ω
	cov    []float64 // E[ssᵀ]
	past   []float64 // G

	// Scratch.
	cross, product []float64
}

func newBuffers(stored *matfact.Stored) *buffers {
	k := len(stored.Decay)
	b := &buffers{
		gap: make([]float64, k), weight: make([]float64, k),
		cov: make([]float64, k*k), past: make([]float64, k*k), cross: make([]float64, k), product: make([]float64, k*k),
	}
	for i, d := range stored.Decay {
		b.gap[i] = float64(-d) * 0x1p-64
		b.weight[i] = float64(stored.Phases[0].Weight[i]) * 0x1p-64
	}
	return b
}

func (b *buffers) next(beta float64) (own, cross float64) {
	k := len(b.gap)
	cross = total(b.past)
	own = 1 + total(b.cov)
	// g = E[(Θs + Ωy)y] = −ΘE[ss′]1 + Ω·own, where s are the buffers before the step.
	for i := range k {
		b.cross[i] = float64(b.weight[i]*own) - float64((1-b.gap[i])*total(b.cov[i*k:(i+1)*k]))
	}
	b.move(b.past)
	b.move(b.cov)
	for i := range k {
		for j := range k {
			b.past[i*k+j] = beta * (b.past[i*k+j] + float64(b.cross[i]*b.cross[j]))
			b.cov[i*k+j] += float64(b.weight[i] * b.weight[j])
		}
	}
	return own, cross
}

// move sets the symmetric matrix m to AmAᵀ.
func (b *buffers) move(m []float64) {
	k := len(b.gap)
	// Apply m ← (mAᵀ)ᵀ twice, row by row: A r = Θr − Ω(1ᵀr).
	for range 2 {
		for i := range k {
			row := m[i*k : (i+1)*k]
			sum := total(row)
			for j, x := range row {
				b.product[j*k+i] = float64((1-b.gap[j])*x) - float64(b.weight[j]*sum)
			}
		}
		copy(m, b.product)
	}
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

func (b *buffers) appendTo(w *bin.Writer) {
	for _, m := range [][]float64{b.cov, b.past} {
		for _, x := range m {
			w.Float(x)
		}
	}
}

func (b *buffers) restore(r *bin.Reader, _ uint64) {
	for _, m := range [][]float64{b.cov, b.past} {
		for i := range m {
			m[i] = r.Float()
		}
	}
}

// impulse is the noise of any Toeplitz matrix of known length, in O(t) a step. With the coefficients ĉ of C⁻¹,
// Q_{i,i−h} = Σ_{s<i−h} ĉ_{s+h}ĉ_s.
type impulse struct {
	factor   matfact.Factorization
	response matfact.Filter
	coef     []float64 // ĉ
	cov      []float64 // entry h is Q_{i,i−h}
}

func (m *impulse) next(beta float64) (own, cross float64) {
	z := []float64{0}
	if len(m.coef) == 0 {
		z[0] = 1
	}
	m.response.Next(z, z)
	m.coef = append(m.coef, z[0])
	m.cov = append(m.cov, 0)
	n := len(m.coef)
	weight := 1.0
	for h := range m.cov {
		m.cov[h] += float64(z[0] * m.coef[n-1-h])
		if h > 0 {
			weight *= beta
			cross += float64(weight * float64(m.cov[h]*m.cov[h]))
		}
	}
	return m.cov[0], cross
}

func (m *impulse) appendTo(*bin.Writer) {}

// restore computes all steps again, in O(t²), like the square root itself.
func (m *impulse) restore(_ *bin.Reader, step uint64) {
	m.response, m.coef, m.cov = m.factor.NewFilter(1), m.coef[:0], m.cov[:0]
	for range step {
		m.next(0)
	}
}

// vNoise describes the noise in the bias-corrected second moment of step t, for unit draws.
type vNoise struct {
	// Linear is the standard deviation, divided by ρ₂, if the means of the squares have their own noise.
	Linear float64
	// Squared and Bias are the standard deviation and the mean of the noise, both divided by ρ₁², if noisy means are
	// squared and the gradient is 0.
	Squared, Bias float64
}

// newVNoise returns the vNoise of step t for decay beta2 and noise correlated by f. f is C₂ for Linear and C₁ for
// Squared and Bias.
// Cost: O(t) for a BLT, with k² a step for k buffers; O(t²) for a square root.
func newVNoise(f matfact.Factorization, beta2 float64, t uint64) vNoise {
	s := newSquared(f, beta2)
	for range t {
		s.advance()
	}
	v := s.squares()
	v.Linear = linear(f, beta2, t)
	return v
}

// squares returns the vNoise of the current step, without Linear.
func (s *squared) squares() vNoise {
	correction := complement(1-s.beta, s.step)
	return vNoise{Squared: math.Sqrt(2*s.pairs) / correction, Bias: s.mean / correction}
}

// linear returns the standard deviation of Σ_k a_k[C₂⁻¹z]_k for bias-corrected weights.
func linear(f matfact.Factorization, beta float64, t uint64) float64 {
	p := 1 - beta
	u := f.RowVar(matfact.Workload{Kind: "exponential", Decay: beta}, t)
	return float64(p*math.Sqrt(u)) / complement(p, t)
}
