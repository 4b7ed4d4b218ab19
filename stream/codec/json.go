package codec

import (
	"slices"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
)

// jsonCodec reads the columns of an object in one pass over the document.
//
// A producer writes the same names in the same order and with the same spacing in every record. So for each object with
// columns and each position in it, the codec remembers the separator: the bytes between the previous value and this
// one, which are comma, name and colon. If a record has the same bytes there, one comparison replaces reading and
// looking up the name. Remembered separators affect only the speed of decoding, never its result.
type jsonCodec struct {
	width   int // length of a row
	columns int
	root    *jsonObject
	made    []*jsonMember // members whose columns are not all plain
	seen    []uint64      // one bit per member that the record had
	found   int           // number of columns that were in the record, or that got their default
	name    []byte        // buffer for a name with its escapes resolved
	value   []byte        // buffer for a column's string with its escapes resolved
	user    userText      // the user key, if it is one of the members
}

// jsonObject is an object or array that contains columns, or further objects and arrays with columns.
type jsonObject struct {
	members  map[string]*jsonMember
	memory   []jsonMemory  // by position
	elements []jsonElement // elements of an array, in order; nil for an object
}

// jsonElement is an element of an array that contains a column.
type jsonElement struct {
	index  int
	member *jsonMember
}

// jsonMember is a column, or an object or array on the path to columns.
type jsonMember struct {
	bit    int         // index of its bit in seen
	column int         // index of a plain column in the row
	object *jsonObject // nil for a column and for the user key
	plain  bool        // exactly one column, of type number
	user   bool        // the user key, or an object that only contains the user key
	made   []made      // all columns that read this value; nil if plain
}

// jsonMemory is one remembered separator. Longer ones are not remembered.
type jsonMemory struct {
	bytes  [55]byte
	length uint8 // 0: no separator is remembered
	member *jsonMember
}

// spareMemory is the number of positions that are remembered in addition to the columns, for other members.
const spareMemory = 64

// newJSON returns a codec that reads columns and, unless user is "", a user key.
func newJSON(columns []*column.Column, user string, faults *fault.List) *jsonCodec {
	c := &jsonCodec{width: widthOf(columns), columns: len(columns), root: &jsonObject{}, value: textBuffer(columns)}
	bits, longest := 0, 0
	for _, one := range places(columns) {
		var m *jsonMember
		o := c.root
		for _, e := range one.Path() {
			longest = max(longest, len(e.Name))
			if m != nil && m.object == nil {
				m.object = &jsonObject{}
			}
			if m != nil {
				o = m.object
			}
			m = o.member(e, &bits)
		}
		m.column = one.at
		m.made = append(m.made, one)
	}
	for _, m := range c.root.leaves() {
		if len(m.made) == 1 && m.made[0].Plain() {
			m.plain, m.made = true, nil
		} else {
			c.made = append(c.made, m)
		}
	}
	if user != "" {
		longest = max(longest, c.addUser(user, &bits, faults))
	}
	c.root.remember()
	c.seen = make([]uint64, (bits+63)/64)
	// A name that is longer than the buffer cannot be a column's name. It is cut, but remains longer than any column's
	// name.
	c.name = make([]byte, 0, longest+8)
	return c
}

// member returns the member for an element of a path, and adds it if it is missing.
func (o *jsonObject) member(e column.Element, bits *int) *jsonMember {
	if e.Index < 0 {
		if m := o.members[e.Name]; m != nil {
			return m
		}
	}
	at, there := slices.BinarySearchFunc(o.elements, e.Index,
		func(e jsonElement, index int) int { return e.index - index })
	if there {
		return o.elements[at].member
	}
	m := &jsonMember{bit: *bits}
	*bits++
	if e.Index >= 0 {
		o.elements = slices.Insert(o.elements, at, jsonElement{e.Index, m})
		return m
	}
	if o.members == nil {
		o.members = make(map[string]*jsonMember)
	}
	o.members[e.Name] = m
	return m
}

// inside returns the members or elements of an object or array.
func (o *jsonObject) inside() (all []*jsonMember) {
	for _, m := range o.members {
		all = append(all, m)
	}
	for _, e := range o.elements {
		all = append(all, e.member)
	}
	return all
}

// leaves returns the columns in o and in everything inside it.
func (o *jsonObject) leaves() (all []*jsonMember) {
	for _, m := range o.inside() {
		if m.object != nil {
			all = append(all, m.object.leaves()...)
		} else {
			all = append(all, m)
		}
	}
	return all
}

// remember allocates the memory for separators. It never grows afterwards, so no record can make the codec use more
// memory.
func (o *jsonObject) remember() {
	if o.elements == nil {
		o.memory = make([]jsonMemory, len(o.members)+spareMemory)
	}
	for _, m := range o.inside() {
		if m.object != nil {
			m.object.remember()
		}
	}
}

func (c *jsonCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.width)
	if rec.Value == nil {
		return Null
	}
	return end(dst, c.decode(rec.Value, dst))
}

func (c *jsonCodec) decode(b []byte, dst []float64) Reason {
	clear(c.seen)
	c.found = 0
	c.user.clear()
	i := jsonSpace(b, 0)
	if i == len(b) || b[i] != c.root.opening() {
		return Malformed
	}
	var r Reason
	if c.root.elements == nil {
		i, r = c.object(c.root, b, i+1, 1, dst)
	} else {
		i, r = c.array(c.root, b, i+1, 1, dst)
	}
	switch {
	case r != Decoded:
		return r
	case jsonSpace(b, i) != len(b):
		return Malformed
	case c.found != c.columns: // No column is counted twice.
		return c.defaults(dst)
	}
	return Decoded
}

// opening returns the first byte of o: "{" or "[".
func (o *jsonObject) opening() byte {
	if o.elements != nil {
		return '['
	}
	return '{'
}

// defaults writes the default numbers of columns that are not in the record.
func (c *jsonCodec) defaults(dst []float64) Reason {
	for _, m := range c.made {
		if c.seen[m.bit/64]&(1<<(m.bit%64)) != 0 {
			continue
		}
		if r := putAll(m.made, dst, &column.Value{}); r != Decoded {
			return r
		}
		c.found += len(m.made)
	}
	if c.found != c.columns {
		return Missing
	}
	return Decoded
}

// object reads o, beginning at the byte after its opening brace. depth is the number of open objects, including o.
func (c *jsonCodec) object(o *jsonObject, b []byte, i, depth int, dst []float64) (int, Reason) {
	for k := 0; ; k++ {
		var member *jsonMember
		if k < len(o.memory) && o.memory[k].begins(b[i:]) {
			member = o.memory[k].member
			i += int(o.memory[k].length)
			if i < len(b) && b[i] <= ' ' {
				i = jsonSpace(b, i) // The record may have white space that the remembered separator does not have.
			}
		} else {
			from := i
			if i = jsonSpace(b, i); i == len(b) {
				return i, Malformed
			}
			if b[i] == '}' {
				return i + 1, Decoded
			}
			if k > 0 {
				if b[i] != ',' {
					return i, Malformed
				}
				i = jsonSpace(b, i+1)
			}
			name, plain, next, ok := jsonName(b, i)
			if !ok {
				return i, Malformed
			}
			if !plain {
				name = jsonUnescape(c.name, name)
			}
			member = o.members[string(name)]
			i = next
			if k < len(o.memory) {
				o.memory[k].set(b[from:i], member)
			}
		}

		if member == nil {
			var r Reason
			if i, r = jsonSkip(b, i, depth); r != Decoded {
				return i, r
			}
			continue
		}
		seen, bit := &c.seen[member.bit/64], uint64(1)<<(member.bit%64)
		again := *seen&bit != 0
		*seen |= bit
		if member.user && (again || member.object == nil || i == len(b) || b[i] != '{') {
			var r Reason
			if i, r = c.userValue(b, i, depth, again || member.object != nil); r != Decoded {
				return i, r
			}
			continue
		}
		if again {
			return i, Duplicate
		}
		if member.plain {
			x, next, r := jsonNumber(b, i)
			if r != Decoded {
				return i, r
			}
			dst[member.column] = x
			c.found++
			i = next
			continue
		}
		var r Reason
		// same as in method member, inlined for speed
		if o := member.object; o != nil && o.elements == nil && i < len(b) && b[i] == '{' {
			i, r = c.object(o, b, i+1, depth+1, dst)
		} else {
			i, r = c.member(member, b, i, depth, dst)
		}
		if r != Decoded {
			return i, r
		}
	}
}

// member reads the value of a member that is not the user key. depth is the number of open objects and arrays around
// it.
func (c *jsonCodec) member(m *jsonMember, b []byte, i, depth int, dst []float64) (int, Reason) {
	if i == len(b) {
		return i, Malformed
	}
	if m.object == nil {
		v, next, r := jsonValue(b, i, c.value)
		if r != Decoded {
			return next, r
		}
		if m.made != nil {
			c.found += len(m.made)
			return next, putAll(m.made, dst, &v)
		}
		c.found++
		switch {
		case v.Kind == column.Absent:
			return next, Missing
		case v.Kind != column.Number:
			return next, NotNumber
		case v.Num-v.Num != 0:
			return next, NotFinite
		}
		dst[m.column] = v.Num
		return next, Decoded
	}
	// No check of maxDepth is needed here: columns are not nested deeper than that.
	switch {
	case b[i] == 'n':
		return jsonLiteral(b, i, "null") // null: the columns inside it are absent
	case b[i] != m.object.opening():
		return i, Missing // a value that cannot contain columns
	case m.object.elements != nil:
		return c.array(m.object, b, i+1, depth+1, dst)
	}
	return c.object(m.object, b, i+1, depth+1, dst)
}

// array reads o, beginning at the byte after its opening bracket. depth is the number of open objects and arrays,
// including o.
func (c *jsonCodec) array(o *jsonObject, b []byte, i, depth int, dst []float64) (int, Reason) {
	if i = jsonSpace(b, i); i < len(b) && b[i] == ']' {
		return i + 1, Decoded
	}
	wanted := o.elements
	for k := 0; ; k++ {
		var r Reason
		if len(wanted) > 0 && wanted[0].index == k {
			m := wanted[0].member
			c.seen[m.bit/64] |= 1 << (m.bit % 64)
			i, r = c.member(m, b, i, depth, dst)
			wanted = wanted[1:]
		} else {
			i, r = jsonSkip(b, i, depth)
		}
		if r != Decoded {
			return i, r
		}
		if i = jsonSpace(b, i); i == len(b) {
			return i, Malformed
		}
		switch b[i] {
		case ',':
			i = jsonSpace(b, i+1)
		case ']':
			return i + 1, Decoded
		default:
			return i, Malformed
		}
	}
}

func (m *jsonMemory) begins(b []byte) bool {
	n := int(m.length)
	return n > 0 && n <= len(b) && string(b[:n]) == string(m.bytes[:n])
}

func (m *jsonMemory) set(b []byte, member *jsonMember) {
	if len(b) <= len(m.bytes) {
		m.length = uint8(copy(m.bytes[:], b))
		m.member = member
	}
}
