package task

import (
	"time"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/input"
)

// closing is a step that is being closed beside the loop. A refit solves its window for as long
// as it takes to read the next one. Meanwhile ticks come, and commits that do not hold the step.
type closing struct {
	before   edge // what they hold: the core behind the step before
	steps    []input.StepSum
	begun    time.Time
	took     time.Duration
	messages []core.Message
	err      error
	done     chan struct{} // closed when messages and err are there
}

// ended is closed when the step is; of nil it never is.
func (c *closing) ended() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.done
}

// closeBeside begins to close a step, with by. Until that has ended, the core is by's alone.
func (a *applier) closeBeside(steps []input.StepSum, by func() ([]core.Message, error)) error {
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
