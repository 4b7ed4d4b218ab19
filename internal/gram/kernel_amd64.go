package gram

import "golang.org/x/sys/cpu"

// vector reports whether the kernels of kernel_amd64.s can run on this processor. Tests turn it off; the loops in Go
// give the same bits.
var vector = cpu.X86.HasAVX2

// fused reports whether the kernel that fuses products can run on this processor. It is used only for exact sums.
var fused = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// addPairs is the inner loop of addGroup, over n entries (a multiple of 4) of two rows of the triangle. a holds the
// factors, which are entries of the four rows: first_j += (a₀x₀_j + a₁x₁_j) + (a₂x₂_j + a₃x₃_j), and second_j likewise
// with a₄ … a₇. Each operation rounds as in addGroup.
//
//go:noescape
func addPairs(first, second, x0, x1, x2, x3 *float64, n int, a *[2 * group]float64)

// addNearestRow is the inner loop of addNearest, over n entries (a multiple of 4).
//
//go:noescape
func addNearestRow(dst *int64, x *float64, n int, v, odd float64)

// addTiles is tiles.add for rows whose length is a multiple of 4. It computes the pairs of rows before row `last`, an
// even number.
//
//go:noescape
func addTiles(t, rows *float64, width, last int)
