package codec

import (
	"strings"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/persons"
)

// These are the forms of [Format.User].
const (
	recordKey    = "record-key"
	fieldPrefix  = "field:"
	headerPrefix = "header:"
)

// user makes the tags (hashed user keys) for one worker. A tag depends only on the record, and not on whether the
// record has a row: a record counts for its person whether it is valid or not.
type user struct {
	tagger *persons.Tagger
	header string    // name of the header with the user key, if it is in a header
	alone  fieldUser // reads the field with the user key; nil: the user key is not in a field
	// Only keys of partition, out of partitions many, count. If partitions is 0, all keys count.
	partition, partitions int
}

// fieldUser is a codec that also provides the user key of the last record that it decoded without faults.
type fieldUser interface {
	Codec
	text() *userText
}

func (c *jsonCodec) text() *userText { return &c.user }
func (c *csvCodec) text() *userText  { return &c.user }

// newUser returns the maker of tags for records of a format.
func newUser(f Format, key *[persons.KeyBytes]byte) (*user, error) {
	u := &user{tagger: persons.NewTagger(key)}
	var faults fault.List
	name, isHeader := strings.CutPrefix(f.User, headerPrefix)
	path, isField := strings.CutPrefix(f.User, fieldPrefix)
	switch {
	case isHeader && name != "":
		u.header = name
	case isField && path != "" && f.Gradient == 0 && f.Name == "json":
		u.alone = newJSON(nil, path, &faults)
	case isField && path != "" && f.Gradient == 0 && f.Name == "csv":
		u.alone = newCSV(nil, path, &faults)
	case isField && path != "" && f.Gradient == 0 && f.schematic():
		u.alone = newSchemaCodec(f, nil, path, &faults)
	case isField && path != "":
		faults.Add("key", "must not be \"field:…\" for codecs whose columns have no paths", f.User)
	case f.User != recordKey:
		faults.Add("key", `must be "record-key", "field:PATH" or "header:NAME"`, f.User)
	}
	return u, faults.Err()
}

// tag returns the tag of a record that c just decoded with result r.
func (u *user) tag(rec *Record, c Codec, r Reason) persons.Tag {
	switch {
	case u.alone != nil:
		read, ok := c.(fieldUser)
		if !ok || r != Decoded {
			// A record without a row was not read to its end, so it is read again for the user key alone.
			if read = u.alone; read.Decode(rec, nil) != Decoded {
				return persons.Tag{}
			}
		}
		text := read.text()
		defer text.clear() // so that text keeps no reference to the record
		return u.tagger.Tag(text.bytes())
	case u.header != "":
		return u.tagger.Tag(theHeader(rec, u.header))
	}
	if u.partitions > 0 && homeOf(rec.Key, u.partitions) != u.partition && len(rec.Key) > 0 {
		return persons.Away()
	}
	return u.tagger.Tag(rec.Key)
}

// theHeader returns the value of the header of this name, or nil if there is none or more than one.
func theHeader(rec *Record, name string) (value []byte) {
	found := false
	for i := range rec.Headers {
		if rec.Headers[i].Key != name {
			continue
		}
		if found {
			return nil
		}
		value, found = rec.Headers[i].Value, true
	}
	return value
}

// userText is the user key of the last record read.
type userText struct {
	raw     []byte // the key's bytes within the record; empty: no user key
	escapes byte   // the byte that begins an escape in raw; 0: raw has no escapes
	buf     []byte // buffer for the key with escapes resolved
}

func (u *userText) clear() { u.raw, u.escapes = nil, 0 }

// bytes returns the user key. It is empty if there is none.
func (u *userText) bytes() []byte {
	if u.escapes == 0 {
		return u.raw
	}
	// An escape is never shorter than the text for which it stands.
	if need := len(u.raw) + 4; cap(u.buf) < need {
		u.buf = make([]byte, 0, need)
	}
	if u.escapes == '\\' {
		u.buf = jsonUnescape(u.buf[:0], u.raw)
		return u.buf
	}
	u.buf = u.buf[:0]
	for i := 0; i < len(u.raw); i++ {
		if u.raw[i] == '"' {
			i++ // a doubled quote stands for one quote
		}
		u.buf = append(u.buf, u.raw[i])
	}
	return u.buf
}

// setCell sets the user key to a well-formed cell of a CSV line.
func (u *userText) setCell(cell []byte) {
	u.raw = cell
	if len(cell) > 0 && cell[0] == '"' {
		u.raw = cell[1 : len(cell)-1]
		u.escapes = '"'
	}
}

// addUser makes the codec read the user key at a path, and returns the length of the longest name on this path.
func (c *jsonCodec) addUser(path string, bits *int, faults *fault.List) (longest int) {
	names, ok := column.Parse(path)
	if !ok || len(names) > maxDepth || column.Indexed(names) {
		faults.Add("key",
			`must be "field:" and a name or a path "a.b" of at most 128 names, where a backslash makes . \ [ or ] part of a name`, path)
		return 0
	}
	if c.root.elements != nil {
		faults.Add("key", "must not be \"field:…\" if columns are elements of an array", path)
		return 0
	}
	o := c.root
	for k, e := range names {
		name := e.Name
		longest = max(longest, len(name))
		m, last := o.members[name], k == len(names)-1
		if m != nil && (last || m.object == nil || m.object.elements != nil) {
			faults.Add("key", "must not be a column, nor be inside a column or contain one", path)
			break
		}
		if m == nil {
			m = &jsonMember{bit: *bits, user: true}
			*bits++
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
	return longest
}

// userValue reads the value of the user key. The value must be a string or an integer without fraction and exponent;
// its text is the key, so "17" and 17 are the same person. Any other value is no user key. If void is true, the value
// cannot be a user key: it is the second one in the record, or a value on its path is not an object.
func (c *jsonCodec) userValue(b []byte, i, depth int, void bool) (int, Reason) {
	if !void && i < len(b) && b[i] == '"' {
		next, plain, ok := jsonString(b, i+1)
		if !ok {
			return next, Malformed
		}
		c.user.raw = b[i+1 : next-1]
		if !plain {
			c.user.escapes = '\\'
		}
		return next, Decoded
	}
	next, r := jsonSkip(b, i, depth)
	if r != Decoded {
		return next, r
	}
	c.user.clear()
	if text := b[i:next]; !void && integer(text) {
		c.user.raw = text
	}
	return next, Decoded
}

// integer reports whether a JSON value is an integer literal, other than -0.
func integer(text []byte) bool {
	digits := text
	if digits[0] == '-' {
		digits = digits[1:]
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return false
		}
	}
	return string(text) != "-0"
}
