package column

import (
	"slices"
	"testing"
)

func TestPath(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string // nil: refused
	}{
		{"a", []string{"a"}}, {"a.b", []string{"a", "b"}}, {`a\.b`, []string{"a.b"}}, {`a\\.b`, []string{`a\`, "b"}},
		{"ü.x y", []string{"ü", "x y"}},
		{"", nil}, {".a", nil}, {"a.", nil}, {"a..b", nil}, {`a\`, nil}, {`a\b`, nil},
	} {
		got, ok := Path(c.in)
		if ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v", c.in, got, ok)
		}
	}
}
