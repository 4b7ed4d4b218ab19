// Package column reads the names that JSON columns have in a configuration.
package column

import "strings"

// Path splits a column of a JSON object into the names that lead to it: "a.b\.c"
// into "a" and "b.c". A backslash makes the dot or backslash after it part of a
// name. It reports false for an empty name and for any other use of a backslash.
func Path(s string) (names []string, ok bool) {
	var name strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '.':
			if name.Len() == 0 {
				return nil, false
			}
			names = append(names, name.String())
			name.Reset()
		case '\\':
			if i++; i == len(s) || s[i] != '.' && s[i] != '\\' {
				return nil, false
			}
			name.WriteByte(s[i])
		default:
			name.WriteByte(s[i])
		}
	}
	return append(names, name.String()), name.Len() > 0
}
