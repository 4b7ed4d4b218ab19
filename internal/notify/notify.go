// Package notify wakes goroutines that wait for a state which a mutex guards. It is sync.Cond for those that
// wait for a context, or for other channels, too.
package notify

import (
	"context"
	"sync"
)

// Broadcast wakes all who wait for a state to change. The mutex of that state guards it. Its zero value is ready.
type Broadcast struct {
	next chan struct{}
}

// Send wakes all who wait. The caller holds the state's mutex.
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

// Until waits until ok is true, and returns nil then; or until the context ends, and returns its error. It
// locks the state's mutex while it calls ok: at once, and after each Send. The caller does not hold it.
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
