//go:build !amd64

package gram

const vector, fused = false, false

func addPairs(first, second, x0, x1, x2, x3 *float64, n int, a *[2 * group]float64) {
	panic("gram: no kernel")
}

func addNearestRow(dst *int64, x *float64, n int, v, odd float64) {
	panic("gram: no kernel")
}

func addTiles(t, rows *float64, width, last int) {
	panic("gram: no kernel")
}
