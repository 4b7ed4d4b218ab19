package codec

import (
	"encoding/binary"
	"math"

	"github.com/streamdp/streamdp/internal/column"
)

// All exponent bits are set in NaN and ±Inf, and in no other number.
const (
	exponent64 = 0x7FF << 52
	exponent32 = 0xFF << 23
)

// float64Codec reads packed little-endian float64s.
type float64Codec struct{ columns int }

func (c float64Codec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.columns)
	b := rec.Value
	if b == nil {
		return Null
	}
	if len(b) != 8*len(dst) {
		return Arity
	}
	for i := range dst {
		u := binary.LittleEndian.Uint64(b[8*i:])
		if u&exponent64 == exponent64 {
			return end(dst, NotFinite)
		}
		dst[i] = math.Float64frombits(u)
	}
	return Decoded
}

// float32Codec reads packed little-endian float32s. Every float32 has an exact float64.
type float32Codec struct{ columns int }

func (c float32Codec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.columns)
	b := rec.Value
	if b == nil {
		return Null
	}
	if len(b) != 4*len(dst) {
		return Arity
	}
	for i := range dst {
		u := binary.LittleEndian.Uint32(b[4*i:])
		if u&exponent32 == exponent32 {
			return end(dst, NotFinite)
		}
		dst[i] = float64(math.Float32frombits(u))
	}
	return Decoded
}

// newPacked returns a codec of packed numbers. Each column has one number, which may have a transform.
func newPacked(name string, columns []*column.Column) Codec {
	var codec Codec = float64Codec{columns: len(columns)}
	if name == "float32" {
		codec = float32Codec{columns: len(columns)}
	}
	if plain(columns) {
		return codec
	}
	return &madeCodec{codec, places(columns)}
}

// madeCodec applies the columns' transforms to the numbers that another codec reads. Each column has one number.
type madeCodec struct {
	Codec
	columns []made
}

func (c *madeCodec) Decode(rec *Record, dst []float64) Reason {
	r := c.Codec.Decode(rec, dst)
	for i := 0; i < len(c.columns) && r == Decoded; i++ {
		r = c.columns[i].put(dst, &column.Value{Kind: column.Number, Num: dst[i]})
	}
	return end(dst, r)
}
