// Package signedlog reads and writes records in one partition of a topic that others may write to as well. Each record
// has one header with a MAC under a key that only the processes of this deployment have. Records without a valid MAC
// are ignored.
package signedlog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka"
)

// Log is one partition of a topic, with the header and key by which its records are signed. It is safe for concurrent
// use.
type Log struct {
	Client    *kafka.Client
	Topic     string
	Partition int32
	Header    string   // name of the header that holds the signature
	Key       [32]byte // key of the MACs
}

// Sized returns the length of part as 8 bytes, big endian, followed by part. If the parts of a MAC's input vary in
// length, all parts but the last must be Sized. Otherwise two different records could have the same input.
func Sized(part []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(part))), part...)
}

// Sign returns a signature: prefix in the clear, followed by the HMAC-SHA256 of the concatenated prefix and parts.
func (l *Log) Sign(prefix []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, l.Key[:])
	mac.Write(prefix)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(slices.Clip(prefix))
}

// Headers returns the headers of a record with this signature.
func (l *Log) Headers(signature []byte) []kafka.Header {
	return []kafka.Header{{Key: l.Header, Value: signature}}
}

// Signature returns the signature of a record, valid or not; ok is false if it has none.
func (l *Log) Signature(rec *kafka.Record) (signature []byte, ok bool) {
	if len(rec.Headers) != 1 || rec.Headers[0].Key != l.Header {
		return nil, false
	}
	return rec.Headers[0].Value, true
}

// Signed reports whether a record has the signature that Sign returns for prefix and parts.
func (l *Log) Signed(rec *kafka.Record, prefix []byte, parts ...[]byte) bool {
	signature, ok := l.Signature(rec)
	return ok && hmac.Equal(signature, l.Sign(prefix, parts...))
}

// Append writes messages to the log. They must have headers made by Headers.
func (l *Log) Append(ctx context.Context, messages []kafka.Message) error {
	_, err := l.Client.Produce(ctx, l.Topic, l.Partition, messages)
	return err
}

// Bounds returns the start and end offsets of the log.
func (l *Log) Bounds(ctx context.Context) (start, end int64, err error) {
	return l.Client.Bounds(ctx, l.Topic, l.Partition)
}

// End returns the end offset of the log.
func (l *Log) End(ctx context.Context) (int64, error) {
	return l.Client.End(ctx, l.Topic, l.Partition)
}

// Read calls fn with every record, signed or not, from offset `from` to the end of the log at the time of the call. It
// stops if fn returns an error. The record is valid only during the call of fn. Failed calls to the broker are repeated
// until the context ends. If the log does not have the offset, [kafka.Lost] returns true for the error.
func (l *Log) Read(ctx context.Context, from int64, fn func(*kafka.Record) error) error {
	return l.Client.ReadBack(ctx, l.Topic, l.Partition, from, fn)
}

// Follow calls fn with every record, signed or not, from an offset on, until the context ends or fn returns an error.
// It calls caught once it has passed the end that the log had when Follow began. Records that retention deleted before
// they were read are skipped. Failed calls to the broker are repeated.
func (l *Log) Follow(ctx context.Context, from int64, fn func(*kafka.Record) error, caught func() error) error {
	var pause kafka.Backoff
	start, end, err := l.Bounds(ctx)
	for kafka.Retriable(err) {
		if err := pause.Wait(ctx); err != nil {
			return err
		}
		start, end, err = l.Bounds(ctx)
	}
	if err != nil {
		return err
	}
	from = max(start, from)
	behind := from < end
	if !behind {
		if err := caught(); err != nil {
			return err
		}
	}
	o := kafka.ReaderOptions{Topic: l.Topic, Partition: l.Partition, SkipGaps: true, Compacted: true, Uncommitted: true}
	return l.Client.Follow(ctx, o, from, func(chunk *kafka.Chunk) error {
		for i := range chunk.Records {
			if err := fn(&chunk.Records[i]); err != nil {
				return err
			}
		}
		if behind && chunk.Next >= end {
			behind = false
			return caught()
		}
		return nil
	})
}
