package sgd

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/vector"
)

// rows reads records for Newton. It divides features by the bound of their norm.
type rows struct {
	columns, target int
	inverse         float64 // 1/ClipX
	clipY           float64 // 0: none
	intercept       bool
}

func newRows(c *Config) rows {
	return rows{columns: len(c.Columns), target: slices.Index(c.Columns, c.Target), inverse: 1 / c.ClipX,
		clipY: c.ClipY, intercept: *c.Intercept}
}

// read writes the features into x, which may be longer than needed. It returns the target and ‖x‖² ≤ 1. It shortens
// longer features and, without an intercept, the target with them. ok is false for a null record.
func (r *rows) read(x, row []float64) (y, square float64, ok bool) {
	if len(row) != r.columns {
		return 0, 0, false
	}
	n := len(row) - 1
	x = x[:n]
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
		return r.readLarge(x, row)
	}
	if c := r.clipY; c > 0 && math.Abs(y) > c {
		y = math.Copysign(c, y)
	}
	if square > 1 {
		shrink := 1 / math.Sqrt(square)
		for j, v := range x {
			x[j] = float64(v * shrink)
		}
		if !r.intercept {
			y = float64(y * shrink)
		}
		return y, 1, true
	}
	if square == 0 && !r.intercept && !slices.ContainsFunc(x, func(v float64) bool { return v != 0 }) {
		return 0, 0, false
	}
	return y, square, true
}

// readLarge is read for features whose squares leave the range of float64, or that are not finite.
func (r *rows) readLarge(x, row []float64) (y, square float64, ok bool) {
	if !vector.Finite(row) {
		return 0, 0, false
	}
	y = row[r.target]
	if c := r.clipY; c > 0 && math.Abs(y) > c {
		y = math.Copysign(c, y)
	}
	copy(x, row[:r.target])
	copy(x[r.target:], row[r.target+1:])
	var largest float64
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	for j, v := range x {
		v /= largest
		x[j] = v
		square += float64(v * v)
	}
	norm := math.Sqrt(square)
	for j, v := range x {
		x[j] = v / norm
	}
	if !r.intercept {
		y = y / largest / float64(norm*r.inverse) // norm·inverse is the length of the row divided by largest
	}
	return y, 1, true
}
