package clipgrad

import "golang.org/x/sys/cpu"

// vector reports whether the kernels of kernel_amd64.s can run on this processor. Tests turn it off; the loops in Go
// give the same integers.
var vector = cpu.X86.HasAVX2

// addPairs is worker.half over pairs of groups that start at e, y and norm. It adds their columns to lanes and returns
// the number of their rows that are counted. limit is magic plus the smallest |τ| that is not counted. Each operation
// rounds as in worker.half. lanes hold sums of int64, four for each column.
//
//go:noescape
func addPairs(lanes *int64, e, y, norm, u *float64, dim, pairs int, quotient, top, limit float64) (counted int64)

// roundColumns is the loop of roundPair over n columns, a multiple of 4.
//
//go:noescape
func roundColumns(dst, x0, x1 *float64, n int, unit0, unit1 float64) (square0, square1 float64)
