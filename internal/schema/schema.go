// Package schema reads values out of records whose layout a schema describes: Avro, Protobuf, and (types only) JSON
// Schema.
//
// [Parse] returns a [Schema]. [Schema.PlanWithKey] compiles it for some paths, and a [Reader] of that plan reads the
// values at these paths straight from a record's bytes. For example, for an Avro record {"id": string, "at": {"x":
// double}} and the path at.x, the reader skips a string and reads eight bytes.
//
// A reader accepts any bytes. It does not allocate, its work is at most proportional to the record's length, and its
// results depend only on this record and the schema.
package schema

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/streamdp/streamdp/internal/column"
)

// These are the formats of schemas. They have the same names as the codecs.
const (
	Avro     = "avro"
	Protobuf = "protobuf"
	JSON     = "json-schema"
)

// Schema is a parsed schema, as the writer of a record used it. It is immutable.
type Schema struct {
	format string
	avro   *avroType
	proto  *protoSchema
	json   *jsonSchema
}

// Reference is another schema that a schema needs. Name is the name by which the schema refers to it: the full name of
// a type in Avro, the path in the import statement in Protobuf, and the URI before the fragment of a "$ref" in JSON
// Schema. In a list of references, each comes after those that it needs itself.
type Reference struct {
	Name, Text string
}

// These bounds apply to schemas of all formats.
const (
	// MaxText is the largest total size, in bytes, of a schema's text and those of its references.
	MaxText = 1 << 20
	// maxName is the largest size, in bytes, of a name in a schema.
	maxName = 512
)

var errLongName = fmt.Errorf("a name has more than %d bytes", maxName)

var parsers = map[string]func(text string, references []Reference) (*Schema, error){
	Avro: ParseAvro, Protobuf: ParseProtobuf, JSON: ParseJSON,
}

// parsing is held while a schema is parsed, so that concurrent calls never need the memory of more than one parser.
var parsing sync.Mutex

// Parse reads a schema of a format. The schema may be malicious: Parse takes bounded time and memory.
//
// Errors: those of ParseAvro, ParseProtobuf and ParseJSON; the schema or a name is too long; the parser panicked.
func Parse(format, text string, references []Reference) (s *Schema, err error) {
	parse := parsers[format]
	if parse == nil {
		return nil, fmt.Errorf("unknown schema format %q", format)
	}
	size := len(text)
	for _, r := range references {
		if len(r.Name) > maxName {
			return nil, errLongName
		}
		size += len(r.Text)
	}
	if size > MaxText {
		return nil, fmt.Errorf("the schema and its references have more than %d KiB together", MaxText>>10)
	}
	parsing.Lock()
	defer parsing.Unlock()
	defer recovered(&err)
	return parse(text, references)
}

// recovered converts a panic into an error. The parsers are third-party code and were not written for malicious
// schemas.
func recovered(err *error) {
	if found := recover(); found != nil {
		*err = fmt.Errorf("the parser failed: %v", found)
	}
}

// Format returns the format of the schema: Avro, Protobuf or JSON.
func (s *Schema) Format() string { return s.format }

// Kinds is a set of kinds of values.
type Kinds uint16

// Has reports whether k is in the set.
func (ks Kinds) Has(k column.Kind) bool { return ks&(1<<k) != 0 }

// Any reports whether the set contains a kind other than column.Absent.
func (ks Kinds) Any() bool { return ks&^(absent|mayKey) != 0 }

// Key reports whether a value can be a user key. It is valid only for the set that [Schema.PlanWithKey] returns for the
// key.
func (ks Kinds) Key() bool { return ks&mayKey != 0 }

// String names the kinds, as in "number or null".
func (ks Kinds) String() string {
	var names []string
	for k := range column.Kinds {
		if ks.Has(k) {
			names = append(names, k.String())
		}
	}
	if names == nil {
		return "nothing"
	}
	return strings.Join(names, " or ")
}

func kindsOf(all ...column.Kind) (ks Kinds) {
	for _, k := range all {
		ks |= 1 << k
	}
	return ks
}

const (
	absent Kinds = 1 << column.Absent
	mayKey Kinds = 1 << 15
)

// Plan reads the values at some paths from records of one schema. It is immutable, and any number of readers can share
// it.
type Plan struct {
	slots []int // slot of each path
	key   int   // slot of the user key; -1 if there is no user key
	many  int   // number of slots
	avro  *avroNode
	proto *protoMessage
	marks int // number of marks for Protobuf's messages and lists
	// instants, durations and decimals are the slots of Protobuf values that consist of several fields. Such a value is
	// computed once all its fields have been read.
	instants, durations, decimals []int
	texts                         bool // true if values may point into the record
}

// PlanWithKey compiles the schema for paths and, if user is not nil, for a user key at the path user; see [Reader.Key].
// kinds[i] is the set of kinds that a value at path i can have. It is empty if the schema has no such path; the value
// is then always absent. The set may contain kinds that no record has. A record has no kind outside the set, except
// column.Other for a text that is not valid UTF-8, a decimal of more than 64 bytes, or an invalid timestamp. key is the
// set for the user key. It is empty if user is nil, or if the schema has no such path.
//
// The plan is nil for JSON Schema, whose records the JSON codec reads.
//
// Errors: no plan can be made for the schema.
func (s *Schema) PlanWithKey(paths [][]column.Element, user []column.Element) (plan *Plan, kinds []Kinds, key Kinds,
	err error) {
	defer func() {
		if err != nil {
			plan, kinds, key = nil, nil, 0
		}
	}()
	defer recovered(&err)
	all := paths
	if user != nil {
		all = append(slices.Clip(slices.Clone(paths)), user)
	}
	if s.format == JSON {
		for _, path := range all {
			kinds = append(kinds, s.json.kinds(path))
		}
	} else {
		root, slots, many := newWants(all)
		plan = &Plan{slots: slots, key: -1, many: many}
		found := make([]Kinds, many)
		if s.format == Avro {
			c := &avroCompiler{slots: many, bodies: map[*avroType]*avroBody{}, wanted: map[avroWant]avroWanted{}}
			node := c.node(s.avro, root, found)
			plan.avro = &node
		} else {
			c := &protoCompiler{plan: plan, symbols: map[protoreflect.EnumDescriptor]map[int32][]byte{}}
			plan.proto = c.message(s.proto.message, root, found)
		}
		for _, slot := range slots {
			kinds = append(kinds, found[slot])
			plan.texts = plan.texts || found[slot]&(kindsOf(column.Text)|mayKey) != 0
		}
	}
	if user != nil {
		key, kinds = kinds[len(paths)], kinds[:len(paths)]
		if s.format == JSON && key&kindsOf(column.Text, column.Number) != 0 {
			key |= mayKey
		}
		if plan != nil {
			plan.key, plan.slots = plan.slots[len(paths)], plan.slots[:len(paths)]
		}
	}
	for i := range kinds {
		kinds[i] &^= mayKey
	}
	return plan, kinds, key, nil
}

// want is a node of the tree of paths. Equal paths share a node.
type want struct {
	slot   int // slot for the node's value; -1: no path ends here
	lo, hi int // slots of this node and all nodes below it: lo to hi-1
	names  map[string]*want
	items  []*wantItem // the elements below, by index
	order  []*want     // the nodes below, in the order of the paths
}

type wantItem struct {
	index int
	*want
}

// newWants returns the tree of paths, each path's slot, and the number of slots.
func newWants(paths [][]column.Element) (root *want, slots []int, many int) {
	root = &want{slot: -1}
	ends := make([]*want, len(paths))
	for i, path := range paths {
		w := root
		for _, e := range path {
			w = w.child(e)
		}
		w.slot = 0
		ends[i] = w
	}
	root.number(&many)
	for _, w := range ends {
		slots = append(slots, w.slot)
	}
	return root, slots, many
}

func (w *want) child(e column.Element) *want {
	next := &want{slot: -1}
	if e.Index >= 0 {
		i, found := slices.BinarySearchFunc(w.items, e.Index,
			func(x *wantItem, index int) int { return x.index - index })
		if found {
			return w.items[i].want
		}
		w.items = slices.Insert(w.items, i, &wantItem{e.Index, next})
	} else {
		if w.names[e.Name] != nil {
			return w.names[e.Name]
		}
		if w.names == nil {
			w.names = map[string]*want{}
		}
		w.names[e.Name] = next
	}
	w.order = append(w.order, next)
	return next
}

func (w *want) number(next *int) {
	w.lo = *next
	if w.slot >= 0 {
		w.slot = *next
		*next++
	}
	for _, below := range w.order {
		below.number(next)
	}
	w.hi = *next
}

// Reader reads records by a plan. Only one goroutine may use it at a time.
type Reader struct {
	plan   *Plan
	values []column.Value // by slot
	marks  []uint32
	digits [digitsBuffer]byte // digits of a decimal or a user key
}

// NewReader returns a reader of a plan.
func NewReader(plan *Plan) *Reader {
	return &Reader{plan: plan, values: make([]column.Value, plan.many), marks: make([]uint32, plan.marks)}
}

// Read reads a record's value. If the bytes are not a record of this schema it returns false, and all values are
// absent. Parts that no path needs are checked only as far as is necessary to skip them.
//
// Records, arrays, maps and messages may be nested up to 1000 levels.
func (r *Reader) Read(value []byte) bool {
	for i := range r.values {
		r.values[i].Kind = column.Absent
	}
	ok := false
	if r.plan.avro != nil {
		ok = r.avro(r.plan.avro, value, 0, maxDepth) == len(value)
	} else {
		ok = r.readProto(value)
	}
	if !ok {
		r.clear()
	}
	return ok
}

// Value returns the value at path i of the last record. The value is valid until the next record is read, and only
// while the bytes of its record are unchanged.
func (r *Reader) Value(i int) *column.Value { return &r.values[r.plan.slots[i]] }

// Key returns the user key of the last record: the text of a string or an enum's symbol, the decimal digits of an
// integer, or a UUID in its usual form. It is empty if there is none, and is valid as long as the result of Value.
func (r *Reader) Key() []byte {
	if r.plan.key < 0 {
		return nil
	}
	v := &r.values[r.plan.key]
	switch {
	case v.Kind == column.Text || v.Kind == column.Enum:
		return v.Text
	case v.Kind == column.Number && v.Nsec == signed:
		return appendInt(r.digits[:0], v.Sec)
	case v.Kind == column.Number && v.Nsec == unsigned:
		return appendUint(r.digits[:0], uint64(v.Sec))
	case v.Kind == column.Other && v.Nsec == uuid:
		return appendUUID(r.digits[:0], v.Text)
	}
	return nil
}

// Release drops the values of the last record, so that nothing refers to the record's bytes.
func (r *Reader) Release() {
	if r.plan.texts {
		r.clear()
	}
}

func (r *Reader) clear() {
	for i := range r.values {
		r.values[i] = column.Value{}
	}
}

// maxDepth is the largest nesting depth of records, arrays, maps, messages and groups.
const maxDepth = 1000

// The constants are values of Nsec for a Number or Other. signed and unsigned mean that Sec holds the integer exactly;
// Num may not, because above 2⁵³ neighbouring integers share a float64. uuid means that Text is the 16 bytes of a UUID.
const (
	signed int32 = 1 + iota
	unsigned
	uuid
)

func setInt(v *column.Value, x int64) {
	v.Kind, v.Num, v.Sec, v.Nsec = column.Number, float64(x), x, signed
}

func setUint(v *column.Value, x uint64) {
	v.Kind, v.Num, v.Sec, v.Nsec = column.Number, float64(x), int64(x), unsigned
}

func setNumber(v *column.Value, x float64) {
	v.Kind, v.Num, v.Nsec = column.Number, x, 0
}

func setOther(v *column.Value) { v.Kind, v.Nsec, v.Text = column.Other, 0, nil }

// setTicks sets an instant given in units of 1/perSecond second.
func setTicks(v *column.Value, ticks, perSecond int64) {
	sec, rest := ticks/perSecond, ticks%perSecond
	if rest < 0 {
		sec, rest = sec-1, rest+perSecond
	}
	v.Kind, v.Sec, v.Nsec = column.Instant, sec, int32(rest*(1e9/perSecond))
}
