package task

import (
	"time"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/input"
)

// closing is a step that is being closed in its own goroutine. For a refit, solving a window takes about as long as
// reading the next one. Meanwhile the loop serves ticks, and writes commits that do not include the step.
type closing struct {
	before   edge // snapshot of the core before the step; those commits use it
	steps    []input.StepSum
	begun    time.Time
	took     time.Duration
	messages []core.Message
	err      error
	done     chan struct{} // closed when messages and err are set
}

// ended is closed when the step is closed. For a nil c it blocks forever.
func (c *closing) ended() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.done
}

// startClosing starts a goroutine that closes a step by calling the function `by`. Until `by` has returned, nothing
// else may use the core.
func (a *applier) startClosing(steps []input.StepSum, by func() ([]core.Message, error)) error {
	state, err := a.core.AppendState(a.before[:0])
	if err != nil {
		return err
	}
	a.before = state
	c := &closing{before: a.boundary(), steps: steps, begun: a.r.D.Now(), done: make(chan struct{})}
	c.before.state = state
	a.closing = c
	go func() {
		defer close(c.done)
		c.messages, c.err = by()
		c.took = a.r.D.Now().Sub(c.begun)
	}()
	return nil
}
