package kafka

import (
	"context"
)

// maxReadBack is larger than any record that this program writes. A larger record is delivered without its content, as
// by a Reader.
const maxReadBack = 64 << 20

// ReadBack calls fn with every record of a partition, from offset from to the end of the log at the time of the call.
// It stops if fn returns an error. The record is valid only during the call of fn. Failed calls to the broker are
// repeated until the context ends. If the log starts after from, or ends before it, the error is a GapError or a
// TruncatedError.
//
// It delivers what a consumer of uncommitted records may have seen, including aborted records. Otherwise a foreign
// transaction that was left open in the topic would hide what was published after it.
func (c *Client) ReadBack(ctx context.Context, topic string, partition int32, from int64,
	fn func(*Record) error) error {
	return c.ReadBackOr(ctx, topic, partition, from, fn, func(error) error { return nil })
}

// ReadBackOr is ReadBack, but calls failed with the reason before it repeats a call. If failed returns an error,
// ReadBackOr returns that.
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

// ReadBackTo is ReadBack up to a known recent end of the log, which must be after from, so it need not ask for the end.
// If the log has lost its end since then, it may wait for new records.
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
	ctx, cancel := context.WithCancel(ctx) // also cancels a request that was sent ahead
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

// Follow calls fn with each chunk that a reader fetches from offset from on, until the context ends or fn returns an
// error. The chunk is valid only during the call of fn, which may release it earlier. Failed calls to the broker are
// repeated.
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

// repeated repeats a call to the broker as long as that may help and failed returns nil.
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
