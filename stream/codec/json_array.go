package codec

import "streamdp/internal/decimal"

// jsonArrayCodec reads an array of exactly one number a column.
type jsonArrayCodec struct{ columns int }

func (c *jsonArrayCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.columns)
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
		return Arity // an array of none; there is at least one column
	}
	for k := 0; ; k++ {
		x, n, r := jsonNumber(b, i)
		if r != Decoded {
			return r
		}
		if k == len(dst) {
			return Arity
		}
		dst[k] = x
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
			if k+1 != len(dst) {
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
