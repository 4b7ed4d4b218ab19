package schema

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/streamdp/streamdp/internal/column"
)

// protoSource generates random .proto files and their messages.
type protoSource struct {
	*rand.Rand
	syntax string // "proto2", "proto3" or "2023"
	count  int
	made   []string // names of messages to which fields can refer
}

func (r *protoSource) pick(of ...string) string { return of[r.IntN(len(of))] }

var protoScalars = []string{"double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
	"fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"}

func (r *protoSource) file() string {
	var b strings.Builder
	if r.syntax == "2023" {
		b.WriteString("edition = \"2023\";\n")
	} else {
		fmt.Fprintf(&b, "syntax = %q;\n", r.syntax)
	}
	b.WriteString(
		"package p;\nimport \"google/protobuf/timestamp.proto\";\nimport \"google/protobuf/duration.proto\";\n" +
			"import \"google/protobuf/wrappers.proto\";\n" +
			"enum E { E_ZERO = 0; E_ONE = 1; E_FAR = 1000; E_BELOW = -5; }\n")
	for range 3 {
		r.message(&b, 2)
	}
	return b.String()
}

func (r *protoSource) message(b *strings.Builder, depth int) {
	r.count++
	name := fmt.Sprintf("M%d", r.count)
	fmt.Fprintf(b, "message %s {\n", name)
	r.made = append(r.made, name)
	number, left := 0, 2+r.IntN(8)
	next := func() int {
		number += 1 + r.IntN(3)*r.IntN(2)
		if r.IntN(12) == 0 {
			number += 300
		}
		return number
	}
	for i := 0; i < left; i++ {
		field := string(rune('a' + i))
		switch kind := r.IntN(10); {
		case kind == 0:
			fmt.Fprintf(b, "map<%s, %s> %s = %d;\n", r.pick("string", "int32", "sint64", "uint32", "bool", "fixed64"),
				r.kind(), field, next())
		case kind == 1:
			fmt.Fprintf(b, "oneof of_%s {\n", field)
			for range 2 + r.IntN(2) {
				fmt.Fprintf(b, "%s %s = %d;\n", r.kind(), field, next())
				i++
				field = string(rune('a' + i))
			}
			b.WriteString("}\n")
		case kind <= 3:
			of, packed := r.kind(), ""
			if r.syntax == "proto2" && slices.Contains(protoScalars[:13], of) && r.IntN(2) == 0 {
				packed = " [packed = true]"
			}
			fmt.Fprintf(b, "repeated %s %s = %d%s;\n", of, field, next(), packed)
		case kind == 4 && r.syntax == "proto2":
			fmt.Fprintf(b,
				"%s group G%s%d = %d { optional int32 a = 1; optional string b = 2; repeated sint32 c = 3; }\n",
				r.pick("optional", "repeated"), strings.ToUpper(field), r.count, next())
		case kind == 4 && r.syntax == "2023":
			fmt.Fprintf(b, "%s %s = %d [features.message_encoding = DELIMITED];\n", name, field, next())
		case r.syntax == "proto3":
			fmt.Fprintf(b, "%s%s %s = %d;\n", r.pick("", "", "optional "), r.kind(), field, next())
		case r.syntax == "2023":
			of, feature := r.kind(), ""
			if slices.Contains(protoScalars, of) && r.IntN(2) == 0 {
				feature = " [features.field_presence = IMPLICIT]"
			}
			fmt.Fprintf(b, "%s %s = %d%s;\n", of, field, next(), feature)
		default:
			fmt.Fprintf(b, "optional %s %s = %d;\n", r.kind(), field, next())
		}
	}
	b.WriteString("}\n")
}

// kind returns a random type for a field.
func (r *protoSource) kind() string {
	switch r.IntN(6) {
	case 0:
		return r.made[r.IntN(len(r.made))]
	case 1:
		return "E"
	case 2:
		return "google.protobuf." +
			r.pick("Timestamp", "Duration", "DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value",
				"UInt32Value", "BoolValue", "StringValue", "BytesValue")
	}
	return protoScalars[r.IntN(len(protoScalars))]
}

// encode appends a random message of type d. Its fields are in any order; some occur twice, and some are unknown.
func (r *protoSource) encode(b []byte, d protoreflect.MessageDescriptor, depth int) []byte {
	if d.Fields().Len() == 0 {
		return b
	}
	for range r.IntN(3 + 2*d.Fields().Len()) {
		f := d.Fields().Get(r.IntN(d.Fields().Len()))
		number := f.Number()
		if r.IntN(12) == 0 { // a field that is unknown or has another wire type
			if r.IntN(2) == 0 {
				number = protowire.Number(1 + r.IntN(5000))
			}
			switch r.IntN(5) {
			case 0:
				b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), r.Uint64())
			case 1:
				b = protowire.AppendFixed32(protowire.AppendTag(b, number, protowire.Fixed32Type), r.Uint32())
			case 2:
				b = protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), r.Uint64())
			case 3:
				if d.Fields().ByNumber(number) == nil {
					b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), []byte("unknown"))
				}
			default:
				if d.Fields().ByNumber(number) == nil {
					b = protowire.AppendTag(b, number, protowire.StartGroupType)
					b = protowire.AppendVarint(protowire.AppendTag(b, 7, protowire.VarintType), 1)
					b = protowire.AppendTag(b, number, protowire.EndGroupType)
				}
			}
			continue
		}
		b = r.value(b, f, depth)
	}
	return b
}

func (r *protoSource) value(b []byte, f protoreflect.FieldDescriptor, depth int) []byte {
	_, wire := scalarOf(f.Kind())
	if f.IsList() && wire != protowire.BytesType && wire != protowire.StartGroupType && r.IntN(2) == 0 {
		var packed []byte
		for range r.IntN(4) {
			packed = r.scalar(packed, f, depth)
		}
		return protowire.AppendBytes(protowire.AppendTag(b, f.Number(), protowire.BytesType), packed)
	}
	if f.Message() != nil && depth == 0 {
		return b
	}
	b = protowire.AppendTag(b, f.Number(), wire)
	if f.Kind() == protoreflect.GroupKind {
		return protowire.AppendTag(r.encode(b, f.Message(), depth-1), f.Number(), protowire.EndGroupType)
	}
	return r.scalar(b, f, depth)
}

func (r *protoSource) scalar(b []byte, f protoreflect.FieldDescriptor, depth int) []byte {
	if f.Message() != nil {
		return protowire.AppendBytes(b, r.encode(nil, f.Message(), depth-1))
	}
	_, wire := scalarOf(f.Kind())
	switch wire {
	case protowire.VarintType:
		x := r.Uint64() >> r.IntN(64)
		if r.IntN(3) == 0 {
			x = uint64(r.IntN(3))
		}
		if f.FullName() == "google.protobuf.Timestamp.nanos" || f.FullName() == "google.protobuf.Duration.nanos" {
			x = uint64(r.IntN(2e9))
		}
		return protowire.AppendVarint(b, x)
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, math.Float32bits(float32(r.IntN(100))/4))
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, math.Float64bits(float64(r.IntN(100))/4))
	}
	return protowire.AppendString(b, r.pick("", "a", "b", "Zürich"))
}

// paths returns paths into d: mostly existing ones, and some that do not exist.
func (r *protoSource) paths(d protoreflect.MessageDescriptor, n int) (all [][]column.Element) {
	for range n {
		var p []column.Element
		for m := d; len(p) < 6 && m.Fields().Len() > 0; {
			f := m.Fields().Get(r.IntN(m.Fields().Len()))
			p = append(p, name(string(f.Name())))
			switch {
			case f.IsList():
				p = append(p, at(r.IntN(4)))
			case f.IsMap():
				p = append(p, name(r.pick("a", "b", "", "0", "1", "2", "-1", "true", "false", "01")))
				f = f.MapValue()
			}
			if m = f.Message(); m == nil || r.IntN(3) == 0 {
				break
			}
		}
		if r.IntN(15) == 0 {
			p = append(p, name("a"))
		}
		if len(p) > 0 {
			all = append(all, p)
		}
	}
	return all
}

// protoReference returns the value at a path in the library's result.
func protoReference(m protoreflect.Message, p []column.Element) (v column.Value) {
	if len(p) == 0 {
		return protoWhole(m)
	}
	f := m.Descriptor().Fields().ByName(protoreflect.Name(p[0].Name))
	if f == nil || p[0].Index >= 0 || f.HasPresence() && !m.Has(f) {
		return v
	}
	x, p := m.Get(f), p[1:]
	switch {
	case f.IsList() && len(p) == 0:
		if x.List().Len() > 0 {
			v.Kind = column.Other
		}
		return v
	case f.IsList():
		if p[0].Index < 0 || p[0].Index >= x.List().Len() {
			return v
		}
		x, p = x.List().Get(p[0].Index), p[1:]
	case f.IsMap() && len(p) == 0:
		if x.Map().Len() > 0 {
			v.Kind = column.Other
		}
		return v
	case f.IsMap():
		found := protoreflect.Value{}
		x.Map().Range(func(k protoreflect.MapKey, of protoreflect.Value) bool {
			if p[0].Index < 0 && k.String() == p[0].Name {
				found = of
			}
			return true
		})
		if !found.IsValid() {
			return v
		}
		x, p, f = found, p[1:], f.MapValue()
	}
	if f.Message() != nil {
		return protoReference(x.Message(), p)
	}
	if len(p) > 0 {
		return v
	}
	return protoLeaf(f, x)
}

func protoLeaf(f protoreflect.FieldDescriptor, x protoreflect.Value) (v column.Value) {
	v.Kind = column.Number
	switch f.Kind() {
	case protoreflect.BoolKind:
		v.Kind = column.Truth
		if x.Bool() {
			v.Num = 1
		}
	case protoreflect.EnumKind:
		v.Kind, v.Num = column.Enum, float64(x.Enum())
		if symbol := f.Enum().Values().ByNumber(x.Enum()); symbol != nil {
			v.Text = []byte(symbol.Name())
		}
	case protoreflect.StringKind:
		v.Kind, v.Text = column.Text, []byte(x.String())
	case protoreflect.BytesKind:
		v.Kind = column.Other
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		v.Num = x.Float()
	default:
		if s, err := strconv.ParseFloat(fmt.Sprint(x.Interface()), 64); err == nil {
			v.Num = s
		}
	}
	return v
}

func protoWhole(m protoreflect.Message) (v column.Value) {
	v.Kind = column.Other
	d := m.Descriptor()
	field := func(n protoreflect.FieldNumber) protoreflect.Value { return m.Get(d.Fields().ByNumber(n)) }
	switch n := string(d.FullName()); {
	case n == "google.protobuf.Timestamp":
		if nanos := field(2).Int(); nanos >= 0 && nanos < 1e9 {
			v.Kind, v.Sec, v.Nsec = column.Instant, field(1).Int(), int32(nanos)
		}
	case n == "google.protobuf.Duration":
		sec, nanos := field(1).Int(), field(2).Int()
		if -1e9 < nanos && nanos < 1e9 && !(sec > 0 && nanos < 0) && !(sec < 0 && nanos > 0) {
			v.Kind, v.Num = column.Number, float64(sec)+float64(nanos)/1e9
		}
	case strings.HasSuffix(n, "Value"):
		v = protoLeaf(d.Fields().ByNumber(1), field(1))
	}
	return v
}

// protoCase is a random file, a message in it, and paths.
type protoCase struct {
	*protoSource
	text   string
	of     protoreflect.MessageDescriptor
	paths  [][]column.Element
	kinds  []Kinds
	reader *Reader
}

func newProtoCase(t testing.TB, seed uint64) *protoCase {
	c := &protoCase{protoSource: &protoSource{Rand: rand.New(rand.NewPCG(seed, 2))}}
	c.syntax = c.pick("proto2", "proto3", "proto3", "2023")
	c.text = c.file()
	s, err := ParseProtobuf(c.text, nil)
	if err != nil {
		t.Fatalf("%s%v", c.text, err)
	}
	s, _ = s.MessageAt([]int{c.IntN(3)})
	c.of = s.proto.message
	c.paths = c.protoSource.paths(c.of, 1+c.IntN(10))
	var plan *Plan
	plan, c.kinds = s.Plan(c.paths)
	c.reader = NewReader(plan)
	return c
}

// compare compares the values that the reader finds in a message with those of the library. whole is true if the
// message is undamaged. read is true if both could read the message; found is the number of values that were found.
func (c *protoCase) compare(t *testing.T, value []byte, whole bool) (read bool, found int) {
	t.Helper()
	m := dynamicpb.NewMessage(c.of)
	err := unmarshalProto(value, m)
	ok := c.reader.Read(value)
	if err == errLibrary {
		return false, 0
	}
	if whole && err != nil {
		t.Fatalf("%s of %s: %x: the library: %v", c.of.FullName(), c.text, value, err)
	}
	if err != nil {
		return false, 0 // the reader checks less than the library
	}
	if !ok {
		t.Fatalf("%s of %s: %x is refused", c.of.FullName(), c.text, value)
	}
	for i, p := range c.paths {
		want, got := protoReference(m, p), c.reader.Value(i)
		if got.Kind != column.Absent {
			found++
		}
		if !c.kinds[i].Has(got.Kind) && got.Kind != column.Other && (got.Kind != column.Absent || c.kinds[i] != 0) {
			t.Fatalf("%s of %s: path %v has kind %d, which is not in the announced set "+
				"%b", c.of.FullName(), c.text, p, got.Kind, c.kinds[i])
		}
		if want.Kind == column.Text && !utf8.Valid(want.Text) {
			want.Kind = column.Other
		}
		if !same(got, &want) {
			t.Fatalf("%s of %s: %x: path %v: %+v, the library: %+v", c.of.FullName(), c.text, value, p, *got, want)
		}
	}
	return true, found
}

// damage returns a value unchanged, shortened, or with one bit flipped.
func damage(r *rand.Rand, value []byte) (_ []byte, whole bool) {
	switch {
	case r.IntN(3) > 0 || len(value) == 0:
		return value, true
	case r.IntN(2) == 0:
		return value[:r.IntN(len(value))], false
	}
	value[r.IntN(len(value))] ^= 1 << r.IntN(8)
	return value, false
}

var errLibrary = errors.New("the library panics")

// unmarshalProto calls the library's decoder. The decoder panics if the key of a map's entry is repeated with another
// wire type.
func unmarshalProto(value []byte, m proto.Message) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = errLibrary
		}
	}()
	return proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(value, m)
}

// TestProtoReference: for random files, paths and messages the reader finds the values that the library decodes.
func TestProtoReference(t *testing.T) {
	read, found := 0, 0
	for seed := range uint64(60) {
		c := newProtoCase(t, seed)
		for range 60 {
			value, whole := damage(c.Rand, c.encode(nil, c.of, 5))
			ok, n := c.compare(t, value, whole)
			if found += n; ok {
				read++
			}
		}
	}
	if read < 2000 || found < 3000 {
		t.Errorf("only %d messages were read and %d values found", read, found)
	}
}

// FuzzProtoReference does the same with arbitrary bytes as the message. Its first input is the seed of the file.
func FuzzProtoReference(f *testing.F) {
	cases := map[uint8]*protoCase{}
	of := func(t testing.TB, file uint8) *protoCase {
		if cases[file] == nil {
			cases[file] = newProtoCase(t, uint64(file))
		}
		return cases[file]
	}
	for file := range uint8(20) {
		c := of(f, file)
		f.Add(file, c.encode(nil, c.of, 3))
	}
	f.Add(uint8(0xff), []byte("\xf3\x25\xc8\x95\x80\xf4\x30\x30\xf4\x25")) // a large field number in a group
	f.Fuzz(func(t *testing.T, file uint8, value []byte) { of(t, file).compare(t, value, false) })
}

// TestJSONNames: a field without a JSON name gets the default JSON name.
func TestJSONNames(t *testing.T) {
	for _, name := range []string{"a", "two_words", "_x", "a__b", "a_1", "a_B", "trailing_", "camelCase"} {
		f := &descriptorpb.FieldDescriptorProto{Name: &name}
		nameFields([]*descriptorpb.FieldDescriptorProto{f})
		file := mustProto(t, `syntax = "proto3"; message M { int32 `+name+` = 1; }`).proto.file
		if want := file.Messages().Get(0).Fields().Get(0).JSONName(); f.GetJsonName() != want {
			t.Errorf("%s is %q, want %q", name, f.GetJsonName(), want)
		}
	}
	field := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number,
			Type:  descriptorpb.FieldDescriptorProto_TYPE_INT32.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	}
	data, err := proto.Marshal(
		&descriptorpb.FileDescriptorProto{Name: proto.String("f"), Syntax: proto.String("proto3"),
			MessageType: []*descriptorpb.DescriptorProto{
				{Name: proto.String("M"), Field: []*descriptorpb.FieldDescriptorProto{field("a", 1), field("b", 2)}}}})
	if err != nil {
		t.Fatal(err)
	}
	mustProto(t, base64.StdEncoding.EncodeToString(data))
}
