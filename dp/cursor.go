package dp

import "math/big"

// CursorStep is the number of coordinates of a block. A Cursor may start only at a multiple of it.
const CursorStep = blockWords

// Cursor draws the noise of a row in pieces, each from a given coordinate on. The noise does not depend on where the
// row is cut. If Open returns true, several goroutines may draw from one row at the same time, each with its own
// Cursor. The zero value is ready to be opened. A Cursor can be opened for one row after another. It retains the keys
// of the row that it was opened for last.
type Cursor struct {
	row   Row
	fast  bool // the row is a keyedRow, copied into keyed
	keyed keyedRow
}

// Open sets the cursor to a row. shared reports whether several cursors may draw from the row at the same time. It is
// true for the long rows of an Epoch, and false for the rows of a test. Open all cursors of a row before using the
// first.
func (c *Cursor) Open(row Row) (shared bool) {
	c.row = row
	keyed, ok := row.(*keyedRow)
	c.fast = ok && keyed.size == blockWords
	if c.fast {
		keyed.extend() // now, while no other goroutine uses the row
		c.keyed.step, c.keyed.block, c.keyed.size, c.keyed.ext = keyed.step, keyed.block, keyed.size, keyed.ext
		c.keyed.stream, c.keyed.next, c.keyed.held = nil, -1, -1
	}
	return c.fast
}

// Round is RoundRow for the coordinates from … from+len(w)−1 of the row; sd and s hold the values of these coordinates.
// from must be a multiple of CursorStep.
//
// Cost: as RoundRow, and one allocation unless the call continues where the last one ended.
func (c *Cursor) Round(w []int64, from int, sd, s []float64, r float64) {
	if from%CursorStep != 0 {
		panic("dp: a cursor must start at a multiple of CursorStep")
	}
	switch {
	case c.fast:
		c.keyed.base = from / blockWords
		RoundRow(w, &c.keyed, sd, s, r)
	case from == 0:
		RoundRow(w, c.row, sd, s, r)
	default:
		RoundRow(w, shifted{c.row, from}, sd, s, r)
	}
}

// shifted is a row without its first coordinates.
type shifted struct {
	row  Row
	from int
}

func (r shifted) At(j int) float64             { return r.row.At(r.from + j) }
func (r shifted) Above(j int, b *big.Rat) bool { return r.row.Above(r.from+j, b) }
func (r shifted) Word(j int) uint64            { return r.row.Word(r.from + j) }

func (r shifted) Fill(dst []float64) {
	for j := range dst {
		dst[j] = r.At(j)
	}
}
