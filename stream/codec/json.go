package codec

import (
	"streamdp/internal/column"
	"streamdp/internal/fault"
)

// jsonCodec reads the columns of an object in one pass over the document.
//
// A producer writes the same names in the same order and with the same spacing in every
// record. So each object that holds columns remembers, for each position, the bytes between
// the last value and this one: comma, name, colon. If a record has the same bytes there,
// they mean the same, and one comparison replaces reading and looking up the name. What is
// remembered changes the speed of decoding and never its result.
type jsonCodec struct {
	columns int
	root    *jsonObject
	seen    []uint64 // one bit a member: the record had it
	found   int      // columns that the record had
	name    []byte   // a name with its escapes resolved
	user    userText // of the user key, where one of the members is that
}

// jsonObject is an object that holds columns, or objects with columns.
type jsonObject struct {
	members map[string]*jsonMember
	memory  []jsonMemory // by position
}

// jsonMember is a column, or an object on the way to columns.
type jsonMember struct {
	bit    int         // in seen
	column int         // where the number goes in the row
	object *jsonObject // nil for a column and for the user key
	user   bool        // the user key, or an object on the way to nothing else
}

// jsonMemory is one remembered separator. Longer ones are read every time.
type jsonMemory struct {
	bytes  [55]byte
	length uint8 // 0: nothing remembered
	member *jsonMember
}

// spareMemory is the number of positions kept for members that are not columns.
const spareMemory = 64

// newJSON returns the codec of some columns and, unless user is "", of a user key.
func newJSON(columns []string, user string, faults *fault.List) *jsonCodec {
	c := &jsonCodec{columns: len(columns), root: &jsonObject{}}
	bits, longest := 0, 0
	for i, path := range columns {
		names, ok := column.Path(path)
		if !ok {
			faults.Add("columns", `must be names or paths "a.b" of them, where \. is a dot and \\ a backslash in a name`, path)
			continue
		}
		if len(names) > maxDepth {
			faults.Add("columns", "must be paths of at most 128 names", path)
			continue
		}
		o := c.root
		for k, name := range names {
			longest = max(longest, len(name))
			m, last := o.members[name], k == len(names)-1
			if m != nil && (last || m.object == nil) {
				faults.Add("columns", "must not name a column and something inside it", path)
				break
			}
			if m == nil {
				m = &jsonMember{bit: bits, column: i}
				bits++
				if o.members == nil {
					o.members = make(map[string]*jsonMember)
				}
				o.members[name] = m
				if !last {
					m.object = &jsonObject{}
				}
			}
			o = m.object
		}
	}
	if user != "" {
		longest = max(longest, c.addUser(user, &bits, faults))
	}
	c.root.remember()
	c.seen = make([]uint64, (bits+63)/64)
	// A name longer than the buffer cannot be a column's. It is cut, but stays longer
	// than any column's name.
	c.name = make([]byte, 0, longest+8)
	return c
}

// remember allocates the memory. It never grows afterwards, so that no record can make
// the codec keep more.
func (o *jsonObject) remember() {
	o.memory = make([]jsonMemory, len(o.members)+spareMemory)
	for _, m := range o.members {
		if m.object != nil {
			m.object.remember()
		}
	}
}

func (c *jsonCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.columns)
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
	if i == len(b) || b[i] != '{' {
		return Malformed
	}
	i, r := c.object(c.root, b, i+1, 1, dst)
	switch {
	case r != Decoded:
		return r
	case jsonSpace(b, i) != len(b):
		return Malformed
	case c.found != c.columns: // each was found once at most
		return Missing
	}
	return Decoded
}

// object reads o, from the byte after its opening brace. depth counts the open objects,
// including o.
func (c *jsonCodec) object(o *jsonObject, b []byte, i, depth int, dst []float64) (int, Reason) {
	for k := 0; ; k++ {
		var member *jsonMember
		if k < len(o.memory) && o.memory[k].begins(b[i:]) {
			member = o.memory[k].member
			i += int(o.memory[k].length)
			if i < len(b) && b[i] <= ' ' {
				i = jsonSpace(b, i) // more than last time
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
		if member.object == nil {
			x, next, r := jsonNumber(b, i)
			if r != Decoded {
				return i, r
			}
			dst[member.column] = x
			c.found++
			i = next
			continue
		}
		if i == len(b) {
			return i, Malformed
		}
		if b[i] != '{' {
			return i, Missing // not an object, so the column cannot be inside
		}
		// No check of maxDepth is needed here: columns are not nested deeper than that.
		var r Reason
		if i, r = c.object(member.object, b, i+1, depth+1, dst); r != Decoded {
			return i, r
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
