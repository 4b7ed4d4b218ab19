// Package bin writes and reads the little-endian fields of state files. A Reader never panics on any input: a missing
// or impossible field sets Bad, and all later fields are then read as zero.
package bin

import (
	"encoding/binary"
	"math"
)

// Writer appends fields to B.
type Writer struct{ B []byte }

// Byte appends one byte.
func (w *Writer) Byte(v byte) { w.B = append(w.B, v) }

// Uint appends 8 bytes.
func (w *Writer) Uint(v uint64) { w.B = binary.LittleEndian.AppendUint64(w.B, v) }

// Int appends 8 bytes.
func (w *Writer) Int(v int64) { w.Uint(uint64(v)) }

// Float appends the 8 bytes of a float64.
func (w *Writer) Float(v float64) { w.Uint(math.Float64bits(v)) }

// Raw appends bytes. The reader must know their number.
func (w *Writer) Raw(v []byte) { w.B = append(w.B, v...) }

// Bytes appends a length and the bytes; nil and empty are different.
func (w *Writer) Bytes(v []byte) {
	if v == nil {
		w.Uint(math.MaxUint64)
		return
	}
	w.Uint(uint64(len(v)))
	w.Raw(v)
}

// String appends a length and the bytes.
func (w *Writer) String(v string) {
	w.Uint(uint64(len(v)))
	w.B = append(w.B, v...)
}

// Blob appends a length and the bytes that f produces.
func (w *Writer) Blob(f func(b []byte) ([]byte, error)) error {
	at := len(w.B)
	w.Uint(0)
	b, err := f(w.B)
	if err != nil {
		return err
	}
	w.B = b
	binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
	return nil
}

// Reader takes fields from the front of B.
type Reader struct {
	B   []byte
	Bad bool
}

// Raw returns the next n bytes, nil if there are fewer.
func (r *Reader) Raw(n uint64) []byte {
	if r.Bad || n > uint64(len(r.B)) {
		r.Bad = true
		return nil
	}
	b := r.B[:n:n]
	r.B = r.B[n:]
	return b
}

// Byte reads what Writer.Byte wrote.
func (r *Reader) Byte() byte {
	if b := r.Raw(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint reads what Writer.Uint wrote.
func (r *Reader) Uint() uint64 {
	if b := r.Raw(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Int reads what Writer.Int wrote.
func (r *Reader) Int() int64 { return int64(r.Uint()) }

// Float reads a finite float64. Any other float64 sets Bad.
func (r *Reader) Float() float64 {
	v := math.Float64frombits(r.Uint())
	if math.IsNaN(v) || math.IsInf(v, 0) {
		r.Bad = true
		return 0
	}
	return v
}

// Index reads a Uint below n. Any other number sets Bad.
func (r *Reader) Index(n int) int {
	v := r.Uint()
	if v >= uint64(n) {
		r.Bad = true
		return 0
	}
	return int(v)
}

// Bytes reads what Writer.Bytes wrote. The result is part of B.
func (r *Reader) Bytes() []byte {
	n := r.Uint()
	if n == math.MaxUint64 {
		return nil
	}
	return r.Raw(n)
}

// String reads what Writer.String wrote.
func (r *Reader) String() string { return string(r.Raw(r.Uint())) }

// Done reports whether all of B was read and no field was bad.
func (r *Reader) Done() bool { return !r.Bad && len(r.B) == 0 }
