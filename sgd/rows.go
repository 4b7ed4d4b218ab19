package sgd

import (
	"math"
	"slices"
)

// rows reads records for Newton, in units of the bound of the features' norm.
type rows struct {
	columns, target int
	inverse         float64 // 1/ClipX
	clipY           float64 // 0: none
	constant        bool    // there is one
}

func newRows(c *Config) rows {
	return rows{columns: len(c.Columns), target: slices.Index(c.Columns, c.Target), inverse: 1 / c.ClipX, clipY: c.ClipY, constant: *c.Intercept}
}

// read writes the features into x, and the constant after them where there is one, and
// returns the target and ‖x‖² ≤ 1: a longer row is shortened as a whole. A null record
// is not ok.
func (r *rows) read(x, row []float64, constant float64) (y, square float64, ok bool) {
	if len(row) != r.columns {
		return 0, 0, false
	}
	n := len(row) - 1
	if n < len(x) {
		x[n] = constant
		square = float64(constant * constant)
	}
	before, after := x[:r.target], x[r.target:n]
	for j, v := range row[:r.target] {
		v = float64(v * r.inverse)
		before[j] = v
		square += float64(v * v)
	}
	for j, v := range row[r.target+1:] {
		v = float64(v * r.inverse)
		after[j] = v
		square += float64(v * v)
	}
	y = row[r.target]
	if !(square < 1e300) || y-y != 0 {
		return r.readLarge(x, row, constant)
	}
	if c := r.clipY; c > 0 && math.Abs(y) > c {
		y = math.Copysign(c, y)
	}
	if square > 1 {
		shrink := 1 / math.Sqrt(square)
		for j, v := range x {
			x[j] = float64(v * shrink)
		}
		return float64(y * shrink), 1, true
	}
	if square == 0 && !r.constant && !slices.ContainsFunc(x, func(v float64) bool { return v != 0 }) {
		return 0, 0, false
	}
	return y, square, true
}

// readLarge is read for features whose squares leave the range of float64, beside which
// a constant is nothing, or that are no numbers.
func (r *rows) readLarge(x, row []float64, constant float64) (y, square float64, ok bool) {
	if !finite(row) {
		return 0, 0, false
	}
	y = row[r.target]
	if c := r.clipY; c > 0 && math.Abs(y) > c {
		y = math.Copysign(c, y)
	}
	n := len(row) - 1
	copy(x, row[:r.target])
	copy(x[r.target:n], row[r.target+1:])
	var largest float64
	for _, v := range x[:n] {
		largest = max(largest, math.Abs(v))
	}
	for j, v := range x[:n] {
		v /= largest
		x[j] = v
		square += float64(v * v)
	}
	norm := math.Sqrt(square)
	for j, v := range x[:n] {
		x[j] = v / norm
	}
	length := float64(norm * r.inverse) // of the row, divided by largest
	if n < len(x) {
		x[n] = constant / largest / length
	}
	return y / largest / length, 1, true
}
