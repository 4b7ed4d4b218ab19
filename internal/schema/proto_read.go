package schema

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/streamdp/streamdp/internal/column"
)

// readProto reads a message that is a whole record.
func (r *Reader) readProto(b []byte) bool {
	clear(r.marks)
	if r.message(r.plan.proto, b, 0, maxDepth) != len(b) {
		return false
	}
	for _, slot := range r.plan.instants {
		if v := &r.values[slot]; v.Kind == column.Instant && (v.Nsec < 0 || v.Nsec >= 1e9) {
			setOther(v)
		}
	}
	for _, slot := range r.plan.durations {
		v := &r.values[slot]
		switch {
		case v.Kind != column.Instant:
		case v.Nsec <= -1e9 || v.Nsec >= 1e9 || v.Sec > 0 && v.Nsec < 0 || v.Sec < 0 && v.Nsec > 0:
			setOther(v)
		default:
			setNumber(v, float64(v.Sec)+float64(v.Nsec)/1e9)
		}
	}
	for _, slot := range r.plan.decimals {
		if v := &r.values[slot]; v.Kind != column.Absent {
			unscaled, scale := v.Text, v.Sec
			if setOther(v); scale >= 0 {
				r.setDecimal(v, unscaled, int(scale))
			}
		}
	}
	return true
}

// forget makes all values of a part absent.
func (r *Reader) forget(p part) {
	for i := p.lo; i < p.hi; i++ {
		r.values[i].Kind = column.Absent
	}
	clear(r.marks[p.markLo:p.markHi])
}

// seen marks a message as present. If it occurs again, its fields are merged with the earlier ones.
func (r *Reader) seen(m *protoMessage) {
	if r.marks[m.mark] == 0 {
		r.marks[m.mark] = 1
		for i := range m.first {
			r.values[m.first[i].slot] = m.first[i].value
		}
	}
}

// message reads the fields of a message from b: up to the end of b or, if group is not 0, through the end of the group
// with that number. It returns the number of bytes read, or -1 if they are invalid.
func (r *Reader) message(m *protoMessage, b []byte, group uint64, depth int) int {
	if depth == 0 {
		return -1
	}
	r.seen(m)
	for i := 0; i < len(b); {
		tag, next := varint(b, i)
		if next < 0 {
			return -1
		}
		i = next
		number, wire := tag>>3, protowire.Type(tag&7)
		if number == 0 || number > uint64(protowire.MaxValidNumber) {
			return -1
		}
		if wire == protowire.EndGroupType {
			if number != group {
				return -1
			}
			return i
		}
		f := m.field(number)
		if f == nil || wire != f.wire && !(f.packed && wire == protowire.BytesType) {
			i = skipProto(b, i, number, wire, depth)
		} else {
			for k := range f.oneof {
				r.forget(f.oneof[k])
			}
			i = r.field(f, b, i, number, wire, depth)
		}
		if i < 0 {
			return -1
		}
	}
	if group != 0 {
		return -1
	}
	return len(b)
}

// field reads a value from b[i:], and returns the index after it, -1 if the bytes are invalid.
func (r *Reader) field(f *protoField, b []byte, i int, number uint64, wire protowire.Type, depth int) int {
	if f.op == protoList {
		return r.list(f, b, i, number, wire, depth)
	}
	switch wire {
	case protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type:
		bits, next := protoBits(b, i, wire)
		if next < 0 || f.op == protoNothing {
			return next
		}
		f.set(r, bits)
		if f.also != nil {
			f.also.set(r, bits)
		}
		return next
	case protowire.StartGroupType:
		if f.message == nil {
			return skipProto(b, i, number, wire, depth)
		}
		n := r.message(f.message, b[i:], number, depth-1)
		if n < 0 {
			return -1
		}
		return i + n
	}
	content, next := protoBytesAt(b, i)
	if next < 0 {
		return -1
	}
	switch f.op {
	case protoText, protoBytes, protoUnscaled:
		f.setBytes(r, content)
		if f.also != nil {
			f.also.setBytes(r, content)
		}
	case protoInside:
		if r.message(f.message, content, 0, depth-1) < 0 {
			return -1
		}
	case protoMap:
		if !r.entry(f, content, depth-1) {
			return -1
		}
	}
	return next
}

// list reads one or more elements of a list.
func (r *Reader) list(f *protoField, b []byte, i int, number uint64, wire protowire.Type, depth int) int {
	if wire != protowire.BytesType || !f.packed {
		item := r.element(f)
		if item == nil {
			return skipProto(b, i, number, wire, depth)
		}
		return r.field(item, b, i, number, wire, depth)
	}
	content, next := protoBytesAt(b, i)
	for k := 0; next >= 0 && k < len(content); {
		var bits uint64
		if bits, k = protoBits(content, k, f.wire); k < 0 {
			return -1
		}
		if item := r.element(f); item != nil && item.op != protoNothing {
			item.set(r, bits)
		}
	}
	return next
}

// element counts an element of a list, and returns its reader, nil if it is not needed.
func (r *Reader) element(f *protoField) *protoField {
	if f.slot >= 0 {
		setOther(&r.values[f.slot])
	}
	index := int(r.marks[f.mark])
	if index > f.last {
		return nil
	}
	r.marks[f.mark]++
	for k := range f.items {
		if f.items[k].index == index {
			return &f.items[k].field
		}
	}
	return nil
}

// entry reads an entry of a map: its key (the last one if it is repeated), and its value if that key is needed. An
// entry replaces an earlier one with the same key.
func (r *Reader) entry(f *protoField, b []byte, depth int) bool {
	if f.slot >= 0 {
		setOther(&r.values[f.slot])
	}
	var text []byte
	var bits uint64
	for i := 0; i < len(b); {
		number, wire, next := protoTag(b, i, uint64(protowire.MaxValidNumber))
		switch {
		case next < 0:
			return false
		case number != 1 || wire != f.key:
			i = skipProto(b, next, number, wire, depth)
		case wire == protowire.BytesType:
			text, i = protoBytesAt(b, next)
		default:
			bits, i = protoBits(b, next, wire)
		}
		if i < 0 {
			return false
		}
	}
	var k int
	var needed bool
	if f.keyOp == protoText {
		k, needed = f.texts[string(text)]
	} else {
		k, needed = f.ints[keyBits(f.keyOp, bits)]
	}
	if !needed {
		return true
	}
	item := &f.items[k]
	r.forget(item.part)
	for i := range item.first {
		r.values[item.first[i].slot] = item.first[i].value
	}
	if item.field.message != nil {
		r.seen(item.field.message)
	}
	for i := 0; i < len(b); {
		number, wire, next := protoTag(b, i, uint64(protowire.MaxValidNumber))
		if number == 2 && wire == item.field.wire {
			i = r.field(&item.field, b, next, number, wire, depth)
		} else {
			i = skipProto(b, next, number, wire, depth)
		}
		if i < 0 {
			return false
		}
	}
	return true
}

// keyBits returns a key in the form of keyOf.
func keyBits(op protoOp, bits uint64) uint64 {
	switch op {
	case protoBool:
		if bits != 0 {
			return 1
		}
	case protoInt32:
		return uint64(int32(bits))
	case protoUint32:
		return uint64(uint32(bits))
	case protoSint32:
		return uint64(int32(protowire.DecodeZigZag(bits & 0xffffffff)))
	case protoSint64:
		return uint64(protowire.DecodeZigZag(bits))
	}
	return bits
}

// protoTag reads a tag from b[i:]. Its number must be at most `most`.
func protoTag(b []byte, i int, most uint64) (number uint64, wire protowire.Type, next int) {
	tag, next := varint(b, i)
	number = tag >> 3
	if number == 0 || number > most {
		next = -1
	}
	return number, protowire.Type(tag & 7), next
}

// protoBits reads a number of a wire type from b[i:].
func protoBits(b []byte, i int, wire protowire.Type) (bits uint64, next int) {
	switch {
	case wire == protowire.VarintType:
		return varint(b, i)
	case wire == protowire.Fixed32Type && len(b)-i >= 4:
		return uint64(binary.LittleEndian.Uint32(b[i:])), i + 4
	case wire == protowire.Fixed64Type && len(b)-i >= 8:
		return binary.LittleEndian.Uint64(b[i:]), i + 8
	}
	return 0, -1
}

// protoBytesAt reads a length and that many bytes from b[i:].
func protoBytesAt(b []byte, i int) (content []byte, next int) {
	size, from := varint(b, i)
	if from < 0 || size > uint64(len(b)-from) {
		return nil, -1
	}
	return b[from : from+int(size)], from + int(size)
}

// skipProto skips a value with the given field number and wire type, and returns the index after it.
func skipProto(b []byte, i int, number uint64, wire protowire.Type, depth int) int {
	switch wire {
	case protowire.BytesType:
		_, i = protoBytesAt(b, i)
		return i
	case protowire.StartGroupType:
		if depth == 0 {
			return -1
		}
		for i >= 0 && i < len(b) {
			n, w, next := protoTag(b, i, math.MaxInt32) // protobuf-go has the same bound for unknown groups
			if next < 0 {
				return -1
			}
			if w == protowire.EndGroupType {
				if n != number {
					return -1
				}
				return next
			}
			i = skipProto(b, next, n, w, depth-1)
		}
		return -1
	}
	_, i = protoBits(b, i, wire)
	return i
}
