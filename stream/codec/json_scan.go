package codec

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/decimal"
)

// These functions parse the grammar of RFC 8259. Each takes the document and the index of the first byte to read. It
// returns the index of the first byte after the text that it has read. An index may equal the document's length.

// maxDepth is the maximum number of open arrays and objects. No row needs more. Without a limit, a record could make
// the decoder's stack grow without bound.
const maxDepth = 128

// jsonSpace returns the index of the first byte that is not white space.
func jsonSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// jsonSkip skips a value that is not needed. depth is the number of open arrays and objects around it.
func jsonSkip(b []byte, i, depth int) (int, Reason) {
	if i == len(b) {
		return i, Malformed
	}
	switch c := b[i]; c {
	case '"':
		i, _, ok := jsonString(b, i+1)
		return i, malformedUnless(ok)
	case 't':
		return jsonLiteral(b, i, "true")
	case 'f':
		return jsonLiteral(b, i, "false")
	case 'n':
		return jsonLiteral(b, i, "null")
	case '[', '{':
		if depth == maxDepth {
			return i, TooDeep
		}
		i = jsonSpace(b, i+1)
		if i < len(b) && b[i] == c+2 { // in ASCII, "]" is "[" + 2, and "}" is "{" + 2
			return i + 1, Decoded
		}
		for {
			if c == '{' {
				var ok bool
				if _, _, i, ok = jsonName(b, i); !ok {
					return i, Malformed
				}
			}
			var r Reason
			if i, r = jsonSkip(b, i, depth+1); r != Decoded {
				return i, r
			}
			if i = jsonSpace(b, i); i == len(b) {
				return i, Malformed
			}
			switch b[i] {
			case ',':
				i = jsonSpace(b, i+1)
			case c + 2:
				return i + 1, Decoded
			default:
				return i, Malformed
			}
		}
	}
	_, n := decimal.JSON(b[i:]) // a number too large for a float64 is still valid JSON
	return i + n, malformedUnless(n > 0)
}

func malformedUnless(ok bool) Reason {
	if ok {
		return Decoded
	}
	return Malformed
}

func jsonLiteral(b []byte, i int, s string) (int, Reason) {
	if len(b)-i < len(s) || string(b[i:i+len(s)]) != s {
		return i, Malformed
	}
	return i + len(s), Decoded
}

// jsonName reads a name, its colon and the white space around the colon. It returns the name without quotes, with
// escapes unresolved. plain is true if the name has no escapes.
func jsonName(b []byte, i int) (name []byte, plain bool, next int, ok bool) {
	if i == len(b) || b[i] != '"' {
		return nil, false, i, false
	}
	from := i + 1
	i, plain, ok = jsonString(b, from)
	if !ok {
		return nil, false, i, false
	}
	name = b[from : i-1]
	if i = jsonSpace(b, i); i == len(b) || b[i] != ':' {
		return nil, false, i, false
	}
	return name, plain, jsonSpace(b, i+1), true
}

// jsonString reads a string, beginning at the byte after its opening quote. plain is true if the string has no escapes.
func jsonString(b []byte, i int) (next int, plain, ok bool) {
	plain = true
	for {
		// Read eight bytes at a time while all of them are ASCII and not special. In each special byte the subtraction
		// borrows, which sets the byte's top bit. A borrow can also reach higher bytes, so only the lowest byte found
		// is certain to be special.
		for i+8 <= len(b) {
			const ones, high = 0x0101010101010101, 0x8080808080808080
			x := binary.LittleEndian.Uint64(b[i:])
			quote, slash := x^ones*'"', x^ones*'\\'
			if m := ((x - ones*0x20) | (quote - ones) | (slash - ones) | x) & high; m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i == len(b) {
			return i, false, false
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, plain, true
		case c == '\\':
			plain = false
			_, n := jsonEscape(b[i:])
			if n == 0 {
				return i, false, false
			}
			i += n
		case c < ' ':
			return i, false, false
		case c < utf8.RuneSelf:
			i++ // the last bytes of the document
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return i, false, false
			}
			i += n
		}
	}
}

// jsonEscape reads the escape at the beginning of b. It returns n = 0 if the escape is malformed. Half of a surrogate
// pair is malformed: replacing it by U+FFFD would make two different names equal.
func jsonEscape(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = jsonHex(b)
		if !utf16.IsSurrogate(r) {
			if r < 0 {
				return 0, 0
			}
			return r, 6
		}
		if r = utf16.DecodeRune(r, jsonHex(b[6:])); r != utf8.RuneError {
			return r, 12
		}
	}
	return 0, 0
}

// jsonHex returns the code unit of the \u escape at the beginning of b, or −1 if there is none.
func jsonHex(b []byte) (r rune) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = (c | 0x20) - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// jsonUnescape appends the text of the valid string s, given without its quotes, to dst. It stops when dst is full.
func jsonUnescape(dst, s []byte) []byte {
	for len(s) > 0 {
		c, n := rune(s[0]), 1
		switch {
		case c == '\\':
			c, n = jsonEscape(s)
		case c >= utf8.RuneSelf:
			c, n = utf8.DecodeRune(s)
		}
		if cap(dst)-len(dst) < utf8.UTFMax {
			break
		}
		dst = utf8.AppendRune(dst, c)
		s = s[n:]
	}
	return dst
}
