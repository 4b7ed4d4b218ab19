package matfact

import "math"

// response computes the variances of a Toeplitz C. It starts from the coefficients ĉ of C⁻¹, which are the response of
// the noise to a unit draw. Row t of B = AC⁻¹ is b_{t−1} … b_0 with b = aĉ, so
//
//	RowVar(t) = Σ_{j<t} b_j²      Cov(t, u) = Σ_{j<t} b_j b_{j+u−t}.
//
// Without a horizon, ĉ_j is 0 beyond the stored coefficients. From there on b is constant for sums, decays with the
// workload for exponential weights, and returns to 0 for windows. So no row costs more than the number of coefficients.
//
// The results depend only on the coefficients and t. All operations have the same bits on every architecture: see
// buffered.
type response struct {
	inverse []float64 // ĉ
	horizon uint64    // 0: every length
	series  []*series // one for each kernel, most recently used first
}

// Horizon implements Factorization.
func (r *response) Horizon() uint64 { return r.horizon }

// series holds b for one kernel.
type series struct {
	kernel Workload
	b      []float64
	energy []float64 // Σ_{j<t} b_j² at t
	// width is the number of steps of a window, if that is at least the length of b. Beyond b and up to width, b_j
	// equals the last value of b; after width it falls back to 0, step by step. width is 0 if b holds all values.
	width uint64
	late  []float64 // Σ_{width≤j<width+t} b_j² at t
	ratio float64   // b_{j+1}/b_j beyond b: 0, or the kernel's decay
}

// of returns the series of a kernel. It costs O(n) for n coefficients, or O(window) for a window shorter than n.
func (r *response) of(kernel Workload) *series {
	const kept = 4
	at := len(r.series)
	for i, s := range r.series {
		if s.kernel == kernel {
			at = i
		}
	}
	if at == len(r.series) {
		s := r.newSeries(kernel)
		if at < kept {
			r.series = append(r.series, s)
		} else {
			at--
			r.series[at] = s
		}
	}
	s := r.series[at]
	copy(r.series[1:at+1], r.series[:at])
	r.series[0] = s
	return s
}

func (r *response) newSeries(kernel Workload) *series {
	s := &series{kernel: kernel}
	n := len(r.inverse)
	if r.horizon == 0 {
		switch kernel.Kind {
		case "window":
			if kernel.Window < uint64(n) {
				n += int(kernel.Window)
			} else {
				s.width = kernel.Window
			}
		case "exponential":
			s.ratio = kernel.Decay
		default:
			s.ratio = 1
		}
	}
	s.b, s.energy = make([]float64, n), make([]float64, n+1)
	var sum, total float64
	for j := range s.b {
		var c float64
		if j < len(r.inverse) {
			c = r.inverse[j]
		}
		if kernel.Kind == "exponential" {
			sum = float64(kernel.Decay*sum) + c
		} else {
			sum += c
		}
		s.b[j] = sum
	}
	if kernel.Kind == "window" && s.width == 0 {
		for j := len(s.b) - 1; uint64(j) >= kernel.Window && j >= 0; j-- {
			s.b[j] -= s.b[j-int(kernel.Window)]
		}
	}
	for j, b := range s.b {
		total += float64(b * b)
		s.energy[j+1] = total
	}
	if s.width > 0 {
		s.late = make([]float64, n+1)
		total = 0
		for j := range s.b {
			b := s.b[n-1] - s.b[j]
			total += float64(b * b)
			s.late[j+1] = total
		}
	}
	return s
}

// at returns b_j.
func (s *series) at(j uint64) float64 {
	n := uint64(len(s.b))
	switch last := s.b[n-1]; {
	case j < n:
		return s.b[j]
	case j < s.width:
		return last
	case s.width > 0 && j < s.width+n:
		return last - s.b[j-s.width]
	case s.width > 0:
		return 0
	default:
		return float64(last * max(0, 1-gapPower(1-s.ratio, j-n+1)))
	}
}

// regular returns the end of the range that begins at j and in which b is geometric. It returns j if there is no such
// range.
func (s *series) regular(j uint64) uint64 {
	n := uint64(len(s.b))
	switch {
	case j < n || s.width > 0 && j >= s.width && j < s.width+n:
		return j
	case j < s.width:
		return s.width
	}
	return math.MaxUint64
}

// sum returns Σ_{j<t} b_j².
func (s *series) sum(t uint64) float64 {
	n := uint64(len(s.b))
	if t <= n {
		return s.energy[t]
	}
	last := s.b[n-1]
	if s.width == 0 {
		return s.energy[n] + float64(float64(last*last)*s.geometric(t-n))
	}
	total := s.energy[n] + float64(float64(last*last)*float64(min(t, s.width)-n))
	if t > s.width {
		total += s.late[min(t-s.width, n)]
	}
	return total
}

// geometric returns Σ_{i=1}^m ratio^2i.
func (s *series) geometric(m uint64) float64 {
	if s.ratio == 1 {
		return float64(m)
	}
	gap := (1 - s.ratio) * (1 + s.ratio)
	return float64(float64(s.ratio*s.ratio) * (gapPower(gap, m) / gap))
}

// lagged returns Σ_{j<t} b_j b_{j+lag}.
func (s *series) lagged(t, lag uint64) float64 {
	var sum float64
	j := uint64(0)
	if n := uint64(len(s.b)); lag < n {
		j = min(t, n-lag)
		for i, x := range s.b[lag : lag+j] {
			sum += float64(s.b[i] * x)
		}
	}
	for j < t {
		product := float64(s.at(j) * s.at(j+lag))
		m := min(t, s.regular(j))
		if end := s.regular(j + lag); end < math.MaxUint64 {
			m = min(m, end-lag)
		}
		if m <= j {
			sum += product
			j++
			continue
		}
		if r := s.ratio; s.width == 0 && r > 0 && r < 1 {
			sum += product + float64(product*s.geometric(m-j-1))
		} else {
			sum += float64(product * float64(m-j))
		}
		j = m
	}
	return sum
}

// within panics if row t is beyond the horizon.
func (r *response) within(t uint64) {
	if r.horizon > 0 && t > r.horizon {
		panic(beyondHorizon)
	}
}

const beyondHorizon = "matfact: step beyond the horizon of the factorization"

// RowVar implements Factorization.
func (r *response) RowVar(w Workload, t uint64) float64 {
	w.must()
	r.within(t)
	return r.of(w.Kernel()).sum(t) * (w.scale(t) * w.scale(t))
}

// CinvVar implements Factorization.
func (r *response) CinvVar(t uint64) float64 { return r.RowVar(Workload{Kind: "window", Window: 1}, t) }

// Cov implements Factorization. It costs O(min(t, number of coefficients)).
func (r *response) Cov(w Workload, t, u uint64) float64 {
	w.must()
	t, u = min(t, u), max(t, u)
	r.within(u)
	return r.of(w.Kernel()).lagged(t, u-t) * (w.scale(t) * w.scale(u))
}
