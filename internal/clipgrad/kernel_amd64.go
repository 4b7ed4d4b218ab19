package clipgrad

import "golang.org/x/sys/cpu"

// vector reports whether the kernels of kernel_amd64.s can run here. Tests turn it off;
// the loops in Go make the same integers.
var vector = cpu.X86.HasAVX2

// addPairs is worker.half over pairs of groups, from the first numbers of e, y and norm
// on: it adds their columns to lanes and returns how many of their rows count. limit is the
// first size that does not count, plus magic. Each operation rounds as it does there. lanes
// hold sums of int64, four a column.
//
//go:noescape
func addPairs(lanes *int64, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64)

// roundColumns is the loop of roundPair over n columns, a multiple of 4.
//
//go:noescape
func roundColumns(dst, x0, x1 *float64, n int, unit0, unit1 float64) (square0, square1 float64)
