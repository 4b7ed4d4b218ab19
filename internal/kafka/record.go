package kafka

import "github.com/streamdp/streamdp/internal/kafka/batch"

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte // nil: null
}

// Record is a committed record. Its bytes belong to the Chunk in which it was delivered.
type Record struct {
	// Offset is the record's offset in the partition.
	Offset int64
	// LeaderEpoch is the leader epoch of the record's batch, −1 if unknown.
	LeaderEpoch int32
	// TooLarge reports that the record is larger than ReaderOptions.MaxRecordBytes. Its key, value and headers are
	// absent, as if it had none.
	TooLarge bool
	// Key and Value are nil if they are null, which differs from empty.
	Key, Value []byte
	// Headers are in the producer's order; names may repeat.
	Headers []Header

	sum *[32]byte // the hash, if the record is too large to be delivered
}

// Hash identifies the record; see batch.HashRecord. It covers the whole record even if TooLarge is set.
func (r *Record) Hash() [32]byte {
	if r.sum != nil {
		return *r.sum
	}
	return batch.HashRecord(r.Offset, r.Key, r.Value)
}

// Anchor identifies the log by the last record read from it.
type Anchor struct {
	Offset      int64
	Hash        [32]byte // batch.HashRecord of the record at Offset
	LeaderEpoch int32    // leader epoch of its batch, −1 if unknown
}

// AnchorOf returns the record's anchor.
func AnchorOf(r *Record) *Anchor {
	return &Anchor{Offset: r.Offset, Hash: r.Hash(), LeaderEpoch: r.LeaderEpoch}
}

// Position says where reading continues, and lets a reader prove that the log was not replaced. It is the part of a
// checkpoint that concerns Kafka.
type Position struct {
	// Next is the next offset to read. Transaction markers and compacted records have offsets too.
	Next int64
	// LeaderEpoch is the newest leader epoch that the brokers reported for the partition, −1 if unknown.
	LeaderEpoch int32
	// Anchor is the last record before Next that was delivered, or nil if there is none.
	Anchor *Anchor
}
