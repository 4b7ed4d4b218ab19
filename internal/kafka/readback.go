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
func (c *Client) ReadBack(ctx context.Context, topic string, partition int32, from int64,
	fn func(*Record) error) error {
	return c.ReadBackOr(ctx, topic, partition, from, fn, func(error) error { return nil })
}

// ReadBackOr is ReadBack that tells failed why it is about to repeat a call. If that returns an
// error, ReadBackOr ends with it.
func (c *Client) ReadBackOr(ctx context.Context, topic string, partition int32, from int64, fn func(*Record) error,
	failed func(error) error) error {
	var pause Backoff
	var end int64
	err := repeated(ctx, &pause, failed, func() error {
		start, e, err := c.Bounds(ctx, topic, partition)
		switch {
		case err != nil:
			return err
		case start > from:
			return &GapError{Topic: topic, Partition: partition, LogStart: start, Next: from}
		case e < from:
			return &TruncatedError{Topic: topic, Partition: partition, LogEnd: e, Next: from}
		}
		end = e
		return nil
	})
	if err != nil {
		return err
	}
	return c.readBackTo(ctx, topic, partition, from, end, fn, failed)
}

// ReadBackTo is ReadBack to an end that the log had a moment ago, behind from, so that it need not ask for it. From a
// log that has lost its end since then it may wait for further records.
func (c *Client) ReadBackTo(ctx context.Context, topic string, partition int32, from, end int64,
	fn func(*Record) error) error {
	return c.readBackTo(ctx, topic, partition, from, end, fn, func(error) error { return nil })
}

func (c *Client) readBackTo(ctx context.Context, topic string, partition int32, from, end int64, fn func(*Record) error,
	failed func(error) error) error {
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
	var chunk Chunk
	for err == nil && r.next < end {
		if err = repeated(ctx, &pause, failed, func() error { return r.Fetch(ctx, &chunk) }); err != nil {
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

// Follow calls fn with what a reader fetches from an offset on, chunk by chunk, until the context ends or fn
// returns an error. The chunk is valid during the call only, and fn may release it earlier. Failed calls to the
// broker are repeated.
func (c *Client) Follow(ctx context.Context, o ReaderOptions, from int64, fn func(*Chunk) error) error {
	r, err := c.NewReader(o, Position{Next: from, LeaderEpoch: -1})
	if err != nil {
		return err
	}
	defer r.Close()
	var pause Backoff
	var chunk Chunk
	defer chunk.Release()
	for {
		err := repeated(ctx, &pause, func(error) error { return nil }, func() error { return r.Fetch(ctx, &chunk) })
		if err != nil {
			return err
		}
		if err := fn(&chunk); err != nil {
			return err
		}
	}
}

// repeated repeats a call to the broker while that may help, and failed allows it.
func repeated(ctx context.Context, pause *Backoff, failed func(error) error, call func() error) error {
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
