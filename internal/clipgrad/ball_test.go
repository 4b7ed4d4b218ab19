package clipgrad

import (
	"math"
	"slices"
	"testing"
)

// TestBall checks that a row whose squared integers add up to E² + 1 is shortened, for every number of bits and at
// every position in a group. Above 26 bits, float64 rounds E² + 1 to E².
func TestBall(t *testing.T) {
	t.Parallel()
	const n = 2*group + 1
	for bits := 24; bits <= 30; bits++ {
		for _, at := range [][3]int{{2, 0, 1}, {2, 1, 0}, {9, 0, 8}, {9, 8, 3}, {9, 2, 7}} {
			d, long, short := at[0], at[1], at[2]
			x := make([]float64, n*d)
			for i := range n {
				x[i*d+long], x[i*d+short] = math.Copysign(1, float64(i%3)-1), math.Ldexp(1, -bits)
			}
			r := ByResidual(x, make([]float64, n), nil, d, bits)
			for i := range n {
				square := int64(0)
				for _, k := range r.direction(i) {
					square += int64(k) * int64(k)
				}
				if least := math.Ldexp(1-0x1p-22, 2*bits); square > 1<<(2*bits) || float64(square) < least {
					t.Errorf("%d bits, row %d, columns %d and %d of %d: a square of %d", bits, i, long,
						short, d, square)
				}
			}
		}
	}
}

// TestFull adds rows that all have the longest direction and the largest weight. The sum must be exact for every number
// of bits, so no sum between two roundings overflows int64.
func TestFull(t *testing.T) {
	t.Parallel()
	const d = 2
	for bits := 24; bits <= 30; bits++ {
		for _, n := range []int{group, UnitRows, blockRows, blockRows + UnitRows + 2*group + 3} {
			for _, sign := range []float64{1, -1} {
				for _, once := range []bool{false, true} {
					x, y := make([]float64, n*d), make([]float64, n)
					for i := range n {
						x[i*d+1], y[i] = sign, 1e300
					}
					r, dst := ByResidual(x, y, nil, d, bits), make([]int64, d)
					if once {
						r.RoundOnce()
					}
					counted := r.Sum(dst, make([]float64, d), 1, 1, bits+3)
					if want := []int64{0, int64(sign) * int64(n) << (bits + 3)}; !slices.Equal(dst, want) ||
						counted != int64(n) {
						t.Errorf("%d bits, %d rows, once %t: %v, %d counted, want %v", bits, n, once, dst,
							counted, want)
					}
				}
			}
		}
	}
}

// TestLimit checks that a row is counted if |τ| is ⌊cE⌋, and is not counted if |τ| is one more: in the kernel, in half
// groups, and alone.
func TestLimit(t *testing.T) {
	t.Parallel()
	for bits := 24; bits <= 30; bits++ {
		for _, n := range []int{2 * group, group, group - 1} {
			for _, weight := range []float64{0, 1, 1 << 20, math.Ldexp(3, bits-2), math.Ldexp(1, bits)} {
				for _, c := range []float64{weight - 1, weight - 0x1p-10, weight, weight + 0x1p-10, weight + 1} {
					if c < 0 {
						continue
					}
					for _, sign := range []float64{1, -1} {
						x, y, dst := make([]float64, n), make([]float64, n), make([]int64, 1)
						for i := range n {
							x[i], y[i] = 1, math.Ldexp(sign*weight, -bits)
						}
						want := int64(0)
						if weight <= c {
							want = int64(n)
						}
						counted := ByResidual(x, y, nil, 1, bits).Sum(dst, []float64{0}, 1,
							math.Ldexp(c, -bits), 2*bits-5)
						if counted != want || dst[0] != int64(math.Ldexp(sign*weight*float64(n), bits-5)) {
							t.Errorf("%d bits, %d rows of weight %g: %d counted up to %g, want %d; sum %d", bits, n,
								sign*weight, counted, c, want, dst[0])
						}
					}
				}
			}
		}
	}
}

// TestPrepare prepares rows in any order and in pieces, or lets the first pass prepare them. Directions must be the
// same, so no unit overwrites rows of another. Rows outside the prepared range must stay unchanged.
func TestPrepare(t *testing.T) {
	t.Parallel()
	const n, d, bits = 3*UnitRows + group + 3, 3, 24
	u := []float64{0.3, -0.2, 0.1}
	directions := func(r *Rows) (all []float64) {
		sum := make([]int64, d)
		r.Sum(sum, u, 0.3, 0.4, bits)
		for i := range n {
			all = append(all, r.direction(i)...)
		}
		for _, v := range sum {
			all = append(all, float64(v))
		}
		return all
	}
	fresh := func() *Rows {
		r, _ := problem(3, n, d, bits, true)
		return r
	}
	alone := fresh()
	alone.hire(1) // so that units are prepared one after the other
	want := directions(alone)
	for _, part := range []struct {
		lo, hi int
		want   []bool
	}{
		{0, n, []bool{true, true, true, true}},
		{1, n - 1, []bool{false, true, true, false}},
		{UnitRows, 3 * UnitRows, []bool{false, true, true, false}},
		{UnitRows + 1, 2*UnitRows - 1, []bool{false, false, false, false}},
		{3 * UnitRows, n, []bool{false, false, false, true}},
	} {
		r := fresh()
		if r.Prepare(part.lo, part.hi); !slices.Equal(r.prepared, part.want) {
			t.Errorf("rows %d to %d prepare units %v, want %v", part.lo, part.hi, r.prepared, part.want)
		}
	}
	for _, cuts := range [][]int{{n, 0}, {n, 3 * UnitRows, 2 * UnitRows, UnitRows, 0},
		{n, 2*UnitRows - 1, UnitRows + 1, 1}, {n - 1, 700, 5, 0}, {UnitRows - 1, 0}} {
		r := fresh()
		for i, hi := range cuts[:len(cuts)-1] {
			r.Prepare(cuts[i+1], hi)
			r.Prepare(cuts[i+1], hi)
		}
		if !slices.Equal(directions(r), want) {
			t.Errorf("prepared in pieces cut at %v: the directions differ", cuts)
		}
	}
}
