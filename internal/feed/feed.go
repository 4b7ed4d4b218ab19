// Package feed sends records to a topic, in batches and at a given rate.
package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
)

// Sender sends records to a partition, in order. It repeats failed requests, so the topic may contain records twice.
type Sender struct {
	client    *kafka.Client
	topic     string
	partition int32
	rate      int
	started   time.Time
	count     int
	batch     []kafka.Message
	bytes     int
}

// NewSender returns a sender to a partition that sends rate records per second from now on, or as fast as possible if
// rate is 0.
func NewSender(client *kafka.Client, topic string, partition int32, rate int) *Sender {
	return &Sender{client: client, topic: topic, partition: partition, rate: rate, started: time.Now()}
}

// Count returns the number of records given to the sender.
func (s *Sender) Count() int { return s.count }

// Sent returns the number of these records that are in the topic.
func (s *Sender) Sent() int { return s.count - len(s.batch) }

// SendAll sends a record for each value that next returns, until `next` returns io.EOF. It calls `tell` after every
// thousand records.
func (s *Sender) SendAll(ctx context.Context, next func() ([]byte, error), tell func()) error {
	for {
		value, err := next()
		if err == io.EOF {
			return s.Flush(ctx)
		}
		if err != nil {
			return err
		}
		if err := s.Send(ctx, nil, value); err != nil {
			return err
		}
		if s.count%1000 == 0 {
			tell()
		}
	}
}

// Send adds a record to the batch. key is nil for a record without one. A full batch is sent, and then Send waits until
// the next record is due.
func (s *Sender) Send(ctx context.Context, key, value []byte) error {
	s.batch = append(s.batch, kafka.Message{Key: key, Value: value, Time: time.Now().Truncate(time.Millisecond)})
	s.bytes += len(key) + len(value)
	s.count++
	limit := 5000
	if s.rate > 0 {
		limit = min(limit, max(1, s.rate/20))
	}
	if len(s.batch) < limit && s.bytes < 500_000 {
		return nil
	}
	if err := s.Flush(ctx); err != nil {
		return err
	}
	if s.rate > 0 {
		due := s.started.Add(time.Duration(float64(s.count) / float64(s.rate) * float64(time.Second)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
	}
	return ctx.Err()
}

// Flush sends the batch. If a record is larger than the topic accepts, Flush sends an empty record instead, because the
// content of one record must not block the others.
func (s *Sender) Flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	var pause kafka.Backoff
	for rest := s.batch; ; {
		_, err := s.client.Produce(ctx, s.topic, s.partition, rest)
		if err == nil {
			s.batch, s.bytes = s.batch[:0], 0
			return nil
		}
		if large, ok := errors.AsType[*kafka.TooLargeError](err); ok && len(rest[large.Index].Value) > 0 {
			rest = rest[large.Index:] // the records before it were appended
			rest[0].Value = []byte{}
			continue
		}
		if kafka.UnknownTopic(err) {
			if t, err := s.client.Topic(ctx, s.topic); err == nil && !t.Exists {
				return fmt.Errorf("topic %s does not exist: create it first, or give --create", s.topic)
			}
			return fmt.Errorf("topic %s has no partition %d", s.topic, s.partition)
		}
		if !kafka.Retriable(err) {
			return err
		}
		if e := pause.Wait(ctx); e != nil {
			return errors.Join(e, err)
		}
	}
}
