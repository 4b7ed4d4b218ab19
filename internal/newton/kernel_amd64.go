package newton

import "golang.org/x/sys/cpu"

// vector reports whether the kernel of kernel_amd64.s can run on this processor. Tests turn it off; the loop in Go
// gives the same bits.
var vector = cpu.X86.HasAVX2

// applyEight is ApplyFour for eight columns of dst, starting at column from, for d ≥ 8. It adds up each number in the
// order of ApplyFour.
//
//go:noescape
func applyEight(dst, x, root *float64, d, from int)
