package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/toml"
)

// columnTables turns columns of orders into something other than plain numbers.
const columnTables = `[stream.orders.input.column.amount]
type = "decimal"
path = "total.amount"
transform = "log1p"
default = 3
[stream.orders.input.column.items]
type = "category"
categories = ["one", "two", "more"]
other = true
baseline = "one"
default = "two"
[stream.orders.input.column."weight"]
`

// sectioned is orders with [stream.orders.input] as a section, so that tables can follow it.
var sectioned = func() string {
	const line = "input  = { topic = \"orders\", partition = 0, start = \"earliest\", codec = \"json\", columns = " +
		"[\"amount\", \"items\", \"weight\"] }\n"
	if !strings.Contains(orders, line) {
		panic("orders has another input")
	}
	section := strings.NewReplacer("input  = {", "[stream.orders.input]\n", " }\n", "\nTABLES\n", ", partition",
		"\npartition", ", start", "\nstart", ", codec", "\ncodec", ", columns", "\ncolumns").Replace(line)
	return strings.Replace(strings.Replace(orders, line, "", 1), "[stream.orders.privacy]",
		section+"[stream.orders.privacy]", 1)
}()

// withTables returns orders with these tables of columns, and with one number for centre and one for scale.
func withTables(tables string) string {
	text := strings.Replace(sectioned, "TABLES", tables, 1)
	text = strings.Replace(text, "centre = [40.0, 3.0, 1.2]", "centre = 0", 1)
	return strings.Replace(text, "scale  = [80.0, 5.0, 2.0]", "scale = 1", 1)
}

func TestColumns(t *testing.T) {
	s := parse(t, withTables(columnTables)).Streams[0]
	want := []string{"amount", "items=two", "items=more", "items=other", "weight"}
	if !slices.Equal(s.Input.Row(), want) || len(s.Centre) != 5 || len(s.Scale) != 5 ||
		!slices.Equal(s.Moments.Columns, want) {
		t.Errorf("row %q, centre %v, mechanism's columns %q", s.Input.Row(), s.Centre, s.Moments.Columns)
	}
	if got := s.Input.Fields(); !slices.Equal(got, []string{"total.amount", "items", "weight"}) {
		t.Errorf("fields %q", got)
	}
	specs := []column.Spec{
		{Name: "amount", Path: "total.amount", Type: "decimal", Transform: "log1p", Default: 3.0},
		{Name: "items", Type: "category", Categories: []string{"one", "two", "more"}, Other: true, Baseline: "one",
			Default: "two"},
		{Name: "weight", Type: "number"},
	}
	if got := s.Input.Specs(); !reflect.DeepEqual(got, specs) {
		t.Errorf("%+v, want %+v", got, specs)
	}
	var in struct{ Input json.RawMessage }
	if err := json.Unmarshal(s.Canonical(0), &in); err != nil {
		t.Fatal(err)
	}
	canonical :=
		`{"allow_compacted":false,"codec":"json","column":{"amount":{"default":3,"path":"total.amount","transform":"log1p","type":"decimal"},` +
			`"items":{"baseline":"one","categories":["one","two","more"],"default":"two","other":true,"type":"category"}},` +
			`"columns":["amount","items","weight"],"partition":0,"start":"earliest","topic":"orders"}`
	if string(in.Input) != canonical {
		t.Errorf("got\n%s\nwant\n%s", in.Input, canonical)
	}
	plain := parse(t, orders).Streams[0]
	if !slices.Equal(plain.Input.Row(), plain.Input.Columns) ||
		!slices.Equal(plain.Input.Fields(), plain.Input.Columns) || plain.Input.Specs() != nil {
		t.Error("columns of plain numbers have specifications")
	}
}

// TestColumnDigests lists changes of columns, and says which of them keep the meaning of an epoch's rows (and the
// digest) and which do not.
func TestColumnDigests(t *testing.T) {
	base := parse(t, withTables("")).Streams[0].Canonical(0)
	for _, x := range []struct {
		tables string
		want   []string
	}{
		{"[stream.orders.input.column.amount]", nil},
		{"[stream.orders.input.column.amount]\npath = \"amount\"\ntype = \"number\"\noffset = -0.0", nil},
		{"[stream.orders.input.column.amount]\npath = \"x\"", []string{`input.column.amount.path: absent → "x"`}},
		{"[stream.orders.input.column.amount]\ndefault = 0", []string{`input.column.amount.default: absent → 0`}},
		{"[stream.orders.input.column.amount]\ntype = \"bool\"\ndefault = false",
			[]string{`input.column.amount.default: absent → false`, `input.column.amount.type: absent → "bool"`}},
		{"column.amount = { transform = \"power\", exponent = 0.5, offset = 1 }",
			[]string{`input.column.amount.exponent: absent → 0.5`, `input.column.amount.offset: absent → 1`,
				`input.column.amount.transform: absent → "power"`}},
		{"column.amount = { type = \"timestamp\", take = \"hour\", unit = \"ms\", utc_offset = \"+01:00\" }",
			[]string{`input.column.amount.take: absent → "hour"`, `input.column.amount.type: absent → "timestamp"`,
				`input.column.amount.unit: absent → "ms"`, `input.column.amount.utc_offset: absent → "+01:00"`}},
	} {
		s := parse(t, withTables(x.tables)).Streams[0]
		canonical := s.Canonical(0)
		if got := Diff(base, canonical); !slices.Equal(got, x.want) {
			t.Errorf("%s: %q, want %q", x.tables, got, x.want)
		}
		again, err := StreamOf("orders", canonical)
		if err != nil || !slices.Equal(again.Input.Row(), s.Input.Row()) ||
			len(again.Input.Specs()) > 0 && !reflect.DeepEqual(again.Input.Specs(), s.Input.Specs()) {
			t.Errorf("%s: %v", x.tables, err)
		}
	}
	// In earlier versions brackets were part of a name. An epoch of such a version has another digest.
	for name, want := range map[string][]string{
		`"a[0]"`: {`input.column.a[0].path: absent → "a[0]"`}, `'a\[0\]'`: nil, `"a]"`: nil,
	} {
		s := parse(t, strings.Replace(withTables(""), `"amount"`, name, 1)).Streams[0]
		was := strings.Replace(string(base), `"amount"`, strings.NewReplacer("'", `"`, `\`, `\\`).Replace(name), 1)
		if got := Diff([]byte(was), s.Canonical(0)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if again, err := StreamOf("orders", s.Canonical(0)); err != nil ||
			string(again.Canonical(0)) != string(s.Canonical(0)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := StreamOf("orders", []byte(was)); (err == nil) != (want == nil) {
			t.Errorf("%s of an earlier version: %v", name, err)
		}
	}
	// A column that is only a label cannot have a path.
	s := parse(t,
		strings.Replace(strings.Replace(withTables(""), `"amount"`, `"a[0]"`, 1), `codec = "json"`,
			`codec = "json-array"`, 1)).Streams[0]
	if strings.Contains(string(s.Canonical(0)), `"column"`) {
		t.Error("a label has a path")
	}
}

func TestColumnFaults(t *testing.T) {
	f := func(tables string, want ...string) {
		t.Helper()
		_, err := Parse("f", []byte(withTables(tables)))
		var got []string
		if err != nil {
			for _, f := range err.(Faults) {
				got = append(got, strings.TrimPrefix(strings.SplitN(f.Error(), ": ", 2)[1], "stream.orders."))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", tables, got, want)
		}
	}
	amount := "[stream.orders.input.column.amount]\n"
	f("[stream.orders.input.column.amuont]",
		`input.column.amuont: must be a table named after one of input.columns ("amuont") (did you mean amount?)`)
	f("[stream.orders.input.column]\ntype = \"bool\"",
		`input.column.type: must be a table ("bool") (write [stream.orders.input.column.COLUMN] with the column's name above it)`)
	f(amount+"typ = \"bool\"", `input.column.amount.typ: unknown key (did you mean type?)`)
	f(amount+"type = \"boolean\"",
		`input.column.amount.type: must be "number", "decimal", "bool", "category", "enum" or "timestamp" ("boolean")`)
	f(amount+"type = \"enum\"",
		`input.column.amount.type: must not be "enum" for this codec, whose values have no enumerations ("enum")`)
	f(amount+"default = \"x\"", `input.column.amount.default: must be a number ("x")`)
	f(amount+"default = nan", `input.column.amount.default: must be finite (NaN)`)
	f(amount+"default = [1]", `input.column.amount.default: must be a number, true, false or a string`)
	f(amount + "path = \"items\"")
	f(amount+"path = \"items.x\"", `input.column.amount.path: must not lie inside another column ("items.x")`)
	f(amount+"path = \"[0]\"", `input.columns: must not use one value both as an array and as an object ("items")`,
		`input.columns: must not use one value both as an array and as an object ("weight")`,
		`input.column.amount.path: must not use one value both as an array and as an object ("[0]")`)
	f(amount+"path = \"\"", `input.column.amount.path: must not be empty`)
	f(amount+"type = \"category\"", `input.column.amount.categories: required: the public list of categories`)
	f(amount+"type = \"category\"\ncategories = [\"x\", \"x\"]",
		`input.column.amount.categories: must not contain a category twice ("x")`)
	f(amount+"transform = \"power\"", `input.column.amount.exponent: must be -16 to 16, and not 0 (0)`)
	f(amount+"transform = \"log\"\noffset = inf", `input.column.amount.offset: must be finite (+Inf)`)
	f(amount+"type = \"timestamp\"\ntake = \"hours\"",
		`input.column.amount.take: must be `+toml.Alternatives(column.Taking())+` ("hours")`)
	f(amount+"type = \"timestamp\"\nutc_offset = \"CET\"",
		`input.column.amount.utc_offset: must be an offset of at most 18 hours, such as "+01:00" ("CET")`)
	// A dot outside of quotes begins a subtable.
	text := strings.Replace(withTables("[stream.orders.input.column.ship.weight]\ndefault = 0.0"), `"amount"`,
		`"ship.weight"`, 1)
	if _, err := Parse("f", []byte(text)); err == nil ||
		!strings.Contains(err.Error(),
			`input.column.ship: must be a table named after one of input.columns ("ship") (a name with dots is quoted: [stream.orders.input.column."ship.weight"])`) {
		t.Errorf("%v", err)
	}
	// With these tables, lists need one entry per number of a row instead of one per column.
	text = strings.Replace(sectioned, "TABLES", columnTables, 1)
	_, err := Parse("f", []byte(text))
	want := "must be one number, or a list with one for each of the 5 numbers of a row: amount, items=two, " +
		"items=more, items=other, weight"
	if err == nil || strings.Count(err.Error(), want) != 2 {
		t.Errorf("%v", err)
	}
	// A fault of a table is reported once. Wrong lengths of lists that follow from it are not reported.
	text = strings.NewReplacer("centre = [40.0, 3.0, 1.2]", "centre = [1, 2, 3, 4, 5]", "scale  = [80.0, 5.0, 2.0]",
		"scale = [1, 2, 3, 4, 5]", `"two", "more"]`, `"two", 3]`).Replace(text)
	if _, err := Parse("f", []byte(text)); err == nil || len(err.(Faults)) != 1 {
		t.Errorf("%v", err)
	}
	// Two columns must not have numbers of the same name.
	text = strings.Replace(withTables("[stream.orders.input.column.amount]\ntype = \"category\"\ncategories = [\"x\"]"),
		`"items"`, `"amount=x"`, 1)
	if _, err := Parse("f", []byte(text)); err == nil ||
		!strings.Contains(err.Error(), `must not give two numbers of a row the same name ("amount=x")`) {
		t.Errorf("%v", err)
	}
}

// TestTargets: a regression's target is one of the numbers of a row.
func TestTargets(t *testing.T) {
	text := func(target string) string {
		return `kafka.brokers = ["localhost:9092"]
state = { dir = "/x", key_file = "/y" }
[stream.s]
input = { topic = "s", columns = ["country", "y"], column.country = { type = "category", categories = ["DE", "FR"], other = true, baseline = "DE" }, column.y = { type = "bool" } }
privacy = { epsilon = 1, delta = 1e-6, adjacency = "zero-out" }
refit = { target = "` + target + `", window = 1000, clip_x = 2, clip_y = 1 }
`
	}
	s := parse(t, text("y")).Streams[0]
	if !slices.Equal(s.Refit.Columns, []string{"country=FR", "country=other", "y"}) {
		t.Errorf("columns %q", s.Refit.Columns)
	}
	if _, err := Parse("f", []byte(text("country"))); err == nil ||
		!strings.Contains(err.Error(),
			`refit.target: must be one of the columns ("country") (column country gives the row the numbers country=FR, country=other)`) {
		t.Errorf("a target that is several numbers: %v", err)
	}
	parse(t, text("country=FR"))
}
