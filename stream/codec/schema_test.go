package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/schema"
)

// registry is a Resolver backed by a map. Ids in wait are found only by Resolve, and only for that call.
type registry struct {
	mu    sync.Mutex
	have  map[int32]*schema.Schema
	wait  map[int32]*schema.Schema
	asked [][]int32
}

func (r *registry) Known(id int32) (*schema.Schema, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.have[id]
	return s, ok
}

func (r *registry) Resolve(ids []int32) map[int32]*schema.Schema {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, slices.Clone(ids))
	found := map[int32]*schema.Schema{}
	for _, id := range ids {
		if s := r.wait[id]; s != nil {
			found[id] = s
		}
	}
	return found
}

func mustSchema(t testing.TB, format, text string) *schema.Schema {
	t.Helper()
	parse := map[string]func(string, []schema.Reference) (*schema.Schema, error){schema.Avro: schema.ParseAvro,
		schema.Protobuf: schema.ParseProtobuf, schema.JSON: schema.ParseJSON}[format]
	s, err := parse(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func framed(id uint32, of ...string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), strings.Join(of, "")...)
}

const (
	one = "\x00\x00\x00\x00\x00\x00\xf0\x3f" // a float64
	two = "\x00\x00\x00\x00\x00\x00\x00\x40"
)

// theRegistry has a few schemas of each format.
func theRegistry(t testing.TB) *registry {
	avro := func(fields string) *schema.Schema {
		return mustSchema(t, schema.Avro, `{"type": "record", "name": "R", "fields": [`+fields+`]}`)
	}
	a, b := `{"name": "a", "type": "double"}`, `{"name": "b", "type": ["null", "double"]}`
	return &registry{have: map[int32]*schema.Schema{
		1: avro(a + "," + b),
		2: avro(b + `, {"name": "x", "type": "string"}, ` + a),
		3: avro(a),
		4: avro(a + `, {"name": "b", "type": "string"}`),
		5: avro(a + `, {"name": "b", "type": "null"}`),
		6: avro(a + `, {"name": "b", "type": ["string", "double"]}`),
		10: mustSchema(t, schema.Protobuf,
			`syntax = "proto3"; message M { double a = 1; optional double b = 2; message N { double b = 1; double a = 2; } } message O { double a = 1; } message P { double a = 1; string b = 2; }`),
		20: mustSchema(t, schema.JSON, `{"properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]}}}`),
		21: mustSchema(t, schema.JSON, `{"properties": {"a": {"type": "number"}}}`),
		22: mustSchema(t, schema.JSON, `{"properties": {"a": {"type": "number"}, "b": {"type": "string"}}}`),
	}}
}

// The result for a record depends on its frame, its schema, and its bytes.
func TestSchemaCodec(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		codec string
		value []byte
		want  Reason
		row   [2]float64
	}{
		{"avro", framed(1, one, "\x02", two), Decoded, [2]float64{1, 2}},
		{"avro", framed(2, "\x02", two, "\x06abc", one), Decoded, [2]float64{1, 2}},
		{"avro", framed(6, one, "\x02", two), Decoded, [2]float64{1, 2}},
		{"avro", framed(6, one, "\x00\x06abc"), NotNumber, [2]float64{}},
		{"avro", framed(1, one, "\x00"), Missing, [2]float64{}},
		{"avro", framed(1, one, "\x02", "\x00\x00\x00\x00\x00\x00\xf0\x7f"), NotFinite, [2]float64{}},
		{"avro", framed(1, one), Malformed, [2]float64{}},
		{"avro", framed(1, one, "\x02", two, "\x00"), Malformed, [2]float64{}},
		{"avro", framed(3, one), NoColumn, [2]float64{}},
		{"avro", framed(4, one, "\x06abc"), WrongType, [2]float64{}},
		{"avro", framed(5, one), WrongType, [2]float64{}},
		{"avro", framed(99, one), NoSchema, [2]float64{}},
		{"avro", framed(10, "\x00"), NoSchema, [2]float64{}}, // the schema has another format
		{"avro", framed(math.MaxUint32, one), NoSchema, [2]float64{}},
		{"avro", framed(1<<31+1, one, "\x02", two), NoSchema, [2]float64{}},
		{"avro", []byte("\x01\x00\x00\x00\x01" + one + "\x02" + two), NoSchema, [2]float64{}},
		{"avro", []byte("\x00\x00\x00\x00"), NoSchema, [2]float64{}},
		{"avro", []byte{}, NoSchema, [2]float64{}},
		{"avro", nil, Null, [2]float64{}},
		{"protobuf", framed(10, "\x00", "\x09", one, "\x11", two), Decoded, [2]float64{1, 2}},
		{"protobuf", framed(10, "\x02\x00", "\x09", one, "\x11", two), Decoded, [2]float64{1, 2}},
		{"protobuf", framed(10, "\x00", "\x11", two), Decoded, [2]float64{0, 2}},
		{"protobuf", framed(10, "\x00", "\x09", one), Missing, [2]float64{}},
		{"protobuf", framed(10, "\x04\x00\x00", "\x09", two, "\x11", one), Decoded, [2]float64{1, 2}},
		{"protobuf", framed(10, "\x04\x00\x00"), Decoded, [2]float64{}},
		{"protobuf", framed(10, "\x02\x02", "\x09", one), NoColumn, [2]float64{}},
		{"protobuf", framed(10, "\x02\x04", "\x09", one), WrongType, [2]float64{}},
		{"protobuf", framed(10, "\x00", "\x09"), Malformed, [2]float64{}},
		// there is no fourth message
		{"protobuf", framed(10, "\x02\x06", "\x09", one), NoSchema, [2]float64{}},
		{"protobuf", framed(10, "\x01"), NoSchema, [2]float64{}},                                     // -1 indexes
		{"protobuf", framed(10, "\x02\x01"), NoSchema, [2]float64{}},                                 // message -1
		{"protobuf", framed(10, "\x80\x00", "\x09", one, "\x11", two), NoSchema, [2]float64{}},       // 0 in two bytes
		{"protobuf", framed(10, "\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"), NoSchema, [2]float64{}}, // 2⁶³-1 indexes
		{"protobuf", framed(10, strings.Repeat("\x42", 40)), NoSchema, [2]float64{}},
		{"protobuf", framed(10), NoSchema, [2]float64{}},
		{"protobuf", framed(10, "\x04\x00"), NoSchema, [2]float64{}},
		{"json-schema", framed(20, `{"a": 1, "b": 2}`), Decoded, [2]float64{1, 2}},
		{"json-schema", framed(20, `{"a": 1, "b": null}`), Missing, [2]float64{}},
		{"json-schema", framed(20, `{"a": 1, "b": "2"}`), NotNumber, [2]float64{}},
		{"json-schema", framed(20, `{"a": 1, "b": 2`), Malformed, [2]float64{}},
		{"json-schema", framed(21, `{"a": 1, "b": 2}`), NoColumn, [2]float64{}},
		{"json-schema", framed(22, `{"a": 1, "b": 2}`), WrongType, [2]float64{}},
		{"json-schema", []byte(`{"a": 1, "b": 2}`), NoSchema, [2]float64{}},
	} {
		f := Format{Name: c.codec, Columns: []string{"a", "b"}, Schemas: theRegistry(t)}
		// The record is decoded alone, after an intact record, and after itself.
		whole := map[string][]byte{"avro": framed(1, one, "\x02", two), "protobuf": framed(10, "\x00", "\x11", two),
			"json-schema": framed(20, `{"a": 1, "b": 2}`)}[c.codec]
		d, err := NewDecoder(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		b := &Batch{}
		b.Records = []Record{{Value: c.value}, {Value: whole}, {Value: c.value}, {Value: c.value}}
		d.Decode(b)
		for _, i := range []int{0, 2, 3} {
			if b.Reasons[i] != c.want || c.want == Decoded && [2]float64(b.Row(i)) != c.row {
				t.Errorf("%s %q: %v %v, want %v %v", c.codec, c.value, b.Reasons[i], b.Row(i), c.want, c.row)
			}
			if want := frameID(c.value); b.Schemas[i] != want {
				t.Errorf("%s %q: of schema %d, want %d", c.codec, c.value, b.Schemas[i], want)
			}
		}
		if b.Reasons[1] != Decoded {
			t.Errorf("behind %q a record is %v", c.value, b.Reasons[1])
		}
		// A codec without a decoder asks the registry.
		own, err := f.Codec()
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float64, 2)
		if r := own.Decode(&Record{Value: c.value}, row); r != c.want || [2]float64(row) != c.row {
			t.Errorf("%s %q: %v %v, want %v %v", c.codec, c.value, r, row, c.want, c.row)
		}
	}
}

// With a single schema, records have no frame; rows can be restricted to one Protobuf message.
func TestSchemaPlain(t *testing.T) {
	t.Parallel()
	have := theRegistry(t).have
	nested, _ := have[10].Message("M.N")
	decode := func(f Format, value string) (Reason, []float64) {
		t.Helper()
		f.Columns = []string{"a", "b"}
		d, err := NewDecoder(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		b := &Batch{}
		b.Records = []Record{{Value: []byte(value)}}
		d.Decode(b)
		if (b.Schemas != nil) != (f.Schemas != nil) {
			t.Errorf("%s: schemas %v", f.Name, b.Schemas)
		}
		return b.Reasons[0], b.Row(0)
	}
	for _, c := range []struct {
		f     Format
		value string
		want  Reason
	}{
		{Format{Name: "avro", Schema: have[1]}, one + "\x02" + two, Decoded},
		{Format{Name: "avro", Schema: have[3]}, one, NoColumn},
		{Format{Name: "avro", Schema: have[1]}, "", Malformed},
		{Format{Name: "protobuf", Schema: nested}, "\x09" + two + "\x11" + one, Decoded},
		{Format{Name: "json-schema", Schema: have[20]}, `{"a": 1, "b": 2}`, Decoded},
		{Format{Name: "protobuf", Schemas: theRegistry(t), Message: "M.N"},
			string(framed(10, "\x04\x00\x00\x09", two, "\x11", one)), Decoded},
		{Format{Name: "protobuf", Schemas: theRegistry(t), Message: "M.N"},
			string(framed(10, "\x00\x09", one, "\x11", two)), NoSchema},
	} {
		if r, row := decode(c.f, c.value); r != c.want || r == Decoded && (row[0] != 1 || row[1] != 2) {
			t.Errorf("%s %q: %v %v, want %v", c.f.Name, c.value, r, row, c.want)
		}
	}
	for _, f := range []Format{{Name: "avro"}, {Name: "avro", Schema: have[20]}, {Name: "protobuf", Schema: have[1]}} {
		f.Columns = []string{"a"}
		if _, err := NewDecoder(f, 1); err == nil || !strings.Contains(err.Error(), "codec: needs a schema") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// All unknown ids of a batch are looked up at once, before anything is decoded. Each batch looks up again those that
// were not found.
func TestSchemaResolve(t *testing.T) {
	t.Parallel()
	r := theRegistry(t)
	late := r.have[1]
	delete(r.have, 1)
	f := Format{Name: "avro", Columns: []string{"a", "b"}, Schemas: r, User: "field:x"}
	d, err := NewDecoder(f, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.TagUsers(new([persons.KeyBytes]byte)); err != nil {
		t.Fatal(err)
	}
	b := &Batch{}
	b.Records = []Record{{Value: framed(99)}, {Value: framed(1, one, "\x02", two)}, {Value: framed(3, one)},
		{Value: framed(99)}, {Value: framed(98)}, {}, {Value: framed(1, one, "\x02", two)}}
	d.Decode(b)
	if want := []Reason{NoSchema, NoSchema, NoColumn, NoSchema, NoSchema, Null,
		NoSchema}; !slices.Equal(b.Reasons, want) {
		t.Errorf("%v, want %v", b.Reasons, want)
	}
	r.wait = map[int32]*schema.Schema{1: late}
	d.Decode(b)
	if b.Reasons[1] != Decoded || b.Reasons[6] != Decoded || b.Reasons[0] != NoSchema {
		t.Errorf("%v: the schemas found now are not used", b.Reasons)
	}
	// This lookup does not affect other records, even in codecs that have used the schema.
	all := b.Records
	b.Records, r.wait = all[1:2], nil
	if d.Decode(b); b.Reasons[0] != NoSchema {
		t.Errorf("%v: an earlier record's question decided about a later one", b.Reasons[0])
	}
	r.have[1] = late
	if d.Decode(b); b.Reasons[0] != Decoded {
		t.Errorf("%v: the schema known by now is not used", b.Reasons[0])
	}
	if want := [][]int32{{1, 98, 99}, {1, 98, 99}, {1}}; !slices.EqualFunc(r.asked, want, slices.Equal) {
		t.Errorf("asked for %v, want %v", r.asked, want)
	}
	b.Release()
	if b.Schemas != nil {
		t.Error("a released batch has ids")
	}
}

// The same holds for a codec without a decoder.
func TestSchemaResolveAlone(t *testing.T) {
	t.Parallel()
	r := theRegistry(t)
	r.wait = map[int32]*schema.Schema{1: r.have[1]}
	delete(r.have, 1)
	codec, err := Format{Name: "avro", Columns: []string{"a", "b"}, Schemas: r}.Codec()
	if err != nil {
		t.Fatal(err)
	}
	rec, row := &Record{Value: framed(1, one, "\x02", two)}, make([]float64, 2)
	for i, want := range []Reason{Decoded, NoSchema, NoSchema} {
		if why := codec.Decode(rec, row); why != want {
			t.Errorf("record %d: %v, want %v", i, why, want)
		}
		r.wait = nil
	}
}

// A codec keeps only a limited number of matched schemas, no matter how many schemas records have.
func TestSchemaFits(t *testing.T) {
	t.Parallel()
	r := theRegistry(t)
	for id := range int32(maxFits + 50) {
		r.have[id] = r.have[1]
	}
	codec, err := Format{Name: "avro", Columns: []string{"a", "b"}, Schemas: r}.Codec()
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float64, 2)
	for id := range uint32(maxFits + 50) {
		if why := codec.Decode(&Record{Value: framed(id, one, "\x02", two)}, row); why != Decoded || row[1] != 2 {
			t.Fatalf("of schema %d: %v %v", id, why, row)
		}
	}
	if n := len(codec.(*schemaCodec).fits); n > maxFits {
		t.Errorf("%d schemas are kept ready", n)
	}
}

// A schema that becomes known while a batch is decoded changes nothing in that batch.
type lateRegistry struct {
	*registry
	looks int
}

func (r *lateRegistry) Known(id int32) (*schema.Schema, bool) {
	r.looks++
	if r.looks <= 1 { // before the lookup
		return nil, false
	}
	return r.registry.Known(id)
}

func TestSchemaSnapshot(t *testing.T) {
	t.Parallel()
	d, err := NewDecoder(
		Format{Name: "avro", Columns: []string{"a", "b"}, Schemas: &lateRegistry{registry: theRegistry(t)}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	b := &Batch{}
	b.Records = []Record{{Value: framed(1, one, "\x02", two)}, {Value: framed(1, one, "\x02", two)}}
	for i, want := range []Reason{NoSchema, Decoded} {
		if d.Decode(b); b.Reasons[0] != want || b.Reasons[1] != want {
			t.Errorf("batch %d: %v, want %v", i, b.Reasons, want)
		}
	}
}

// Columns of all types find the values that schemas have for them, and Compare agrees with the decoder.
func TestSchemaColumns(t *testing.T) {
	t.Parallel()
	s := mustSchema(t, schema.Avro, `{"type": "record", "name": "R", "fields": [
		{"name": "n", "type": ["null", "int"]}, {"name": "ok", "type": "boolean"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
		{"name": "unit", "type": {"type": "enum", "name": "E", "symbols": ["C", "F"]}}, {"name": "of", "type": {"type": "array", "items": {"type": "map", "values": "double"}}}, {"name": "u", "type": "string"}]}`)
	f := Format{Name: "avro", Schema: s, Columns: []string{"n", "ok", "hour", "unit", "code", "x", "none"},
		User: "field:u", Specs: []column.Spec{
			{Name: "n", Default: 7.0}, {Name: "ok", Type: "bool"},
			{Name: "hour", Path: "at", Type: "timestamp", Take: "hour"},
			{Name: "unit", Type: "category", Categories: []string{"C", "F"}},
			{Name: "code", Path: "unit", Type: "enum"}, {Name: "x", Path: "of[1].k"}, {Name: "none", Default: 3.0}}}
	all, err := f.Compare(s)
	if err != nil || all != nil {
		t.Fatalf("%v, %v", all, err)
	}
	d, err := NewDecoder(f, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.TagUsers(new([persons.KeyBytes]byte)); err != nil {
		t.Fatal(err)
	}
	at := string(binary.AppendVarint(nil, 1700000000000)) // 22:13:20
	b := &Batch{}
	b.Records = []Record{
		{Value: []byte("\x00\x01" + at + "\x02" + "\x04\x00\x02\x02k" + two + "\x00\x00" + "\x06bob")},
		{Value: []byte("\x02\x04\x00" + at + "\x00" + "\x04\x00\x00\x00" + "\x06bob")}, // without x
		{Value: []byte("\x02\x04\x00" + at + "\x00" + "\x04\x00\x00\x00" + "\x06ann")},
	}
	d.Decode(b)
	if want := []float64{7, 1, 22, 0, 1, 1, 2, 3}; b.Reasons[0] != Decoded || !slices.Equal(b.Row(0), want) {
		t.Errorf("%v %v, want %v", b.Reasons[0], b.Row(0), want)
	}
	if b.Reasons[1] != Missing || b.Tag(0) != b.Tag(1) || b.Tag(0) == b.Tag(2) || b.Tag(0) == (persons.Tag{}) {
		t.Errorf("%v, tags %x", b.Reasons, b.Tags)
	}
	// The same person has the same tag in all formats.
	j, err := NewDecoder(Format{Name: "json", Columns: []string{"a"}, User: "field:u"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.TagUsers(new([persons.KeyBytes]byte)); err != nil {
		t.Fatal(err)
	}
	k := &Batch{}
	k.Records = []Record{{Value: []byte(`{"a": 1, "u": "bob"}`)}}
	if j.Decode(k); k.Tag(0) != b.Tag(0) {
		t.Error("one person has two tags")
	}
}

// Compare reports a column if and only if the decoder refuses all records because of this column.
func TestCompare(t *testing.T) {
	t.Parallel()
	for id, s := range theRegistry(t).have {
		f := Format{Name: s.Format(), Columns: []string{"a", "b"}, Schemas: theRegistry(t), User: "field:b"}
		all, err := f.Compare(s)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(all)
		want := map[int32]string{
			1: "[key: the schema has null or number there]", 2: "[key: the schema has null or number there]",
			3: "[b: the schema has no such path key: the schema has no such path]",
			4: "[b: the schema has string there, for columns of type \"category\", \"decimal\" or \"timestamp\"]",
			5: "[b: the schema has null there key: the schema has null there]", 6: "[]",
			10: "[key: the schema has null or number there]",
			20: "[]", 21: "[b: the schema has no such path key: the schema has no such path]",
			22: "[b: the schema has null or string there, for columns of type \"category\", \"decimal\" or " +
				"\"timestamp\"]",
		}[id]
		if got != want {
			t.Errorf("schema %d: %s, want %s", id, got, want)
		}
		f.Name = map[bool]string{true: "json-schema", false: "avro"}[f.Name == "avro"]
		if all, err := f.Compare(s); err != nil || len(all) != 1 || all[0].Reason != NoSchema {
			t.Errorf("schema %d for %s: %v, %v", id, f.Name, all, err)
		}
	}
	p := theRegistry(t).have[10]
	for message, want := range map[string]string{"M": "[]", "M.N": "[]", "O": "[b: the schema has no such path]",
		"P": "[b: " +
			"the schema has string there, for columns of type \"category\", \"decimal\" or \"timestamp\"]",
		"Q": "[the schema has another format, or lacks the message]"} {
		all, err := Format{Name: "protobuf", Columns: []string{"a", "b"}, Message: message}.Compare(p)
		if err != nil || fmt.Sprint(all) != want {
			t.Errorf("%s: %v, %v, want %s", message, all, err, want)
		}
	}
}

// TestSchemaUnusable: a schema for which no plan can be made gives no rows.
func TestSchemaUnusable(t *testing.T) {
	t.Parallel()
	c := &schemaCodec{}
	if why := c.fitTo(&schema.Schema{}).why; why != NoSchema {
		t.Errorf("its records are %v", why)
	}
}

// Rows do not depend on the number of goroutines that decode, nor on neighbouring records.
func TestSchemaParallel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(17, 18))
	b := &Batch{}
	for range 9000 {
		value := framed(uint32(1+rng.IntN(7)), one, "\x02", two)
		if rng.IntN(5) == 0 {
			value[rng.IntN(len(value))] ^= 1 << rng.IntN(8)
		}
		b.Records = append(b.Records, kafka.Record{Value: value})
		b.Bytes += len(value)
	}
	f := Format{Name: "avro", Columns: []string{"a", "b"}, Schemas: theRegistry(t)}
	alone, err := f.Codec()
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float64, 2)
	for _, workers := range []int{1, 3} {
		d, err := NewDecoder(f, workers)
		if err != nil {
			t.Fatal(err)
		}
		d.Decode(b)
		for i := range b.Records {
			if r := alone.Decode(&b.Records[i], row); r != b.Reasons[i] ||
				r == Decoded && !slices.Equal(row, b.Row(i)) {
				t.Fatalf("%d workers: record %x: %v %v, alone %v %v", workers, b.Records[i].Value, b.Reasons[i],
					b.Row(i), r, row)
			}
		}
	}
}

// Decoding allocates nothing per record, with any schema.
func TestSchemaNoAllocation(t *testing.T) {
	f := Format{Columns: []string{"a", "b"}, Schemas: theRegistry(t), User: "field:b"}
	row := make([]float64, 2)
	for name, values := range map[string][][]byte{
		"avro": {framed(1, one, "\x02", two), framed(6, one, "\x00\x06abc"), framed(3, one), framed(1)},
		"protobuf": {framed(10, "\x00\x09", one, "\x11", two), framed(10, "\x02\x02"), framed(10, "\x00\x09"),
			framed(10, "\x01")},
		"json-schema": {framed(20, `{"a": 1, "b": null}`), framed(21, `{"a": 1}`)},
	} {
		if f.Name = name; name == "json-schema" {
			f.User = ""
		}
		codec, err := f.Codec()
		if err != nil {
			t.Fatal(err)
		}
		rec := &Record{}
		if n := testing.AllocsPerRun(50, func() {
			for _, rec.Value = range values {
				codec.Decode(rec, row)
			}
		}); n != 0 {
			t.Errorf("%s: %g allocations", name, n)
		}
		f.User = "field:b"
	}
}

// FuzzSchemaCodec: any bytes get a valid reason, with or without a frame.
func FuzzSchemaCodec(f *testing.F) {
	var codecs []Codec
	for _, name := range []string{"avro", "protobuf", "json-schema"} {
		c, err := Format{Name: name, Columns: []string{"a", "b"}, Schemas: theRegistry(f)}.Codec()
		if err != nil {
			f.Fatal(err)
		}
		codecs = append(codecs, c)
	}
	f.Add(framed(1, one, "\x02", two))
	f.Add(framed(10, "\x04\x00\x00", "\x09", two, "\x11", one))
	f.Add(framed(20, `{"a": 1, "b": 2}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		row := make([]float64, 2)
		for _, c := range codecs {
			r := c.Decode(&Record{Value: value}, row)
			if r != Decoded && (row[0] != 0 || row[1] != 0) || r == Null && value != nil || r >= Reasons {
				t.Errorf("%v with %v", r, row)
			}
			for _, x := range row {
				if x-x != 0 {
					t.Errorf("a row has %v", x)
				}
			}
		}
	})
}
