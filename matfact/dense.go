package matfact

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/optimise"
)

// maxDenseHorizon is the longest horizon of a dense optimum: computing one takes seconds, and it stores n² numbers.
const maxDenseHorizon = 300

// dense is the lower triangular matrix C with the smallest root mean square error over the n rows of a workload,
// including the workload's row scaling. Its entries below the diagonal are integers in units of 2⁻⁶², and its diagonal
// is 1/Scales[t].
//
// Use it for few steps, and for comparison. For sums of 100 steps the errors of the square root and of a BLT are within
// 6 % of the error of dense.
type dense struct {
	stored  *Stored
	n       int
	colNorm float64
	reach   float64     // the largest |w| for |q| ≤ 1
	inverse [][]float64 // rows of C⁻¹
	tables  []denseTable
}

// denseTable holds AC⁻¹ for one kernel.
type denseTable struct {
	kernel Workload
	rows   [][]float64
}

// newDenseOptimum computes the best C for n rows of w, and returns its integers.
func newDenseOptimum(w Workload, n int) (*Stored, error) {
	best, err := optimise.Dense(workloadRows(w, n), false)
	if err != nil {
		return nil, err
	}
	s := &Stored{Kind: "dense"}
	for t := range n {
		s.Scales = append(s.Scales, max(1, 1/best.C.At(t, t)))
		for j := range t {
			s.Entries = append(s.Entries, int64(math.RoundToEven(best.C.At(t, j)*0x1p62)))
		}
	}
	return s, nil
}

// workloadRows returns the first n rows of w.
func workloadRows(w Workload, n int) *mat.Dense {
	a := mat.NewDense(n, n, nil)
	for t := range n {
		v := w.scale(uint64(t + 1))
		for j := t; j >= 0; j-- {
			if w.Kind == "window" && uint64(t-j) >= w.Window {
				break
			}
			a.Set(t, j, v)
			if w.Kind == "exponential" {
				v *= w.Decay
			}
		}
	}
	return a
}

func newDense(s *Stored, horizon uint64) (Factorization, error) {
	if err := s.validateDense(horizon); err != nil {
		return nil, err
	}
	d := &dense{stored: s.Clone(), n: int(horizon)}
	norms := make([]float64, d.n)
	d.inverse = make([][]float64, d.n)
	for t := range d.n {
		before, scale := d.row(t + 1)
		norms[t] += 1 / float64(scale*scale)
		row := make([]float64, t+1)
		for m, c := range before {
			x := float64(c) * 0x1p-62
			norms[m] += float64(x * x)
			for j, y := range d.inverse[m] {
				row[j] -= float64(x * y)
			}
		}
		row[t] = 1
		var sum float64
		for j := range row {
			row[j] *= scale
			sum += math.Abs(row[j])
		}
		d.inverse[t] = row
		d.reach = max(d.reach, sum)
	}
	for _, v := range norms {
		d.colNorm = max(d.colNorm, v)
	}
	d.colNorm = math.Sqrt(d.colNorm) * roundUp
	if !(d.reach < 1e6) {
		return nil, fmt.Errorf("stored factorization: noise can grow by a factor %g, must be below 1e6", d.reach)
	}
	return d, nil
}

func (s *Stored) validateDense(horizon uint64) error {
	var errs []error
	if len(s.Decay) > 0 || len(s.Phases) > 0 || len(s.Bands) > 0 {
		errs = append(errs, errors.New("stored factorization: dense must have neither decays nor phases nor bands"))
	}
	if n := len(s.Scales); uint64(n) != horizon || len(s.Entries) != n*(n-1)/2 {
		errs = append(errs,
			fmt.Errorf("stored factorization: has %d scales and %d entries, must have %d and %d", n, len(s.Entries),
				horizon, horizon*(horizon-1)/2))
	}
	for _, r := range s.Scales {
		if !(r >= 1) || r > 1e6 {
			errs = append(errs, fmt.Errorf("stored factorization: has scale %g, must be 1 to 1e6", r))
		}
	}
	for _, c := range s.Entries {
		if c > 1<<62 || c < -1<<62 {
			errs = append(errs, errors.New("stored factorization: has an entry outside [−1, 1]"))
			break
		}
	}
	return errors.Join(errs...)
}

// row implements rows.
func (d *dense) row(t int) ([]int64, float64) {
	return d.stored.Entries[(t-1)*(t-2)/2:][:t-1], d.stored.Scales[t-1]
}

// Kind implements Factorization.
func (d *dense) Kind() string { return d.stored.Kind }

// Horizon implements Factorization.
func (d *dense) Horizon() uint64 { return uint64(d.n) }

// ColNorm implements Factorization.
func (d *dense) ColNorm() float64 { return d.colNorm }

// Stored implements Factorization.
func (d *dense) Stored() *Stored { return d.stored.Clone() }

// NewShaper implements Factorization. It keeps D integers for every step.
func (d *dense) NewShaper(dim int) Shaper {
	checkDim(dim)
	return newHistoryShaper(d, d.n, maxNoise, d.stored.fingerprint(), dim)
}

// NewFilter implements Factorization. Next panics beyond the horizon.
func (d *dense) NewFilter(dim int) Filter {
	checkDim(dim)
	return &historyFilter{rows: d, horizon: d.n, dim: dim}
}

// Limits implements Factorization: |w| ≤ |q|·max_t Σ_j|C⁻¹_tj|.
func (d *dense) Limits(sd float64) (Limits, error) { return limits(sd, d.reach*(1+0x1p-10), 0, 0) }

// of returns the rows of AC⁻¹ for a kernel. It takes O(n²) if they are not cached.
func (d *dense) of(kernel Workload) [][]float64 {
	const kept = 4
	for _, t := range d.tables {
		if t.kernel == kernel {
			return t.rows
		}
	}
	b := make([][]float64, d.n)
	for t := range b {
		b[t] = slices.Clone(d.inverse[t])
		if t > 0 {
			for j, x := range b[t-1] {
				if kernel.Kind == "exponential" {
					x = float64(kernel.Decay * x)
				}
				b[t][j] += x
			}
		}
		if kernel.Kind == "window" && uint64(t) >= kernel.Window {
			for j, x := range d.inverse[t-int(kernel.Window)] {
				b[t][j] -= x
			}
		}
	}
	d.tables = append(d.tables, denseTable{kernel, b})
	if len(d.tables) > kept {
		d.tables = d.tables[1:]
	}
	return b
}

// RowVar implements Factorization.
func (d *dense) RowVar(w Workload, t uint64) float64 { return d.Cov(w, t, t) }

// CinvVar implements Factorization.
func (d *dense) CinvVar(t uint64) float64 { return d.Cov(Workload{Kind: "window", Window: 1}, t, t) }

// Cov implements Factorization.
func (d *dense) Cov(w Workload, t, u uint64) float64 {
	w.must()
	t, u = min(t, u), max(t, u)
	if u > uint64(d.n) {
		panic(beyondHorizon)
	}
	if t == 0 {
		return 0
	}
	b := d.of(w.Kernel())
	var sum float64
	for j, x := range b[t-1] {
		sum += float64(x * b[u-1][j])
	}
	return sum * (w.scale(t) * w.scale(u))
}

// Packed is a list of integers. As text it is base64 of their big-endian bytes.
type Packed []int64

// MarshalText writes the integers.
func (p Packed) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 8*len(p))
	for _, x := range p {
		b = binary.BigEndian.AppendUint64(b, uint64(x))
	}
	return base64.StdEncoding.AppendEncode(nil, b), nil
}

// UnmarshalText reads what MarshalText writes.
func (p *Packed) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(b)%8 != 0 {
		return errors.New("packed integers are not base64 of whole numbers of 8 bytes")
	}
	*p = nil
	for ; len(b) > 0; b = b[8:] {
		*p = append(*p, int64(binary.BigEndian.Uint64(b)))
	}
	return nil
}
