package gram

// tiles is the upper triangle of a symmetric matrix in the form that Exact fills. For each pair of rows i, i+1 (i even)
// it has tiles of two rows and four columns. The first tile starts at column i or i−2, a multiple of four. So a kernel
// handles whole tiles only. The parts of a tile left of the diagonal and behind the last column are never read.
type tiles []float64

// tile is the number of entries of a tile.
const tile = 2 * group

// wholeTiles returns the length of a row that is extended to whole tiles.
func wholeTiles(dim int) int { return (dim + group - 1) &^ (group - 1) }

func newTiles(dim int) tiles {
	n := 0
	for i := 0; i < dim; i += 2 {
		n += perPair(i, dim)
	}
	return make(tiles, n)
}

// perPair returns the number of entries of the pair of rows whose first row is i.
func perPair(i, dim int) int { return (wholeTiles(dim) - i&^(group-1)) / group * tile }

// add adds Σ kkᵀ of group vectors k of integers, stored one after the other in rows and padded by zeros to whole tiles.
// All sums must be exact in float64; then neither their order nor fusing matters.
func (t tiles) add(rows []float64, dim int, kernel bool) {
	width := wholeTiles(dim)
	if kernel {
		addTiles(&t[0], &rows[0], width, (dim+1)&^1)
		return
	}
	r0, r1, r2, r3 := rows[:width], rows[width:][:width], rows[2*width:][:width], rows[3*width:][:width]
	for i := 0; i < dim; i += 2 {
		a0, a1, a2, a3 := r0[i], r1[i], r2[i], r3[i]
		b0, b1, b2, b3 := r0[i+1], r1[i+1], r2[i+1], r3[i+1]
		for j := i &^ (group - 1); j < width; j += group {
			to := (*[tile]float64)(t)
			t = t[tile:]
			x0, x1, x2, x3 := (*[group]float64)(r0[j:]), (*[group]float64)(r1[j:]), (*[group]float64)(r2[j:]),
				(*[group]float64)(r3[j:])
			for k := range group {
				to[k] += (a0*x0[k] + a1*x1[k]) + (a2*x2[k] + a3*x3[k])
				to[k+group] += (b0*x0[k] + b1*x1[k]) + (b2*x2[k] + b3*x3[k])
			}
		}
	}
}

// move adds the entries to sum, which stores the triangle row by row, and sets the entries to 0.
func (t tiles) move(sum []int64, dim int) {
	for i := 0; i < dim; i += 2 {
		n := perPair(i, dim)
		sum = moveRow(sum[:dim-i], sum[dim-i:], t[:n], i&(group-1))
		if i+1 < dim {
			sum = moveRow(sum[:dim-i-1], sum[dim-i-1:], t[group:n], (i+1)&(group-1))
		}
		clear(t[:n])
		t = t[n:]
	}
}

// moveRow adds the entries of the tiles to row, starting at column `from` of the first tile. It returns the part of the
// triangle after the row.
func moveRow(row, rest []int64, t tiles, from int) []int64 {
	for from > 0 && len(row) > 0 {
		row[0] += int64(t[from])
		row = row[1:]
		if from++; from == group {
			t, from = t[min(tile, len(t)):], 0
		}
	}
	for ; len(row) >= group; row = row[group:] {
		to, v := (*[group]int64)(row), (*[group]float64)(t)
		for k := range group {
			to[k] += int64(v[k])
		}
		t = t[min(tile, len(t)):]
	}
	for k := range row {
		row[k] += int64(t[k])
	}
	return rest
}

// moveDiagonal is move for the entries of the diagonal only.
func (t tiles) moveDiagonal(sum []int64, dim int) {
	for i := range dim {
		at := i&1*group + i&(group-1)
		sum[0] += int64(t[at])
		t[at] = 0
		sum = sum[dim-i:]
		if i&1 == 1 {
			t = t[perPair(i-1, dim):]
		}
	}
}
