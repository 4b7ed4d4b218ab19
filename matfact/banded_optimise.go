package matfact

import (
	"cmp"
	"errors"
	"math"

	"github.com/streamdp/streamdp/internal/optimise"
)

// bandObjective is the function that the best C with p bands minimises: the square of C's error for sensitivity 1 and
// noise multiplier 1,
//
//	Σ_{k<p} c_k² · Σ_{j<n} b_j²,   b = a/c.
//
// The variables are x ∈ ℝ^(p−1), with d_k = e^{x_k}/Σ_i e^{x_i} (x_p = 0) and c_k = 1 − d_1 − … − d_k. Every x gives a
// matrix that newBanded accepts: its c_k are positive and decreasing, and its inverse is stable.
type bandObjective struct {
	kernel Workload // "sum", "exponential" or "window"
	length uint64   // n for a sum; other workloads are endless
}

// These are limits of the optimisation, in steps and in bands. For streams longer than p² steps the best bands are
// nearly equal, and the inverse decays very slowly. Finding such bands would take long, and a BLT is better.
const (
	maxBandTune  = 1 << 20
	maxBestBands = 64
)

// newBandedOptimum returns the integers of the best C with cfg.Bands bands. A sum or mean is optimised for cfg.Tune or
// cfg.Horizon steps, any other workload for an endless stream.
func newBandedOptimum(cfg Config, w Workload) (*Stored, error) {
	o := bandObjective{kernel: w.Kernel()}
	p := cmp.Or(cfg.Bands, defaultBands)
	switch w.Kind {
	case "exponential":
		o.kernel.Decay = min(w.Decay, 1-1./maxBandTune)
	case "window":
		o.kernel.Window = min(w.Window, maxBandTune)
		p = int(min(uint64(p), w.Window))
	default:
		o.length = min(cmp.Or(cfg.Tune, cfg.Horizon), maxBandTune)
		p = int(min(uint64(p), o.length))
	}
	c, _, err := optimiseBands(p, o)
	if err != nil {
		return nil, err
	}
	s := &Stored{Kind: "banded"}
	last := Fixed(math.MaxUint64)
	for _, c := range c[1:] {
		m := floorFixed(c)
		if m >= last {
			m = last - 1
		}
		if m == 0 {
			break
		}
		s.Bands = append(s.Bands, m)
		last = m
	}
	return s, nil
}

// optimiseBands minimises o over the matrices with p bands. It returns the best c and its value. The search begins at
// the first p coefficients of the kernel's root.
//
// Cost: 20 to 1000 evaluations of O(Tp), where T is the number of coefficients of 1/c that are not negligible: 0.1 s
// for 16 bands and 10⁴ steps, 4 s for 32 and 10⁵.
func optimiseBands(p int, o bandObjective) (c []float64, value float64, err error) {
	if p == 1 {
		return []float64{1}, math.Exp(o.log(nil, nil)), nil
	}
	start := append(seriesPower(o.kernel, 0.5, p), 0)
	x := make([]float64, p-1)
	for k := range x {
		x[k] = math.Log(max(start[k]-start[k+1], 1e-12) / max(start[p-1], 1e-12))
	}
	f := optimise.Minimise(x, o.log)
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, 0, errors.New("cannot optimise the bands: no finite error found")
	}
	c, _ = bandsOf(x)
	return c, math.Exp(f), nil
}

// bandsOf maps the optimiser's variables to c and d.
func bandsOf(x []float64) (c, d []float64) {
	p := len(x) + 1
	top := 0.0
	for _, v := range x {
		top = max(top, v)
	}
	c, d = make([]float64, p), make([]float64, p)
	var sum float64
	for k := range d {
		d[k] = -top
		if k < len(x) {
			d[k] += x[k]
		}
		d[k] = math.Exp(d[k])
		sum += d[k]
	}
	var rest float64
	for k := p - 1; k >= 0; k-- {
		d[k] /= sum
		rest += d[k]
		c[k] = rest
	}
	c[0] = 1
	return c, d
}

// log returns ln Σc² + ln Σb² at x, or +Inf if 1/c does not decay. It writes the gradient to grad unless grad is nil.
//
// With ĉ = 1/c and e_j = ∂E/∂ĉ_j, ∂ĉ/∂c_k = −x^kĉ² gives ∂E/∂c_k = −Σ_t u_tĉ_{t−k}, u_t = e_t − Σ_k c_k u_{t+k}. Where
// ĉ is negligible, b decays as the kernel does, so the rest of E is a multiple of the last square.
func (o bandObjective) log(x, grad []float64) float64 {
	c, d := bandsOf(x)
	p := len(c)
	inverse := o.invert(c)
	if inverse == nil {
		return math.Inf(1)
	}
	energy, rest := o.energy(inverse)
	var s float64
	for _, v := range c {
		s += v * v
	}
	f := math.Log(s) + math.Log(energy)
	if grad == nil {
		return f
	}
	u := rest
	for t := len(u) - 1; t >= 0; t-- {
		for k := 1; k < p && t+k < len(u); k++ {
			u[t] -= c[k] * u[t+k]
		}
	}
	// Turn the derivatives by c into derivatives by d, ∂/∂d_i = −Σ_{k≥i} ∂/∂c_k. Then turn those into derivatives by
	// the variables.
	byD := make([]float64, p) // derivatives by d_{i+1}
	var tail, mean float64
	for k := p - 1; k >= 1; k-- {
		var sum float64
		for t := k; t < len(u); t++ {
			if t-k < len(inverse) {
				sum += u[t] * inverse[t-k]
			}
		}
		tail += 2*c[k]/s - sum/energy
		byD[k-1] = -tail
		mean += d[k-1] * byD[k-1]
	}
	for i := range grad {
		grad[i] = d[i] * (byD[i] - mean)
	}
	return f
}

// vanished is the size below which coefficients of 1/c count as zero.
const vanished = 0x1p-52

// invert returns the coefficients of 1/c until p consecutive ones are negligible, or up to
// o.length. It returns nil if they do not decay.
func (o bandObjective) invert(c []float64) []float64 {
	inverse := []float64{1}
	quiet := 0
	for t := 1; o.length == 0 || uint64(t) < o.length; t++ {
		var v float64
		for k := 1; k < len(c) && k <= t; k++ {
			v -= c[k] * inverse[t-k]
		}
		inverse = append(inverse, v)
		if quiet++; math.Abs(v) > vanished {
			quiet = 0
		}
		if quiet >= len(c) {
			break
		}
		if t > 1<<15 {
			return nil
		}
	}
	return inverse
}

// energy returns E = Σ_j b_j² and its derivatives with respect to the coefficients of 1/c. It returns as many
// derivatives as log needs: one for each step up to the length, but at most twice the number of coefficients in
// inverse.
func (o bandObjective) energy(inverse []float64) (e float64, derivative []float64) {
	size := 2 * len(inverse)
	if o.length > 0 {
		size = int(min(uint64(size), o.length))
	}
	at := func(j int) float64 {
		if j < len(inverse) {
			return inverse[j]
		}
		return 0
	}
	if o.kernel.Kind == "window" {
		return o.windowEnergy(size, at)
	}
	beta, more := 1.0, float64(o.length)-float64(size) // b_j² beyond size, as multiples of the last one
	if o.kernel.Kind == "exponential" {
		beta = o.kernel.Decay
		more = beta * beta / ((1 - beta) * (1 + beta))
	}
	b := make([]float64, size)
	var sum float64
	for j := range b {
		sum = beta*sum + at(j)
		b[j] = sum
		e += sum * sum
	}
	e += more * sum * sum
	down := 2 * more * sum
	for j := size - 1; j >= 0; j-- {
		down += 2 * b[j]
		b[j] = down
		down *= beta
	}
	return e, b
}

// windowEnergy is energy for a window, n = ∞. If the window is much longer than 1/c, the additional b are constant.
func (o bandObjective) windowEnergy(size int, at func(int) float64) (e float64, derivative []float64) {
	width := int(min(o.kernel.Window, uint64(size)))
	more := float64(o.kernel.Window) - float64(width)
	b := make([]float64, size+width) // first for the sum, then for the window
	var sum float64
	for j := range b {
		sum += at(j)
		b[j] = sum
	}
	for j := len(b) - 1; j >= width; j-- {
		b[j] -= b[j-width]
	}
	for _, v := range b {
		e += v * v
	}
	e += more * sum * sum
	// The derivative is Σ_{t=j}^{j+width−1} 2b_t, computed as a running sum.
	derivative = make([]float64, size)
	var running float64
	for t := len(b) - 1; t >= 0; t-- {
		running += 2 * b[t]
		if t+width < len(b) {
			running -= 2 * b[t+width]
		}
		if t < size {
			derivative[t] = running + 2*more*sum
		}
	}
	return e, derivative
}
