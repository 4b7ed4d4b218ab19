package newton

import "golang.org/x/sys/cpu"

// vector reports whether the kernel of kernel_amd64.s can run here. Tests turn it off; the loop
// in Go makes the same bits.
var vector = cpu.X86.HasAVX2

// applyEight is ApplyFour for eight columns of dst, from column from on, d ≥ 8. Each number is
// added up in the order of there.
//
//go:noescape
func applyEight(dst, x, root *float64, d, from int)
