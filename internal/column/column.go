// Package column converts the value of a configured column in a record into one or several numbers of the row.
//
// A decoder finds a [Value] at a column's path. [Column.Put] turns it into numbers of the row: a category into one
// number for each of a public list, a time into its hour, a number into its logarithm. The result depends only on the
// value and on public constants, and has the same bits on every machine. Rows are clipped afterwards, so the conversion
// does not change the sensitivity.
package column

import (
	"math"
	"strconv"

	"github.com/streamdp/streamdp/internal/decimal"
)

// Kind is the kind of a Value.
type Kind uint8

// The kinds.
const (
	Absent  Kind = iota // no value, or null
	Number              // Num is the number, perhaps not finite
	Text                // Text is a string, without quotes and escapes
	Truth               // Num is 0 or 1
	Enum                // Text is the symbol of an enumeration, empty if it has none; Num is its number
	Instant             // Sec and Nsec are a time; the schema says that the field is one
	Other               // an object, an array, bytes …: no column can use it
	Kinds               // number of kinds
)

// String returns the kind's name in messages.
func (k Kind) String() string {
	if k >= Kinds {
		return "unknown"
	}
	return [Kinds]string{"null", "number", "string", "boolean", "enumeration", "time", "other"}[k]
}

// Value is the value of a record at a column's path.
type Value struct {
	Kind Kind
	Num  float64
	Sec  int64  // seconds since 1970-01-01T00:00Z
	Nsec int32  // nanoseconds after Sec, 0 to 999999999
	Text []byte // may point into the record; a Column keeps no reference to it
}

// Fault is the reason why a value gives no numbers.
type Fault uint8

// The faults.
const (
	OK          Fault = iota // none
	Missing                  // the value is missing, and the column has no default
	NotNumber                // the value is not a number
	NotFinite                // the value or its transform is NaN, infinite or too large for a float64
	NotBoolean               // the value is not a boolean
	NotCategory              // the value is not one of the categories
	NotTime                  // the value is not a time of the years 1 to 9999
	Faults                   // number of faults
)

// Column is one configured column. It is immutable.
type Column struct {
	spec       Spec
	path       []Element
	names      []string
	categories map[string]int // index, in the row, of each category's 1; or none
	other      int            // index of the 1 for any other text; or none or refused
	fallback   []float64      // the default's numbers; nil: no default
	take       func(t moment) float64
	offset     int64 // seconds by which the column's clock is ahead of UTC
	perSecond  int64 // if times are given as numbers: units per second; else 0
	transform  transform
	maxText    int
}

// none and refused stand in for an index of the row. none is for the baseline, whose numbers are all 0. refused is for
// a text that is not a category and gives no row.
const (
	none    = -1
	refused = -2
)

// Name returns the column's name.
func (c *Column) Name() string { return c.spec.Name }

// Type returns the column's type, as in [Spec].
func (c *Column) Type() string { return c.spec.Type }

// Path returns the path of the column's value. The caller must not change it.
func (c *Column) Path() []Element { return c.path }

// Width returns how many numbers the column has in a row.
func (c *Column) Width() int { return len(c.names) }

// Names returns the names of these numbers: the column's own, or for categories "country=DE" and so on. The caller must
// not change them.
func (c *Column) Names() []string { return c.names }

// Plain reports whether the column's only number is the value itself: the value must be a number, and the column has
// neither transform nor default. For such a column Put sets dst[0] to Num if Num is finite.
func (c *Column) Plain() bool {
	return c.spec.Plain()
}

// MaxText returns a length in bytes. If Text is longer, Put uses only its first MaxText+1 bytes, so a decoder can
// resolve escapes in bounded memory.
func (c *Column) MaxText() int { return c.maxText }

// Takes reports whether Put accepts values of kind k. It is used to compare a column with a schema. It is always true
// for Absent, because a schema may say that a value is optional.
func (c *Column) Takes(k Kind) bool {
	if k == Absent {
		return true
	}
	switch c.spec.Type {
	case "number":
		return k == Number
	case "decimal":
		return k == Number || k == Text
	case "bool":
		return k == Truth
	case "enum":
		return k == Enum
	case "timestamp":
		return k == Instant || k == Text || k == Number && c.perSecond > 0
	}
	return k == Text || k == Enum || k == Number || k == Truth // a column of type category
}

// Put writes the column's numbers to dst[:Width()], or returns the fault that prevents it; dst is then undefined. It
// does not allocate.
func (c *Column) Put(dst []float64, v *Value) Fault {
	var x float64
	switch {
	case v.Kind == Absent:
		if c.fallback == nil {
			return Missing
		}
		copy(dst, c.fallback)
		return OK
	case !c.Takes(v.Kind):
		return c.wrong()
	}
	switch c.spec.Type {
	case "category":
		return c.putCategory(dst, v)
	case "timestamp":
		t, ok := c.momentOf(v)
		if !ok {
			return NotTime
		}
		if x = c.take(t); c.categories != nil {
			return c.putCategory(dst, &Value{Kind: Number, Num: x})
		}
	case "decimal":
		if x = v.Num; v.Kind == Text {
			var n int
			if len(v.Text) <= c.maxText {
				x, n = decimal.Plain(v.Text)
			}
			if n == 0 || n != len(v.Text) {
				return NotNumber
			}
		}
	default:
		x = v.Num
	}
	return c.finish(dst, x)
}

// finish writes the only number of a column, after the transform.
func (c *Column) finish(dst []float64, x float64) Fault {
	if x-x != 0 {
		return NotFinite
	}
	if c.transform != nil {
		if x = c.transform(x); x-x != 0 {
			return NotFinite
		}
	}
	dst[0] = x
	return OK
}

// wrong returns the fault for a value of a kind that the column does not accept.
func (c *Column) wrong() Fault {
	switch c.spec.Type {
	case "bool":
		return NotBoolean
	case "category":
		return NotCategory
	case "timestamp":
		return NotTime
	}
	return NotNumber
}

// maxWhole is 2⁵³. Up to it, every whole number has its own float64. Beyond it, different numbers in a record may
// become the same float64, so they cannot be categories.
const maxWhole = 1 << 53

// putCategory writes a 1 at the category's place and 0 elsewhere. A whole number stands for the category whose name is
// its digits, and a boolean for "true" or "false".
func (c *Column) putCategory(dst []float64, v *Value) Fault {
	at, known := 0, false
	switch v.Kind {
	case Text, Enum:
		at, known = c.categories[string(v.Text)]
	case Truth:
		if v.Num != 0 {
			at, known = c.categories["true"]
		} else {
			at, known = c.categories["false"]
		}
	case Number:
		if math.Abs(v.Num) < maxWhole && v.Num == math.Trunc(v.Num) {
			var digits [20]byte
			at, known = c.categories[string(strconv.AppendInt(digits[:0], int64(v.Num), 10))]
		}
	}
	if !known {
		at = c.other
	}
	if at == refused {
		return NotCategory
	}
	clear(dst[:len(c.names)])
	if at >= 0 {
		dst[at] = 1
	}
	return OK
}

// PutCell does what Put does with a cell of a format whose values are all text, such as CSV. The cell has no quotes.
// The column decides how to read the text: as a number, a boolean ("true" or "false" in any case, "1" or "0"), a time
// or a category. An empty cell is absent. Surrounding spaces and tabs are ignored, except for a category.
func (c *Column) PutCell(dst []float64, cell []byte) Fault {
	if c.spec.Type != "category" {
		cell = trim(cell)
	}
	if len(cell) == 0 {
		return c.Put(dst, &Value{Kind: Absent})
	}
	v := Value{Kind: Text, Text: cell}
	switch c.spec.Type {
	case "number", "decimal":
		x, n := decimal.Plain(cell)
		if n != len(cell) {
			return NotNumber
		}
		v = Value{Kind: Number, Num: x}
	case "bool":
		switch {
		case len(cell) == 1 && (cell[0] == '0' || cell[0] == '1'):
			v.Num = float64(cell[0] - '0')
		case foldedEqual(cell, "true"):
			v.Num = 1
		case !foldedEqual(cell, "false"):
			return NotBoolean
		}
		v.Kind = Truth
	case "timestamp":
		if c.perSecond > 0 {
			if x, n := decimal.Plain(cell); n == len(cell) {
				v = Value{Kind: Number, Num: x}
			}
		}
	}
	return c.Put(dst, &v)
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// foldedEqual reports whether b equals a lower-case word of letters, ignoring case.
func foldedEqual(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if c|0x20 != word[i] {
			return false
		}
	}
	return true
}
