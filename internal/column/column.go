// Package column says what a configured column makes of the value that a record has for it: a
// number, or several.
//
// A decoder finds a [Value] at a column's path. [Column.Put] turns it into numbers of the row:
// a category into one number for each of a public list, a time into its hour, a number into
// its logarithm. What it computes depends on the value and on public constants alone, and has
// the same bits on every machine. Rows are clipped after it, so none of this has a sensitivity
// of its own.
package column

import (
	"math"
	"strconv"

	"github.com/streamdp/streamdp/internal/decimal"
)

// Kind says what a Value is.
type Kind uint8

// The kinds.
const (
	Absent  Kind = iota // nothing is there, or null
	Number              // Num, perhaps not finite
	Text                // Text: a string, without quotes and escapes
	Truth               // Num is 0 or 1
	Enum                // Text is the symbol of an enumeration, empty for one without; Num is its number
	Instant             // Sec and Nsec, of a field whose schema says that it is a time
	Other               // an object, an array, bytes …: nothing that a column can use
	Kinds               // their number
)

// String returns the kind as messages call it.
func (k Kind) String() string {
	if k >= Kinds {
		return "unknown"
	}
	return [Kinds]string{"null", "number", "string", "boolean", "enumeration", "time", "other"}[k]
}

// A Value is what a record has at a column's path.
type Value struct {
	Kind Kind
	Num  float64
	Sec  int64  // since 1970-01-01T00:00Z
	Nsec int32  // after Sec: 0 to 999999999
	Text []byte // may point into the record; nothing keeps it
}

// Fault says why a value gives no numbers.
type Fault uint8

// The faults.
const (
	OK          Fault = iota // none
	Missing                  // there is no value, and the column has no default
	NotNumber                // it is no number
	NotFinite                // it is NaN, infinite or too large for a float64, perhaps after a transform
	NotBoolean               // it is no boolean
	NotCategory              // it is none of the categories
	NotTime                  // it is no time, or none of the years 1 to 9999
	Faults                   // their number
)

// Column is one configured column. It is immutable.
type Column struct {
	spec       Spec
	path       []Element
	names      []string
	categories map[string]int // where its 1 goes, or none
	other      int            // where that of any other text goes, or none, or refused
	fallback   []float64      // the numbers of the default; nil: there is none
	take       func(t moment) float64
	offset     int64 // seconds that its clock is ahead of UTC
	perSecond  int64 // units of a time that is a number; 0: it is none
	transform  transform
	maxText    int
}

// No places of a row: that of the baseline, whose numbers are all 0, and that of a text that is
// no category and gives no row.
const (
	none    = -1
	refused = -2
)

// Name returns the column's name.
func (c *Column) Name() string { return c.spec.Name }

// Type returns the column's type, as in [Spec].
func (c *Column) Type() string { return c.spec.Type }

// Path returns where the column's value is. The caller must not change it.
func (c *Column) Path() []Element { return c.path }

// Width returns how many numbers of a row the column has.
func (c *Column) Width() int { return len(c.names) }

// Names returns the names of these numbers: the column's own, or "country=DE" and so on for
// categories. The caller must not change them.
func (c *Column) Names() []string { return c.names }

// Plain reports whether the column's one number is the value itself: it is a number, needs no
// transform and has no default. Put of such a column sets dst[0] to a finite Num.
func (c *Column) Plain() bool {
	return c.spec.Plain()
}

// MaxText returns a length in bytes: a longer Text gives the same answer as one that is cut to
// MaxText+1 bytes. So a decoder can resolve escapes in bounded memory.
func (c *Column) MaxText() int { return c.maxText }

// Takes reports whether values of this kind can be put: what a schema is compared with. Absent
// always is, because a schema may say that a value is optional.
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
	return k == Text || k == Enum || k == Number || k == Truth // category
}

// Put writes the column's numbers to dst[:Width()], or says why there are none; then dst may
// hold anything. It does not allocate.
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

// finish writes the one number of a column, after the transform.
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

// wrong returns the fault of a value of a kind that the column does not take.
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

// maxWhole is up to where all whole numbers are float64s: 2⁵³. Beyond it different numbers of
// a record may be one float64, and so are no categories.
const maxWhole = 1 << 53

// putCategory writes a 1 at the category's place and 0 elsewhere. A whole number is the
// category of its digits, and a boolean is "true" or "false".
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

// PutCell is Put for the cell of a format whose values are all text, such as CSV, without quotes. What the
// text is follows from the column: a number, a boolean ("true" or "false" in upper or lower
// case, "1" or "0"), a time or a category. An empty cell is absent. Except in a category, spaces and
// tabs around it don't count.
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

// foldedEqual compares b with a lower-case word of letters.
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
