package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"slices"
)

// maxSqrtHorizon bounds what the square root is built for. It costs O(t·D) at
// step t; a few thousand steps are what it is good for.
const maxSqrtHorizon = 1 << 24

// root is the Toeplitz square root C = A^½ of a kernel, for a known number of
// steps. Its coefficients are integers in units of 2⁻⁶².
//
// Among all Toeplitz matrices it has the smallest maximal error for that number
// of steps, Σ_{j<n} c_j² (Dvijotham et al., "Efficient and Near-Optimal Noise
// Generation for Streaming Differential Privacy"); for exponential weights and
// windows it is optimal among all matrices as n → ∞.
type root struct {
	response
	kernel  Workload
	coef    []int64
	colNorm float64
}

func newRoot(stored *Stored, w Workload, horizon uint64) (Factorization, error) {
	if stored != nil && (len(stored.Decay) > 0 || len(stored.Phases) > 0 || len(stored.Bands) > 0) {
		return nil, errors.New("stored factorization: a square root has neither decays nor phases nor bands")
	}
	r := &root{kernel: w.Kernel(), coef: make([]int64, horizon)}
	for j, c := range seriesPower(r.kernel, 0.5, int(horizon)) {
		r.coef[j] = int64(math.RoundToEven(c * 0x1p62))
	}
	// Σ c_j² < 16, so the sum of the squares fits 128 bits and is exact.
	var hi, lo uint64
	for _, c := range r.coef {
		a := uint64(max(c, -c))
		h, l := bits.Mul64(a, a)
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	r.colNorm = math.Sqrt(float64(hi)*0x1p-60) * (1 + 0x1p-40)
	r.response = response{inverse: seriesPower(r.kernel, -0.5, int(horizon)), horizon: horizon}
	return r, nil
}

// seriesPower returns the first n coefficients of a(x)^α for the kernel a of w.
//
//	1/(1−βx):       c_j = c_{j−1} β (j−1+α)/j
//	(1−x^W)/(1−x):  from (1−x)(1−x^W) c' = α [1 − x^W − W x^(W−1) (1−x)] c
//
// Errors stay below 10⁻¹⁶ for α = ½ and 10⁻¹³ for α = −½ (20 000 terms, W from 1
// to 5000, against 300 bits).
func seriesPower(w Workload, alpha float64, n int) []float64 {
	c := make([]float64, n)
	if n == 0 {
		return c
	}
	c[0] = 1
	beta := 1.0
	if w.Kind == "exponential" {
		beta = w.Decay
	}
	for j := 1; j < n; j++ {
		x := float64(j)
		v := float64(c[j-1] * (x - 1 + alpha))
		if w.Kind == "window" && uint64(j) >= w.Window {
			width := float64(w.Window)
			v += float64(c[j-int(w.Window)] * (x - width - float64(alpha*width)))
			if uint64(j) > w.Window {
				v += float64(c[j-1-int(w.Window)] * (width + 1 - x + float64(alpha*(width-1))))
			}
		}
		c[j] = v * beta / x
	}
	return c
}

// Kind implements Factorization.
func (r *root) Kind() string { return "sqrt" }

// ColNorm implements Factorization.
func (r *root) ColNorm() float64 { return r.colNorm }

// Stored implements Factorization.
func (r *root) Stored() *Stored { return &Stored{Kind: "sqrt"} }

// Limits implements Factorization: |w| ≤ |q|·Σ|ĉ_j|. The margin covers that ĉ
// is the inverse of the exact root and not of the stored one: coefficients that
// differ by Σ|e_j| = ε change the sum L by less than L²ε/(1−Lε), and Lε < 10⁻⁵.
func (r *root) Limits(sd float64) (Limits, error) {
	var sum float64
	for _, c := range r.inverse {
		sum += math.Abs(c)
	}
	return limits(sd, sum*(1+0x1p-10), 0, 0)
}

// rootShaper keeps all rows and sums them anew at every step, exactly: products
// of 63-bit integers in 128 bits. Predict's error is that of one conversion.
type rootShaper struct {
	coef        []int64
	fingerprint uint64
	dim         int
	past        []int64   // [step][coordinate]
	next        []float64 // s of the next step
	sum         []int128
}

// NewShaper implements Factorization. It keeps D integers for every step.
func (r *root) NewShaper(dim int) Shaper {
	checkDim(dim)
	h := fnv.New64a()
	var word [8]byte
	for _, c := range r.coef {
		binary.BigEndian.PutUint64(word[:], uint64(c))
		h.Write(word[:])
	}
	return &rootShaper{
		coef:        r.coef,
		fingerprint: h.Sum64(),
		dim:         dim,
		next:        make([]float64, dim),
		sum:         make([]int128, dim),
	}
}

// Predict implements Shaper.
func (s *rootShaper) Predict(dst []float64) (r float64) {
	copy(dst[:s.dim], s.next)
	return 1
}

// Push implements Shaper.
func (s *rootShaper) Push(w []int64) {
	if len(s.past)/s.dim >= len(s.coef) {
		panic(beyondHorizon)
	}
	s.past = append(s.past, w[:s.dim]...)
	s.predict()
}

// predict sets next to Σ_j c_j w_{t−j} for the step t that follows.
func (s *rootShaper) predict() {
	steps := len(s.past) / s.dim
	clear(s.sum)
	for j := 1; j <= steps && j < len(s.coef); j++ {
		c := s.coef[j]
		row := s.past[(steps-j)*s.dim:][:len(s.sum)]
		for i, x := range row {
			hi, lo := bits.Mul64(uint64(c), uint64(x))
			hi -= uint64(c)&uint64(x>>63) + uint64(x)&uint64(c>>63)
			lo, carry := bits.Add64(s.sum[i].lo, lo, 0)
			hi, _ = bits.Add64(uint64(s.sum[i].hi), hi, carry)
			s.sum[i] = int128{int64(hi), lo}
		}
	}
	for i, x := range s.sum { // from units of 2⁻⁶² to 2⁻⁶⁴
		s.sum[i] = int128{x.hi<<2 | int64(x.lo>>62), x.lo << 2}
	}
	convert(s.next, s.sum)
}

// AppendBinary implements Shaper. Where a buffered shaper writes its buffers
// this one writes all rows.
func (s *rootShaper) AppendBinary(b []byte) ([]byte, error) {
	steps := len(s.past) / s.dim
	b = slices.Grow(b, shaperHeader+8*len(s.past))
	b = appendHeader(b, s.fingerprint, s.dim, uint64(steps), steps)
	for _, x := range s.past {
		b = binary.BigEndian.AppendUint64(b, uint64(x))
	}
	return b, nil
}

// UnmarshalBinary implements Shaper.
func (s *rootShaper) UnmarshalBinary(data []byte) error {
	steps, rows, data, err := cutHeader(data, s.fingerprint, s.dim)
	if err != nil {
		return err
	}
	if steps > uint64(len(s.coef)) || rows != steps {
		return fmt.Errorf("shaper state has %d rows and %d steps, must be equal and at most %d", rows, steps, len(s.coef))
	}
	if uint64(len(data)) != 8*steps*uint64(s.dim) {
		return fmt.Errorf("shaper state has %d bytes of rows, must have %d", len(data), 8*steps*uint64(s.dim))
	}
	past := make([]int64, 0, len(data)/8)
	for ; len(data) > 0; data = data[8:] {
		x := int64(binary.BigEndian.Uint64(data))
		if x >= maxNoise || x <= -maxNoise {
			return errors.New("shaper state holds a number beyond what Limits allows")
		}
		past = append(past, x)
	}
	s.past = past
	s.predict()
	return nil
}

// rootFilter solves CY = Z row by row in float64.
type rootFilter struct {
	coef []int64
	dim  int
	past []float64
}

// NewFilter implements Factorization. Next panics beyond the horizon.
func (r *root) NewFilter(dim int) Filter {
	checkDim(dim)
	return &rootFilter{coef: r.coef, dim: dim}
}

// Next implements Filter.
func (f *rootFilter) Next(dst, z []float64) {
	steps := len(f.past) / f.dim
	if steps >= len(f.coef) {
		panic(beyondHorizon)
	}
	f.past = append(f.past, z[:f.dim]...)
	row := f.past[steps*f.dim:]
	for j := 1; j <= steps; j++ {
		c := float64(f.coef[j]) * 0x1p-62
		for i, y := range f.past[(steps-j)*f.dim:][:f.dim] {
			row[i] -= c * y
		}
	}
	copy(dst, row)
}
