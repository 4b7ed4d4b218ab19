package kafka

import (
	"context"
)

// maxReadBack is more than any record of our own has. A larger one is delivered
// without its content, as by a Reader.
const maxReadBack = 64 << 20

// ReadBack calls fn with every record of a partition from an offset to the end
// that the log has at the time of the call, and stops where fn returns an
// error. The record is valid during the call only. Failed calls to the broker
// are repeated until the context ends; a log that starts after from, or ends
// before it, is a GapError or a TruncatedError.
//
// It reads what a consumer without regard for transactions may have seen,
// aborted records too: a foreign transaction left open in the topic must not
// hide what was published after it.
func (c *Client) ReadBack(ctx context.Context, topic string, partition int32, from int64, fn func(*Record) error) error {
	return c.ReadBackOr(ctx, topic, partition, from, fn, func(error) error { return nil })
}

// ReadBackOr is ReadBack that tells failed why it is about to repeat a call. If that returns an
// error, ReadBackOr ends with it.
func (c *Client) ReadBackOr(ctx context.Context, topic string, partition int32, from int64, fn func(*Record) error, failed func(error) error) error {
	r, err := c.NewReader(ReaderOptions{
		Topic: topic, Partition: partition,
		Uncommitted:    true,
		Compacted:      true,
		MaxRecordBytes: maxReadBack,
	}, Position{Next: from, LeaderEpoch: -1})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // also of a request sent ahead
	defer cancel()
	var pause Backoff
	retry := func(call func() error) error {
		for {
			err := call()
			if !Retriable(err) {
				pause.Reset()
				return err
			}
			if err := failed(err); err != nil {
				return err
			}
			if err := pause.Wait(ctx); err != nil {
				return err
			}
		}
	}
	var end int64
	err = retry(func() error {
		start, _, e, err := c.Offsets(ctx, topic, partition)
		switch {
		case err != nil:
			return err
		case start > from:
			return &GapError{Topic: topic, Partition: partition, LogStart: start, Next: from}
		case e < from:
			return r.truncated(e)
		}
		end = e
		return nil
	})
	var chunk Chunk
	for err == nil && r.next < end {
		if err = retry(func() error { return r.Fetch(ctx, &chunk) }); err != nil {
			break
		}
		for i := range chunk.Records {
			if chunk.Records[i].Offset >= end {
				break
			}
			if err = fn(&chunk.Records[i]); err != nil {
				break
			}
		}
	}
	return err
}
