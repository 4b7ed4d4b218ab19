package stream

import (
	"context"
	"sync"
)

// openings counts the epochs that are being opened, from their charge on, and keeps others from it while
// streams change.
type openings struct {
	mu     sync.Mutex
	n      int
	closed chan struct{} // closed when they may go on; nil: they may
	idle   chan struct{} // closed when none is under way; nil: nobody waits for that
}

// begin waits until an epoch may be opened. Then end says that it is, or not.
func (o *openings) begin(ctx context.Context) error {
	for {
		o.mu.Lock()
		closed := o.closed
		if closed == nil {
			o.n++
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

func (o *openings) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n == 0 && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// shut lets no epoch be opened any more, and waits for those that are being opened. Without an error,
// reopen ends that; with one, all goes on as before. Only one may call it at a time.
func (o *openings) shut(ctx context.Context) error {
	o.mu.Lock()
	o.closed = make(chan struct{})
	var idle chan struct{}
	if o.n > 0 {
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
	o.reopen()
	return ctx.Err()
}

func (o *openings) reopen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.closed)
	o.closed, o.idle = nil, nil
}
