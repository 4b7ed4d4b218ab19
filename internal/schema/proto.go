package schema

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/streamdp/streamdp/internal/column"
)

// protoSchema is a Protobuf file, together with the message type of the records.
type protoSchema struct {
	file    protoreflect.FileDescriptor
	message protoreflect.MessageDescriptor
}

// protoFile is the file name under which a schema is compiled. No import can have this name.
const protoFile = "the schema"

// knownProtos are files that producers import without listing them as references, because registries know them. The
// compiler itself knows the files of google.protobuf.
var knownProtos = map[string]string{
	"confluent/meta.proto": `syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }`,
	"confluent/type/decimal.proto": `syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }`,
}

// ParseProtobuf reads a .proto file, and the files that it imports. Each file is given as text, or as a
// FileDescriptorProto in base64. Files of google.protobuf need not be among the references; if they are, the references
// are ignored. The result describes the first message of the file; [Schema.Message] selects another one.
//
// Errors say what is invalid and in which file, that the files are too large to compile, or that there is no message.
func ParseProtobuf(text string, references []Reference) (*Schema, error) {
	files := &protoFiles{texts: maps.Clone(knownProtos), read: map[string]*protoParsed{}}
	for _, r := range references {
		files.texts[r.Name] = r.Text
	}
	files.texts[protoFile] = text
	if _, err := files.add(protoFile); err != nil {
		return nil, err
	}
	c := protocompile.Compiler{Resolver: files, MaxParallelism: 1}
	compiled, err := c.Compile(context.Background(), protoFile)
	if err != nil {
		return nil, err
	}
	// Only the descriptors are kept, because the compiler's own results also hold the syntax trees.
	var set descriptorpb.FileDescriptorSet
	collectFiles(&set, map[string]bool{}, compiled[0])
	built, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	file, err := built.FindFileByPath(protoFile)
	if err != nil {
		return nil, err
	}
	if file.Messages().Len() == 0 {
		return nil, fmt.Errorf("the file has no message")
	}
	return &Schema{format: Protobuf, proto: &protoSchema{file, file.Messages().Get(0)}}, nil
}

// serializedFile reads a file in the form in which some serializers register it: a FileDescriptorProto in base64. It
// returns nil for other text. A .proto file is never base64, because it has blanks and semicolons.
func serializedFile(text, path string) *descriptorpb.FileDescriptorProto {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(data) == 0 {
		return nil
	}
	file := &descriptorpb.FileDescriptorProto{}
	if proto.Unmarshal(data, file) != nil {
		return nil
	}
	file.Name, file.SourceCodeInfo = &path, nil
	nameFields(file.Extension)
	nameMessages(file.MessageType)
	return file
}

// nameMessages and nameFields set the JSON names of fields. Descriptors from Python programs lack them, and the
// compiler accepts a descriptor only if all fields have one.
func nameMessages(messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		nameFields(m.Field)
		nameFields(m.Extension)
		nameMessages(m.NestedType)
	}
}

func nameFields(fields []*descriptorpb.FieldDescriptorProto) {
	for _, f := range fields {
		if f.JsonName != nil {
			continue
		}
		var name []byte
		up := false
		for _, c := range []byte(f.GetName()) {
			if up && 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			if up = c == '_'; !up {
				name = append(name, c)
			}
		}
		f.JsonName = proto.String(string(name))
	}
}

// collectFiles adds a file to the set, after the files that it imports.
func collectFiles(set *descriptorpb.FileDescriptorSet, done map[string]bool, file protoreflect.FileDescriptor) {
	if done[file.Path()] {
		return
	}
	done[file.Path()] = true
	for i := range file.Imports().Len() {
		collectFiles(set, done, file.Imports().Get(i))
	}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
}

// Message returns the Protobuf schema of another message of the same file, which it finds by its full name. It returns
// false if there is none.
func (s *Schema) Message(name string) (*Schema, bool) {
	if s.format != Protobuf {
		return nil, false
	}
	found := messageNamed(s.proto.file.Messages(), protoreflect.FullName(name))
	if found == nil {
		return nil, false
	}
	return &Schema{format: Protobuf, proto: &protoSchema{s.proto.file, found}}, true
}

func messageNamed(all protoreflect.MessageDescriptors, name protoreflect.FullName) protoreflect.MessageDescriptor {
	for i := range all.Len() {
		m := all.Get(i)
		if m.FullName() == name {
			return m
		}
		if strings.HasPrefix(string(name), string(m.FullName())+".") {
			return messageNamed(m.Messages(), name)
		}
	}
	return nil
}

// MessageName returns the full name of a Protobuf schema's message, "" for other formats.
func (s *Schema) MessageName() string {
	if s.format != Protobuf {
		return ""
	}
	return string(s.proto.message.FullName())
}

// MessageAt returns the Protobuf schema of the message to which indexes lead: the first is the index of a message in
// the file, the next that of a message inside it, and so on. It reports false if they lead to no message.
func (s *Schema) MessageAt(indexes []int) (*Schema, bool) {
	if s.format != Protobuf || len(indexes) == 0 {
		return nil, false
	}
	all := s.proto.file.Messages()
	var m protoreflect.MessageDescriptor
	for _, i := range indexes {
		if i < 0 || i >= all.Len() {
			return nil, false
		}
		m = all.Get(i)
		all = m.Messages()
	}
	return &Schema{format: Protobuf, proto: &protoSchema{s.proto.file, m}}, true
}

// protoOp says how a field's value is stored.
type protoOp uint8

const (
	protoNothing protoOp = iota
	protoBool
	protoInt32
	protoInt64
	protoUint32
	protoUint64
	protoSint32
	protoSint64
	protoFloat
	protoDouble
	protoEnum
	protoText
	protoBytes
	protoSeconds // seconds of the instant in the slot
	protoNanos
	protoUnscaled // unscaled value of the decimal in the slot
	protoScale
	protoInside // a message with fields of its own
	protoGroup
	protoList
	protoMap
)

// protoMessage is the reader of a message at one node of the tree of paths.
type protoMessage struct {
	part
	mark   int           // index of the mark that records that the message has been seen
	fields []protoField  // dense and sparse find a field by its number
	dense  []int32       // index of a field by its number, -1 for none
	sparse map[int32]int // the same for larger field numbers
	first  []protoFirst  // values for the absent fields of a present message
}

// part is the range of a reader's memory for a message or list and everything inside it: slots from lo to hi-1, marks
// from markLo to markHi-1.
type part struct{ lo, hi, markLo, markHi int }

type protoFirst struct {
	slot  int
	value column.Value
}

// protoField is the reader of a field at one node of the tree of paths.
type protoField struct {
	op      protoOp
	wire    protowire.Type // wire type of one value
	packed  bool           // several values can follow one length
	slot    int            // slot for a number or text
	symbols map[int32][]byte
	message *protoMessage
	also    *protoField // reader that stores the same value in another slot
	oneof   []part      // other members of the oneof, which a value of this field clears
	// mark, and the fields below it, are for lists and maps. For a list: its count, and the needed elements by index.
	// For a map: the needed entries by key.
	mark  int
	items []protoItem
	last  int
	keyOp protoOp
	key   protowire.Type
	texts map[string]int
	ints  map[uint64]int
}

type protoItem struct {
	index int
	part
	field protoField
	first []protoFirst // values for a map's entry without a value
}

// protoCompiler builds a plan.
type protoCompiler struct {
	plan    *Plan
	symbols map[protoreflect.EnumDescriptor]map[int32][]byte
}

// message returns the reader of messages of type d at w. It adds the possible kinds of values at the slots of w and
// below to kinds.
func (c *protoCompiler) message(d protoreflect.MessageDescriptor, w *want, kinds []Kinds) *protoMessage {
	m := &protoMessage{mark: c.plan.marks, part: part{lo: w.lo, hi: w.hi, markLo: c.plan.marks}}
	c.plan.marks++
	parts := map[protoreflect.OneofDescriptor]map[int]part{} // needed members of each oneof, by their index in it
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		below := w.names[string(f.Name())]
		if below == nil {
			continue
		}
		before := c.plan.marks
		field := c.field(f, below, kinds)
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if parts[one] == nil {
				parts[one] = map[int]part{}
			}
			for k := range one.Fields().Len() {
				if one.Fields().Get(k) == f {
					parts[one][k] = part{below.lo, below.hi, before, c.plan.marks}
				}
			}
		}
		if !f.HasPresence() && !f.IsList() && !f.IsMap() {
			first := c.defaultOf(f)
			if below.slot >= 0 {
				m.first = append(m.first, protoFirst{below.slot, first})
			}
		} else {
			below.maybe(kinds)
		}
		m.add(f.Number(), field)
	}
	for one, all := range parts {
		m.addOneof(one, all)
	}
	if w.slot >= 0 {
		c.whole(d, m, w.slot, kinds)
	}
	m.markHi = c.plan.marks
	return m
}

// addOneof makes each member of a oneof clear the others when it is read. parts holds the needed members by their
// index.
func (m *protoMessage) addOneof(one protoreflect.OneofDescriptor, parts map[int]part) {
	places := slices.Sorted(maps.Keys(parts))
	var all []part
	for _, k := range places {
		all = append(all, parts[k])
	}
	for k := range one.Fields().Len() {
		f := one.Fields().Get(k)
		if m.field(uint64(f.Number())) == nil {
			op, wire := scalarOf(f.Kind())
			if op != protoGroup {
				op = protoNothing
			}
			m.add(f.Number(), protoField{op: op, wire: wire, slot: -1})
		}
		others := all
		if i, needed := slices.BinarySearch(places, k); needed {
			others = slices.Delete(slices.Clone(all), i, i+1)
		}
		m.field(uint64(f.Number())).oneof = others
	}
}

// whole makes m read the message itself as one value, for a path that ends at the message.
func (c *protoCompiler) whole(d protoreflect.MessageDescriptor, m *protoMessage, slot int, kinds []Kinds) {
	first := column.Value{Kind: column.Other}
	kinds[slot] |= kindsOf(column.Other)
	switch name := knownMessage(d); name {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		first.Kind = column.Instant
		m.alsoAdd(1, protoField{op: protoSeconds, wire: protowire.VarintType, slot: slot})
		m.alsoAdd(2, protoField{op: protoNanos, wire: protowire.VarintType, slot: slot})
		if name == "google.protobuf.Timestamp" {
			kinds[slot] |= kindsOf(column.Instant)
			c.plan.instants = append(c.plan.instants, slot)
		} else {
			kinds[slot] |= kindsOf(column.Number)
			c.plan.durations = append(c.plan.durations, slot)
		}
	case "confluent.type.Decimal":
		kinds[slot] |= kindsOf(column.Number)
		m.alsoAdd(1, protoField{op: protoUnscaled, wire: protowire.BytesType, slot: slot})
		m.alsoAdd(3, protoField{op: protoScale, wire: protowire.VarintType, slot: slot})
		c.plan.decimals = append(c.plan.decimals, slot)
	case "":
	default: // a wrapper
		value := d.Fields().ByNumber(1)
		first = c.defaultOf(value)
		f := c.scalar(value, slot, kinds)
		kinds[slot] &^= kindsOf(column.Other)
		m.alsoAdd(1, f)
	}
	m.first = append(m.first, protoFirst{slot, first})
}

// knownMessages are message types that stand for one value, with the kinds of the fields from which the value is read.
var knownMessages = map[protoreflect.FullName]map[protoreflect.FieldNumber]protoreflect.Kind{
	"google.protobuf.Timestamp":   {1: protoreflect.Int64Kind, 2: protoreflect.Int32Kind},
	"google.protobuf.Duration":    {1: protoreflect.Int64Kind, 2: protoreflect.Int32Kind},
	"confluent.type.Decimal":      {1: protoreflect.BytesKind, 3: protoreflect.Int32Kind},
	"google.protobuf.DoubleValue": {1: protoreflect.DoubleKind},
	"google.protobuf.FloatValue":  {1: protoreflect.FloatKind},
	"google.protobuf.Int64Value":  {1: protoreflect.Int64Kind},
	"google.protobuf.UInt64Value": {1: protoreflect.Uint64Kind},
	"google.protobuf.Int32Value":  {1: protoreflect.Int32Kind},
	"google.protobuf.UInt32Value": {1: protoreflect.Uint32Kind},
	"google.protobuf.BoolValue":   {1: protoreflect.BoolKind},
	"google.protobuf.StringValue": {1: protoreflect.StringKind},
}

// knownMessage returns the name of a message type that stands for one value, "" for any other. It also checks the
// fields, because anybody can give a message such a name.
func knownMessage(d protoreflect.MessageDescriptor) protoreflect.FullName {
	for number, kind := range knownMessages[d.FullName()] {
		f := d.Fields().ByNumber(number)
		if f == nil || f.Cardinality() == protoreflect.Repeated || f.Kind() != kind || f.ContainingOneof() != nil {
			return ""
		}
	}
	if knownMessages[d.FullName()] == nil {
		return ""
	}
	return d.FullName()
}

func (m *protoMessage) alsoAdd(number protowire.Number, f protoField) {
	if there := m.field(uint64(number)); there != nil {
		if there.op == protoNothing {
			*there = f
		} else {
			there.also = &f
		}
		return
	}
	m.add(number, f)
}

// denseNumbers is the limit below which field numbers are looked up in a slice instead of a map.
const denseNumbers = 256

func (m *protoMessage) add(number protowire.Number, f protoField) {
	k := len(m.fields)
	m.fields = append(m.fields, f)
	if number >= denseNumbers {
		if m.sparse == nil {
			m.sparse = map[int32]int{}
		}
		m.sparse[int32(number)] = k
		return
	}
	for len(m.dense) <= int(number) {
		m.dense = append(m.dense, -1)
	}
	m.dense[number] = int32(k)
}

func (m *protoMessage) field(number uint64) *protoField {
	if number < uint64(len(m.dense)) {
		if k := m.dense[number]; k >= 0 {
			return &m.fields[k]
		}
		return nil
	}
	if m.sparse != nil && number <= uint64(protowire.MaxValidNumber) {
		if k, ok := m.sparse[int32(number)]; ok {
			return &m.fields[k]
		}
	}
	return nil
}

// field returns the reader of a field at w.
func (c *protoCompiler) field(f protoreflect.FieldDescriptor, w *want, kinds []Kinds) protoField {
	switch {
	case f.IsMap():
		return c.mapField(f, w, kinds)
	case f.IsList():
		return c.listField(f, w, kinds)
	}
	return c.one(f, w, kinds)
}

// one returns the reader of one value of a field.
func (c *protoCompiler) one(f protoreflect.FieldDescriptor, w *want, kinds []Kinds) protoField {
	if f.Message() == nil {
		return c.scalar(f, w.slot, kinds)
	}
	field := protoField{op: protoInside, wire: protowire.BytesType, slot: -1, message: c.message(f.Message(), w, kinds)}
	if f.Kind() == protoreflect.GroupKind {
		field.op, field.wire = protoGroup, protowire.StartGroupType
	}
	return field
}

func (c *protoCompiler) scalar(f protoreflect.FieldDescriptor, slot int, kinds []Kinds) protoField {
	field := protoField{slot: slot}
	field.op, field.wire = scalarOf(f.Kind())
	kind := column.Number
	switch f.Kind() {
	case protoreflect.BoolKind:
		kind = column.Truth
	case protoreflect.StringKind:
		kind = column.Text
	case protoreflect.BytesKind:
		kind = column.Other
	case protoreflect.EnumKind:
		kind, field.symbols = column.Enum, c.symbolsOf(f.Enum())
	}
	if slot < 0 {
		field.op = protoNothing // the path continues inside a scalar
		return field
	}
	kinds[slot] |= kindsOf(kind)
	switch field.op {
	case protoBool, protoFloat, protoDouble, protoBytes:
	default:
		kinds[slot] |= mayKey
	}
	return field
}

func (c *protoCompiler) listField(f protoreflect.FieldDescriptor, w *want, kinds []Kinds) protoField {
	field := protoField{op: protoList, slot: w.slot, mark: c.plan.marks, last: -1}
	c.plan.marks++
	var element protoOp
	element, field.wire = scalarOf(f.Kind())
	field.packed = field.wire != protowire.BytesType && field.wire != protowire.StartGroupType
	for _, item := range w.items {
		before := c.plan.marks
		field.items = append(field.items, protoItem{index: item.index, field: c.one(f, item.want, kinds)})
		field.items[len(field.items)-1].part = part{item.lo, item.hi, before, c.plan.marks}
		field.last = item.index
		item.maybe(kinds)
	}
	field.keyOp = element
	if w.slot >= 0 {
		kinds[w.slot] |= kindsOf(column.Other)
	}
	return field
}

func (c *protoCompiler) mapField(f protoreflect.FieldDescriptor, w *want, kinds []Kinds) protoField {
	field := protoField{op: protoMap, wire: protowire.BytesType, slot: w.slot}
	field.keyOp, field.key = scalarOf(f.MapKey().Kind())
	for _, name := range sortedNames(w) {
		below := w.names[name]
		if field.keyOp == protoText {
			if field.texts == nil {
				field.texts = map[string]int{}
			}
			field.texts[name] = len(field.items)
		} else {
			key, ok := keyOf(field.keyOp, name)
			if !ok {
				continue
			}
			if field.ints == nil {
				field.ints = map[uint64]int{}
			}
			field.ints[key] = len(field.items)
		}
		before := c.plan.marks
		item := protoItem{field: c.one(f.MapValue(), below, kinds)}
		item.part = part{below.lo, below.hi, before, c.plan.marks}
		if f.MapValue().Message() == nil && below.slot >= 0 {
			first := c.defaultOf(f.MapValue())
			item.first = []protoFirst{{below.slot, first}}
		}
		field.items = append(field.items, item)
		below.maybe(kinds)
	}
	if w.slot >= 0 {
		kinds[w.slot] |= kindsOf(column.Other)
	}
	return field
}

// keyOf converts a map's key from text to the form in which keys are compared.
func keyOf(op protoOp, text string) (uint64, bool) {
	var key uint64
	var again string
	switch op {
	case protoBool:
		if text == "true" {
			key = 1
		}
		again = strconv.FormatBool(key == 1)
	case protoUint32, protoUint64:
		key, _ = strconv.ParseUint(text, 10, 64)
		again = strconv.FormatUint(key, 10)
	default:
		x, _ := strconv.ParseInt(text, 10, 64)
		key, again = uint64(x), strconv.FormatInt(x, 10)
	}
	return key, again == text
}

// scalarOf returns the operation that reads values of a kind, and their wire type.
func scalarOf(kind protoreflect.Kind) (protoOp, protowire.Type) {
	switch kind {
	case protoreflect.BoolKind:
		return protoBool, protowire.VarintType
	case protoreflect.EnumKind:
		return protoEnum, protowire.VarintType
	case protoreflect.Int32Kind:
		return protoInt32, protowire.VarintType
	case protoreflect.Int64Kind:
		return protoInt64, protowire.VarintType
	case protoreflect.Uint32Kind:
		return protoUint32, protowire.VarintType
	case protoreflect.Uint64Kind:
		return protoUint64, protowire.VarintType
	case protoreflect.Sint32Kind:
		return protoSint32, protowire.VarintType
	case protoreflect.Sint64Kind:
		return protoSint64, protowire.VarintType
	case protoreflect.Fixed32Kind:
		return protoUint32, protowire.Fixed32Type
	case protoreflect.Sfixed32Kind:
		return protoInt32, protowire.Fixed32Type
	case protoreflect.Fixed64Kind:
		return protoUint64, protowire.Fixed64Type
	case protoreflect.Sfixed64Kind:
		return protoInt64, protowire.Fixed64Type
	case protoreflect.FloatKind:
		return protoFloat, protowire.Fixed32Type
	case protoreflect.DoubleKind:
		return protoDouble, protowire.Fixed64Type
	case protoreflect.StringKind:
		return protoText, protowire.BytesType
	case protoreflect.BytesKind:
		return protoBytes, protowire.BytesType
	case protoreflect.GroupKind:
		return protoGroup, protowire.StartGroupType
	}
	return protoInside, protowire.BytesType
}

// symbolsOf returns the symbols of an enum by their numbers.
func (c *protoCompiler) symbolsOf(d protoreflect.EnumDescriptor) map[int32][]byte {
	if found := c.symbols[d]; found != nil {
		return found
	}
	symbols := map[int32][]byte{}
	c.symbols[d] = symbols
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		if symbols[int32(v.Number())] == nil { // keeps the first of several names for one number
			symbols[int32(v.Number())] = []byte(v.Name())
		}
	}
	return symbols
}

// defaultOf returns the value of an absent field without presence.
func (c *protoCompiler) defaultOf(f protoreflect.FieldDescriptor) (v column.Value) {
	switch f.Kind() {
	case protoreflect.BoolKind:
		v.Kind = column.Truth
	case protoreflect.StringKind:
		v.Kind = column.Text
	case protoreflect.BytesKind:
		v.Kind = column.Other
	case protoreflect.EnumKind:
		number := f.Default().Enum()
		v.Kind, v.Num, v.Text = column.Enum, float64(number), c.symbolsOf(f.Enum())[int32(number)]
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		setNumber(&v, 0)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		setUint(&v, 0)
	default:
		setInt(&v, 0)
	}
	return v
}

// set stores a value, given as bits, in its slot.
func (f *protoField) set(r *Reader, bits uint64) {
	v := &r.values[f.slot]
	switch f.op {
	case protoBool:
		v.Kind, v.Num = column.Truth, 0
		if bits != 0 {
			v.Num = 1
		}
	case protoInt32:
		setInt(v, int64(int32(bits)))
	case protoInt64:
		setInt(v, int64(bits))
	case protoUint32:
		setUint(v, uint64(uint32(bits)))
	case protoUint64:
		setUint(v, bits)
	case protoSint32:
		setInt(v, int64(int32(protowire.DecodeZigZag(bits&math.MaxUint32))))
	case protoSint64:
		setInt(v, protowire.DecodeZigZag(bits))
	case protoFloat:
		setNumber(v, float64(math.Float32frombits(uint32(bits))))
	case protoDouble:
		setNumber(v, math.Float64frombits(bits))
	case protoEnum:
		v.Kind, v.Num, v.Text = column.Enum, float64(int32(bits)), f.symbols[int32(bits)]
	case protoSeconds:
		v.Sec = int64(bits)
	case protoNanos:
		v.Nsec = int32(bits)
	case protoScale:
		v.Sec = int64(int32(bits))
	}
}

// setBytes stores bytes in their slot.
func (f *protoField) setBytes(r *Reader, content []byte) {
	switch v := &r.values[f.slot]; f.op {
	case protoText:
		setText(v, content)
	case protoBytes:
		setOther(v)
	case protoUnscaled:
		v.Text = content
	}
}
