package kafka

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte // nil: null
}

// Record is a committed record. Its bytes belong to the Chunk it came in.
type Record struct {
	// Offset is the record's place in the partition.
	Offset int64
	// LeaderEpoch is that of the batch the record came in, −1 if unknown.
	LeaderEpoch int32
	// Key and Value are nil where they are null, which is not the same as
	// empty.
	Key, Value []byte
	// Headers are in the producer's order; names may repeat.
	Headers []Header
}

// Hash identifies the record; see HashRecord.
func (r *Record) Hash() [32]byte { return HashRecord(r.Offset, r.Key, r.Value) }

// HashRecord is the SHA-256 of
//
//	u64le(offset) ‖ field(key) ‖ field(value)
//
// with field(b) = u32le(len(b)) ‖ b, and 0xFFFFFFFF for null. The framing makes
// it injective: no two records have the same input.
//
// The hash is a function of private data: it is kept where the raw data may
// be, and nowhere else.
func HashRecord(offset int64, key, value []byte) [32]byte {
	h := sha256.New()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(offset))
	h.Write(b[:])
	for _, f := range [2][]byte{key, value} {
		n := uint32(math.MaxUint32)
		if f != nil {
			n = uint32(len(f))
		}
		binary.LittleEndian.PutUint32(b[:4], n)
		h.Write(b[:4])
		h.Write(f)
	}
	var sum [32]byte
	h.Sum(sum[:0])
	return sum
}

// Anchor identifies the log by the last record read from it.
type Anchor struct {
	Offset      int64
	Hash        [32]byte // HashRecord of the record at Offset
	LeaderEpoch int32    // of the batch it came in, −1 if unknown
}

// AnchorOf returns the anchor that the record makes.
func AnchorOf(r *Record) *Anchor {
	return &Anchor{Offset: r.Offset, Hash: r.Hash(), LeaderEpoch: r.LeaderEpoch}
}

// Position is where reading continues, and what proves that the log is still
// the same: the part of a checkpoint that concerns Kafka.
type Position struct {
	// Next is the next offset to read. Every offset counts: of records, of
	// transaction markers, of what was compacted away.
	Next int64
	// LeaderEpoch is the newest the brokers reported for the partition, −1 if
	// unknown.
	LeaderEpoch int32
	// Anchor is the last record before Next that was delivered, nil if there
	// is none.
	Anchor *Anchor
}
