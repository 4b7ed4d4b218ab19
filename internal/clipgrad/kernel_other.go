//go:build !amd64

package clipgrad

const vector = false

func addPairs(lanes *int64, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64) {
	panic("clipgrad: no kernel")
}

func roundColumns(dst, x0, x1 *float64, n int, unit0, unit1 float64) (square0, square1 float64) {
	panic("clipgrad: no kernel")
}
