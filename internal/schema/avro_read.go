package schema

import (
	"encoding/binary"
	"math"

	"github.com/streamdp/streamdp/internal/column"
)

// avro reads the value that n describes from b[i:], and returns the index after it, or -1 if the bytes are invalid.
func (r *Reader) avro(n *avroNode, b []byte, i, depth int) int {
	var v *column.Value
	if n.slot >= 0 {
		v = &r.values[n.slot]
	}
	switch n.op {
	case avroFixed:
		if n.size > len(b)-i {
			return -1
		}
		if v != nil {
			setOther(v)
		}
		return i + n.size
	case avroInts:
		for range n.size {
			if _, i = avro32(b, i); i < 0 {
				return -1
			}
		}
		return i
	case avroLongs:
		for range n.size {
			if _, i = avro64(b, i); i < 0 {
				return -1
			}
		}
		return i
	case avroDouble:
		if len(b)-i < 8 {
			return -1
		}
		setNumber(v, math.Float64frombits(binary.LittleEndian.Uint64(b[i:])))
		return i + 8
	case avroFloat:
		if len(b)-i < 4 {
			return -1
		}
		setNumber(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))))
		return i + 4
	case avroBool:
		if i >= len(b) || b[i] > 1 {
			return -1
		}
		v.Kind, v.Num = column.Truth, float64(b[i])
		return i + 1
	case avroInt, avroDate, avroTicks32:
		x, next := avro32(b, i)
		switch n.op {
		case avroInt:
			setInt(v, x)
		case avroDate:
			v.Kind, v.Sec, v.Nsec = column.Instant, 86400*x, 0
		default:
			setTicks(v, x, int64(n.size))
		}
		return next
	case avroLong:
		x, next := avro64(b, i)
		setInt(v, x)
		return next
	case avroTicks:
		x, next := avro64(b, i)
		setTicks(v, x, int64(n.size))
		return next
	case avroSkipBytes, avroText, avroDecimal:
		size, i := avro64(b, i)
		if i < 0 || size < 0 || size > int64(len(b)-i) {
			return -1
		}
		next := i + int(size)
		switch {
		case v == nil:
		case n.op == avroText:
			setText(v, b[i:next])
		case n.op == avroDecimal:
			r.setDecimal(v, b[i:next], n.scale)
		default:
			setOther(v)
		}
		return next
	case avroFixedDecimal, avroUUID:
		if n.size > len(b)-i && n.op == avroFixedDecimal || n.op == avroUUID && len(b)-i < 16 {
			return -1
		}
		if n.op == avroUUID {
			v.Kind, v.Nsec, v.Text = column.Other, uuid, b[i:i+16]
			return i + 16
		}
		r.setDecimal(v, b[i:i+n.size], n.scale)
		return i + n.size
	case avroEnum:
		x, i := avro32(b, i)
		if i < 0 || x < 0 || x >= int64(len(n.symbols)) {
			return -1
		}
		if v != nil {
			v.Kind, v.Num, v.Text = column.Enum, float64(x), n.symbols[x]
		}
		return i
	case avroUnion:
		x, i := avro64(b, i)
		if i < 0 || x < 0 || x >= int64(len(n.body.nodes)) {
			return -1
		}
		return r.avro(&n.body.nodes[x], b, i, depth)
	}
	if depth == 0 {
		return -1
	}
	if v != nil {
		setOther(v)
	}
	switch n.op {
	case avroRecord:
		for k := range n.body.nodes {
			if i = r.avro(&n.body.nodes[k], b, i, depth-1); i < 0 {
				return -1
			}
		}
		return i
	case avroArray:
		return r.avroArray(n, b, i, depth-1)
	}
	return r.avroMap(n, b, i, depth-1)
}

// avroBlock reads the header of a block of an array or map: its number of elements, 0 after the last block. least is
// the smallest number of bytes of an element, so that no record can claim more elements than it has bytes for.
func avroBlock(b []byte, i, least int) (count uint64, next int) {
	x, i := avro64(b, i)
	if i < 0 {
		return 0, -1
	}
	count = uint64(x)
	if x < 0 {
		count = -count
		size, next := avro64(b, i) // skips the block's size, which serves readers that skip the block
		if next < 0 || size < 0 || size > int64(len(b)-next) {
			return 0, -1
		}
		i = next
	}
	if least > 0 && count > uint64((len(b)-i)/least) {
		return 0, -1
	}
	return count, i
}

func (r *Reader) avroArray(n *avroNode, b []byte, i, depth int) int {
	needed, index := 0, uint64(0) // needed is a place in items; index is the number of the next element
	least := n.size
	if n.body.exact == 0 {
		least = 0
	}
	for {
		var count uint64
		if count, i = avroBlock(b, i, least); i < 0 || count == 0 {
			return i
		}
		// With elements of 0 bytes this sum may overflow. This is harmless: all needed elements come before the
		// overflow.
		end := index + count
		for index < end {
			of := &n.body.rest
			switch {
			case needed < len(n.body.items) && index == uint64(n.body.items[needed]):
				of = &n.body.nodes[needed]
				needed++
			case n.body.exact >= 0: // skip to the next needed element
				to := end
				if needed < len(n.body.items) {
					to = min(end, uint64(n.body.items[needed]))
				}
				// avroBlock has checked that the block has room for all its elements.
				i += int(to-index) * n.body.exact
				index = to
				if i < 0 || i > len(b) {
					return -1
				}
				continue
			}
			if i = r.avro(of, b, i, depth); i < 0 {
				return -1
			}
			index++
		}
	}
}

func (r *Reader) avroMap(n *avroNode, b []byte, i, depth int) int {
	for {
		var count uint64
		if count, i = avroBlock(b, i, n.size); i < 0 || count == 0 {
			return i
		}
		for ; count > 0; count-- {
			size, from := avro64(b, i)
			if from < 0 || size < 0 || size > int64(len(b)-from) {
				return -1
			}
			i = from + int(size)
			of := &n.body.rest
			if n.body.names != nil {
				if k, ok := n.body.names[string(b[from:i])]; ok {
					of = &n.body.nodes[k]
					// A second entry with the same name replaces the first.
					for slot := n.body.clear[k].lo; slot < n.body.clear[k].hi; slot++ {
						r.values[slot].Kind = column.Absent
					}
				}
			}
			if i = r.avro(of, b, i, depth); i < 0 {
				return -1
			}
		}
	}
}

// avro64 reads a zigzag number of at most 64 bits and 10 bytes from b[i:], and returns the index after it, or -1 if
// there is none.
func avro64(b []byte, i int) (x int64, next int) {
	u, next := varint(b, i)
	return int64(u>>1) ^ -int64(u&1), next
}

// avro32 reads a number like avro64, but of at most 32 bits and 5 bytes.
func avro32(b []byte, i int) (x int64, next int) {
	u, next := varint(b, i)
	if u > math.MaxUint32 || next-i > 5 {
		return 0, -1
	}
	return int64(u>>1) ^ -int64(u&1), next
}

// varint reads a number with seven bits per byte, the lowest bits first.
func varint(b []byte, i int) (u uint64, next int) {
	if i < len(b) && b[i] < 0x80 {
		return uint64(b[i]), i + 1
	}
	return longVarint(b, i)
}

func longVarint(b []byte, i int) (u uint64, next int) {
	for shift := 0; i < len(b); shift += 7 {
		c := b[i]
		i++
		if shift == 63 && c > 1 {
			return 0, -1
		}
		u |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return u, i
		}
	}
	return 0, -1
}
