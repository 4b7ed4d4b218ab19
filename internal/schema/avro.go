package schema

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/column"
)

// avroType is a type of an Avro schema. If a type contains itself, the pointers form a cycle.
type avroType struct {
	kind    string // "record", "enum", "array", "map", "fixed", "union", or a primitive
	logical string
	fields  []avroField
	of      []*avroType // type of the items or values, or types of the branches
	symbols [][]byte
	size    int // number of bytes of a fixed
	scale   int // scale of a decimal
	sized   sizing
	least   int // smallest number of bytes of a value
	exact   int // number of bytes of every value; -1: values differ in size
}

type avroField struct {
	name string
	of   *avroType
}

// sizing says how far the computation of least and exact has come.
type sizing uint8

const (
	unsized sizing = iota
	beingSized
	isSized
)

// maxSize is the largest computed size; larger sums are cut to it. No record is that long.
const maxSize = 1 << 40

// measure computes least and exact. If a type contains itself, the inner occurrence counts as 0 bytes and as having no
// exact size.
func (t *avroType) measure() (least, exact int) {
	switch t.sized {
	case beingSized:
		return 0, -1
	case isSized:
		return t.least, t.exact
	}
	t.sized = beingSized
	t.least, t.exact = 1, -1
	switch t.kind {
	case "null":
		t.least, t.exact = 0, 0
	case "boolean":
		t.exact = 1
	case "float":
		t.least, t.exact = 4, 4
	case "double":
		t.least, t.exact = 8, 8
	case "fixed":
		t.least = min(t.size, maxSize)
		t.exact = t.least
	case "record":
		t.least, t.exact = 0, 0
		for _, f := range t.fields {
			least, exact := f.of.measure()
			t.least = min(t.least+least, maxSize)
			if exact < 0 || t.exact < 0 {
				t.exact = -1
			} else {
				t.exact = min(t.exact+exact, maxSize)
			}
		}
	default:
		for _, of := range t.of {
			of.measure()
		}
	}
	t.sized = isSized
	return t.least, t.exact
}

// avroOp says how a node of a plan handles the bytes of its type.
type avroOp uint8

const (
	avroFixed     avroOp = iota // reads size bytes, as Other if there is a slot
	avroInts                    // skips size numbers of 32 bits
	avroLongs                   // skips size numbers of 64 bits
	avroSkipBytes               // reads a length and that many bytes, as Other if there is a slot
	avroBool
	avroInt
	avroLong
	avroFloat
	avroDouble
	avroText
	avroEnum
	avroDecimal      // a decimal in the type bytes
	avroFixedDecimal // a decimal in a fixed of size bytes
	avroUUID         // 16 bytes
	avroDate
	avroTicks32 // an int, in units of 1/size second
	avroTicks   // a long, in units of 1/size second
	avroUnion
	avroRecord
	avroArray
	avroMap
)

// avroNode reads or skips a value of one type, at one node of the tree of paths.
type avroNode struct {
	op   avroOp
	slot int // slot for the value; -1: none
	// size is a number of bytes, of values, or of ticks per second. For an array or map it is the smallest number of
	// bytes of an element. scale is the scale of a decimal.
	size, scale int
	symbols     [][]byte
	body        *avroBody
}

// avroBody holds the parts of a record, union, array or map.
type avroBody struct {
	nodes []avroNode // fields or branches; readers of items (in their order) or of names
	items []int      // indexes of the needed elements, ascending
	names map[string]int
	clear []want   // slots to clear before reading an entry, because a key may repeat
	rest  avroNode // skips an element that is not needed
	exact int      // number of bytes of each element that is not needed, or -1
}

// avroCompiler builds a plan.
type avroCompiler struct {
	slots  int
	bodies map[*avroType]*avroBody // bodies of records without needed values
	wanted map[avroWant]avroWanted
}

type avroWant struct {
	of *avroType
	at *want
}

type avroWanted struct {
	node  avroNode
	kinds []Kinds
}

// node returns the node that reads type t at node w of the tree of paths, nil if nothing below w is needed. It adds the
// kinds of values that the slots of w and below may hold to kinds.
func (c *avroCompiler) node(t *avroType, w *want, kinds []Kinds) avroNode {
	if w == nil {
		return c.skip(t)
	}
	if t.kind != "record" {
		return c.make(t, w, kinds)
	}
	// Results are kept, because the tree could grow exponentially: a record can be in several branches of a union, each
	// branch in several others, and so on.
	done, ok := c.wanted[avroWant{t, w}]
	if !ok {
		done.kinds = make([]Kinds, c.slots)
		done.node = c.make(t, w, done.kinds)
		c.wanted[avroWant{t, w}] = done
	}
	for i, k := range done.kinds {
		kinds[i] |= k
	}
	return done.node
}

func (c *avroCompiler) make(t *avroType, w *want, kinds []Kinds) avroNode {
	n := avroNode{slot: w.slot, size: 1}
	kind := column.Other
	switch t.kind {
	case "null":
		n.op, n.size, n.slot, kind = avroFixed, 0, -1, column.Absent
	case "boolean":
		n.op, kind = avroBool, column.Truth
	case "int":
		n.op, kind = avroInt, column.Number
		switch t.logical {
		case "date":
			n.op, kind = avroDate, column.Instant
		case "time-millis":
			n.op, n.size, kind = avroTicks32, 1e3, column.Instant
		}
	case "long":
		n.op, kind = avroTicks, column.Instant
		switch t.logical {
		case "timestamp-millis", "local-timestamp-millis":
			n.size = 1e3
		case "timestamp-micros", "local-timestamp-micros", "time-micros":
			n.size = 1e6
		case "timestamp-nanos", "local-timestamp-nanos":
			n.size = 1e9
		default:
			n.op, kind = avroLong, column.Number
		}
	case "float":
		n.op, kind = avroFloat, column.Number
	case "double":
		n.op, kind = avroDouble, column.Number
	case "string":
		n.op, kind = avroText, column.Text
	case "bytes":
		n.op = avroSkipBytes
		if t.logical == "decimal" && t.scale >= 0 {
			n.op, n.scale, kind = avroDecimal, t.scale, column.Number
		}
	case "fixed":
		n.op, n.size = avroFixed, t.exact
		switch {
		case t.logical == "decimal" && t.scale >= 0:
			n.op, n.scale, kind = avroFixedDecimal, t.scale, column.Number
		case t.logical == "uuid" && t.size == 16:
			n.op = avroUUID
		}
	case "enum":
		n.op, n.symbols, kind = avroEnum, t.symbols, column.Enum
	case "record":
		n.op, n.body = avroRecord, &avroBody{}
		for _, f := range t.fields {
			n.body.add(c.node(f.of, w.names[f.name], kinds))
		}
	case "union":
		return c.union(t, w, kinds)
	case "array":
		n.op, n.size, n.body = avroArray, max(1, t.of[0].least), &avroBody{}
		for _, item := range w.items {
			n.body.items = append(n.body.items, item.index)
			n.body.nodes = append(n.body.nodes, c.node(t.of[0], item.want, kinds))
			item.maybe(kinds)
		}
		n.body.rest, n.body.exact = c.skip(t.of[0]), t.of[0].exact
	case "map":
		n.op, n.size, n.body = avroMap, max(1, t.of[0].least), &avroBody{names: map[string]int{}}
		for _, name := range sortedNames(w) {
			below := w.names[name]
			n.body.names[name] = len(n.body.nodes)
			n.body.nodes = append(n.body.nodes, c.node(t.of[0], below, kinds))
			n.body.clear = append(n.body.clear, *below)
			below.maybe(kinds)
		}
		n.body.rest = c.skip(t.of[0])
	}
	if w.slot < 0 && n.body == nil { // a path leads into the type, but the type has no parts
		return c.skip(t)
	}
	if w.slot >= 0 {
		kinds[w.slot] |= kindsOf(kind)
		switch n.op {
		case avroInt, avroLong, avroText, avroEnum, avroUUID:
			kinds[w.slot] |= mayKey
		}
	}
	return n
}

func (c *avroCompiler) union(t *avroType, w *want, kinds []Kinds) avroNode {
	n := avroNode{op: avroUnion, slot: -1, body: &avroBody{}}
	lacking := make([]bool, c.slots)
	for _, of := range t.of {
		found := make([]Kinds, c.slots)
		n.body.nodes = append(n.body.nodes, c.node(of, w, found))
		for i := w.lo; i < w.hi; i++ {
			kinds[i] |= found[i]
			lacking[i] = lacking[i] || found[i] == 0
		}
	}
	for i := w.lo; i < w.hi; i++ {
		if lacking[i] && kinds[i] != 0 {
			kinds[i] |= absent
		}
	}
	return n
}

// maybe records that values at and below w may be absent, by adding Absent to their kinds.
func (w *want) maybe(kinds []Kinds) {
	for i := w.lo; i < w.hi; i++ {
		if kinds[i] != 0 {
			kinds[i] |= absent
		}
	}
}

func sortedNames(w *want) (names []string) {
	for name := range w.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// skip returns a node that skips a value of type t.
func (c *avroCompiler) skip(t *avroType) avroNode {
	n := avroNode{slot: -1, size: 1}
	if t.exact >= 0 {
		n.op, n.size = avroFixed, t.exact
		return n
	}
	switch t.kind {
	case "int":
		n.op = avroInts
	case "long":
		n.op = avroLongs
	case "string", "bytes":
		n.op = avroSkipBytes
	case "enum":
		n.op, n.symbols = avroEnum, t.symbols
	case "array", "map":
		n.op, n.size, n.body = avroArray, max(1, t.of[0].least), &avroBody{rest: c.skip(t.of[0]), exact: t.of[0].exact}
		if t.kind == "map" {
			n.op = avroMap
		}
	case "union":
		n.op, n.body = avroUnion, &avroBody{}
		for _, of := range t.of {
			n.body.nodes = append(n.body.nodes, c.skip(of))
		}
	case "record":
		n.op, n.body = avroRecord, c.bodies[t]
		if n.body == nil { // registers the body first, because the type may contain itself
			n.body = &avroBody{}
			c.bodies[t] = n.body
			for _, f := range t.fields {
				n.body.add(c.skip(f.of))
			}
		}
	}
	return n
}

// add adds a field. Consecutive fields that are not needed become one node.
func (b *avroBody) add(n avroNode) {
	if n.slot < 0 {
		if n.op == avroFixed && n.size == 0 {
			return
		}
		if last := len(b.nodes) - 1; last >= 0 && n.op <= avroLongs && b.nodes[last].op == n.op &&
			b.nodes[last].slot < 0 {
			b.nodes[last].size = min(b.nodes[last].size+n.size, math.MaxInt/2)
			return
		}
	}
	b.nodes = append(b.nodes, n)
}
