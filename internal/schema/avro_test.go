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
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/avro"

	"streamdp/internal/column"
)

// name and at are elements of paths, path a whole one.
func name(s string) column.Element { return column.Element{Name: s, Index: -1} }
func at(i int) column.Element      { return column.Element{Index: i} }

func path(s string) []column.Element {
	p, _ := column.Parse(s)
	return p
}

// avroSource makes up Avro schemas and their records.
type avroSource struct {
	*rand.Rand
	named []string // records and enums that can be spoken of
	open  []string // records that are being defined
	count int
}

func (r *avroSource) pick(of ...string) string { return of[r.IntN(len(of))] }

// schema returns a type as JSON. inUnion: only what a union can hold beside others.
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
		return map[string]any{"type": "long", "logicalType": r.pick("timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos", "time-micros", "unknown")}
	case 5:
		r.count++
		if r.IntN(2) == 0 {
			return map[string]any{"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": r.IntN(40)}
		}
		switch r.IntN(3) {
		case 0:
			return map[string]any{"type": "fixed", "name": fmt.Sprintf("F%d", r.count), "size": 16, "logicalType": "uuid"}
		case 1:
			return map[string]any{"type": "fixed", "name": fmt.Sprintf("F%d", r.count), "size": 12, "logicalType": "decimal", "precision": 20, "scale": r.IntN(20)}
		}
		return map[string]any{"type": "fixed", "name": fmt.Sprintf("F%d", r.count), "size": 1 + r.IntN(5)}
	case 6:
		r.count++
		if len(r.named) > 0 && r.IntN(3) == 0 {
			return r.named[r.IntN(len(r.named))]
		}
		enum := fmt.Sprintf("E%d", r.count)
		r.named = append(r.named, enum)
		return map[string]any{"type": "enum", "name": enum, "symbols": []string{"A", "B", "C"}[:1+r.IntN(3)]}
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
			b, recursive = r.open[r.IntN(len(r.open))], true
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
	r.count++
	record := fmt.Sprintf("R%d", r.count)
	r.open = append(r.open, record)
	fields := []any{}
	for i := range r.IntN(6) {
		fields = append(fields, map[string]any{"name": string(rune('a' + i)), "type": r.schema(depth - 1)})
	}
	r.open = r.open[:len(r.open)-1]
	r.named = append(r.named, record)
	return map[string]any{"type": "record", "name": record, "fields": fields}
}

// encode appends a random value of type t, arrays and maps in any blocks.
func (r *avroSource) encode(b []byte, t *avroType, depth int) []byte {
	switch t.kind {
	case "boolean":
		return append(b, byte(r.IntN(2)))
	case "int":
		return binary.AppendVarint(b, int64(int32(r.Uint32()>>r.IntN(32))))
	case "long":
		x := int64(r.Uint64()>>r.IntN(64)) - 3
		if t.logical == "time-micros" {
			x %= 86400e6 // more is no time.Duration
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

// paths returns paths into t: into what is there, and a few beside it.
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

// reference returns the value at a path of what the library decoded, with union branches
// tagged by their types.
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

// same compares values, and only what their kind says anything of.
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

// avroCase is a schema that was made up, and paths.
type avroCase struct {
	*avroSource
	text    string
	library *avro.Schema
	of      *avroType
	names   map[*avroType]string
	paths   [][]column.Element
	kinds   []Kinds
	reader  *Reader
}

// newAvroCase returns nil where the library refuses what was made up: a name twice, or a record without
// end.
func newAvroCase(t testing.TB, seed uint64) *avroCase {
	c := &avroCase{avroSource: &avroSource{Rand: rand.New(rand.NewPCG(seed, 1))}, names: map[*avroType]string{}}
	tree := c.record(4)
	if c.IntN(8) == 0 {
		tree = c.schema(4)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	c.text = string(text)
	if c.library, err = avro.Parse(c.text); err != nil {
		return nil
	}
	s, err := ParseAvro(c.text, nil)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	c.of = s.avro
	c.name(tree, c.of)
	c.paths = c.avroSource.paths(c.of, 1+c.IntN(8))
	var plan *Plan
	plan, c.kinds = s.Plan(c.paths)
	c.reader = NewReader(plan)
	return c
}

// name walks the schema's text beside its type, for the names of types.
func (c *avroCase) name(x any, t *avroType) {
	switch x := x.(type) {
	case []any:
		for i, b := range x {
			c.name(b, t.of[i])
		}
	case map[string]any:
		if n, ok := x["name"].(string); ok {
			c.names[t] = n
		}
		for i := range t.fields {
			c.name(x["fields"].([]any)[i].(map[string]any)["type"], t.fields[i].of)
		}
		for _, word := range []string{"items", "values"} {
			if x[word] != nil {
				c.name(x[word], t.of[0])
			}
		}
	}
}

// compare compares what the reader finds in a record with what the library decodes. whole says that it is a true
// one. It returns whether both read it, and how many values were found.
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
		// The library takes some bytes that no encoder writes: it must have been such.
		if again, err := c.library.Encode(x); err == nil && bytes.Equal(again, value) {
			t.Fatalf("schema %s: record %x is refused, and the library reads it", c.text, value)
		}
		return false, 0
	}
	for i, p := range c.paths {
		want, got := c.reference(x, c.of, p), c.reader.Value(i)
		if got.Kind != column.Absent {
			found++
		}
		if !c.kinds[i].Has(got.Kind) && got.Kind != column.Other && (got.Kind != column.Absent || c.kinds[i] != 0) {
			t.Fatalf("schema %s: path %v has kind %d, and %b was said", c.text, p, got.Kind, c.kinds[i])
		}
		switch {
		case got.Kind == column.Other && want.Kind == column.Number && want.Num == 0 && got.Text == nil:
			// a decimal without bytes: no number here, 0 there
		case got.Kind == column.Other && want.Kind == column.Number && len(value) > maxDecimal:
			// a decimal of too many bytes
		case got.Kind == column.Other && want.Kind == column.Text && (!utf8.Valid(want.Text) || got.Nsec == uuid):
		case !same(got, &want):
			t.Fatalf("schema %s: record %x: path %v: %+v, the library: %+v", c.text, value, p, *got, want)
		}
	}
	return true, found
}

// What the reader finds is what the library decodes, of random schemas, paths and records.
func TestAvroReference(t *testing.T) {
	read, found := 0, 0
	for seed := range uint64(1500) {
		c := newAvroCase(t, seed)
		for range 6 {
			if c == nil {
				break
			}
			value, whole := damage(c.Rand, c.encode(nil, c.of, 7))
			ok, n := c.compare(t, value, whole)
			if found += n; ok {
				read++
			}
		}
	}
	if read < 4000 || found < 10000 {
		t.Errorf("%d records were read, %d values were found: too few to tell", read, found)
	}
}

// A schema by its number, and any bytes.
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
