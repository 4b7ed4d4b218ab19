//go:build !amd64

package newton

const vector = false

func applyEight(dst, x, root *float64, d, from int) { panic("newton: no kernel") }
