package kafka

import "github.com/streamdp/streamdp/internal/kafka/batch"

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
	// TooLarge says that the record is beyond ReaderOptions.MaxRecordBytes. Its
	// key, value and headers are absent, as if it had none.
	TooLarge bool
	// Key and Value are nil where they are null, which is not the same as
	// empty.
	Key, Value []byte
	// Headers are in the producer's order; names may repeat.
	Headers []Header

	sum *[32]byte // the hash, where the record is too large to be here
}

// Hash identifies the record; see batch.HashRecord. It covers the whole record, where
// that is too large to be here too.
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
