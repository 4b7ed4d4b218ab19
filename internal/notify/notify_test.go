package notify

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// TestBroadcast: each Send wakes all goroutines that wait, and none that waits later. Until returns when the state is
// as wanted or the context ends.
func TestBroadcast(t *testing.T) {
	var mu sync.Mutex
	var b Broadcast
	b.Send() // has no effect: nobody waits
	first, same := b.Next(), b.Next()
	if first != same {
		t.Error("two who wait for one change have different channels")
	}
	b.Send()
	<-first
	select {
	case <-b.Next():
		t.Error("a change wakes a waiter twice")
	default:
	}
	n := 0
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if err := b.Until(t.Context(), &mu, func() bool { return n == 100 }); err != nil {
				t.Error(err)
			}
		})
	}
	for range 100 {
		mu.Lock()
		n++
		b.Send()
		mu.Unlock()
	}
	waiting.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Until(ended, &mu, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := b.Until(ended, &mu, func() bool { return true }); err != nil {
		t.Error(err)
	}
}
