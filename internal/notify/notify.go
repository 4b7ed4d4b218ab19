// Package notify wakes goroutines that wait for a change of a state protected by a mutex. It is like sync.Cond, but
// waiting can also end with a context or another channel.
package notify

import (
	"context"
	"sync"
)

// Broadcast wakes all goroutines that wait for a state to change. The mutex of that state protects it. The zero value
// is ready to use.
type Broadcast struct {
	next chan struct{}
}

// Send wakes all waiters. The caller holds the state's mutex.
func (b *Broadcast) Send() {
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Next returns a channel that the next Send closes. The caller holds the state's mutex.
func (b *Broadcast) Next() <-chan struct{} {
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Until waits until ok returns true, and then returns nil. If the context ends earlier, it returns the context's error.
// It locks the state's mutex to call ok, at once and after each Send. The caller must not hold the mutex.
func (b *Broadcast) Until(ctx context.Context, state sync.Locker, ok func() bool) error {
	for {
		state.Lock()
		done := ok()
		var next <-chan struct{}
		if !done {
			next = b.Next()
		}
		state.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next:
		}
	}
}
