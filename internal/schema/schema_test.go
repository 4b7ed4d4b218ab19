package schema

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/streamdp/streamdp/internal/column"
)

func mustAvro(t testing.TB, text string, references ...Reference) *Schema {
	t.Helper()
	s, err := ParseAvro(text, references)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustProto(t testing.TB, text string, references ...Reference) *Schema {
	t.Helper()
	s, err := ParseProtobuf(text, references)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func paths(of ...string) (all [][]column.Element) {
	for _, s := range of {
		all = append(all, path(s))
	}
	return all
}

// TestDecimal: a decimal is the float64 nearest to the value of its bytes, computed with math/big.
func TestDecimal(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	reader := NewReader(&Plan{})
	for range 4000 {
		b := make([]byte, 1+r.IntN(1+r.IntN(maxDecimal)))
		for i := range b {
			b[i] = byte(r.Uint32() >> (8 * r.IntN(2)))
		}
		scale := r.IntN(30) * r.IntN(4)
		x := new(big.Int).SetBytes(b)
		if b[0] >= 0x80 {
			x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		want, _ := new(big.Rat).SetFrac(x, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).Float64()
		var v column.Value
		if reader.setDecimal(&v, b, scale); v.Kind != column.Number || v.Num != want {
			t.Fatalf("%x with scale %d: %+v, want %v", b, scale, v, want)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 0), append([]byte{1}, make([]byte, maxDecimal)...)} {
		var v column.Value
		if reader.setDecimal(&v, b, 2); v.Kind != column.Other {
			t.Errorf("%x is %+v", b, v)
		}
	}
}

// TestKey: the user key is the exact text of an integer, a string, a symbol or a UUID.
func TestKey(t *testing.T) {
	t.Parallel()
	read := func(s *Schema, value []byte) string {
		t.Helper()
		plan, _, kinds, _ := s.PlanWithKey(paths("u"), path("u"))
		r := NewReader(plan)
		if kinds == 0 || !r.Read(value) {
			t.Fatalf("%x is refused", value)
		}
		if len(r.Key()) > 0 && !kinds.Key() {
			t.Errorf("%x has a key although the kinds are %v", value, kinds)
		}
		return string(r.Key())
	}
	record := func(of string) *Schema {
		return mustAvro(t, `{"type": "record", "name": "R", "fields": [{"name": "u", "type": `+of+`}]}`)
	}
	for _, c := range []struct {
		s     *Schema
		value []byte
		want  string
	}{
		{record(`"long"`), binary.AppendVarint(nil, math.MinInt64), "-9223372036854775808"},
		{record(`"long"`), binary.AppendVarint(nil, 1<<53+1), "9007199254740993"},
		{record(`"int"`), binary.AppendVarint(nil, -7), "-7"},
		{record(`"string"`), []byte("\x06abc"), "abc"},
		{record(`["null", "string"]`), []byte{0}, ""},
		{record(`["null", "string"]`), []byte("\x02\x06abc"), "abc"},
		{record(`{"type": "enum", "name": "E", "symbols": ["X", "Y"]}`), []byte{2}, "Y"},
		{record(`{"type": "string", "logicalType": "uuid"}`), []byte("\x06abc"), "abc"},
		{record(`{"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}`),
			[]byte("\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10"),
			"01234567-89ab-cdef-fedc-ba9876543210"},
		{record(`{"type": "fixed", "size": 16, "name": "U"}`), make([]byte, 16), ""},
		{record(`"double"`), make([]byte, 8), ""},
		{record(`"boolean"`), []byte{1}, ""},
		{record(`{"type": "long", "logicalType": "timestamp-millis"}`), []byte{2}, ""},
		{record(`"string"`), []byte("\x04\xff\xff"), ""},
		{mustProto(t, `syntax = "proto3"; message M { uint64 u = 1; }`),
			[]byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "18446744073709551615"},
		{mustProto(t, `syntax = "proto3"; message M { sint64 u = 1; }`), []byte("\x08\x01"), "-1"},
		{mustProto(t, `syntax = "proto3"; message M { string u = 1; }`), nil, ""},
		{mustProto(t, `syntax = "proto3"; message M { int32 u = 1; }`), nil, "0"},
		{mustProto(t, `syntax = "proto3"; message M { optional int32 u = 1; }`), nil, ""},
		{mustProto(t, `syntax = "proto3"; enum E { A = 0; B = 1; } message M { E u = 1; }`), []byte("\x08\x01"), "B"},
		{mustProto(t, `syntax = "proto3"; enum E { A = 0; B = 1; } message M { E u = 1; }`), []byte("\x08\x05"), ""},
		{mustProto(t,
			`syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M { google.protobuf.Int64Value u = 1; }`), []byte("\x0a\x02\x08\x05"), "5"},
	} {
		if _, _, kinds, _ := c.s.PlanWithKey(nil, path("u")); kinds.Key() != (c.want != "" ||
			strings.Contains(kinds.String(), "string") || strings.Contains(kinds.String(), "enum") ||
			kinds.Has(column.Absent)) {
			t.Errorf("%x: of kind %v", c.value, kinds)
		}
		if got := read(c.s, c.value); got != c.want {
			t.Errorf("%x: %q, want %q", c.value, got, c.want)
		}
	}
}

// TestHostile: bytes that claim more elements than they have, or that never end, are refused quickly and without
// allocation.
func TestHostile(t *testing.T) {
	t.Parallel()
	long := func(x int64) string { return string(binary.AppendVarint(nil, x)) }
	list :=
		`{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}, {"name": "x", "type": "int"}]}`
	for _, c := range []struct{ schema, path, value string }{
		{`{"type": "array", "items": "double"}`, "", long(1 << 62)},
		{`{"type": "array", "items": "double"}`, "", long(math.MinInt64) + long(8) + "12345678"},
		{`{"type": "array", "items": "double"}`, "", long(-1) + long(-8) + "12345678\x00"},
		{`{"type": "array", "items": "double"}`, "", long(-1) + long(1<<40) + "12345678\x00"},
		{`{"type": "array", "items": "int"}`, "", long(1<<62) + strings.Repeat("\x00", 1000)},
		{`{"type": "map", "values": "null"}`, "", long(1<<62) + "\x02a"},
		{`{"type": "map", "values": "int"}`, "", long(1) + long(1<<62) + "a"},
		{`{"type": "map", "values": "int"}`, "", long(1) + long(-1) + "a"},
		{`"string"`, "", long(math.MaxInt64) + "abc"},
		{`"string"`, "", long(-1)},
		{`"bytes"`, "", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
		{`"int"`, "", "\xff\xff\xff\xff\x1f"},
		{`"int"`, "", "\x80\x80\x80\x80\x80\x00"},
		{`"long"`, "", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"},
		{`"boolean"`, "", "\x02"},
		{`["null", "int"]`, "", "\x04"},
		{`["null", "int"]`, "", "\x01"},
		{`{"type": "enum", "name": "E", "symbols": ["A"]}`, "", "\x02"},
		{`{"type": "enum", "name": "E", "symbols": ["A"]}`, "", "\x01"},
		{list, "x", strings.Repeat("\x02", 100000)},
		{list, "next.next.x", strings.Repeat("\x02", 100000)},
		{`{"type": "record", "name": "T", "fields": [{"name": "of", "type": {"type": "array", "items": "T"}}]}`, "",
			strings.Repeat("\x02", 100000)},
		{`"int"`, "", "\x02\x02"},
	} {
		p := []column.Element{}
		if c.path != "" {
			p = path(c.path)
		}
		for _, wanted := range [][][]column.Element{nil, {p}} {
			plan, _ := mustAvro(t, c.schema).Plan(wanted)
			r := NewReader(plan)
			if r.Read([]byte(c.value)) && !(c.schema == `"boolean"` && wanted == nil) {
				t.Errorf("%s: %.40q is read", c.schema, c.value)
			}
		}
	}

	// Nested lists are read up to the limit of the depth, and refused beyond it.
	for depth, want := range map[int]bool{900: true, 1100: false} {
		value := strings.Repeat("\x02", depth) + "\x00" + strings.Repeat("\x0e", depth+1)
		for _, p := range []string{"next.next.x", "x"} {
			plan, _ := mustAvro(t, list).Plan(paths(p))
			if r := NewReader(plan); r.Read([]byte(value)) != want || want && r.Value(0).Num != 7 {
				t.Errorf("%d nested lists, %s: read %t", depth, p, !want)
			}
		}
	}

	// A block of elements of 0 bytes may claim the largest count. It costs only one step.
	plan, _ := mustAvro(t,
		`{"type": "array", "items": {"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]}}`).Plan(
		[][]column.Element{{at(5)}, {at(5), name("n")}})
	r := NewReader(plan)
	if !r.Read([]byte(strings.Repeat(long(1<<62), 9)+long(math.MinInt64)+long(0)+"\x00")) ||
		r.Value(0).Kind != column.Other || r.Value(1).Kind != column.Absent {
		t.Errorf("elements of no bytes: %+v, %+v", r.Value(0), r.Value(1))
	}

	group := func(n int) []byte {
		var b []byte
		for range n {
			b = protowire.AppendTag(b, 9, protowire.StartGroupType)
		}
		for range n {
			b = protowire.AppendTag(b, 9, protowire.EndGroupType)
		}
		return b
	}
	s := mustProto(t,
		`syntax = "proto3"; message M { double a = 1; M b = 2; repeated double c = 3; map<string, M> d = 4; string e = 5; }`)
	plan, _ = s.Plan(paths("a", "b.a", "c[1]", "d.k.a", "e"))
	r = NewReader(plan)
	for _, c := range []struct {
		value string
		ok    bool
	}{
		{string(group(100)), true},
		{string(group(100000)), false},
		{strings.Repeat(string(protowire.AppendTag(nil, 9, protowire.StartGroupType)), 100000), false},
		{string(protowire.AppendTag(nil, 9, protowire.EndGroupType)), false},
		{"\x4b\x54", false}, // group 9 with the end of group 10
		{"\x00\x00", false}, // field number 0
		{"\x0e", false},     // wire type 6
		{"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", false},
		{"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", false},
		{"\x1a\x09" + strings.Repeat("x", 9), false}, // packed doubles in nine bytes
		{"\x1a\x08" + strings.Repeat("x", 8), true},
		{"\x09\x00\x00", false},
		{"\x22\x03\x0a\x01", false},
		{"\x22\x03\x0a\x01k", true},
		{"\xf8\xff\xff\xff\x0f\x00", true},  // the largest field number
		{"\x80\x80\x80\x80\x10\x00", false}, // one more than the largest
		// First a varint has ten bytes, then a tag has.
		{"\x88\x80\x80\x80\x80\x80\x80\x80\x80\x00" + "abcd", false},
	} {
		if ok := r.Read([]byte(c.value)); ok != c.ok {
			t.Errorf("%.40q: %t", c.value, ok)
		}
	}
	plan, _ = s.Plan(paths("c"))
	if list := NewReader(plan); !list.Read([]byte("\x1a\x00")) || list.Value(0).Kind != column.Absent ||
		!list.Read([]byte("\x1a\x08"+strings.Repeat("x", 8))) || list.Value(0).Kind != column.Other {
		t.Error("an empty list has a value")
	}
	if !r.Read([]byte("\x2a\x02\xff\xff")) || r.Value(4).Kind != column.Other {
		t.Errorf("invalid UTF-8 is %+v", r.Value(4))
	}
}

// TestProtoMerge: if a sub-message occurs twice, its fields are merged; packed and single elements of a list have the
// same meaning; of two map entries with the same key, the last one counts.
func TestProtoMerge(t *testing.T) {
	t.Parallel()
	s := mustProto(t,
		`syntax = "proto3"; message M { P p = 1; repeated int32 l = 2; map<int32, P> m = 3; oneof o { P q = 4; int32 i = 5; } message P { int32 a = 1; int32 b = 2; } }`)
	plan, _ := s.Plan(paths("p.a", "p.b", "l[0]", "l[2]", "l[3]", "m.7.a", "m.7.b", "q.a", "q.b", "i"))
	r := NewReader(plan)
	// The message has these fields: p.a = 5, l = 1, 2, p.b = 6, l = 3.
	value := "\x0a\x02\x08\x05" + "\x12\x02\x01\x02" + "\x0a\x02\x10\x06" + "\x10\x03" +
		"\x1a\x06\x08\x07\x12\x02\x08\x01" + "\x1a\x06\x08\x07\x12\x02\x10\x02" + // m[7] = {a: 1}, then {b: 2}
		"\x22\x02\x08\x01" + "\x28\x09" + "\x22\x02\x10\x02" // q.a = 1, i = 9, q.b = 2
	want := []float64{5, 6, 1, 3, -1, 0, 2, 0, 2, -1}
	for range 2 {
		if !r.Read([]byte(value)) {
			t.Fatal("refused")
		}
		for i, x := range want {
			if v := r.Value(i); x < 0 && v.Kind != column.Absent || x >= 0 && (v.Kind != column.Number || v.Num != x) {
				t.Errorf("value %d: %+v, want %g", i, *v, x)
			}
		}
	}
}

// TestProtoOdd checks two special cases. A 32-bit number in a map is the lowest 32 bits of the number that was written.
// A wrapper has the same value as the field inside it, and a path to either reads it.
func TestProtoOdd(t *testing.T) {
	t.Parallel()
	s := mustProto(t,
		`syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M { map<int32, int32> m = 1; google.protobuf.DoubleValue w = 2; }`)
	plan, kinds := s.Plan(paths("m.7", "w", "w.value.x", "m.07", "w.value"))
	r := NewReader(plan)
	if !r.Read(
		[]byte("\x0a\x08\x08\x87\x80\x80\x80\x10\x10\x05" + "\x12\x09\x09" + "\x00\x00\x00\x00\x00\x00\xf0\x3f")) {
		t.Fatal("refused")
	}
	for i, want := range []float64{5, 1, -1, -1, 1} {
		if v := r.Value(i); want < 0 && (v.Kind != column.Absent || kinds[i] != 0) ||
			want > 0 && (v.Kind != column.Number || v.Num != want) {
			t.Errorf("value %d: %+v, want %g", i, *v, want)
		}
	}
	plan, _ = s.Plan(paths("w", "w.value.x"))
	if r := NewReader(plan); !r.Read([]byte("\x12\x09\x09\x00\x00\x00\x00\x00\x00\xf0\x3f")) || r.Value(0).Num != 1 {
		t.Errorf("%+v", r.Value(0))
	}
}

// TestProtoDecimal: Confluent's decimal is the number given by its bytes and scale.
func TestProtoDecimal(t *testing.T) {
	t.Parallel()
	s := mustProto(t,
		`syntax = "proto3"; import "confluent/type/decimal.proto"; message M { confluent.type.Decimal d = 1; }`)
	plan, kinds := s.Plan(paths("d", "d.scale"))
	r := NewReader(plan)
	if kinds[0] != absent|kindsOf(column.Other, column.Number) {
		t.Errorf("kinds %v", kinds[0])
	}
	for _, c := range []struct {
		value string
		want  column.Value
	}{
		{"", column.Value{}},
		{"\x0a\x06\x0a\x02\x30\x39\x18\x02", column.Value{Kind: column.Number, Num: 123.45}},
		// The message contains the decimal in two parts.
		{"\x0a\x04\x18\x02\x10\x05\x0a\x04\x0a\x02\xcf\xc7", column.Value{Kind: column.Number, Num: -123.45}},
		{"\x0a\x04\x0a\x02\x30\x39", column.Value{Kind: column.Number, Num: 12345}},
		{"\x0a\x02\x18\x02", column.Value{Kind: column.Other}},
		{"\x0a\x00", column.Value{Kind: column.Other}},
		{"\x0a\x0f\x0a\x02\x30\x39\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", column.Value{Kind: column.Other}},
		{"\x0a\x0a\x0a\x02\x30\x39\x18\xff\xff\xff\xff\x07", column.Value{Kind: column.Number}}, // the scale is 2³¹-1
	} {
		if ok := r.Read([]byte(c.value)); !ok || !same(r.Value(0), &c.want) || r.Value(0).Text != nil {
			t.Errorf("%q: %t %+v, want %+v", c.value, ok, *r.Value(0), c.want)
		}
	}
}

// TestNoAllocation: reading does not allocate.
func TestNoAllocation(t *testing.T) {
	s := mustAvro(t, benchAvroSchema)
	plan, _ := s.Plan(benchPaths())
	r, value := NewReader(plan), benchAvro(1)[0]
	p := mustProto(t, benchProtoSchema)
	protoPlan, _ := p.Plan(benchPaths())
	q, message := NewReader(protoPlan), benchProto(t, p, 1)[0]
	decimal := make([]byte, 40)
	decimal[0] = 3
	var v column.Value
	if n := testing.AllocsPerRun(100, func() {
		if !r.Read(value) || !q.Read(message) || r.Read(value[:9]) || r.Read(nil) || q.Read(message[:9]) {
			t.Error("wrong")
		}
		r.setDecimal(&v, decimal, 30)
		r.Release()
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestReferences: a schema finds its references, and names a missing one.
func TestReferences(t *testing.T) {
	t.Parallel()
	s := mustAvro(t,
		`{"type": "record", "name": "R", "namespace": "a", "fields": [{"name": "x", "type": "b.P"}, {"name": "y", "type": ["null", "b.E"]}]}`,
		Reference{"b.E", `{"type": "enum", "name": "E", "namespace": "b", "symbols": ["A", "B"]}`},
		Reference{"b.P",
			`{"type": "record", "name": "b.P", "fields": [{"name": "e", "type": "E"}, {"name": "d", "type": "double"}]}`})
	plan, kinds := s.Plan(paths("x.d", "y", "x.e"))
	r := NewReader(plan)
	if !r.Read([]byte("\x02\x00\x00\x00\x00\x00\x00\xf0\x3f\x02\x00")) || r.Value(0).Num != 1 ||
		string(r.Value(1).Text) != "A" || r.Value(2).Num != 1 || kinds[1] != absent|kindsOf(column.Enum) {
		t.Errorf("%+v, %+v, %+v", r.Value(0), r.Value(1), r.Value(2))
	}
	p := mustProto(t,
		`syntax = "proto3"; import "b/p.proto"; import "confluent/meta.proto"; import "google/protobuf/timestamp.proto";
		message M { b.P x = 1 [(confluent.field_meta).doc = "of b"]; google.protobuf.Timestamp t = 2; message N { int32 n = 1; message O { int32 o = 1; } } } message Q { int32 q = 1; }`,
		Reference{"b/e.proto", `syntax = "proto2"; package b; enum E { Z = 3; }`},
		Reference{"b/p.proto", `syntax = "proto3"; package b; import "b/e.proto"; message P { double d = 1; }`})
	if _, kinds := p.Plan(paths("x.d", "t", "t.seconds", "n")); kinds[0] != absent|kindsOf(column.Number) ||
		kinds[1] != absent|kindsOf(column.Other, column.Instant) || kinds[2] != kinds[0] || kinds[3] != 0 {
		t.Errorf("%b", kinds)
	}
	for name, indexes := range map[string][]int{"M": {0}, "M.N": {0, 0}, "M.N.O": {0, 0, 0}, "Q": {1}} {
		a, ok := p.MessageAt(indexes)
		b, also := p.Message(name)
		if !ok || !also || a.MessageName() != name || b.MessageName() != name {
			t.Errorf("%s is not found", name)
		}
	}
	for _, indexes := range [][]int{nil, {2}, {-1}, {0, 1}, {1, 0}, {0, 0, 0, 0}} {
		if _, ok := p.MessageAt(indexes); ok {
			t.Errorf("%v is found", indexes)
		}
	}
	// Python serializers register descriptors in base64 without JSON names.
	serialized := func(name string) string {
		var file protoreflect.FileDescriptor = p.proto.file.Imports().Get(0)
		if name == "b/e.proto" {
			file = file.Imports().Get(0)
		}
		d := protodesc.ToFileDescriptorProto(file)
		for _, m := range d.MessageType {
			for _, f := range m.Field {
				f.JsonName = nil
			}
		}
		data, err := proto.Marshal(d)
		if err != nil || file.Path() != name {
			t.Fatal(file.Path(), err)
		}
		return base64.StdEncoding.EncodeToString(data)
	}
	q := mustProto(t, serialized("b/p.proto"), Reference{"b/e.proto", serialized("b/e.proto")})
	if _, kinds := q.Plan(paths("d")); q.MessageName() != "b.P" || kinds[0] != kindsOf(column.Number) {
		t.Errorf("%s, %v", q.MessageName(), kinds)
	}
	q = mustProto(t, `syntax = "proto3"; import "b/p.proto"; message M { b.P x = 1; }`,
		Reference{"b/e.proto", serialized("b/e.proto")}, Reference{"b/p.proto", serialized("b/p.proto")})
	if _, kinds := q.Plan(paths("x.d")); kinds[0] != absent|kindsOf(column.Number) {
		t.Error(kinds)
	}
	if _, ok := p.Message("b.P"); ok {
		t.Error("a message of another file is found")
	}
	for _, bad := range []string{``, `{"type": "record", "name": "R", "fields": [{"name": "x", "type": "b.P"}]}`,
		`"number"`} {
		if _, err := ParseAvro(bad, nil); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	for _, bad := range []string{``, `syntax = "proto3"; import "b/p.proto"; message M { b.P x = 1; }`,
		`syntax = "proto3"; enum E { A = 0; }`, `message {`} {
		if _, err := ParseProtobuf(bad, nil); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// FuzzBytes: arbitrary bytes are either read or refused.
func FuzzBytes(f *testing.F) {
	a := mustAvro(f,
		`{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": ["null", "R", "double"]}}, {"name": "m", "type": {"type": "map", "values": "R"}}, {"name": "s", "type": ["string", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 9}]}]}`)
	p := mustProto(f,
		`syntax = "proto2"; message M { optional M a = 1; map<int32, M> m = 2; repeated sint32 l = 3; oneof o { string s = 4; group G = 5 { optional M n = 1; } } }`)
	all := paths("a[0]", "a[1].s", "m.a.m.a.s", "s", "a.l[2]", "m.7.g.n.s", "l[1]", "g.n.g.n.s")
	planA, _ := a.Plan(all)
	planP, _ := p.Plan(all)
	ra, rp := NewReader(planA), NewReader(planP)
	f.Add([]byte("\x02\x04\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x02\x02\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ra.Read(b)
		rp.Read(b)
	})
}

// Plan calls PlanWithKey without a user key.
func (s *Schema) Plan(paths [][]column.Element) (*Plan, []Kinds) {
	plan, kinds, _, err := s.PlanWithKey(paths, nil)
	if err != nil {
		panic(err)
	}
	return plan, kinds
}
