package codec

import (
	"encoding/binary"
	"math"
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

// float32Codec reads packed little-endian float32s. Every float32 is exactly a float64.
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
