package epoch

import (
	"context"
	"sync"
)

// OpenGate counts the epochs that are being opened, from their charge on. While streams change, the gate is shut and no
// opening can begin.
type OpenGate struct {
	mu     sync.Mutex
	N      int           // number of epochs being opened
	closed chan struct{} // closed by Reopen; nil: the gate is open
	idle   chan struct{} // closed when no opening is in progress; nil: nobody waits for that
}

// Begin waits until an epoch may be opened. Unless it fails, the caller must call End.
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

// End says that the opening has ended, with or without success.
func (o *OpenGate) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.N--; o.N == 0 && o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// Shut shuts the gate, and waits for the openings in progress. If it fails, the gate stays open; otherwise the caller
// must call Reopen. There must be only one caller at a time.
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

// Reopen opens the gate after Shut.
func (o *OpenGate) Reopen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.closed)
	o.closed, o.idle = nil, nil
}
