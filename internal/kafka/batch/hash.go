package batch

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// HashRecord returns the SHA-256 of
//
//	u64le(offset) ‖ field(key) ‖ field(value)
//
// with field(b) = u32le(len(b)) ‖ b, and 0xFFFFFFFF for null. The framing is injective: different records have
// different inputs.
//
// The hash depends on private data, so it may be stored only where raw data may be.
func HashRecord(offset int64, key, value []byte) [32]byte {
	h := newRecordHash(offset)
	for _, f := range [2][]byte{key, value} {
		n := int64(-1)
		if f != nil {
			n = int64(len(f))
		}
		h.field(n)
		h.Write(f)
	}
	return h.sum()
}

// recordHash computes HashRecord of a record that arrives in parts. First for the key and then for the value, call
// field and then Write with the bytes.
type recordHash struct {
	hash.Hash
	b [8]byte
}

func newRecordHash(offset int64) *recordHash {
	h := &recordHash{Hash: sha256.New()}
	binary.LittleEndian.PutUint64(h.b[:], uint64(offset))
	h.Write(h.b[:])
	return h
}

// field begins a field of n bytes; a negative n means null.
func (h *recordHash) field(n int64) {
	binary.LittleEndian.PutUint32(h.b[:4], uint32(max(n, -1)))
	h.Write(h.b[:4])
}

func (h *recordHash) sum() (sum [32]byte) {
	h.Sum(sum[:0])
	return sum
}
