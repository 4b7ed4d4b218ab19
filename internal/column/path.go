package column

import (
	"strconv"
	"strings"
)

// Element is one element of a path: a name, with Index −1, or an index into an array, from 0.
type Element struct {
	Name  string
	Index int
}

// Syntax is the notation of a codec's paths.
type Syntax struct {
	read func(string) ([]Element, bool)
	rule string
}

// These are the two notations of a path: see [Parse] and [Position].
var (
	Paths = &Syntax{Parse, `must be a name, or a path such as "a.b[0].c"; inside a name, write a backslash ` +
		`before . \ [ or ]`}
	Positions = &Syntax{Position, `must be a position from "1" to "1000000"`}
)

// maxIndex is the largest index in a path. A decoder must read all elements before the indexed one.
const maxIndex = 999_999

// Parse splits a path into the elements that lead to a value: "a.b[2].c" into a, b, 2 and c. A backslash makes the
// following dot, backslash or bracket part of a name: `a\.b` is one name. A closing bracket needs no backslash. An
// index has no sign and no leading zeros, and is at most 999999. A path may begin with an index; then the value itself
// is an array.
//
// It returns false for a text that is not a path. Such a text has an empty name, another use of a backslash, or
// brackets around something other than an index.
func Parse(s string) (path []Element, ok bool) {
	for i, first := 0, true; i < len(s) || first; first = false {
		if i < len(s) && s[i] == '[' {
			end := strings.IndexByte(s[i:], ']')
			if end < 0 {
				return nil, false
			}
			text := s[i+1 : i+end]
			index, err := strconv.Atoi(text)
			if err != nil || index < 0 || index > maxIndex || strconv.Itoa(index) != text {
				return nil, false
			}
			path = append(path, Element{Index: index})
			i += end + 1
			continue
		}
		if !first {
			if s[i] != '.' {
				return nil, false // an index must be followed by a dot, a bracket or the end
			}
			i++
		}
		var name strings.Builder
		for i < len(s) && s[i] != '.' && s[i] != '[' {
			if s[i] == '\\' {
				if i++; i == len(s) || !strings.ContainsRune(`.\[]`, rune(s[i])) {
					return nil, false
				}
			}
			name.WriteByte(s[i])
			i++
		}
		if name.Len() == 0 {
			return nil, false
		}
		path = append(path, Element{Name: name.String(), Index: -1})
	}
	return path, true
}

// Format formats a path in the notation that Parse reads.
func Format(path []Element) string {
	var b strings.Builder
	for i, e := range path {
		if e.Index >= 0 {
			b.WriteString("[" + strconv.Itoa(e.Index) + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		for k := range len(e.Name) {
			if strings.IndexByte(`.\[`, e.Name[k]) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(e.Name[k])
		}
	}
	return b.String()
}

// Indexed reports whether an element of the path is an index.
func Indexed(path []Element) bool {
	for _, e := range path {
		if e.Index >= 0 {
			return true
		}
	}
	return false
}
