package clipgrad

import "golang.org/x/sys/cpu"

// vector reports whether the kernel of kernel_amd64.s can run here. Tests turn it off;
// the loops in Go make the same integers.
var vector = cpu.X86.HasAVX2

// addPairs is worker.group over pairs of groups, from the first numbers of e, y and norm
// on: it adds their columns to lanes and returns how many of their rows count.
// Each operation rounds as it does there.
//
//go:noescape
func addPairs(lanes, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64)
