package epoch

import (
	"context"
	"sync"
)

// OpenGate counts the epochs that are being opened, from their charge on, and keeps others from it while
// streams change.
type OpenGate struct {
	mu     sync.Mutex
	N      int           // epochs that are being opened
	closed chan struct{} // closed when they may go on; nil: they may
	idle   chan struct{} // closed when none is under way; nil: nobody waits for that
}

// Begin waits until an epoch may be opened. Unless it returns an error, End must follow.
func (o *OpenGate) Begin(ctx context.Context) error {
	for {
		o.mu.Lock()
		closed := o.closed
		if closed == nil {
			o.N++
			o.mu.Unlock()
			return nil
		}
		o.mu.Unlock()
		select {
		case <-closed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// End says that an epoch is open, or will not be.
func (o *OpenGate) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.N--; o.N == 0 && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// Shut lets no epoch be opened any more, and waits for those that are being opened. Without an error,
// Reopen ends that; with one, all goes on as before. Only one may call it at a time.
func (o *OpenGate) Shut(ctx context.Context) error {
	o.mu.Lock()
	o.closed = make(chan struct{})
	var idle chan struct{}
	if o.N > 0 {
		idle = make(chan struct{})
		o.idle = idle
	}
	o.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	o.Reopen()
	return ctx.Err()
}

// Reopen ends what Shut began.
func (o *OpenGate) Reopen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.closed)
	o.closed, o.idle = nil, nil
}
