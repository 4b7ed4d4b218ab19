package codec

import (
	"slices"
	"strconv"

	"streamdp/internal/decimal"
	"streamdp/internal/fault"
)

// csvCodec picks cells of one line by their position.
type csvCodec struct {
	columns int
	cells   []csvCell // in the order of the line
	user    userText  // of the user key, where one of the cells is that
}

type csvCell struct {
	position int // from 1
	column   int // where it goes in the row, userColumn for the user key
}

const userColumn = -1

// newCSV returns the codec of some columns and, unless user is "", of a user key.
func newCSV(columns []string, user string, faults *fault.List) *csvCodec {
	c := &csvCodec{columns: len(columns)}
	for i, s := range columns {
		p, ok := csvPosition(s)
		faults.Check(ok, "columns", `must be positions, "1" the first`, s)
		c.cells = append(c.cells, csvCell{p, i})
	}
	if user != "" {
		p, ok := csvPosition(user)
		faults.Check(ok, "key", `must be a position of a cell for codec "csv", "field:1" the first`, user)
		faults.Check(!slices.Contains(columns, user), "key", "must not be a column", user)
		c.cells = append(c.cells, csvCell{p, userColumn})
	}
	slices.SortFunc(c.cells, func(a, b csvCell) int { return a.position - b.position })
	return c
}

// csvPosition reads a position. It accepts only the spelling that Itoa writes, so that "1" and
// "01" cannot name the same one twice.
func csvPosition(s string) (p int, ok bool) {
	p, err := strconv.Atoi(s)
	return p, err == nil && p >= 1 && strconv.Itoa(p) == s
}

func (c *csvCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.columns)
	if rec.Value == nil {
		return Null
	}
	return end(dst, c.decode(rec.Value, dst))
}

func (c *csvCodec) decode(b []byte, dst []float64) Reason {
	i, next := 0, 0
	c.user.clear()
	for position := 1; ; position++ {
		wanted := next < len(c.cells) && c.cells[next].position == position
		if wanted && c.cells[next].column != userColumn {
			x, n, r := csvNumber(b[i:])
			if r != Decoded {
				return r
			}
			dst[c.cells[next].column] = x
			next++
			i += n
		} else {
			n := csvSkip(b[i:])
			if n < 0 {
				return Malformed
			}
			if wanted {
				c.user.setCell(b[i : i+n])
				next++
			}
			i += n
		}
		// A cell ends before a comma or at the end of the line.
		if i < len(b) && b[i] == ',' {
			i++
			continue
		}
		if i < len(b) && b[i] == '\r' {
			i++
			if i == len(b) || b[i] != '\n' {
				return Malformed
			}
		}
		if i < len(b) && b[i] == '\n' {
			i++
		}
		switch {
		case i < len(b):
			return Malformed // a second line, or something behind a closing quote
		case next+1 == len(c.cells) && c.cells[next].column == userColumn:
			return Decoded // without a user key
		case next < len(c.cells):
			return Missing
		}
		return Decoded
	}
}

// csvNumber reads the cell at the beginning of b, and returns the cell's length.
func csvNumber(b []byte) (x float64, n int, r Reason) {
	i := 0
	quoted := len(b) > 0 && b[0] == '"'
	if quoted {
		i++
	}
	i = csvBlanks(b, i)
	x, k := decimal.Plain(b[i:])
	empty := k == 0
	i = csvBlanks(b, i+k)
	if quoted {
		if i == len(b) {
			return 0, 0, Malformed
		}
		if b[i] == '"' && !(i+1 < len(b) && b[i+1] == '"') {
			i++
		} else {
			return 0, 0, NotNumber
		}
	} else if i < len(b) && b[i] != ',' && b[i] != '\r' && b[i] != '\n' {
		return 0, 0, NotNumber
	}
	switch {
	case empty:
		return 0, 0, Missing
	case x-x != 0:
		return 0, 0, NotFinite
	}
	return x, i, Decoded
}

func csvBlanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	return i
}

// csvSkip returns the length of the cell at the beginning of b, −1 if it is malformed.
func csvSkip(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		for i, c := range b {
			switch c {
			case ',', '\r', '\n':
				return i
			case '"':
				return -1
			}
		}
		return len(b)
	}
	for i := 1; i < len(b); i++ {
		if b[i] == '"' {
			if i++; i == len(b) || b[i] != '"' {
				return i
			}
		}
	}
	return -1 // the quote is not closed
}
