package codec

import (
	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/decimal"
)

// jsonArrayCodec reads an array of exactly one value per column.
type jsonArrayCodec struct {
	width int
	made  []made // nil: all columns are plain numbers
	text  []byte // buffer for a string with its escapes resolved
}

func newJSONArray(columns []*column.Column) *jsonArrayCodec {
	c := &jsonArrayCodec{width: widthOf(columns)}
	if !plain(columns) {
		c.made, c.text = places(columns), textBuffer(columns)
	}
	return c
}

func (c *jsonArrayCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.width)
	if rec.Value == nil {
		return Null
	}
	return end(dst, c.decode(rec.Value, dst))
}

func (c *jsonArrayCodec) decode(b []byte, dst []float64) Reason {
	i := jsonSpace(b, 0)
	if i == len(b) || b[i] != '[' {
		return Malformed
	}
	i = jsonSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return Arity // an empty array, but there is at least one column
	}
	columns := len(dst)
	if c.made != nil {
		columns = len(c.made)
	}
	for k := 0; ; k++ {
		var n int
		if c.made == nil {
			x, next, r := jsonNumber(b, i)
			if r != Decoded {
				return r
			}
			if k == columns {
				return Arity
			}
			dst[k], n = x, next
		} else {
			if k == columns {
				return Arity
			}
			v, next, r := jsonValue(b, i, c.text)
			if r == Decoded {
				r = c.made[k].put(dst, &v)
			}
			if r != Decoded {
				return r
			}
			n = next
		}
		if i = n; i == len(b) || b[i] != ',' {
			if i = jsonSpace(b, i); i == len(b) {
				return Malformed
			}
		}
		switch b[i] {
		case ',':
			i = jsonSpace(b, i+1)
		case ']':
			if i = jsonSpace(b, i+1); i != len(b) {
				return Malformed
			}
			if k+1 != columns {
				return Arity
			}
			return Decoded
		default:
			return Malformed
		}
	}
}

// jsonNumber reads a value that must be a finite number.
func jsonNumber(b []byte, i int) (x float64, next int, r Reason) {
	x, n := decimal.JSON(b[i:])
	if n == 0 {
		return 0, i, jsonNoNumber(b, i)
	}
	if x-x != 0 {
		return 0, i, NotFinite
	}
	return x, i + n, Decoded
}

// jsonNoNumber returns the reason for a value that is not a number.
func jsonNoNumber(b []byte, i int) Reason {
	if i < len(b) {
		switch b[i] {
		case 'n':
			return Missing
		case '"', '{', '[', 't', 'f':
			return NotNumber
		}
	}
	return Malformed
}

// textBuffer returns a buffer for the texts of columns. A longer text is cut, but remains longer than any text that a
// column accepts.
func textBuffer(columns []*column.Column) []byte {
	longest := 0
	for _, c := range columns {
		longest = max(longest, c.MaxText())
	}
	return make([]byte, 0, longest+8)
}

// jsonValue reads a value that a column may use: a number (which may be infinite as a float64), a string, a boolean or
// null. If the value is an array or object, it reads only the first byte, because no column accepts one. buffer is used
// for strings with escapes.
func jsonValue(b []byte, i int, buffer []byte) (v column.Value, next int, r Reason) {
	if i == len(b) {
		return v, i, Malformed
	}
	switch b[i] {
	case '"':
		next, plain, ok := jsonString(b, i+1)
		if !ok {
			return v, next, Malformed
		}
		v.Kind, v.Text = column.Text, b[i+1:next-1]
		if !plain {
			v.Text = jsonUnescape(buffer[:0], v.Text)
		}
		return v, next, Decoded
	case 't':
		v.Kind, v.Num = column.Truth, 1
		next, r = jsonLiteral(b, i, "true")
		return v, next, r
	case 'f':
		v.Kind = column.Truth
		next, r = jsonLiteral(b, i, "false")
		return v, next, r
	case 'n':
		next, r = jsonLiteral(b, i, "null")
		return v, next, r
	case '{', '[':
		v.Kind = column.Other
		return v, i, Decoded
	}
	x, n := decimal.JSON(b[i:])
	v.Kind, v.Num = column.Number, x
	return v, i + n, malformedUnless(n > 0)
}
