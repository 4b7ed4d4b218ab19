package column

import (
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
)

func TestCompile(t *testing.T) {
	log, logged := Spec{Name: "l", Transform: "log"}, Spec{Name: "l", Type: "bool"}
	at := func(name, path string) Spec { return Spec{Name: name, Path: path} }
	for _, x := range []struct {
		name, codec string
		specs       []Spec
		faults      []string // such as "0 path": a fault of path in column 0
	}{
		{"names", "json", Plain([]string{"a", "b.c", "b.d[0]", "b.d[1].x"}), nil},
		{"one value twice", "json", []Spec{at("a", "t"), at("b", "t")}, nil},
		{"inside another", "json", Plain([]string{"b.c", "a", "b"}), []string{"0 path"}},
		{"an element inside another", "json", Plain([]string{"b", "b[3]"}), []string{"1 path"}},
		{"array and object", "json", Plain([]string{"a[0]", "a.b", "c"}), []string{"0 path", "1 path"}},
		{"the whole value too", "json", Plain([]string{"[0]", "a"}), []string{"0 path", "1 path"}},
		{"an array of arrays", "avro", Plain([]string{"[0][1]", "[0][2]", "[1]"}), nil},
		{"a name that looks like an index", "json", Plain([]string{`a\[0\]`, "a"}), nil},
		{"no path", "json", Plain([]string{"a", "b..c"}), []string{"1 path"}},
		{"positions", "csv", []Spec{{Name: "1"}, at("hour", "12"), {Name: "999999"}}, nil},
		{"no positions", "csv",
			[]Spec{{Name: "0"}, at("x", "01"), {Name: "x"}, {Name: "+1"}, {Name: "1000001"}, {Name: "1[0]"}},
			[]string{"0 path", "1 path", "2 path", "3 path", "4 path", "5 path"}},
		{"labels", "json-array", Plain([]string{"a[0]", "a", "a.."}), nil},
		{"a path among labels", "json-array", []Spec{at("a", "b")}, []string{"0 path"}},
		{"types among labels", "json-array",
			[]Spec{logged, log, {Name: "c", Type: "category", Categories: []string{"x"}}}, nil},
		{"packed", "float64", []Spec{log, {Name: "a"}}, nil},
		{"packed, of a type", "float32", []Spec{logged}, []string{"0 type"}},
		{"packed, with a default", "float64", []Spec{{Name: "a", Default: 1.0}}, []string{"0 default"}},
		{"enumerations", "protobuf", []Spec{{Name: "a", Type: "enum"}}, nil},
		{"no enumerations", "json-schema", []Spec{{Name: "a", Type: "enum"}}, []string{"0 type"}},
		{"several faults", "json", []Spec{{Name: "a", Type: "x", Offset: 1}, {Name: "b"}, {Name: "c."}},
			[]string{"0 type", "0 offset", "2 path"}},
	} {
		columns, errs := Compile(x.codec, x.specs)
		var got []string
		for i, err := range errs {
			for _, f := range fault.All(err) {
				got = append(got, string(rune('0'+i))+" "+f.(*fault.Fault).Key)
			}
			if err == nil &&
				(columns[i] == nil || columns[i].Name() != x.specs[i].Name ||
					columns[i].Width() != x.specs[i].Width()) {
				t.Errorf("%s: column %d is %v", x.name, i, columns[i])
			}
		}
		if !slices.Equal(got, x.faults) {
			t.Errorf("%s: %q, want %q", x.name, got, x.faults)
		}
	}
	for _, s := range []Spec{countries, with(countries, func(s *Spec) { s.Other = true }),
		with(countries, func(s *Spec) { s.Baseline = "FR" }), {Type: "bool"}} {
		if c := column(t, s); c.Width() != s.Width() {
			t.Errorf("%+v: width %d, but the specification says %d", s, c.Width(), s.Width())
		}
	}
}
