package kafka

import (
	"context"
)

// maxReadBack is larger than any record that this program writes. A larger record is delivered without its content, as
// by a Reader.
const maxReadBack = 64 << 20

// ReadBack calls fn with every record of a partition, from offset `from` to the end of the log at the time of the call.
// It stops if fn returns an error. The record is valid only during the call of fn. Failed calls to the broker are
// repeated until the context ends. If the log starts after `from`, the error is a GapError; if the log ends before it,
// a TruncatedError.
//
// It delivers all records that a consumer of uncommitted records may have seen, including aborted ones. Otherwise an
// open transaction of another program in the topic would hide all records published after it.
func (c *Client) ReadBack(ctx context.Context, topic string, partition int32, from int64,
	fn func(*Record) error) error {
	return c.ReadBackOr(ctx, topic, partition, from, fn, func(error) error { return nil })
}

// ReadBackOr works like ReadBack. Before it repeats a failed call, it calls `failed` with the reason; if `failed`
// returns an error, ReadBackOr returns this error.
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

// ReadBackTo works like ReadBack, but reads up to a given recent end of the log, for which it need not ask the broker.
// The end must be after `from`. If the log has lost records at its end since then, ReadBackTo may wait for new records.
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

// Follow calls fn with each chunk that a reader fetches, beginning at offset `from`, until the context ends or fn
// returns an error. The chunk is valid only during the call of fn, which may release it earlier. Failed calls to the
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

// repeated repeats a call to the broker as long as its error is retriable and `failed` returns nil.
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
