package codec

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/schema"
)

// Resolver finds schemas by the ids in the frames of records.
type Resolver interface {
	// Known returns the schema of an id, if the resolver learned this id independently of any record. It does not wait,
	// and is safe for concurrent use. Once an id is known, it keeps its schema permanently.
	Known(id int32) (*schema.Schema, bool)
	// Resolve looks up schemas of ids that are not known, all together and in bounded time. It returns the schemas that
	// it found. A lookup never changes what Known returns, so the treatment of a record does not depend on a lookup
	// that an earlier record caused.
	Resolve(ids []int32) map[int32]*schema.Schema
}

// schemaIDs has the schemas of all ids in a decoder's records so far. All of the decoder's codecs read it. Only the
// decoder writes it, before the codecs start on a batch, so the treatment of a record does not depend on the timing of
// the codecs.
type schemaIDs struct {
	resolver Resolver
	known    map[int32]*schema.Schema // nil for a codec without a decoder; such a codec looks up each id
	found    map[int32]*schema.Schema // schemas found only by a lookup for this batch's records
}

// schema returns the schema of an id, or nil if it is not known. If once is true, the schema must not be kept for the
// next record.
func (s *schemaIDs) schema(id int32) (of *schema.Schema, once bool) {
	if s.known != nil {
		if of = s.known[id]; of == nil {
			of = s.found[id]
		}
		return of, false
	}
	if of, ok := s.resolver.Known(id); ok {
		return of, false
	}
	return s.resolver.Resolve([]int32{id})[id], true
}

// learn finds the schemas of a batch, and stores the ids in b.Schemas. It returns true if codecs must forget the
// schemas that were found only for the previous batch.
func (s *schemaIDs) learn(b *Batch) (stale bool) {
	stale, s.found = s.found != nil, nil
	var missing []int32
	var asked map[int32]bool
	last := int32(-1)
	for i := range b.Records {
		id := frameID(b.Records[i].Value)
		b.Schemas[i] = id
		if id == last || id < 0 || s.known[id] != nil || asked[id] {
			continue
		}
		last = id
		if found, ok := s.resolver.Known(id); ok {
			s.known[id] = found
			continue
		}
		if asked == nil {
			asked = map[int32]bool{}
		}
		asked[id] = true
		missing = append(missing, id)
	}
	if missing == nil {
		return stale
	}
	slices.Sort(missing)
	if found := s.resolver.Resolve(missing); len(found) > 0 {
		s.found = found
	}
	return stale
}

// frameBytes is the length of the frame before a record: a zero byte, then the schema id in big endian. The serializers
// of Confluent and others write such frames.
const frameBytes = 5

// frameID returns the id of a record's schema, or -1 if it has no frame.
func frameID(value []byte) int32 {
	if len(value) < frameBytes || value[0] != 0 {
		return -1
	}
	return max(-1, int32(binary.BigEndian.Uint32(value[1:])))
}

// maxNested is the maximum nesting depth of the definition of a Protobuf record's message.
const maxNested = 32

// messageIndexes reads the bytes after the frame of a Protobuf record, which say which message of the schema file the
// record is. They are the number of indexes and the indexes, or 0 for the first message. It returns the index at which
// the message begins, or -1 if the message indexes are not in their shortest form.
func messageIndexes(value []byte, indexes []int) (_ []int, next int) {
	read := func() int {
		x, n := binary.Varint(value[next:])
		if n <= 0 || n > 1 && value[next+n-1] == 0 || x < 0 || x > 1<<20 {
			return -1
		}
		next += n
		return int(x)
	}
	next = frameBytes
	count := read()
	if count < 0 || count > maxNested {
		return nil, -1
	}
	if count == 0 {
		return append(indexes, 0), next
	}
	for range count {
		i := read()
		if i < 0 {
			return nil, -1
		}
		indexes = append(indexes, i)
	}
	return indexes, next
}

// schemaCodec reads records with a schema: Avro, Protobuf, and JSON with a JSON Schema.
type schemaCodec struct {
	name    string
	message string // name of the only message that gives rows; "": any message does
	columns []schemaColumn
	width   int
	path    []column.Element // path of the user key; nil: none
	ids     *schemaIDs       // nil: records have no frame
	json    *jsonCodec       // reads the JSON documents
	user    userText

	fits map[string]*schemaFit // matched schemas, by frame
	// last is the frame of the previous record, and fit is its matched schema. They are cached because most records
	// have the same frame. Without frames, last is empty.
	last []byte
	fit  *schemaFit
}

type schemaColumn struct {
	made
	plain bool
}

// schemaFit is the result of matching the columns with one schema.
type schemaFit struct {
	reader *schema.Reader // nil for JSON
	why    Reason         // the reason why no record of the schema gives a row, or Decoded
}

// maxFits is the maximum number of schemaFits that a codec keeps.
const maxFits = 1024

// newSchemaCodec returns a codec that reads columns and, unless user is "", a user key.
func newSchemaCodec(f Format, columns []*column.Column, user string, faults *fault.List) *schemaCodec {
	c := &schemaCodec{name: f.Name, message: f.Message, width: widthOf(columns), fits: map[string]*schemaFit{}}
	for _, m := range places(columns) {
		c.columns = append(c.columns, schemaColumn{m, m.Plain()})
	}
	if user != "" {
		path, ok := column.Parse(user)
		faults.Check(ok, "key",
			`must be "field:" and a path "a.b[0].c", where a backslash makes . \ [ or ] part of a name`, user)
		c.path = path
	}
	if f.Name == schema.JSON {
		c.json = newJSON(columns, user, faults)
	}
	switch {
	case f.Schemas != nil:
		c.ids = &schemaIDs{resolver: f.Schemas}
	case f.Schema != nil && f.Schema.Format() == f.Name:
		c.fit = c.fitTo(f.Schema)
	default:
		faults.Add("codec", "needs a schema file, or a registry with schemas", f.Name)
	}
	return c
}

func (c *schemaCodec) text() *userText {
	if c.json != nil {
		return &c.json.user
	}
	return &c.user
}

func (c *schemaCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.width)
	if rec.Value == nil {
		return Null
	}
	return end(dst, c.decode(rec.Value, dst))
}

func (c *schemaCodec) decode(value []byte, dst []float64) Reason {
	c.user.clear()
	fit, n := c.fit, len(c.last)
	if fit == nil || n > len(value) || string(value[:n]) != string(c.last) {
		if fit, n = c.unframe(value); fit == nil {
			return NoSchema
		}
	}
	value = value[n:]
	switch {
	case fit.why != Decoded:
		return fit.why
	case c.json != nil:
		return c.json.decode(value, dst)
	}
	r := fit.reader
	if !r.Read(value) {
		return Malformed
	}
	why := Decoded
	for i := range c.columns {
		of, v := &c.columns[i], r.Value(i)
		if of.plain && v.Kind == column.Number && v.Num-v.Num == 0 {
			dst[of.at] = v.Num
			continue
		}
		if why = of.put(dst, v); why != Decoded {
			break
		}
	}
	if c.path != nil {
		c.user.raw = r.Key()
	}
	r.Release()
	return why
}

// unframe returns the schemaFit for the schema in a record's frame, and the index at which the data after the frame
// begins. It returns nil if there is no frame, or if its schema is unknown.
func (c *schemaCodec) unframe(value []byte) (fit *schemaFit, n int) {
	id := frameID(value)
	if id < 0 {
		return nil, 0
	}
	var room [maxNested]int
	indexes := room[:0]
	n = frameBytes
	if c.name == schema.Protobuf {
		if indexes, n = messageIndexes(value, indexes); n < 0 {
			return nil, 0
		}
	}
	if fit = c.fits[string(value[:n])]; fit == nil {
		s, once := c.ids.schema(id)
		if s == nil || s.Format() != c.name {
			return nil, 0
		}
		if c.name == schema.Protobuf {
			var ok bool
			if s, ok = s.MessageAt(indexes); !ok || c.message != "" && s.MessageName() != c.message {
				return nil, 0
			}
		}
		fit = c.fitTo(s)
		if once {
			return fit, n
		}
		if len(c.fits) >= maxFits {
			clear(c.fits)
		}
		c.fits[string(value[:n])] = fit
	}
	c.last, c.fit = append(c.last[:0], value[:n]...), fit
	return fit, n
}

// forget drops the schemaFits of schemas that were looked up by id.
func (c *schemaCodec) forget() {
	if c.ids != nil {
		c.last, c.fit = c.last[:0], nil
		clear(c.fits)
	}
}

// fitTo matches the columns with a schema, and compiles a reader for them.
func (c *schemaCodec) fitTo(s *schema.Schema) *schemaFit {
	paths := make([][]column.Element, len(c.columns))
	for i := range c.columns {
		paths[i] = c.columns[i].Path()
	}
	plan, kinds, _, err := s.PlanWithKey(paths, c.path)
	if err != nil {
		return &schemaFit{why: NoSchema}
	}
	fit := &schemaFit{}
	for i := range c.columns {
		if fit.why == Decoded {
			fit.why = fits(c.columns[i].Column, kinds[i])
		}
	}
	if plan != nil {
		fit.reader = schema.NewReader(plan)
	}
	return fit
}

// fits checks a column against the kinds of values that a schema has at its path. It returns the reason why no record
// can have a number for the column; Decoded if records can.
func fits(c *column.Column, kinds schema.Kinds) Reason {
	for k := column.Absent + 1; k < column.Kinds; k++ {
		if kinds.Has(k) && c.Takes(k) {
			return Decoded
		}
	}
	only := !kinds.Any() // true if the schema has no such path, or only null there
	switch {
	case only && c.Put(make([]float64, c.Width()), &column.Value{}) == column.OK:
		return Decoded // the column has a default
	case kinds == 0:
		return NoColumn
	}
	return WrongType
}

// Mismatch is a column for which no record of a schema has a number.
type Mismatch struct {
	// Column is the column's name, "key" for the user key, or "" for the schema as a whole.
	Column string
	// Reason is NoColumn if the schema has no such path, and WrongType if no value at the path is valid for the column.
	// It is NoSchema if the schema has another format than the records, or does not have their message.
	Reason Reason
	// Found are the kinds of values that the schema has at the path.
	Found schema.Kinds
}

// String describes the mismatch in the form of a configuration fault.
func (m Mismatch) String() string {
	switch {
	case m.Column == "":
		return "the schema has another format, or lacks the message"
	case m.Reason == NoColumn:
		return m.Column + ": the schema has no such path"
	}
	return m.Column + ": the schema has " + m.Found.String() + " there" + m.hint()
}

// typesOf are the column types that accept values of a kind.
var typesOf = map[column.Kind]string{
	column.Number:  `"number"`,
	column.Text:    `"category", "decimal" or "timestamp"`,
	column.Truth:   `"bool" or "category"`,
	column.Enum:    `"enum" or "category"`,
	column.Instant: `"timestamp"`,
}

// hint suggests column types that could read the values in the schema. It is empty for a user key, and if no type
// could.
func (m Mismatch) hint() string {
	if m.Column == "key" {
		return ""
	}
	for k := range column.Kinds {
		if types := typesOf[k]; types != "" && m.Found.Has(k) {
			return ", for columns of type " + types
		}
	}
	return ""
}

// Compare returns one Mismatch for each column that prevents records with this schema from giving rows, and one if they
// have no valid user key; nil if there is none. The decoder decides by the same rules. In a Protobuf schema, Compare
// uses the message f.Message or, if that is empty, the schema's own message.
//
// Errors: the errors of [Format.Compile]; an invalid user key; a schema that cannot be used.
func (f Format) Compare(s *schema.Schema) ([]Mismatch, error) {
	columns, err := f.Compile()
	if err != nil {
		return nil, err
	}
	var user []column.Element
	if path := f.userField(); path != "" {
		var ok bool
		if user, ok = column.Parse(path); !ok {
			return nil, &fault.Fault{Key: "key", Rule: `must be "field:" and a path`, Value: path}
		}
	}
	ok := s.Format() == f.Name
	if ok && f.Message != "" && f.Name == schema.Protobuf {
		s, ok = s.Message(f.Message)
	}
	if !ok {
		return []Mismatch{{Reason: NoSchema}}, nil
	}
	paths := make([][]column.Element, len(columns))
	for i, c := range columns {
		paths[i] = c.Path()
	}
	_, kinds, key, err := s.PlanWithKey(paths, user)
	if err != nil {
		return nil, fmt.Errorf("cannot use the schema: %w", err)
	}
	var all []Mismatch
	for i, c := range columns {
		if why := fits(c, kinds[i]); why != Decoded {
			all = append(all, Mismatch{c.Name(), why, kinds[i]})
		}
	}
	switch {
	case user == nil:
	case key == 0:
		all = append(all, Mismatch{"key", NoColumn, key})
	case !key.Key():
		all = append(all, Mismatch{"key", WrongType, key})
	}
	return all, nil
}
