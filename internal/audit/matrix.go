package audit

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/matfact"
)

// Matrix is a lower triangular matrix C with a positive diagonal, computed without any of the audited code. Each call
// returns a Whitener that starts at column 1.
type Matrix func() Whitener

// Whitener computes Cx, entry by entry, for one sequence x.
type Whitener interface {
	// Ahead returns c and s such that the next entry is (Cx)_t = c·x_t + s, where c = C_tt and x_t is the next x.
	Ahead() (c, s float64)
	// Push takes the next x.
	Push(x float64)
	// Later returns Σ (Cx)_t² over all later t, to the end of C if it has oneif all further x are 0.
	Later() float64
}

// Whiten returns Cx and C_tt for each t. w must be at its beginning. Afterwards w.Later returns what x contributes to
// later entries.
func Whiten(w Whitener, x []float64) (white, diagonal []float64) {
	white, diagonal = make([]float64, len(x)), make([]float64, len(x))
	for t, v := range x {
		c, s := w.Ahead()
		white[t], diagonal[t] = c*v+s, c
		w.Push(v)
	}
	return white, diagonal
}

// Identity is the matrix of independent noise.
func Identity() Whitener { return identity{} }

type identity struct{}

func (identity) Ahead() (c, s float64) { return 1, 0 }
func (identity) Push(float64)          {}
func (identity) Later() float64        { return 0 }

// Toeplitz returns the matrix with C_tj = c[t−j] and len(c) rows. It costs O(t) at step t.
func Toeplitz(c []float64) Matrix {
	energy := make([]float64, len(c)+1) // Σ_{j≥t} c_j²
	for t := len(c) - 1; t >= 0; t-- {
		energy[t] = energy[t+1] + c[t]*c[t]
	}
	return func() Whitener { return &toeplitz{c: c, energy: energy} }
}

type toeplitz struct {
	c, energy []float64
	t         int
	at        []int // the steps t with x_t ≠ 0
	x         []float64
}

func (w *toeplitz) Ahead() (c, s float64) {
	for i, at := range w.at {
		s += w.c[w.t-at] * w.x[i]
	}
	return w.c[0], s
}

func (w *toeplitz) Push(x float64) {
	if x != 0 {
		w.at, w.x = append(w.at, w.t), append(w.x, x)
	}
	w.t++
}

func (w *toeplitz) Later() (sum float64) {
	switch len(w.at) {
	case 0:
		return 0
	case 1: // the usual case: neighbours differ in one step
		return w.x[0] * w.x[0] * (w.energy[w.t-w.at[0]] - w.energy[len(w.c)-w.at[0]])
	}
	ahead := toeplitz{c: w.c, t: w.t, at: w.at, x: w.x}
	for ; ahead.t < len(w.c); ahead.t++ {
		_, s := ahead.Ahead()
		sum += s * s
	}
	return sum
}

// Inverse returns the matrix C = D⁻¹ with the given number of rows, where D_tj = d[t−j], and 0 beyond the end of d.
// d[0] must be positive.
func Inverse(d []float64, rows int) Matrix {
	c := make([]float64, rows)
	for t := range c {
		if t == 0 {
			c[t] = 1
		}
		for j := 1; j < len(d) && j <= t; j++ {
			c[t] -= d[j] * c[t-j]
		}
		c[t] /= d[0]
	}
	return Toeplitz(c)
}

// Dense returns the lower triangular matrix with exactly the given rows. It costs O(t) at step t.
func Dense(rows [][]float64) Matrix {
	return func() Whitener { return &dense{rows: rows} }
}

type dense struct {
	rows [][]float64
	x    []float64
}

func (d *dense) Ahead() (c, s float64) {
	t := len(d.x)
	return d.rows[t][t], d.row(t)
}

func (d *dense) row(t int) (s float64) {
	for j, x := range d.x {
		s += d.rows[t][j] * x
	}
	return s
}

func (d *dense) Push(x float64) { d.x = append(d.x, x) }

func (d *dense) Later() (sum float64) {
	for t := len(d.x); t < len(d.rows); t++ {
		s := d.row(t)
		sum += s * s
	}
	return sum
}

// Columns returns C·diag(m). The result has len(m) columns.
func Columns(c Matrix, m []float64) Matrix {
	return func() Whitener { return &columns{Whitener: c(), m: m} }
}

type columns struct {
	Whitener
	m []float64
	t int
}

func (w *columns) Ahead() (c, s float64) {
	c, s = w.Whitener.Ahead()
	return c * w.m[w.t], s
}

func (w *columns) Push(x float64) {
	w.Whitener.Push(x * w.m[w.t])
	w.t++
}

// Normalised returns the first rows of a Toeplitz matrix with C_tt = 1, with normalised columns. Each column is
// multiplied by the largest multiple of 2⁻²⁰ for which its norm, in these rows, is at most 1.
func Normalised(c Matrix, rows int) Matrix {
	first := make([]float64, rows)
	first[0] = 1
	column, _ := Whiten(c(), first)
	m := make([]float64, rows)
	var sum float64
	for i, x := range column {
		sum += x * x
		m[rows-1-i] = math.Floor(0x1p20/math.Sqrt(sum)) * 0x1p-20
	}
	return Columns(Toeplitz(column), m)
}

// Stored returns the matrix of a stored factorization. It is computed from the stored integers or, for the kind "sqrt",
// from workload and horizon. An unknown kind is an error.
func Stored(s *matfact.Stored, w matfact.Workload, horizon uint64) (Matrix, error) {
	if s.Height == 0 {
		return stored(s, w, horizon)
	}
	if horizon != 0 && s.Height != horizon {
		return nil, fmt.Errorf("columns are normalised over %d rows, but the horizon is %d", s.Height, horizon)
	}
	c, err := stored(s, w, s.Height)
	if err != nil {
		return nil, err
	}
	if diagonal, _ := c().Ahead(); diagonal != 1 || s.Kind == "dense" || s.Kind == "phased" {
		return nil, fmt.Errorf("the audits do not support the normalised factorization %q", s.Kind)
	}
	return Normalised(c, int(s.Height)), nil
}

func stored(s *matfact.Stored, w matfact.Workload, horizon uint64) (Matrix, error) {
	switch s.Kind {
	case "identity":
		return Identity, nil
	case "sqrt":
		c, err := KernelRoot(w, int(horizon))
		if err != nil {
			return nil, err
		}
		return Toeplitz(c), nil
	case "bsr", "bisr":
		c, err := KernelRoot(w, len(s.Bands)+1)
		if err != nil {
			return nil, err
		}
		if s.Kind == "bisr" {
			c = reciprocal(c)
		}
		return func() Whitener { return &banded{c: c, inverse: s.Kind == "bisr"} }, nil
	case "banded": // an optimiser found the bands
		c := []float64{1}
		for _, m := range s.Bands {
			c = append(c, float64(m)*0x1p-64)
		}
		return func() Whitener { return &banded{c: c} }, nil
	case "dense":
		rows, entries := make([][]float64, len(s.Scales)), s.Entries
		for t, r := range s.Scales {
			if len(entries) < t {
				return nil, fmt.Errorf("the matrix of %d rows has only %d entries", len(rows), len(s.Entries))
			}
			for _, e := range entries[:t] {
				rows[t] = append(rows[t], float64(e)*0x1p-62)
			}
			rows[t], entries = append(rows[t], 1/r), entries[t:]
		}
		if uint64(len(rows)) < horizon || len(rows) == 0 {
			return nil, fmt.Errorf("the matrix has %d rows, but the horizon is %d", len(rows), horizon)
		}
		return Dense(rows), nil
	case "blt", "phased":
		if len(s.Phases) == 0 {
			return nil, errors.New("the factorization has no phases")
		}
		return func() Whitener { return &buffered{stored: s, state: make([]float64, len(s.Decay))} }, nil
	}
	return nil, fmt.Errorf("the audits do not support factorization %q", s.Kind)
}

// reciprocal returns the first len(c) coefficients of the power series 1/c(x). c[0] must be 1.
func reciprocal(c []float64) []float64 {
	d := make([]float64, len(c))
	d[0] = 1
	for j := 1; j < len(c); j++ {
		for i := range j {
			d[j] -= c[j-i] * d[i]
		}
	}
	return d
}

// banded is the matrix with bands c[0] = 1, c[1], …, or its inverse. The matrix computes y = Cx by y_t = x_t + Σ_{k≥1}
// c_k x_{t−k}; the inverse computes x_t = y_t + Σ_{k≥1} c_k y_{t−k}.
type banded struct {
	c       []float64
	inverse bool
	past    []float64 // the last len(c)−1 values of x, or of y
}

func (b *banded) Ahead() (c, s float64) {
	for k := 1; k < len(b.c) && k <= len(b.past); k++ {
		s += b.c[k] * b.past[len(b.past)-k]
	}
	if b.inverse {
		s = -s
	}
	return 1, s
}

func (b *banded) Push(x float64) {
	if b.inverse {
		_, s := b.Ahead()
		x += s
	}
	if len(b.past) >= len(b.c)-1 && len(b.past) > 0 {
		copy(b.past, b.past[1:])
		b.past = b.past[:len(b.past)-1]
	}
	b.past = append(b.past, x)
}

// Later continues y until all further entries are 0 or negligible.
func (b *banded) Later() (sum float64) {
	rest := banded{b.c, b.inverse, slices.Clone(b.past)}
	for quiet := 0; quiet < len(b.c); quiet++ {
		_, s := rest.Ahead()
		if math.Abs(s) > 1e-12 {
			quiet = 0
		}
		sum += s * s
		rest.Push(0)
	}
	return sum
}

// buffered is the matrix with (Cx)_t = x_t/r + Σ_j Σ_i Ω_i(j) Θ_i^(t−j−1) x_j. It computes the inner sums by recursion.
type buffered struct {
	stored *matfact.Stored
	state  []float64
	steps  uint64
	phase  int // phase of the next step
}

func (b *buffered) Ahead() (c, s float64) {
	for _, v := range b.state {
		s += v
	}
	return 1 / b.stored.Phases[b.phase].Scale, s
}

func (b *buffered) Push(x float64) {
	weights := b.stored.Phases[b.phase].Weight
	for i := range b.state {
		if b.state[i] *= b.decay(i); i < len(weights) {
			b.state[i] += float64(weights[i]) * 0x1p-64 * x
		}
	}
	b.steps++
	if next := b.phase + 1; next < len(b.stored.Phases) && b.stored.Phases[next].Start == b.steps+1 {
		b.phase = next
	}
}

func (b *buffered) decay(i int) float64 { return float64(b.stored.Decay[i]) * 0x1p-64 }

// gap is 1 − Θ_i, computed from the integer, because subtracting in float64 would lose precision.
func (b *buffered) gap(i int) float64 { return float64(-b.stored.Decay[i]) * 0x1p-64 }

func (b *buffered) Later() (sum float64) {
	for i, s := range b.state {
		for k, u := range b.state {
			sum += s * u / (b.gap(i) + b.gap(k)*b.decay(i)) // Σ_m (Θ_iΘ_k)^m
		}
	}
	return sum
}

// KernelRoot returns the first n coefficients of c(x), the square root of a workload's kernel a(x). They follow from
// 2c'a = a'c:
//
//	j·c_j = ½(Σ_{i<j} c_i − W·Σ_{m≥1} c_{j−Wm})
//
// This is the recursion for a window of W steps. For sums the second sum is left out; for exponential weights c_j is
// multiplied by β^j. KernelRoot checks Σ_i c_ic_{j−i} = a_j for some j.
func KernelRoot(w matfact.Workload, n int) ([]float64, error) {
	w = w.Kernel()
	if err := w.Validate(); err != nil {
		return nil, err
	}
	c := make([]float64, n)
	var strided []float64 // sums of c by residue of j modulo W
	if w.Kind == "window" {
		strided = make([]float64, min(w.Window, uint64(n)))
	}
	var sum float64
	for j := range c {
		if j == 0 {
			c[0] = 1
		} else {
			c[j] = sum
			if strided != nil && uint64(j) >= w.Window {
				c[j] -= float64(w.Window) * strided[j%len(strided)]
			}
			c[j] /= 2 * float64(j)
		}
		sum += c[j]
		if strided != nil {
			strided[j%len(strided)] += c[j]
		}
	}
	if w.Kind == "exponential" {
		for j := range c {
			c[j] *= math.Pow(w.Decay, float64(j))
		}
	}
	for j := range c {
		if j > 64 && j != n-1 && j%(n/16+1) != 0 {
			continue
		}
		var got, size float64
		for i := range j + 1 {
			got += c[i] * c[j-i]
			size += math.Abs(c[i] * c[j-i])
		}
		want := 1.0
		switch {
		case w.Kind == "exponential":
			want = math.Pow(w.Decay, float64(j))
		case w.Kind == "window" && uint64(j) >= w.Window:
			want = 0
		}
		if !(math.Abs(got-want) <= 1e-11*max(1, size)) {
			return nil, fmt.Errorf("square root of %s: coefficient %d of its square is off by %g", w.Kind, j, got-want)
		}
	}
	return c, nil
}
