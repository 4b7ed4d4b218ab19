package codec

import (
	"bytes"
	"slices"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/decimal"
	"github.com/streamdp/streamdp/internal/fault"
)

// csvCodec reads cells of one line by their position.
type csvCodec struct {
	width int       // length of a row
	cells []csvCell // cells to read, in the order of the line
	cell  []byte    // buffer for a cell with doubled quotes resolved
	user  userText  // the user key, if it is one of the cells
}

type csvCell struct {
	position int    // position in the line, from 1
	column   int    // index in the row; userColumn for the user key
	made     []made // all columns that read this cell, unless it is one plain column
}

const userColumn = -1

// newCSV returns a codec that reads columns and, unless user is "", a user key.
func newCSV(columns []*column.Column, user string, faults *fault.List) *csvCodec {
	c := &csvCodec{width: widthOf(columns), cell: textBuffer(columns)}
	for _, one := range places(columns) {
		c.cells = append(c.cells, csvCell{one.Path()[0].Index + 1, one.at, []made{one}})
	}
	slices.SortStableFunc(c.cells, byPosition)
	kept := c.cells[:0]
	for _, cell := range c.cells {
		if last := len(kept) - 1; last >= 0 && kept[last].position == cell.position {
			kept[last].made = append(kept[last].made, cell.made...)
		} else {
			kept = append(kept, cell)
		}
	}
	for i := range kept {
		if len(kept[i].made) == 1 && kept[i].made[0].Plain() {
			kept[i].made = nil
		}
	}
	if c.cells = kept; user != "" {
		path, ok := column.Position(user)
		if !ok {
			faults.Add("key", `must be the position of a cell for codec "csv"; "field:1" is the first`, user)
			return c
		}
		cell := csvCell{path[0].Index + 1, userColumn, nil}
		at, taken := slices.BinarySearchFunc(c.cells, cell, byPosition)
		faults.Check(!taken, "key", "must not be a column", user)
		c.cells = slices.Insert(c.cells, at, cell)
	}
	return c
}

func byPosition(a, b csvCell) int { return a.position - b.position }

func (c *csvCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.width)
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
		if wanted && c.cells[next].made != nil {
			n := csvSkip(b[i:])
			if n < 0 {
				return Malformed
			}
			if r := c.put(&c.cells[next], b[i:i+n], dst); r != Decoded {
				return r
			}
			next++
			i += n
		} else if wanted && c.cells[next].column != userColumn {
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
		if i < len(b) {
			return Malformed // a second line, or text after a closing quote
		}
		for _, cell := range c.cells[next:] {
			switch {
			case cell.column == userColumn: // the record has no user key
			case cell.made == nil:
				return Missing
			default:
				if r := c.put(&cell, nil, dst); r != Decoded {
					return r
				}
			}
		}
		return Decoded
	}
}

// put writes the numbers of a cell's columns. The cell must be well-formed.
func (c *csvCodec) put(cell *csvCell, text []byte, dst []float64) Reason {
	doubled := false
	if len(text) > 0 && text[0] == '"' {
		text = text[1 : len(text)-1]
		doubled = bytes.IndexByte(text, '"') >= 0
	}
	for i := range cell.made {
		m := &cell.made[i]
		t := text
		if doubled && m.Type() == "category" { // numbers and times have no quotes
			t = c.single(text)
		}
		if r := faultReasons[m.PutCell(dst[m.at:], t)]; r != Decoded {
			return r
		}
	}
	return Decoded
}

// single returns a text in which each doubled quote is replaced by one. It cuts a text that is too long for any column.
func (c *csvCodec) single(text []byte) []byte {
	t := c.cell[:0]
	for i := 0; i < len(text) && len(t) < cap(t); i++ {
		if text[i] == '"' {
			i++
		}
		t = append(t, text[i])
	}
	return t
}

// csvNumber reads the number in the cell at the beginning of b, and returns the cell's length.
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

// csvSkip returns the length of the cell at the beginning of b, or −1 if it is malformed.
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
