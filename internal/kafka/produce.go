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
	// produceBytes is the maximum size of a request. The topic setting max.message.bytes, by default 1 048 588, limits
	// a batch, not a message.
	produceBytes = 900_000
	// messageOverhead and headerOverhead are upper bounds on the bytes that the encoding adds to a message and to each
	// header.
	messageOverhead = 40
	headerOverhead  = 10
)

// Message is a record to be published.
type Message struct {
	Key, Value []byte // nil: null
	Headers    []Header
	// Time is the record's timestamp, in whole milliseconds since 1970. It must be set: kafka-go would replace a
	// missing time by the current time, so a message that is sent again would differ.
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

// Appended says where messages of a call to Produce were appended: Count messages, at offsets from Base.
type Appended struct {
	Base  int64
	Count int
}

// Produce appends messages to a partition in order. It returns the offsets of the messages after all in-sync replicas
// have acknowledged all of them. It sends one request of at most 900 kB at a time, and returns one Appended for each
// request. If an Appended does not begin at the end of the previous one, another writer appended in between.
//
// After an error, the result `at` covers the acknowledged messages, which are the first ones. Each of the others may
// have been appended or not. If the error is Retriable, the caller sends them again, with the same bytes, until Produce
// succeeds; readers remove duplicates by key. *TooLargeError is final.
func (c *Client) Produce(ctx context.Context, topic string, partition int32, msgs []Message) (at []Appended,
	err error) {
	if len(msgs) == 0 {
		return nil, localError("produce", topic, partition, kindUsage, "no messages")
	}
	for i := range msgs {
		if msgs[i].Time.UnixMilli() <= 0 {
			return nil, localError("produce", topic, partition, kindUsage, fmt.Sprintf("message %d has no time", i))
		}
	}
	for i := 0; i < len(msgs); {
		n, size := 0, 0
		for i+n < len(msgs) {
			size += msgs[i+n].encoded()
			if n > 0 && size > produceBytes {
				break
			}
			n++
		}
		if at, err = c.produce(ctx, topic, partition, msgs[i:i+n], i, at); err != nil {
			return at, err
		}
		i += n
	}
	return at, nil
}

// produce sends one batch, in halves if the topic only accepts smaller batches. It appends one Appended to `at` for
// each batch that was acknowledged. index is the index of the first message in the caller's slice.
func (c *Client) produce(ctx context.Context, topic string, partition int32, msgs []Message, index int,
	at []Appended) ([]Appended, error) {
	base, err := c.produceBatch(ctx, topic, partition, msgs)
	if err == nil {
		return append(at, Appended{base, len(msgs)}), nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return at, err
	}
	switch kafkago.Error(e.Code) {
	case kafkago.MessageSizeTooLarge, kafkago.RecordListTooLarge:
	default:
		return at, err
	}
	half := len(msgs) / 2
	if half == 0 {
		return at, &TooLargeError{Topic: topic, Partition: partition, Index: index, Bytes: msgs[0].bytes(), cause: e}
	}
	if at, err = c.produce(ctx, topic, partition, msgs[:half], index, at); err != nil {
		return at, err
	}
	return c.produce(ctx, topic, partition, msgs[half:], index+half, at)
}

func (c *Client) produceBatch(ctx context.Context, topic string, partition int32, msgs []Message) (int64, error) {
	const api = "produce"
	if c.isClosed() {
		return 0, callError(ctx, api, topic, partition, errClosed)
	}
	leave, err := c.pass(ctx, topic, partition)
	if err != nil {
		return 0, err
	}
	defer leave()
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
		// Keep only the code, because a broker's text may quote the refused data.
		return 0, callError(ctx, api, topic, partition, res.Error)
	}
	return res.BaseOffset, nil
}
