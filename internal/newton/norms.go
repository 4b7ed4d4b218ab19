package newton

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// Bins is the number of bins of the histogram. Bin j holds the rows with 2^−(j+1) < ‖x‖² ≤ 2^−j; The first bin also
// holds all rows with larger norms, and the last bin all rows with smaller norms.
const Bins = 24

// Bin returns the bin of a row with squared norm s.
func Bin(s float64) int {
	if s == 0 { // the square of a very small row is 0 in float64
		return Bins - 1
	}
	f, e := math.Frexp(s)
	if f == 0.5 {
		e--
	}
	return min(max(-e, 0), Bins-1)
}

// Histogram counts rows by their squared norm.
type Histogram [Bins]int64

// Add adds a row of any norm that is not a null row.
func (h *Histogram) Add(x []float64) {
	var sum float64
	for _, v := range x {
		sum += float64(v * v)
	}
	h[Bin(sum)]++
}

// Merge adds the rows of o.
func (h *Histogram) Merge(o *Histogram) {
	for j, count := range o {
		h[j] += count
	}
}

// Release returns the histogram with independent Gaussian noise of standard
// deviation sd in each bin, on a lattice of 2^(bits−4) units a row.
//
// Privacy: in integers, the sensitivity is 1 under zero-out (a row leaves a bin) and √2 under replace (a row changes
// its bin). So it is μ-Gaussian private for sd = √S/μ, S = 1 or 2; see [HistogramSD].
func (h *Histogram) Release(n dp.Noise, array string, sd float64, bits int) Norms {
	hidden, noise := make([]int64, Bins), make([]int64, Bins)
	for j, count := range h {
		hidden[j] = count << (bits - 4)
	}
	dp.RoundRow(noise, n.Row(array, hidden), []float64{math.Ldexp(sd, bits-4)}, nil, 1)
	norms := Norms{SD: sd}
	for j := range norms.Counts {
		norms.Counts[j] = math.Ldexp(float64(hidden[j]+noise[j]), 4-bits)
	}
	return norms
}

// HistogramSD returns the standard deviation with which a histogram is μ-Gaussian private.
func HistogramSD(mu float64, a dp.Adjacency) float64 {
	return math.Sqrt(a.Factor()) / mu * dp.RoundUp
}

// Norms is a noisy histogram of squared norms. Everything computed from it is post-processing.
type Norms struct {
	Counts [Bins]float64
	SD     float64 // standard deviation of the noise in each bin
}

// total returns the sum of the bins before bin end.
func (n *Norms) total(end int) float64 {
	var sum float64
	for _, c := range n.Counts[:end] {
		sum += c
	}
	return sum
}

// spread returns s_n = 2√24·sd, two standard deviations of the sum of all bins.
func (n *Norms) spread() float64 { return float64(2 * n.SD * math.Sqrt(Bins)) }

// Valid returns n̂, the estimated number of valid rows among the given number of slots,
//
//	n̂ = min(slots, max(Σ_j c_j + s_n, s_n))  if s_n < slots/4,  else slots
//
// where s_n is two standard deviations of the sum's noise.
func (n *Norms) Valid(slots float64) float64 {
	if s := n.spread(); s < slots/4 {
		return min(slots, max(n.total(Bins)+s, s))
	}
	return slots
}

// Empty reports whether there were so few valid rows that noise hides them: Σ_j c_j ≤ 1.5 s_n.
func (n *Norms) Empty() bool { return n.total(Bins) <= 1.5*n.spread() }

// Common returns a squared norm 2⁻ⁱ that few rows exceed: i is the first with Σ_{j≤i} c_j > 0.2n̂. If there is none, it
// returns 2⁻²⁴.
func (n *Norms) Common(valid float64) float64 {
	for i := range Bins {
		if n.total(i+1) > float64(0.2*valid) {
			return math.Ldexp(1, -i)
		}
	}
	return math.Ldexp(1, -Bins)
}

// middle returns the squared norm that represents the rows of bin j.
func middle(j int) float64 { return math.Ldexp(0.75, -j) }

// Missed returns M, an estimate of the amount by which clipping rows to squared norm R² reduces the trace of their Gram
// matrix. It ignores bins that noise alone could fill.
func (n *Norms) Missed(squared float64) float64 {
	var m float64
	for j, c := range n.Counts {
		if c > 2*n.SD {
			m += float64(c * max(middle(j)-squared, 0))
		}
	}
	return m
}

// Radius chooses the squared norm R² = 2⁻ⁱ to which rows are clipped for their Gram matrix, and returns it with M as in
// Missed. i is the first one in 0…24 that minimises
//
//	noise·2⁻ⁱ + weight·M
//
// before the first i > 0 with max(Σ_{j<i} c_j, 0) > 0.4n̂ − 1.5 sd·√i: clipping more rows would hide directions. noise
// is the cost of the release's noise at R² = 1.
func (n *Norms) Radius(valid, noise, weight float64) (squared, missed float64) {
	best := math.Inf(1)
	for i := 0; i <= Bins; i++ {
		if i > 0 && max(n.total(i), 0) > float64(0.4*valid)-float64(float64(1.5*n.SD)*math.Sqrt(float64(i))) {
			break
		}
		r := math.Ldexp(1, -i)
		m := n.Missed(r)
		if cost := float64(noise*r) + float64(weight*m); cost < best {
			best, squared, missed = cost, r, m
		}
	}
	return squared, missed
}

// Trace returns a number that very probably exceeds the trace of the Gram matrix of the rows clipped to squared norm
// R²:
//
//	min(max(Σ_j c_j b_j + s_T, s_T), n̂R² + M),  b_j = min(0.75·2⁻ʲ, R²),  s_T = sd·‖b‖
func (n *Norms) Trace(squared, valid, missed float64) float64 {
	var sum, square float64
	for j, c := range n.Counts {
		b := min(middle(j), squared)
		sum += float64(c * b)
		square += float64(b * b)
	}
	s := float64(n.SD * math.Sqrt(square))
	return min(max(sum+s, s), float64(valid*squared)+missed)
}
