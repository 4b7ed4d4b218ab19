package kafka

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// Messages of the formats before Kafka 0.11 are left to kafka-go, one by one.
// Topics that were never converted still hold them, and brokers before 4.0 serve
// them.

// oldest is the size of the smallest message: offset, length, checksum, magic,
// attributes, and a key and a value that are null.
const oldest = 26

// maxOld bounds what a compressed message of these formats may decompress to.
// kafka-go takes all of it into memory, and must: the offsets of the messages in
// it are counted from the last one.
const maxOld = 64 << 20

var errOld = errors.New("a compressed message in the format before Kafka 0.11 is larger than 64 MiB")

// oldRecords are the records of a message.
type oldRecords struct {
	reading bool
	records protocol.RecordReader
}

// open reads a whole message.
func (o *oldRecords) open(raw []byte) (err error) {
	if err := oldFits(raw); err != nil {
		return err
	}
	// kafka-go trusts the lengths of the messages inside a compressed one.
	defer func() {
		if recover() != nil {
			err = errDamaged
		}
	}()
	size := binary.BigEndian.AppendUint32(nil, uint32(len(raw)))
	var set protocol.RecordSet
	if _, err := set.ReadFrom(bufio.NewReader(io.MultiReader(bytes.NewReader(size), bytes.NewReader(raw)))); err != nil {
		return errDamaged
	}
	o.reading, o.records = true, set.Records
	return nil
}

// oldFits returns an error where a message decompresses to more than maxOld.
func oldFits(raw []byte) error {
	codec := protocol.Attributes(raw[17]).Compression()
	if codec == 0 {
		return nil
	}
	i := 18
	if raw[atMagic] == 1 {
		i += 8 // timestamp
	}
	for field := range 2 { // key, value
		if i+4 > len(raw) {
			return errDamaged
		}
		n := int(int32(binary.BigEndian.Uint32(raw[i:])))
		if i += 4; n > len(raw)-i {
			return errDamaged
		}
		if field == 1 && n > 0 {
			var z inflater
			if err := z.open(codec, raw[i:i+n]); err != nil {
				return err
			}
			defer z.close()
			if z.skip(context.Background(), maxOld+1, nil) {
				return errOld
			}
		}
		i += max(n, 0)
	}
	return nil
}

func (o *oldRecords) close() { *o = oldRecords{} }

// next reads a record into memory of the chunk.
func (o *oldRecords) next(c *Chunk, max int, r *record) (bool, error) {
	if o.records == nil {
		return false, nil
	}
	rec, err := o.records.ReadRecord()
	if err == io.EOF {
		return false, nil
	}
	if err != nil {
		return false, errDamaged
	}
	defer closeRecord(rec)
	*r = record{offset: rec.Offset}
	for _, f := range []struct {
		from protocol.Bytes
		to   *[]byte
	}{{rec.Key, &r.key}, {rec.Value, &r.value}} {
		if f.from == nil {
			continue
		}
		*f.to = c.take(f.from.Len())
		r.taken += len(*f.to)
		if _, err := io.ReadFull(f.from, *f.to); err != nil {
			return false, errDamaged
		}
	}
	if len(r.key)+len(r.value) > max {
		r.hide(HashRecord(r.offset, r.key, r.value))
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
