package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
)

// node is a JSON value with all its members, including those with the same name.
type node struct {
	token json.Token // json.Delim for objects and arrays
	names []string   // names of an object's members
	inner []*node
}

func readNode(d *json.Decoder, depth int) (n *node, deepest int) {
	token, _ := d.Token()
	n = &node{token: token}
	if _, ok := token.(json.Delim); !ok {
		return n, depth
	}
	deepest = depth + 1
	for d.More() {
		if token == json.Delim('{') {
			name, _ := d.Token()
			n.names = append(n.names, name.(string))
		}
		inner, deep := readNode(d, depth+1)
		n.inner, deepest = append(n.inner, inner), max(deepest, deep)
	}
	d.Token()
	return n, deepest
}

// at returns the value at a path: nil if it is absent, and false if the record must be refused.
func (n *node) at(path []column.Element) (*node, bool) {
	for k, e := range path {
		if n.token == nil && k > 0 {
			return nil, true
		}
		var found []*node
		switch {
		case e.Index >= 0 && n.token == json.Delim('['):
			if e.Index < len(n.inner) {
				found = n.inner[e.Index : e.Index+1]
			}
		case e.Index < 0 && n.token == json.Delim('{'):
			for i, name := range n.names {
				if name == e.Name {
					found = append(found, n.inner[i])
				}
			}
		default:
			return nil, false
		}
		if len(found) > 1 {
			return nil, false
		}
		if len(found) == 0 {
			return nil, true
		}
		n = found[0]
	}
	return n, true
}

func (n *node) value() (v column.Value) {
	if n == nil {
		return v
	}
	switch x := n.token.(type) {
	case json.Number:
		v.Kind = column.Number
		v.Num, _ = x.Float64()
	case string:
		v.Kind, v.Text = column.Text, []byte(x)
	case bool:
		if v.Kind = column.Truth; x {
			v.Num = 1
		}
	case json.Delim:
		v.Kind = column.Other
	}
	return v
}

// referenceMade decodes the values of paths, or the cells of positions, with the standard library, and calls each
// column's own Put.
func referenceMade(f Format, value []byte) []float64 {
	columns, err := f.Compile()
	if err != nil {
		panic(err)
	}
	row := make([]float64, 0, f.Width())
	put := func(fault column.Fault, dst []float64) bool {
		row = append(row, dst...)
		return fault == column.OK
	}
	if f.Name == "csv" {
		cells, ok := referenceCells(value)
		if !ok {
			return nil
		}
		for _, c := range columns {
			dst, cell := make([]float64, c.Width()), []byte(nil)
			if p := c.Path()[0].Index; p < len(cells) {
				cell = cells[p]
			}
			if !put(c.PutCell(dst, cell), dst) {
				return nil
			}
		}
		return row
	}
	if !json.Valid(value) || !utf8.Valid(value) || loneSurrogate(value) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	root, deepest := readNode(d, 0)
	if deepest > 128 || f.Name == "json-array" && (root.token != json.Delim('[') || len(root.inner) != len(columns)) {
		return nil
	}
	for i, c := range columns {
		path := c.Path()
		if path == nil {
			path = []column.Element{{Index: i}}
		}
		n, ok := root.at(path)
		if !ok {
			return nil
		}
		v, dst := n.value(), make([]float64, c.Width())
		if !put(c.Put(dst, &v), dst) {
			return nil
		}
	}
	return row
}

// madeFormats have columns of all types.
var madeFormats = func() (all []Format) {
	add := func(name string, specs ...column.Spec) {
		f := Format{Name: name, Specs: specs}
		for _, s := range specs {
			f.Columns = append(f.Columns, s.Name)
		}
		all = append(all, f)
	}
	at := func(s column.Spec, name, path string) column.Spec { s.Name, s.Path = name, path; return s }
	number, decimals, truth := column.Spec{}, column.Spec{Type: "decimal"}, column.Spec{Type: "bool"}
	color := column.Spec{Type: "category", Categories: []string{"red", "grün", `a"b`, "12", "true"}}
	open := color
	open.Other, open.Default, open.Baseline = true, "red", "grün"
	log := column.Spec{Transform: "log1p", Default: 0.5}
	hour, day := column.Spec{Type: "timestamp", Take: "hour", Unit: "ms"},
		column.Spec{Type: "timestamp", Take: "weekday", Unit: "ms", UTCOffset: "+02:00", Categories: []string{"6", "7"},
			Other: true}
	add("json", at(number, "a", ""), at(color, "b", ""))
	add("json", at(hour, "h", "a"), at(day, "d", "a"), at(open, "b", ""))
	add("json", at(number, "a[1]", ""), at(open, "x", "a[2].b"), at(log, "c", ""))
	add("json", at(truth, "t", "[0]"), at(decimals, "d", "[2][1]"), at(log, "l", "[1].a"))
	add("json", at(log, "a", "a.b"), at(truth, "b", "a.c"))
	add("json-array", at(number, "a", ""), at(color, "b", ""), at(hour, "c", ""))
	add("csv", at(number, "1", ""), at(color, "b", "3"), at(log, "l", "3"))
	add("csv", at(hour, "h", "2"), at(day, "d", "2"), at(truth, "t", "1"), at(open, "o", "4"))
	add("csv", at(decimals, "d", "1"), at(color, "b", "1"))
	add("csv", at(log, "l", "1"), at(open, "o", "1"))
	return all
}()

func agreeMade(t *testing.T, f Format, codec Codec, value []byte) bool {
	t.Helper()
	dst := dirty(f.Width())
	r := codec.Decode(&Record{Value: value}, dst)
	checkRow(t, r, dst)
	want := referenceMade(f, value)
	if (r == Decoded) != (want != nil) || want != nil && !sameRow(dst, want) {
		t.Fatalf("%s %q of %q: %v %v, want %v", f.Name, f.Columns, value, r, dst, want)
	}
	return r == Decoded
}

func (s source) scalar() string {
	switch s.IntN(10) {
	case 0:
		return s.value(3)
	case 1:
		return "null"
	case 2:
		return s.pick("true", "false", `"true"`, "12", `"12"`, "12.0", "1e999")
	case 3, 4, 5:
		return s.pick(`"red"`, `"gr\u00fcn"`, `"grün"`, `"a\"b"`, `"r\u0065d"`, `"blue"`, `""`, `"redx"`, `"1.5"`,
			`"\u0031.5"`, `"`+strings.Repeat(`\u0072`, 300)+`"`)
	case 6, 7:
		return s.pick(`"2026-11-23T20:04:05Z"`, `"2026-11-21"`, `"2026-11-23 23:30\u003A00"`, "1795463631000", "-1.5",
			`"1795463631000"`, "1e30")
	}
	return s.number()
}

func (s source) madeJSON(f Format) string {
	switch f.Columns[0] {
	case "t": // columns in elements of an array
		return fmt.Sprintf("[%s,%s{%s%q:%s}%s,[1,%s%s]%s]", s.pick("true", "false", s.scalar()), s.space(),
			s.pick("", `"x":[],`), s.pick("a", "a", "b"), s.scalar(), s.space(),
			s.pick(s.scalar(), s.number(), `"3.25"`), s.pick("", ",7"), s.pick("", ",{}"))
	case "a[1]":
		return fmt.Sprintf(`{"a":%s,"c":%s%s}`,
			s.pick("null", "[]", "[1]", "[1,"+s.number()+"]",
				"[0 , "+s.number()+`,{"b":`+s.scalar()+"}"+s.pick("", ",5", ",[")+"]", s.scalar()), s.number(),
			s.pick("", `,"a":1`, `,"d":2`))
	}
	if f.Name == "json-array" {
		return fmt.Sprintf("[%s,%s%s,%s%s]", s.number(), s.space(), s.pick(`"red"`, "12", s.scalar()),
			s.pick("1795463631000", s.scalar()), s.pick("", "", "", ",1"))
	}
	if f.Columns[0] == "a" && f.Specs[0].Path == "a.b" {
		return fmt.Sprintf(`{%s"a":%s}`, s.pick("", `"c":1,`, `"a":null,`),
			s.pick("null", "5", fmt.Sprintf(`{"b":%s,"c":%s}`, s.number(), s.pick("true", "false", s.scalar())),
				`{"c":true}`))
	}
	return fmt.Sprintf(`{"a":%s%s,"b":%s}`, s.pick("1795463631000", s.scalar(), s.number(), s.scalar()), s.space(),
		s.pick(`"red"`, `"a\"b"`, s.scalar()))
}

func (s source) madeCSV() string {
	if s.IntN(4) == 0 {
		return s.pick("1", "true", "2.5", `"FALSE"`) +
			s.pick(",2026-11-22T00:30Z,", ",1795463631000,", `,"2026-11-21",`, ",") + s.pick("12", "x") + "," +
			s.pick("red", "green", "")
	}
	var cells []string
	for range 1 + s.IntN(5) {
		cells = append(cells,
			s.pick("red", "12", "true", "0", " 1.5 ", "", "", `"red"`, `"a""b"`, `"gr""ün"`, "grün", `""`,
				"2026-11-22T00:30Z", "1795463631000", `"`+strings.Repeat(`""`, 200)+`"`, `"12""`, s.number(),
				`"`+strings.Repeat("1", 90)+`""2"`))
	}
	return strings.Join(cells, ",") + s.pick("", "\n", "\r\n")
}

func TestMadeAgainstReference(t *testing.T) {
	n := 12_000
	if testing.Short() {
		n = 4_000
	}
	s := source{rand.New(rand.NewPCG(17, 18))}
	for _, f := range madeFormats {
		codec, err := f.Codec()
		if err != nil {
			t.Fatal(err)
		}
		decoded := 0
		for i := range n / len(madeFormats) {
			value := []byte(s.madeCSV())
			if f.Name != "csv" {
				value = []byte(s.madeJSON(f))
			}
			if i%4 == 0 {
				value = s.mutate(value)
			}
			if agreeMade(t, f, codec, value) {
				decoded++
			}
		}
		if all := n / len(madeFormats); decoded < all/100 || decoded > all*99/100 {
			t.Errorf("%s %q: %d of %d records decoded", f.Name, f.Columns, decoded, all)
		}
	}
}

func FuzzMade(f *testing.F) {
	s := source{rand.New(rand.NewPCG(19, 20))}
	for i, format := range madeFormats {
		for range 3 {
			if format.Name == "csv" {
				f.Add(uint(i), []byte(s.madeCSV()), []byte(s.madeCSV()))
			} else {
				f.Add(uint(i), []byte(s.madeJSON(format)), []byte(s.madeJSON(format)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint, before, value []byte) {
		format := madeFormats[which%uint(len(madeFormats))]
		codec, _ := format.Codec()
		agreeMade(t, format, codec, before)
		agreeMade(t, format, codec, value)
	})
}

func TestMade(t *testing.T) {
	for _, x := range []struct {
		f      int // index in madeFormats
		value  string
		want   []float64
		reason Reason
		defect string
	}{
		{0, `{"a":1,"b":"gr\u00fcn"}`, []float64{1, 0, 1, 0, 0, 0}, Decoded,
			"a category compared before its escapes are resolved"},
		{0, `{"a":"1","b":"red"}`, nil, NotNumber, "a string as a number"},
		{0, `{"a":1,"b":"Red"}`, nil, NotCategory, "another case"},
		{0, `{"a":1,"b":{"x":1}}`, nil, NotCategory, "an object"},
		{0, `{"a":1,"b":"red","b":"red"}`, nil, Duplicate, "a category twice"},
		{0, `{"a":1,"b":null}`, nil, Missing, "null"},
		{0, `{"a":1,"b":"red"`, nil, Malformed, "half a record"},
		{0, `{"a":1,"b":nul}`, nil, Malformed, "half a word"},
		{1, `{"a":1795463631000}`, []float64{19, 0, 0, 1, 1, 0, 0, 0, 0}, Decoded, "a default of a category"},
		{1, `{"b":"red"}`, nil, Missing, "times without a default"},
		{1, `{"a":true,"b":"red"}`, nil, NotTime, "a boolean as a time"},
		{2, `{"a":[9,5,{"b":"grün"}]}`, []float64{5, 0, 0, 0, 0, 0, log1p(0.5)}, Decoded,
			"elements, and a default with its transform"},
		{2, `{"a":[9,5],"c":0}`, []float64{5, 1, 0, 0, 0, 0, 0}, Decoded, "a short array"},
		{2, `{"a":[9],"c":0}`, nil, Missing, "too short an array"},
		{2, `{"a":{"1":5},"c":0}`, nil, Missing, "an object for an array"},
		{2, `{"a":null,"c":0}`, nil, Missing, "null for an array"},
		{2, `{"a":[9,"5"],"c":0}`, nil, NotNumber, "a string in an array"},
		{2, `{"a":[9,1e999],"c":0}`, nil, NotFinite, "a huge number in an array"},
		{2, `{"a":[9,null],"c":0}`, nil, Missing, "null in an array"},
		{2, `{"a":[9,5],"c":-1}`, nil, NotFinite, "no logarithm"},
		{3, `[true,{"a":0},[0,"2.5"]]`, []float64{1, 2.5, 0}, Decoded, "an array of everything"},
		{3, `[true,{},[0,1],7]`, []float64{1, 1, log1p(0.5)}, Decoded, "a longer array"},
		{3, `{"a":1}`, nil, Malformed, "an object for the array"},
		{3, `["true",{},[0,1]]`, nil, NotBoolean, "a string as a boolean"},
		{4, `{"a":null}`, nil, Missing, "columns in null"},
		{4, `{"a":5}`, nil, Missing, "columns in a number"},
		{4, `{"a":{"c":false}}`, []float64{log1p(0.5), 0}, Decoded, "a default beside"},
		{5, `[1,"red",0]`, []float64{1, 1, 0, 0, 0, 0, 0}, Decoded, "an array of columns"},
		{5, `[1,"red"]`, nil, Arity, "too few"},
		{5, `[1,"red",0,1]`, nil, Arity, "too many"},
		{6, `1,x,"a""b"`, nil, NotNumber, "a category that is no number"},
		{6, "1,x,12\r\n", []float64{1, 0, 0, 0, 1, 0, log1p(12)}, Decoded, "a cell that is both"},
		{6, `1,x`, nil, Missing, "a line that is too short"},
		{9, `"12345678901234567890""2"`, nil, NotNumber, "digits in front of a quote, where a category is cut"},
		{7, `TRUE,2026-11-22T22:30Z`, []float64{22, 0, 0, 1, 1, 1, 0, 0, 0, 0}, Decoded,
			"a Monday by the clock of one column alone"},
	} {
		f := madeFormats[x.f]
		codec, err := f.Codec()
		if err != nil {
			t.Fatal(err)
		}
		want := x.want
		if want == nil {
			want = make([]float64, f.Width())
		}
		for pass := range 2 {
			dst, rec := dirty(f.Width()), &Record{Value: []byte(x.value)}
			var r Reason
			if n := testing.AllocsPerRun(1, func() { r = codec.Decode(rec, dst) }); n > 0 {
				t.Errorf("%s: %v allocations", x.defect, n)
			}
			if r != x.reason || !sameRow(dst, want) {
				t.Errorf("%s %q of %s, pass %d: %v %v, want %v %v (%s)", f.Name, f.Columns, x.value, pass, r, dst,
					x.reason, want, x.defect)
			}
		}
	}
	// Packed numbers can have transforms.
	f := Format{Name: "float32", Columns: []string{"a", "b"},
		Specs: []column.Spec{{Name: "a"}, {Name: "b", Transform: "sqrt"}}}
	codec, err := f.Codec()
	if err != nil {
		t.Fatal(err)
	}
	dst := dirty(2)
	if r := codec.Decode(&Record{Value: []byte(packed([]float32{-3, 16}))}, dst); r != Decoded ||
		!sameRow(dst, []float64{-3, 4}) {
		t.Errorf("%v, %v", r, dst)
	}
	if r := codec.Decode(&Record{Value: []byte(packed([]float32{3, -16}))}, dst); r != NotFinite ||
		!sameRow(dst, []float64{0, 0}) {
		t.Errorf("%v, %v", r, dst)
	}
}

func log1p(x float64) float64 {
	c, _ := column.New(column.Spec{Name: "x", Transform: "log1p"}, nil)
	var dst [1]float64
	c.Put(dst[:], &column.Value{Kind: column.Number, Num: x})
	return dst[0]
}

func TestMadeFaults(t *testing.T) {
	for _, x := range []struct {
		f    Format
		user string
		keys []string
	}{
		{Format{Name: "json", Columns: []string{"a.b", "c"},
			Specs: []column.Spec{{Name: "a.b", Type: "x"}, {Name: "c", Path: "..", Transform: "y"}}}, "",
			[]string{"column.a.b.type", "column.c.path", "column.c.transform"}},
		{Format{Name: "json", Columns: []string{"a[0]", "a.b"}}, "", []string{"columns", "columns"}},
		{Format{Name: "csv", Columns: []string{"x"}, Specs: []column.Spec{{Name: "x"}}}, "", []string{"columns"}},
		{Format{Name: "json", Columns: []string{"[0]"}}, "field:u", []string{"key"}},
		{Format{Name: "json", Columns: []string{"a[0]"}}, "field:a.u", []string{"key"}},
		{Format{Name: "json", Columns: []string{"a"}}, "field:u[0]", []string{"key"}},
		{Format{Name: "json", Columns: []string{"a"}}, `field:u\[0\]`, nil},
		{Format{Name: "csv", Columns: []string{"2"}}, "field:2", []string{"key"}},
		{Format{Name: "csv", Columns: []string{"2"}}, "field:3", nil},
	} {
		x.f.User = x.user
		_, err := x.f.Codec()
		var keys []string
		for _, err := range fault.All(err) {
			keys = append(keys, err.(*fault.Fault).Key)
		}
		if !slices.Equal(keys, x.keys) {
			t.Errorf("%s %q with user key %q: %v, want faults of %q", x.f.Name, x.f.Columns, x.user, err, x.keys)
		}
	}
}
