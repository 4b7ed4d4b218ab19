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

// maxSqrtHorizon is the longest horizon of a square root. Step t costs O(t·D), so it is practical for a few thousand
// steps only.
const maxSqrtHorizon = 1 << 24

// root is the Toeplitz square root C = A^½ of a kernel, for a known number of
// steps. Its coefficients are integers in units of 2⁻⁶².
//
// Among all Toeplitz matrices it has the smallest MaxError for that number of steps, Σ_{j<n} c_j² (Dvijotham et al.,
// "Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy"). For exponential weights and
// windows it is optimal among all matrices as n → ∞.
type root struct {
	response
	kernel  Workload
	coef    []int64
	reverse []int64 // coef from the last to c_1, so that each row of C is a slice of it
	colNorm float64
}

func newRoot(stored *Stored, w Workload, horizon uint64) (Factorization, error) {
	if stored != nil &&
		(len(stored.Decay) > 0 || len(stored.Phases) > 0 || len(stored.Bands) > 0 || len(stored.Scales) > 0 ||
			len(stored.Entries) > 0) {
		return nil, errors.New("stored factorization: sqrt must not have decays, phases, bands or entries")
	}
	r := &root{kernel: w.Kernel(), coef: make([]int64, horizon)}
	for j, c := range seriesPower(r.kernel, 0.5, int(horizon)) {
		r.coef[j] = int64(math.RoundToEven(c * 0x1p62))
	}
	r.reverse = slices.Clone(r.coef[1:])
	slices.Reverse(r.reverse)
	// Because Σ c_j² < 16, the sum of the squares fits 128 bits and is exact.
	var hi, lo uint64
	for _, c := range r.coef {
		a := uint64(max(c, -c))
		h, l := bits.Mul64(a, a)
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	r.colNorm = math.Sqrt(float64(hi)*0x1p-60) * roundUp
	r.response = response{inverse: seriesPower(r.kernel, -0.5, int(horizon)), horizon: horizon}
	return r, nil
}

// seriesPower returns the first n coefficients of a(x)^α for the kernel a of w.
//
//	1/(1−βx):       c_j = c_{j−1} β (j−1+α)/j
//	(1−x^W)/(1−x):  from (1−x)(1−x^W) c' = α [1 − x^W − W x^(W−1) (1−x)] c
//
// Errors are below 10⁻¹⁶ for α = ½ and below 10⁻¹³ for α = −½, in a comparison with 300-bit arithmetic (20 000 terms, W
// from 1 to 5000).
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

// Limits implements Factorization: |w| ≤ |q|·Σ|ĉ_j|. ĉ is the inverse of the exact root, not of the stored one; a
// margin covers the difference. If the coefficients of the two roots differ by Σ|e_j| = ε, the sum L = Σ|ĉ_j| changes
// by less than L²ε/(1−Lε), and Lε < 10⁻⁵.
func (r *root) Limits(sd float64) (Limits, error) { return r.fineLimits(sd, 1) }

func (r *root) fineLimits(sd, unit float64) (Limits, error) {
	var sum float64
	for _, c := range r.inverse {
		sum += math.Abs(c)
	}
	sum *= 1 + 0x1p-10
	return limits(sd, sum, sum*(maxState/2/maxFine)/unit, 0)
}

func (r *root) inverseSeries(n int) []float64 { return r.inverse[:n] }

// row implements rows.
func (r *root) row(t int) ([]int64, float64) { return r.reverse[len(r.coef)-t:], 1 }

// NewShaper implements Factorization. It keeps D integers for every step.
func (r *root) NewShaper(dim int) Shaper {
	checkDim(dim)
	h := fnv.New64a()
	var word [8]byte
	for _, c := range r.coef {
		binary.BigEndian.PutUint64(word[:], uint64(c))
		h.Write(word[:])
	}
	return newHistoryShaper(r, len(r.coef), maxNoise, h.Sum64(), dim)
}

func (r *root) fineShaper(dim int, fingerprint uint64) Shaper {
	// The given fingerprint identifies only kind and horizon, so combine it with the kernel's.
	return newHistoryShaper(r, len(r.coef), maxFine, fingerprint^kernelHash(r.kernel), dim)
}

func kernelHash(w Workload) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %x %d", w.Kind, w.Decay, w.Window)
	return h.Sum64()
}

// NewFilter implements Factorization. Next panics beyond the horizon.
func (r *root) NewFilter(dim int) Filter {
	checkDim(dim)
	return &historyFilter{rows: r, horizon: len(r.coef), dim: dim}
}
