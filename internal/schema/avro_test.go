package schema

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/avro"

	"github.com/streamdp/streamdp/internal/column"
)

// name and at return elements of paths; path parses a whole path.
func name(s string) column.Element { return column.Element{Name: s, Index: -1} }
func at(i int) column.Element      { return column.Element{Index: i} }

func path(s string) []column.Element {
	p, _ := column.Parse(s)
	return p
}

// avroSource generates random Avro schemas and records of them.
type avroSource struct {
	*rand.Rand
	named   []string // full names of records and enums that can be referred to
	open    []string // names of records being defined
	space   string   // the current namespace
	count   int
	endless bool // true if a value would never end
}

func (r *avroSource) pick(of ...string) string { return of[r.IntN(len(of))] }

// call gives the type t a name, with its namespace in one of the possible notations, and returns the full name and the
// namespace.
func (r *avroSource) call(t map[string]any) (full, space string) {
	r.count++
	name := fmt.Sprintf("T%d", r.count)
	if r.IntN(4) == 0 {
		name = r.pick("A", "B", "C") // the same names occur in several namespaces
	}
	space = r.pick("", "a", "a.b", "c")
	switch r.IntN(5) {
	case 0:
		t["namespace"] = space
	case 1:
		if space != "" {
			t["namespace"] = "z" // ignored if the name has a dot
			t["name"] = space + "." + name
			return space + "." + name, space
		}
		fallthrough
	default:
		space = r.space
	}
	t["name"] = name
	if space == "" {
		return name, space
	}
	return space + "." + name, space
}

// speak returns one of names. Sometimes it returns only the part after the last dot, which may be the name of another
// type or of none.
func (r *avroSource) speak(names []string) string {
	name := names[r.IntN(len(names))]
	if r.IntN(2) == 0 {
		return name[strings.LastIndexByte(name, '.')+1:]
	}
	return name
}

// schema returns a type as JSON. With inUnion it returns only a type that is allowed in a union.
func (r *avroSource) schema(depth int) any {
	primitives := []string{"null", "boolean", "int", "long", "float", "double", "string", "bytes"}
	kinds := 12
	if depth <= 0 {
		kinds = 7
	}
	switch r.IntN(kinds) {
	case 0, 1, 2:
		return primitives[r.IntN(len(primitives))]
	case 3:
		return map[string]any{"type": "int", "logicalType": r.pick("date", "time-millis")}
	case 4:
		return map[string]any{"type": "long",
			"logicalType": r.pick("timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis",
				"local-timestamp-micros", "local-timestamp-nanos", "time-micros", "unknown")}
	case 5:
		if r.IntN(2) == 0 {
			return map[string]any{"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": r.IntN(40)}
		}
		fixed := map[string]any{"type": "fixed", "size": 1 + r.IntN(5)}
		switch r.IntN(3) {
		case 0:
			fixed["size"], fixed["logicalType"] = 16, "uuid"
		case 1:
			fixed["size"], fixed["logicalType"], fixed["precision"], fixed["scale"] = 12, "decimal", 20, r.IntN(20)
		}
		full, _ := r.call(fixed)
		r.named = append(r.named, full)
		return fixed
	case 6:
		if len(r.named) > 0 && r.IntN(3) > 0 {
			return r.speak(r.named)
		}
		enum := map[string]any{"type": "enum", "symbols": []string{"A", "B", "C"}[:1+r.IntN(3)]}
		full, _ := r.call(enum)
		r.named = append(r.named, full)
		return enum
	case 7, 8:
		return r.record(depth)
	case 9:
		return map[string]any{"type": "array", "items": r.schema(depth - 1)}
	case 10:
		return map[string]any{"type": "map", "values": r.schema(depth - 1)}
	}
	var branches []any
	recursive := false
	taken := map[string]bool{}
	for range 1 + r.IntN(4) {
		b := r.schema(depth - 1)
		if len(r.open) > 0 && r.IntN(4) == 0 {
			b, recursive = r.speak(r.open), true
		}
		kind := fmt.Sprint(b)
		if m, ok := b.(map[string]any); ok {
			if kind = m["type"].(string); m["name"] != nil {
				kind = m["name"].(string)
			}
		}
		if _, union := b.([]any); union || taken[kind] {
			continue
		}
		taken[kind] = true
		branches = append(branches, b)
	}
	if !taken["null"] && (recursive || len(branches) == 0 || r.IntN(2) == 0) {
		branches = append(branches, "null")
	}
	return branches
}

func (r *avroSource) record(depth int) any {
	record := map[string]any{"type": "record"}
	full, space := r.call(record)
	around := r.space
	r.space = space
	r.open = append(r.open, full)
	fields := []any{}
	for i := range r.IntN(6) {
		fields = append(fields, map[string]any{"name": string(rune('a' + i)), "type": r.schema(depth - 1)})
	}
	record["fields"] = fields
	r.space = around
	r.open = r.open[:len(r.open)-1]
	r.named = append(r.named, full)
	return record
}

// encode appends a random value of type t. It splits arrays and maps into random blocks.
func (r *avroSource) encode(b []byte, t *avroType, depth int) []byte {
	if r.endless = r.endless || depth < -20; r.endless {
		return b
	}
	switch t.kind {
	case "boolean":
		return append(b, byte(r.IntN(2)))
	case "int":
		return binary.AppendVarint(b, int64(int32(r.Uint32()>>r.IntN(32))))
	case "long":
		x := int64(r.Uint64()>>r.IntN(64)) - 3
		if t.logical == "time-micros" {
			x %= 86400e6 // larger values overflow time.Duration
		}
		return binary.AppendVarint(b, x)
	case "float":
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(r.IntN(1000))/8))
	case "double":
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(r.IntN(100000))/128))
	case "string":
		s := r.pick("", "a", "b", "Zürich", strings.Repeat("x", 70))
		return append(binary.AppendVarint(b, int64(len(s))), s...)
	case "bytes":
		n := r.IntN(26)
		b = binary.AppendVarint(b, int64(n))
		return r.bytes(b, n)
	case "fixed":
		return r.bytes(b, t.size)
	case "enum":
		return binary.AppendVarint(b, int64(r.IntN(len(t.symbols))))
	case "record":
		for _, f := range t.fields {
			b = r.encode(b, f.of, depth-1)
		}
	case "union":
		k := r.IntN(len(t.of))
		if depth <= 0 {
			for i, of := range t.of {
				if of.kind == "null" {
					k = i
				}
			}
		}
		return r.encode(binary.AppendVarint(b, int64(k)), t.of[k], depth-1)
	case "array", "map":
		for depth > 0 && r.IntN(3) > 0 {
			var block []byte
			n := 1 + r.IntN(3)
			for range n {
				if t.kind == "map" {
					block = append(append(block, 2), r.pick("a", "b", "c")...)
				}
				block = r.encode(block, t.of[0], depth-1)
			}
			if r.IntN(2) == 0 {
				b = binary.AppendVarint(b, int64(n))
			} else {
				b = binary.AppendVarint(binary.AppendVarint(b, int64(-n)), int64(len(block)))
			}
			b = append(b, block...)
		}
		return append(b, 0)
	}
	return b
}

func (r *avroSource) bytes(b []byte, n int) []byte {
	for range n {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// paths returns paths into t: mostly existing ones, and some that do not exist.
func (r *avroSource) paths(t *avroType, n int) (all [][]column.Element) {
	for range n {
		var p []column.Element
		for of := t; len(p) < 6; {
			if of.kind == "union" {
				of = of.of[r.IntN(len(of.of))]
				continue
			}
			if len(p) > 0 && r.IntN(4) == 0 {
				break
			}
			switch {
			case of.kind == "record" && len(of.fields) > 0:
				f := of.fields[r.IntN(len(of.fields))]
				p, of = append(p, name(f.name)), f.of
				continue
			case of.kind == "map":
				p, of = append(p, name(r.pick("a", "b", "c"))), of.of[0]
				continue
			case of.kind == "array":
				p, of = append(p, at(r.IntN(4))), of.of[0]
				continue
			}
			break
		}
		if len(p) == 0 || r.IntN(10) == 0 {
			p = append(p, name("b"))
		}
		all = append(all, p)
	}
	return all
}

// reference returns the value at a path in the library's result, where union branches are tagged by their types.
func (c *avroCase) reference(x any, t *avroType, p []column.Element) (v column.Value) {
	if t.kind == "union" {
		if x == nil {
			return v
		}
		tagged := x.(map[string]any)
		for tag, inner := range tagged {
			for _, of := range t.of {
				if of.kind == tag || of.kind+"."+of.logical == tag || c.names[of] == tag {
					return c.reference(inner, of, p)
				}
			}
			panic("no branch " + tag)
		}
	}
	if t.kind == "null" {
		return v
	}
	if len(p) == 0 {
		return avroLeaf(x, t)
	}
	e := p[0]
	switch {
	case t.kind == "array" && e.Index >= 0:
		if items := x.([]any); e.Index < len(items) {
			return c.reference(items[e.Index], t.of[0], p[1:])
		}
	case t.kind == "map" && e.Index < 0:
		if of, ok := x.(map[string]any)[e.Name]; ok {
			return c.reference(of, t.of[0], p[1:])
		}
	case t.kind == "record" && e.Index < 0:
		for _, f := range t.fields {
			if f.name == e.Name {
				return c.reference(x.(map[string]any)[f.name], f.of, p[1:])
			}
		}
	}
	return v
}

func avroLeaf(x any, t *avroType) (v column.Value) {
	v.Kind = column.Number
	switch x := x.(type) {
	case bool:
		v.Kind = column.Truth
		if x {
			v.Num = 1
		}
	case int32:
		v.Num = float64(x)
	case int64:
		v.Num = float64(x)
	case float32:
		v.Num = float64(x)
	case float64:
		v.Num = x
	case string:
		if v.Kind, v.Text = column.Text, []byte(x); t.kind == "enum" {
			v.Kind = column.Enum
			v.Num = float64(slices.IndexFunc(t.symbols, func(s []byte) bool { return string(s) == x }))
		}
	case time.Time:
		v.Kind, v.Sec, v.Nsec = column.Instant, x.Unix(), int32(x.Nanosecond())
	case time.Duration:
		v.Kind, v.Sec, v.Nsec = column.Instant, int64(x/1e9), int32(x%1e9)
		if v.Nsec < 0 {
			v.Sec, v.Nsec = v.Sec-1, v.Nsec+1e9
		}
	case *big.Rat:
		v.Num, _ = x.Float64()
	default:
		v.Kind = column.Other
	}
	return v
}

// same compares values, ignoring fields that have no meaning for their kind.
func same(a, b *column.Value) bool {
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case column.Number, column.Truth:
		return math.Float64bits(a.Num) == math.Float64bits(b.Num) || a.Num != a.Num && b.Num != b.Num
	case column.Text:
		return string(a.Text) == string(b.Text)
	case column.Enum:
		return string(a.Text) == string(b.Text) && a.Num == b.Num
	case column.Instant:
		return a.Sec == b.Sec && a.Nsec == b.Nsec
	}
	return true
}

// avroCase is a random schema with paths.
type avroCase struct {
	*avroSource
	text    string // the schema with its references, for messages
	library *avro.Schema
	of      *avroType
	names   map[*avroType]string
	paths   [][]column.Element
	kinds   []Kinds
	reader  *Reader
}

// newAvroCase returns a random case. It returns nil if the library refuses the schema, because a name is defined twice
// or nowhere, or if a record might never end.
func newAvroCase(t testing.TB, seed uint64) *avroCase {
	c := &avroCase{avroSource: &avroSource{Rand: rand.New(rand.NewPCG(seed, 1))}, names: map[*avroType]string{}}
	var cache avro.SchemaCache
	p := newAvroParser()
	for left := c.IntN(3) * c.IntN(2); left >= 0; left-- {
		tree := c.record(4 - left)
		if c.IntN(8) == 0 {
			tree = c.schema(4)
		}
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		c.text += string(text) + "\n"
		if c.library, err = cache.Parse(string(text)); err != nil {
			return nil
		}
		if c.of, err = p.parse(string(text)); err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
	}
	for name, of := range p.named {
		c.names[of] = strings.TrimPrefix(name.space+"."+name.name, ".")
	}
	if c.encode(nil, c.of, 7); c.endless {
		return nil
	}
	c.of.measure()
	c.paths = c.avroSource.paths(c.of, 1+c.IntN(8))
	var plan *Plan
	plan, c.kinds = (&Schema{format: Avro, avro: c.of}).Plan(c.paths)
	c.reader = NewReader(plan)
	return c
}

// compare compares the values that the reader finds in a record with those of the library. whole is true if the record
// is undamaged. read is true if both could read the record; found is the number of values that were found.
func (c *avroCase) compare(t *testing.T, value []byte, whole bool) (read bool, found int) {
	t.Helper()
	var x any
	rest, err := c.library.Decode(value, &x, avro.TaggedUnions(), avro.TagLogicalTypes())
	if err == nil && len(rest) > 0 {
		err = errors.New("bytes behind the record")
	}
	switch ok := c.reader.Read(value); {
	case whole && (err != nil || !ok):
		t.Fatalf("schema %s: record %x: read %t, the library: %v", c.text, value, ok, err)
	case err != nil:
		return false, 0
	case !ok:
		// The library accepts some bytes that no encoder writes. The reader may refuse only such bytes.
		if again, err := c.library.Encode(x); err == nil && bytes.Equal(again, value) {
			t.Fatalf("schema %s: record %x is refused, but the library reads it", c.text, value)
		}
		return false, 0
	}
	for i, p := range c.paths {
		want, got := c.reference(x, c.of, p), c.reader.Value(i)
		if got.Kind != column.Absent {
			found++
		}
		if !c.kinds[i].Has(got.Kind) && got.Kind != column.Other && (got.Kind != column.Absent || c.kinds[i] != 0) {
			t.Fatalf("schema %s: path %v has kind %d, which is not in the announced set "+
				"%b", c.text, p, got.Kind, c.kinds[i])
		}
		switch {
		case got.Kind == column.Other && want.Kind == column.Number && want.Num == 0 && got.Text == nil:
			// A decimal without bytes is not a number for the reader, and 0 for the library.
		case got.Kind == column.Other && want.Kind == column.Number && len(value) > maxDecimal:
			// The decimal has too many bytes.
		case got.Kind == column.Other && want.Kind == column.Text && (!utf8.Valid(want.Text) || got.Nsec == uuid):
		case !same(got, &want):
			t.Fatalf("schema %s: record %x: path %v: %+v, the library: %+v", c.text, value, p, *got, want)
		}
	}
	return true, found
}

// TestAvroReference: for random schemas, paths and records the reader finds the values that the library decodes.
func TestAvroReference(t *testing.T) {
	read, found := 0, 0
	for seed := range uint64(1500) {
		c := newAvroCase(t, seed)
		for range 6 {
			if c == nil {
				break
			}
			value, whole := damage(c.Rand, c.encode(nil, c.of, 7))
			if c.endless {
				c.endless = false
				continue
			}
			ok, n := c.compare(t, value, whole)
			if found += n; ok {
				read++
			}
		}
	}
	if read < 4000 || found < 10000 {
		t.Errorf("only %d records were read and %d values found", read, found)
	}
}

// FuzzAvroReference does the same with arbitrary bytes as the record. Its first input is the seed of the schema.
func FuzzAvroReference(f *testing.F) {
	cases := map[uint16]*avroCase{}
	of := func(t testing.TB, schema uint16) *avroCase {
		if _, made := cases[schema]; !made {
			cases[schema] = newAvroCase(t, uint64(schema))
		}
		return cases[schema]
	}
	for schema := range uint16(40) {
		if c := of(f, schema); c != nil {
			f.Add(schema, c.encode(nil, c.of, 5))
		}
	}
	f.Fuzz(func(t *testing.T, schema uint16, value []byte) {
		if c := of(t, schema); c != nil {
			c.compare(t, value, false)
		}
	})
}

// TestAvroNames: a type is looked up in the surrounding namespace first and then in none, as the Avro specification
// says.
func TestAvroNames(t *testing.T) {
	t.Parallel()
	status := func(space, symbols string) string {
		return `{"type": "enum", "name": "Status"` + space + `, "symbols": [` + symbols + `]}`
	}
	paid, open := status(`, "namespace": ""`, `"PAID", "OPEN"`), status(`, "namespace": "a"`, `"OPEN", "PAID"`)
	record := func(name, fields string) string {
		return `{"type": "record", ` + name + `, "fields": [` + fields + `]}`
	}
	for _, c := range []struct {
		text       string
		references []Reference
		path, want string // want is the value in a record of zeros
	}{
		{record(`"name": "R", "namespace": "a"`,
			`{"name": "old", "type": `+paid+`}, {"name": "new", "type": `+status("", `"OPEN", "PAID"`)+
				`}, {"name": "v", "type": "Status"}`), nil, "v", "OPEN"},
		{record(`"name": "R"`,
			`{"name": "old", "type": `+paid+`}, {"name": "r", "type": `+
				record(`"name": "a.S"`,
					`{"name": "new", "type": `+status("", `"OPEN", "PAID"`)+`}, {"name": "v", "type": "Status"}`)+`}`),
			nil, "r.v", "OPEN"},
		// After the inner record the outer namespace applies again.
		{record(`"name": "R"`,
			`{"name": "r", "type": `+
				record(`"name": "a.S"`, `{"name": "new", "type": `+status("", `"OPEN", "PAID"`)+`}`)+
				`}, {"name": "old", "type": `+paid+`}, {"name": "v", "type": "Status"}`), nil, "v", "PAID"},
		{record(`"name": "a.R"`, `{"name": "old", "type": `+paid+`}, {"name": "v", "type": "Status"}`), nil,
			"v", "PAID"},
		{record(`"name": "a.R"`,
			`{"name": "old", "type": `+paid+`}, {"name": "v", "type": "Status"}, {"name": "new", "type": `+open+`}`),
			nil, "v", "PAID"},
		{record(`"name": "a.R"`,
			`{"name": "v", "type": "Status"}, {"name": "old", "type": `+paid+`}, {"name": "new", "type": `+open+`}`),
			nil, "v", "OPEN"},
		{record(`"name": "a.R"`,
			`{"name": "old", "type": `+paid+`}, {"name": "new", "type": `+open+`}, {"name": "v", "type": ".Status"}`),
			nil, "v", "PAID"},
		{record(`"name": "a.R"`,
			`{"name": "old", "type": `+paid+`}, {"name": "new", "type": `+open+
				`}, {"name": "v", "type": {"type": "Status"}}`), nil, "v", "OPEN"},
		{record(`"name": "R"`, `{"name": "v", "type": "Status"}`), []Reference{{"Status", paid}, {"a.Status", open}},
			"v", "PAID"},
		{record(`"name": "a.R"`, `{"name": "v", "type": "Status"}`), []Reference{{"Status", paid}, {"a.Status", open}},
			"v", "OPEN"},
		{record(`"name": "b.R"`, `{"name": "v", "type": "Status"}`), []Reference{{"a.Status", open}, {"Status", paid}},
			"v", "PAID"},
		{record(`"name": "b.R"`, `{"name": "v", "type": "a.Status"}`),
			[]Reference{{"a.Status", open}, {"Status", paid}}, "v", "OPEN"},
		{record(`"name": "a.R"`,
			`{"name": "new", "type": `+status("", `"OPEN", "PAID"`)+`}, {"name": "v", "type": "Status"}`),
			[]Reference{{"Status", paid}}, "v", "OPEN"},
		{record(`"name": "a.b.R"`,
			`{"name": "l", "type": {"type": "array", "items": `+status("", `"OPEN", "PAID"`)+
				`}}, {"name": "v", "type": "a.b.Status"}`), []Reference{{"Status", paid}}, "v", "OPEN"},
		// In the first case one schema has two reference names. In the second, a schema consists of the name of a type.
		{record(`"name": "a.R"`, `{"name": "v", "type": "Status"}`), []Reference{{"Status", paid}, {"again", paid}},
			"v", "PAID"},
		{`"a.R"`, []Reference{{"a.R", record(`"name": "a.R"`, `{"name": "v", "type": `+open+`}`)}}, "v", "OPEN"},
		// A type may have the name of a primitive type only if its name is written with a dot.
		{record(`"name": "a.R"`,
			`{"name": "i", "type": {"type": "enum", "name": "string", "symbols": ["OPEN"]}}, {"name": "s", "type": "string"}, {"name": "v", "type": "a.string"}`), nil, "v", "OPEN"},
		// The members of the type are written among those of the field.
		{record(`"name": "a.R"`, `{"name": "e", "type": "enum", "symbols": ["OPEN"]}, {"name": "v", "type": "a.e"}`),
			nil, "v", "OPEN"},
	} {
		s, err := ParseAvro(c.text, c.references)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		plan, _ := s.Plan(paths(c.path))
		r := NewReader(plan)
		ok := false
		for n := 1; n < 8 && !ok; n++ {
			ok = r.Read(make([]byte, n))
		}
		if v := r.Value(0); !ok || string(v.Text) != c.want {
			t.Errorf("%s: read %t, %+v, want %s", c.text, ok, *v, c.want)
		}
	}
	node := mustAvro(t,
		record(`"name": "Node", "namespace": "com.shop"`,
			`{"name": "v", "type": "double"}, {"name": "next", "type": ["null", "Node"]}`))
	plan, _ := node.Plan(paths("next.v"))
	if r := NewReader(plan); !r.Read(append(append(make([]byte, 8), 2), make([]byte, 9)...)) ||
		r.Value(0).Kind != column.Number {
		t.Error("a record in a namespace cannot contain itself")
	}
	// A value of the second type has 8 bytes, one of the first 7.
	sized := mustAvro(t,
		record(`"name": "a.R"`,
			`{"name": "x", "type": {"type": "fixed", "name": "F", "namespace": "", "size": 7}}, {"name": "y", "type": {"type": "fixed", "name": "F", "size": 8}}, {"name": "z", "type": "F"}`))
	plan, _ = sized.Plan(paths("z"))
	if r := NewReader(plan); r.Read(make([]byte, 22)) || !r.Read(make([]byte, 23)) {
		t.Error("a fixed has the size of another one")
	}
}

// TestAvroLenient: schemas that deviate from the specification in common ways are accepted. A decimal without a scale
// is bytes, and a namespace may be any text.
func TestAvroLenient(t *testing.T) {
	t.Parallel()
	kinds := func(of string) string {
		s := mustAvro(t, `{"type": "record", "name": "R", "namespace": "my-app.public", "fields": [
			{"name": "first", "type": {"type": "fixed", "name": "F", "size": 2}}, {"name": "again", "type": "F"}, {"name": "v", "type": `+of+`}]}`)
		_, found := s.Plan(paths("v", "again"))
		return found[0].String() + ", " + found[1].String()
	}
	plain := kinds(`"bytes"`)
	for _, logical := range []string{``, `, "precision": 0`, `, "precision": 3, "scale": 4`,
		`, "precision": 3, "scale": null`, `, "precision": 3, "scale": -1`} {
		if got := kinds(`{"type": "bytes", "logicalType": "decimal"` + logical + `}`); got != plain {
			t.Errorf("a decimal with %s is %s, bytes are %s", logical, got, plain)
		}
	}
	if got := kinds(`{"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 3}`); got == plain {
		t.Errorf("a decimal is %s", got)
	}
}

func TestAvroRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", maxName+1)
	for _, bad := range []string{
		"", "[", `"int" "int"`, "7", "null", "{}", `{"type": 7}`, `{"type": ["int"]}`, `"R"`, `["null", "R"]`,
		`{"type": "array"}`, `{"type": "map", "items": "int"}`, `[["int"]]`, `["int", {"type": "int"}]`,
		`[{"type": "fixed", "name": "a.F", "size": 1}, "a.F"]`,
		`{"type": "record", "name": "a.R", "fields": [{"name": "x", "type": ["R", "a.R"]}]}`,
		`{"type": "record", "name": "R"}`, `{"type": "record", "fields": []}`,
		`{"type": "record", "name": "", "fields": []}`,
		`{"type": "record", "name": "1", "fields": []}`, `{"type": "record", "name": "int", "fields": []}`,
		`{"type": "record", "name": "R", "namespace": 7, "fields": []}`,
		`{"type": "record", "name": "R", "fields": [7]}`, `{"type": "record", "name": "R", "fields": [{"name": "x"}]}`,
		`{"type": "record", "name": "R", "fields": [{"name": "x", "type": "R.x"}]}`,
		`{"type": "record", "name": "R", "fields": [{"name": "x", "type": "enum"}]}`,
		`{"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}`,
		`[{"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "namespace": "", "size": 1}]`,
		`{"type": "enum", "name": "E"}`, `{"type": "enum", "name": "E", "symbols": ["A", "A"]}`,
		`{"type": "enum", "name": "E", "symbols": [7]}`,
		`{"type": "fixed", "name": "F"}`, `{"type": "fixed", "name": "F", "size": -1}`,
		`{"type": "fixed", "name": "F", "size": 1.5}`, `{"type": "fixed", "name": "F", "size": 1e999}`,
		`"` + long + `"`, `{"type": "fixed", "name": "` + long + `", "size": 1}`,
		`{"type": "fixed", "name": "F", "namespace": "` + long + `", "size": 1}`,
		`{"type": "fixed", "name": "` + long + `.F", "size": 1}`,
		strings.Repeat(`{"type": "array", "items": `, maxSchemaDepth+1) + `"int"` +
			strings.Repeat("}", maxSchemaDepth+1),
		strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<18),
	} {
		if _, err := ParseAvro(bad, nil); err == nil {
			t.Errorf("%.200s is accepted", bad)
		} else if len(err.Error()) > 2*maxName {
			t.Errorf("%.200s: an error of %d bytes", bad, len(err.Error()))
		}
	}
	var fields strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&fields, `, {"name": "f%d", "type": []}`, i)
	}
	var many []Reference
	for i := range maxTypes / 1000 {
		many = append(many,
			Reference{"r", fmt.Sprintf(`{"type": "record", "name": "R%d", "fields": [%s]}`, i, fields.String()[1:])})
	}
	if _, err := ParseAvro(`"int"`, many); err == nil {
		t.Error("an unlimited number of types is accepted")
	}
	if _, err := ParseAvro(`"int"`, many[1:]); err != nil {
		t.Error(err)
	}
	if _, err := ParseAvro(`"int"`, []Reference{{"a.R", `{"type": "R"}`}}); err == nil ||
		!strings.HasPrefix(err.Error(), "reference a.R: ") {
		t.Error(err)
	}
}

// TestAvroIgnored: parts of a schema that do not determine the layout of records are not read, even if they are
// malformed.
func TestAvroIgnored(t *testing.T) {
	t.Parallel()
	s := mustAvro(t,
		`{"type": "record", "name": "default", "aliases": 7, "doc": {}, "order": [], "size": 1e999, "items": "R", "fields": [
		{"name": "default", "type": "int", "default": {"x": [1e999]}, "default": "no int", "aliases": ["default"], "order": "up"},
		{"name": "x", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}], "default": {"name": "x"}}]}`)
	plan, _ := s.Plan(paths("default", "x"))
	if r := NewReader(plan); !r.Read([]byte{2, 2, 0}) || r.Value(0).Num != 1 || string(r.Value(1).Text) != "A" {
		t.Errorf("%+v", r.values)
	}
}

// TestAvroMemory: reading a schema takes memory in proportion to its text, for any schema: at most 100 bytes per byte
// of text.
func TestAvroMemory(t *testing.T) {
	const size = 1 << 20
	fill := func(begin, end string, each func(i int) string) string {
		var b strings.Builder
		b.WriteString(begin)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(each(i))
		}
		return b.String() + end
	}
	fields := func(each func(i int) string) string {
		return fill(`{"type":"record","name":"R","fields":[`, "]}", each)
	}
	space := strings.Repeat("n", maxName)
	nested := fields(func(i int) string { return fmt.Sprintf(`{"name":"f%d","type":"int"}`, i) })
	for i := range 300 {
		nested = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"f","type":%s}]}`, i, nested)
	}
	defaults := `{"type":"record","name":"R0","fields":[{"name":"f","type":"int","default":0}]}`
	for i := 1; i <= 40; i++ {
		var b strings.Builder
		for k := range 8 {
			fmt.Fprintf(&b, `{"name":"g%d","type":"R%d","default":{}},`, k, i-1)
		}
		defaults = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"f","type":%s,"default":{}},%s]}`, i,
			defaults, strings.TrimSuffix(b.String(), ","))
	}
	last := 0
	behind := strings.TrimSuffix(fields(func(i int) string {
		last = i + 1
		return fmt.Sprintf(`{"name":"f%x","type":{"type":"record","name":"S%x","fields":[{"name":"x","type":"S%x"}]}}`,
			i, i, last)
	}), "]}") + fmt.Sprintf(`,{"name":"g","type":{"type":"fixed","name":"S%x","size":1}}]}`, last)
	var chain []Reference
	for i := range 1000 {
		of := `"int"`
		if i > 0 {
			of = fmt.Sprintf(`"R%d"`, i-1)
		}
		chain = append(chain,
			Reference{fmt.Sprintf("R%d", i),
				fmt.Sprintf(`{"type":"record","name":"R%d","doc":"%01000d","fields":[{"name":"x","type":%s}]}`, i, 0,
					of)})
	}
	for _, c := range []struct {
		name, text string
		references []Reference
	}{
		{"fields", fields(func(i int) string { return fmt.Sprintf(`{"name":"f%x","type":"int"}`, i) }), nil},
		{"types", fields(func(i int) string { return fmt.Sprintf(`{"name":"f%x","type":{"type":"int"}}`, i) }), nil},
		{"a long namespace",
			fill(`{"type":"record","name":"R","namespace":"`+space+`","fields":[`, "]}", func(i int) string {
				return fmt.Sprintf(`{"name":"f%x","type":{"type":"fixed","name":"F%x","size":1}}`, i, i)
			}), nil},
		{"aliases",
			fill(`{"type":"record","name":"R","namespace":"`+space+`","fields":[],"aliases":[`, "]}",
				func(i int) string { return `"a"` }), nil},
		{"unions", fields(func(i int) string { return fmt.Sprintf(`{"name":"f%x","type":["null"]}`, i) }), nil},
		{"symbols",
			fill(`{"type":"enum","name":"E","symbols":[`, "]}", func(i int) string { return fmt.Sprintf(`"s%x"`, i) }),
			nil},
		{"objects", fill(`{"type":"int","x":[`, "]}", func(i int) string { return `{"":0}` }), nil},
		{"objects in objects",
			fill(`{"type":"int","x":[`, "]}",
				func(i int) string { return strings.Repeat(`{"":`, 9000) + "0" + strings.Repeat("}", 9000) }), nil},
		{"arrays", fill(`{"type":"int","x":[`, "]}", func(i int) string { return `[0]` }), nil},
		{"records one in the other", nested, nil},
		{"records each before the next", fields(func(i int) string {
			return fmt.Sprintf(
				`{"name":"f%x","type":{"type":"record","name":"S%x","fields":[{"name":"x","type":["null","S%x"]}]}}`, i,
				i, max(i-1, 0))
		}), nil},
		{"records each behind the next", behind, nil},
		{"defaults", defaults, nil},
		{"a chain of references", `"R999"`, chain},
	} {
		length := len(c.text)
		for _, r := range c.references {
			length += len(r.Text)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := ParseAvro(c.text, c.references)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		s.Plan(paths("f", "f.f.f", "f0.x", "x.x.x"))
		runtime.ReadMemStats(&after)
		each := float64(after.TotalAlloc-before.TotalAlloc) / float64(length)
		if t.Logf("%s: %d bytes, %.0f of memory for each", c.name, length, each); each > 100 {
			t.Errorf("%s: %d bytes take %.0f of memory each", c.name, length, each)
		}
	}
}

// FuzzAvroSchema checks that ParseAvro accepts every schema that the library accepts, and that a plan can be made for
// each.
func FuzzAvroSchema(f *testing.F) {
	for seed := range uint64(30) {
		if c := newAvroCase(f, seed); c != nil {
			f.Add(strings.SplitN(c.text, "\n", 2)[0])
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseAvro(text, nil)
		if err == nil {
			s.Plan(paths("a", "b.a", "a[0].b"))
			return
		}
		if len(text) > maxName {
			return
		}
		if _, library := avro.Parse(text); library == nil {
			t.Errorf("%s: %v, but the library accepts it", text, err)
		}
	})
}
