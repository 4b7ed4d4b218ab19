package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

const (
	// produceBytes bounds a request. max.message.bytes limits a batch, not a
	// message, and is 1 048 588 by default.
	produceBytes = 900_000
	// messageOverhead and headerOverhead bound what the encoding adds to the
	// bytes of a message and of each header.
	messageOverhead = 40
	headerOverhead  = 10
)

// Message is a record to be published.
type Message struct {
	Key, Value []byte // nil: null
	Headers    []Header
	// Time is the record's timestamp, in whole milliseconds after 1970.
	// Required: where it is missing kafka-go would put the present time, and a
	// message sent again would differ.
	Time time.Time
}

func (m *Message) bytes() int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

func (m *Message) encoded() int {
	return m.bytes() + messageOverhead + headerOverhead*len(m.Headers)
}

// Produce appends messages to a partition in order and returns, after all of
// them have been acknowledged by all in-sync replicas, the offset of the first.
// It sends one request at a time, of at most 900 kB; the offsets of a call that
// needed several need not be contiguous.
//
// After an error some, all or none of the messages may have been appended.
// Where it is Retriable the caller sends all of them again, the same bytes,
// until it succeeds; readers remove duplicates by key. *TooLargeError is final.
func (c *Client) Produce(ctx context.Context, topic string, partition int32, msgs []Message) (base int64, err error) {
	if len(msgs) == 0 {
		return 0, localError("produce", topic, partition, kindUsage, "no messages")
	}
	for i := range msgs {
		if msgs[i].Time.UnixMilli() <= 0 {
			return 0, localError("produce", topic, partition, kindUsage, fmt.Sprintf("message %d has no time", i))
		}
	}
	base = -1
	for at := 0; at < len(msgs); {
		n, size := 0, 0
		for at+n < len(msgs) {
			size += msgs[at+n].encoded()
			if n > 0 && size > produceBytes {
				break
			}
			n++
		}
		first, err := c.produce(ctx, topic, partition, msgs[at:at+n], at)
		if err != nil {
			return 0, err
		}
		if base < 0 {
			base = first
		}
		at += n
	}
	return base, nil
}

// produce sends one batch, in halves where the topic takes only smaller ones.
// index is the first message's place in the caller's slice.
func (c *Client) produce(ctx context.Context, topic string, partition int32, msgs []Message, index int) (int64, error) {
	base, err := c.produceBatch(ctx, topic, partition, msgs)
	var e *Error
	if !errors.As(err, &e) {
		return base, err
	}
	switch kafkago.Error(e.Code) {
	case kafkago.MessageSizeTooLarge, kafkago.RecordListTooLarge:
	default:
		return 0, err
	}
	half := len(msgs) / 2
	if half == 0 {
		return 0, &TooLargeError{Topic: topic, Partition: partition, Index: index, Bytes: msgs[0].bytes(), cause: e}
	}
	if base, err = c.produce(ctx, topic, partition, msgs[:half], index); err != nil {
		return 0, err
	}
	_, err = c.produce(ctx, topic, partition, msgs[half:], index+half)
	return base, err
}

func (c *Client) produceBatch(ctx context.Context, topic string, partition int32, msgs []Message) (int64, error) {
	const api = "produce"
	if c.isClosed() {
		return 0, callError(ctx, api, topic, partition, errClosed)
	}
	records := make([]kafkago.Record, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		records[i] = kafkago.Record{Key: kafkago.NewBytes(m.Key), Value: kafkago.NewBytes(m.Value), Time: m.Time}
		for _, h := range m.Headers {
			records[i].Headers = append(records[i].Headers, protocol.Header(h))
		}
	}
	res, err := c.api.Produce(ctx, &kafkago.ProduceRequest{
		Topic:        topic,
		Partition:    int(partition),
		RequiredAcks: kafkago.RequireAll,
		Records:      kafkago.NewRecordReader(records...),
	})
	if err != nil {
		return 0, callError(ctx, api, topic, partition, err)
	}
	if res.Error != nil {
		// Only the code is kept: a broker's text may quote what it refuses.
		return 0, callError(ctx, api, topic, partition, res.Error)
	}
	return res.BaseOffset, nil
}
