package kafka

import (
	"context"
	"hash/maphash"
	"time"
)

// Backoff returns the pauses between attempts of a call that failed with a retriable error. They double from Min to
// Max, and each is shortened by a random amount of up to a half, so that many tasks do not return to a broker at the
// same time. The zero value waits from 50 ms to 5 s.
type Backoff struct {
	Min, Max time.Duration
	attempts int
}

// Wait sleeps for the next pause. If the context ends earlier, it returns the context's error.
func (b *Backoff) Wait(ctx context.Context) error {
	return sleep(ctx, b.Next())
}

// sleep returns after d, or with the context's error if the context ends earlier.
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

// Reset starts again with the shortest pause. Call it after a success.
func (b *Backoff) Reset() { b.attempts = 0 }

// Next returns the next pause, for callers that wait by other means.
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
	// A new hash seed is random enough to spread retries. Only the package that makes noise may use a real random
	// generator.
	r := maphash.Bytes(maphash.MakeSeed(), nil)
	return d - time.Duration(r%uint64(d/2+1))
}
