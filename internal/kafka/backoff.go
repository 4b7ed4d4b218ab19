package kafka

import (
	"context"
	"hash/maphash"
	"time"
)

// Backoff is the pause between attempts of a call that failed with a retriable
// error: doubling from Min to Max, each shortened at random by up to a half, so
// that many tasks do not return to a broker in step. The zero value waits from
// 50 ms to 5 s.
type Backoff struct {
	Min, Max time.Duration
	attempts int
}

// Wait sleeps for the next pause. It returns early, with the context's error,
// when the context ends.
func (b *Backoff) Wait(ctx context.Context) error {
	return sleep(ctx, b.Next())
}

// sleep returns after the time, or with the context's error when the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Reset is to be called after a success.
func (b *Backoff) Reset() { b.attempts = 0 }

// Next returns the next pause, for those who wait by other means.
func (b *Backoff) Next() time.Duration {
	lo, hi := b.Min, b.Max
	if lo <= 0 {
		lo = 50 * time.Millisecond
	}
	if hi <= 0 {
		hi = 5 * time.Second
	}
	d := hi
	if b.attempts < 16 && lo<<b.attempts < hi {
		d = lo << b.attempts
		b.attempts++
	}
	// A fresh hash seed is random enough to spread retries; random numbers
	// proper belong to the package that makes noise.
	r := maphash.Bytes(maphash.MakeSeed(), nil)
	return d - time.Duration(r%uint64(d/2+1))
}
