package refit

import (
	"fmt"
	"math/bits"
)

// cachedNumbers is the number of float64 numbers in a block. A block takes half a megabyte and fits a second-level
// cache. It is transformed as far as possible before the next block is touched.
const cachedNumbers = 1 << 16

// walshHadamard replaces the n×d matrix x, row-major, by H̃x, column by column, with
//
//	H̃ ∈ {−1, 1}ⁿˣⁿ,  H̃_ij = (−1)^popcount(i AND j)
//
// in natural order and without a factor: H̃H̃ = n·I.
//
// Cost: d·n·log₂n additions, no memory.
// Errors: it panics unless n is a power of two.
//
// Source: the butterflies of Fino and Algazi (1976), three stages at once.
func walshHadamard(x []float64, d int) {
	n := 0
	if d > 0 {
		n = len(x) / d
	}
	if n == 0 || n&(n-1) != 0 || n*d != len(x) {
		panic(fmt.Sprintf("refit: %d numbers in rows of %d: the number of rows is not a power of two", len(x), d))
	}
	// Rows are stored one after the other. A stage that combines rows at distance h combines numbers at distance hd,
	// and treats all numbers in a run of hd alike.
	block := len(x)
	for block > cachedNumbers && block > d {
		block /= 2
	}
	for b := 0; b < len(x); b += block {
		stages(x[b:b+block], d)
	}
	stages(x, block)
}

// stages runs the stages with distances from, 2·from, … below len(x).
func stages(x []float64, from int) {
	stage := bits.Len(uint(len(x)/from)) - 1 // number of remaining stages
	switch stage % 3 {
	case 1:
		radix2(x, from)
		from *= 2
	case 2:
		radix4(x, from)
		from *= 4
	}
	for ; from < len(x); from *= 8 {
		radix8(x, from)
	}
}

func radix2(x []float64, h int) {
	for len(x) > 0 {
		a, b := x[:h], x[h:][:h]
		for j, u := range a {
			v := b[j]
			a[j], b[j] = u+v, u-v
		}
		x = x[2*h:]
	}
}

func radix4(x []float64, h int) {
	for len(x) > 0 {
		x0, x1, x2, x3 := x[:h], x[h:][:h], x[2*h:][:h], x[3*h:][:h]
		for j := range x0 {
			a0, a1, a2, a3 := x0[j], x1[j], x2[j], x3[j]
			b0, b1, b2, b3 := a0+a1, a0-a1, a2+a3, a2-a3
			x0[j], x1[j], x2[j], x3[j] = b0+b2, b1+b3, b0-b2, b1-b3
		}
		x = x[4*h:]
	}
}

func radix8(x []float64, h int) {
	for len(x) > 0 {
		x0, x1, x2, x3 := x[:h], x[h:][:h], x[2*h:][:h], x[3*h:][:h]
		x4, x5, x6, x7 := x[4*h:][:h], x[5*h:][:h], x[6*h:][:h], x[7*h:][:h]
		for j := range x0 {
			a0, a1, a2, a3 := x0[j], x1[j], x2[j], x3[j]
			b0, b1, b2, b3 := a0+a1, a0-a1, a2+a3, a2-a3
			a0, a1, a2, a3 = b0+b2, b1+b3, b0-b2, b1-b3
			a4, a5, a6, a7 := x4[j], x5[j], x6[j], x7[j]
			b4, b5, b6, b7 := a4+a5, a4-a5, a6+a7, a6-a7
			a4, a5, a6, a7 = b4+b6, b5+b7, b4-b6, b5-b7
			x0[j], x1[j], x2[j], x3[j] = a0+a4, a1+a5, a2+a6, a3+a7
			x4[j], x5[j], x6[j], x7[j] = a0-a4, a1-a5, a2-a6, a3-a7
		}
		x = x[8*h:]
	}
}
