package column

import (
	"slices"
	"strings"
	"testing"
)

func name(s string) Element { return Element{Name: s, Index: -1} }

func index(i int) Element { return Element{Index: i} }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []Element // nil: Parse refuses the text
	}{
		{"a", []Element{name("a")}}, {"a.b", []Element{name("a"), name("b")}}, {`a\.b`, []Element{name("a.b")}},
		{`a\\.b`, []Element{name(`a\`), name("b")}}, {"ü.x y", []Element{name("ü"), name("x y")}},
		{"a[0]", []Element{name("a"), index(0)}}, {"a[10][2].b", []Element{name("a"), index(10), index(2), name("b")}},
		{"[3].x", []Element{index(3), name("x")}}, {"[999999]", []Element{index(999999)}},
		{`a\[0\]`, []Element{name("a[0]")}}, {`a\[0]`, []Element{name("a[0]")}}, {"a]b", []Element{name("a]b")}},
		{"]", []Element{name("]")}},
		{"", nil}, {".a", nil}, {"a.", nil}, {"a..b", nil}, {`a\`, nil}, {`a\b`, nil}, {"a.[0]", nil}, {"[0]a", nil},
		{"[0].", nil},
		{"a[", nil}, {"a[]", nil}, {"a[-1]", nil}, {"a[+1]", nil}, {"a[01]", nil}, {"a[1000000]", nil}, {"a[x]", nil},
		{"a[0]]", nil},
		{"a[99999999999999999999]", nil}, {"a[0]\\", nil},
	} {
		got, ok := Parse(c.in)
		if ok != (c.want != nil) || ok && !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v", c.in, got, ok)
		}
		if ok && Indexed(got) != strings.Contains(strings.ReplaceAll(c.in, `\[`, ""), "[") {
			t.Errorf("%q: Indexed is %v", c.in, Indexed(got))
		}
	}
}

// FuzzParse: if Parse reads a text, Format writes a text with the same meaning.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a.b[2].c", `a\.b`, `\[\]\\`, "[0][1]", "a[0]b", "a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, ok := Parse(s)
		if !ok {
			return
		}
		again, ok := Parse(Format(p))
		if !ok || !slices.Equal(p, again) {
			t.Fatalf("%q is %v, written %q and read as %v", s, p, Format(p), again)
		}
		for _, e := range p {
			if e.Index < 0 && e.Name == "" || e.Index >= 0 && e.Name != "" || e.Index > maxIndex {
				t.Fatalf("%q is %v", s, p)
			}
		}
	})
}
