package toml

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

var variable = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Expand replaces ${NAME} by the environment variable NAME, and $${ by ${. It does not expand the result again. Nothing
// prints the result. broken is the rule that s violates, "" if there is none.
func (d *Document) Expand(key Key, element int, s string) (expanded, broken string) {
	var b strings.Builder
	source := s
	for i := strings.IndexByte(s, '$'); i >= 0; i = strings.IndexByte(s, '$') {
		b.WriteString(s[:i])
		s = s[i:]
		switch {
		case strings.HasPrefix(s, "$${"):
			b.WriteString("${")
			s = s[3:]
		case strings.HasPrefix(s, "${"):
			m := variable.FindStringSubmatch(s)
			if m == nil {
				return "", "${ must be followed by the name of an environment variable and }, as in ${HOME}; write " +
					"$${ for a literal ${"
			}
			value, ok := os.LookupEnv(m[1])
			if !ok {
				return "", "environment variable " + m[1] + " is not set"
			}
			b.WriteString(value)
			s = s[len(m[0]):]
			d.masked[place(key, element)] = source
			d.Hidden = append(d.Hidden, slices.Clone(key))
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
	b.WriteString(s)
	return b.String(), ""
}
