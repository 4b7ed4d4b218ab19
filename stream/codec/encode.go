package codec

import (
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/decimal"
)

// Encoder converts rows of text cells to values of records, in the form that a codec reads. If a cell is not valid for
// its column, the encoder writes it nevertheless, provided that the form allows it. The codec then refuses the record.
type Encoder struct {
	codec string
	texts []bool    // by column: whether its cells are written as text even if they look like numbers
	tree  *jsonTree // for codec "json"
}

// NewEncoder returns an encoder for the codec "json", "json-array", "csv", "float64" or "float32". names are the names
// of the columns; for "json", they are paths. texts are the names of the columns whose cells are written as text.
func NewEncoder(codec string, names []string, texts map[string]bool) *Encoder {
	e := &Encoder{codec: codec}
	for _, name := range names {
		e.texts = append(e.texts, texts[name])
	}
	if codec != "json" {
		return e
	}
	e.tree = &jsonTree{cell: noCell}
	for i, name := range names {
		path, ok := column.Parse(name)
		if !ok || !e.tree.grow(path, i) {
			e.tree.member(column.Element{Name: name, Index: -1}).cell = i
		}
	}
	return e
}

// Encode returns the value of a record with these cells, one per column.
func (e *Encoder) Encode(cells []string) []byte {
	switch e.codec {
	case "csv":
		var b strings.Builder
		w := csv.NewWriter(&b)
		w.Write(cells)
		w.Flush()
		return []byte(strings.TrimSuffix(b.String(), "\n"))
	case "float64", "float32":
		var b []byte
		for _, c := range cells {
			f, ok := plainNumber(c)
			if !ok {
				f = math.NaN()
			}
			if e.codec == "float64" {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
			} else {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
			}
		}
		return b
	case "json-array":
		b := []byte{'['}
		for i, c := range cells {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendCell(b, i, c)
		}
		return append(b, ']')
	}
	return e.appendTree(nil, e.tree, cells)
}

// appendCell appends the cell of a column.
func (e *Encoder) appendCell(b []byte, column int, cell string) []byte {
	if cell != "" && column < len(e.texts) && e.texts[column] {
		return appendString(b, cell)
	}
	return appendJSON(b, cell)
}

// appendJSON appends a cell as a JSON value: a number if the cell is one, null if it is empty, a boolean if it is true
// or false, otherwise a string.
func appendJSON(b []byte, cell string) []byte {
	cell = strings.Trim(cell, " \t")
	if f, n := decimal.JSON([]byte(cell)); n > 0 && n == len(cell) && !math.IsInf(f, 0) {
		return append(b, cell...)
	}
	if f, ok := plainNumber(cell); ok && !math.IsInf(f, 0) {
		return strconv.AppendFloat(b, f, 'g', -1, 64) // numbers such as "+1" and ".5", which are not valid in JSON
	}
	switch cell {
	case "":
		return append(b, "null"...)
	case "true", "false":
		return append(b, cell...)
	}
	return appendString(b, cell)
}

// plainNumber parses a decimal number as the codec "csv" does.
func plainNumber(cell string) (float64, bool) {
	cell = strings.Trim(cell, " \t")
	f, n := decimal.Plain([]byte(cell))
	return f, n > 0 && n == len(cell)
}

func appendString(b []byte, s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, text...)
}

// noCell is the cell index of an object or array.
const noCell = -1

// jsonTree is a node of the JSON document that an encoder writes: the cell of a column, an object or an array.
type jsonTree struct {
	cell     int
	names    []string // names of an object's members, in order
	members  map[string]*jsonTree
	elements []*jsonTree // elements of an array; nil: null
}

// grow adds the cell of a column at a path. If another cell is at this path or above it, grow adds nothing and returns
// false.
func (t *jsonTree) grow(path []column.Element, cell int) bool {
	at := t
	for k, e := range path {
		if at.cell != noCell || e.Index >= 0 && at.names != nil || e.Index < 0 && at.elements != nil {
			return false
		}
		next := at.find(e)
		if next == nil {
			break
		}
		if at = next; k == len(path)-1 {
			return false
		}
	}
	at = t
	for _, e := range path {
		at = at.member(e)
	}
	at.cell = cell
	return true
}

// find returns the member or element, or nil if there is none.
func (t *jsonTree) find(e column.Element) *jsonTree {
	switch {
	case e.Index < 0:
		return t.members[e.Name]
	case e.Index < len(t.elements):
		return t.elements[e.Index]
	}
	return nil
}

// member returns the member or element, and adds it if it is missing.
func (t *jsonTree) member(e column.Element) *jsonTree {
	if m := t.find(e); m != nil {
		return m
	}
	m := &jsonTree{cell: noCell}
	if e.Index >= 0 {
		t.elements = append(t.elements, make([]*jsonTree, max(0, e.Index+1-len(t.elements)))...)
		t.elements[e.Index] = m
		return m
	}
	if t.members == nil {
		t.members = map[string]*jsonTree{}
	}
	t.names = append(t.names, e.Name)
	t.members[e.Name] = m
	return m
}

func (e *Encoder) appendTree(b []byte, t *jsonTree, cells []string) []byte {
	switch {
	case t == nil:
		return append(b, "null"...)
	case t.cell != noCell:
		return e.appendCell(b, t.cell, cells[t.cell])
	case t.elements != nil:
		b = append(b, '[')
		for i, m := range t.elements {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendTree(b, m, cells)
		}
		return append(b, ']')
	}
	b = append(b, '{')
	for i, name := range t.names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, name), ':')
		b = e.appendTree(b, t.members[name], cells)
	}
	return append(b, '}')
}
