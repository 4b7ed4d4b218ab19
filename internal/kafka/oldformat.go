package kafka

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/streamdp/streamdp/internal/kafka/batch"
)

// This file decodes messages in the formats before Kafka 0.11, one by one, with kafka-go. Topics that were never
// converted still have such messages, and brokers before 4.0 return them.

// maxOld is the maximum decompressed size of a compressed message in these formats. kafka-go must hold all of it in
// memory, because the offsets of the inner messages are counted from the last one.
const maxOld = 64 << 20

var errOld = errors.New("a compressed message in the format before Kafka 0.11 is larger than 64 MiB")

// oldRecords iterates over the records of a message.
type oldRecords struct {
	reading bool
	records protocol.RecordReader
	max     int // maximum size of a record in bytes; larger ones are delivered without content
}

// open reads a whole message.
func (o *oldRecords) open(raw []byte, max int) (err error) {
	if err := oldFits(raw); err != nil {
		return err
	}
	// kafka-go trusts the lengths of the messages inside a compressed one, and may panic.
	defer func() {
		if recover() != nil {
			err = batch.ErrDamaged
		}
	}()
	size := binary.BigEndian.AppendUint32(nil, uint32(len(raw)))
	var set protocol.RecordSet
	if _, err := set.ReadFrom(
		bufio.NewReader(io.MultiReader(bytes.NewReader(size), bytes.NewReader(raw)))); err != nil {
		return batch.ErrDamaged
	}
	o.reading, o.records, o.max = true, set.Records, max
	return nil
}

// oldFits returns an error if a message decompresses to more than maxOld.
func oldFits(raw []byte) error {
	codec := protocol.Attributes(raw[17]).Compression()
	if codec == 0 {
		return nil
	}
	i := 18
	if raw[16] == 1 { // the magic
		i += 8 // timestamp
	}
	for field := range 2 { // key, value
		if i+4 > len(raw) {
			return batch.ErrDamaged
		}
		n := int(int32(binary.BigEndian.Uint32(raw[i:])))
		if i += 4; n > len(raw)-i {
			return batch.ErrDamaged
		}
		if field == 1 && n > 0 {
			large, err := batch.Codec(decompress).Exceeds(int8(codec), raw[i:i+n], maxOld)
			if err != nil {
				return err
			}
			if large {
				return errOld
			}
		}
		i += max(n, 0)
	}
	return nil
}

func (o *oldRecords) close() { *o = oldRecords{} }

// next reads a record, into memory of the arena.
func (o *oldRecords) next(a *batch.Arena, r *batch.Record) (bool, error) {
	if o.records == nil {
		return false, nil
	}
	rec, err := o.records.ReadRecord()
	if err == io.EOF {
		return false, nil
	}
	if err != nil {
		return false, batch.ErrDamaged
	}
	defer closeRecord(rec)
	*r = batch.Record{Offset: rec.Offset}
	for _, f := range []struct {
		from protocol.Bytes
		to   *[]byte
	}{{rec.Key, &r.Key}, {rec.Value, &r.Value}} {
		if f.from == nil {
			continue
		}
		*f.to = a.Take(f.from.Len())
		r.Taken += len(*f.to)
		if _, err := io.ReadFull(f.from, *f.to); err != nil {
			return false, batch.ErrDamaged
		}
	}
	if len(r.Key)+len(r.Value) > o.max {
		r.Hide()
	}
	return true, nil
}

func closeRecord(rec *protocol.Record) {
	if rec.Key != nil {
		rec.Key.Close()
	}
	if rec.Value != nil {
		rec.Value.Close()
	}
}

// decompress is the batch.Codec that uses kafka-go's codecs.
func decompress(number int8, src io.Reader) io.ReadCloser {
	z := compress.Compression(number).Codec()
	if z == nil {
		return nil
	}
	return z.NewReader(src)
}
