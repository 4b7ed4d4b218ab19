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
func (p *processor) closeBeside(steps []input.StepSum, by func() ([]core.Message, error)) error {
	state, err := p.core.AppendState(p.before[:0])
	if err != nil {
		return err
	}
	p.before = state
	c := &closing{before: p.boundary(), steps: steps, begun: p.R.D.Now(), done: make(chan struct{})}
	c.before.state = state
	p.closing = c
	go func() {
		defer close(c.done)
		c.messages, c.err = by()
		c.took = p.R.D.Now().Sub(c.begun)
	}()
	return nil
}

// closedBeside takes note of the step that was closed beside the loop.
func (p *processor) closedBeside() error {
	c := p.closing
	p.closing, p.worked = nil, true
	// The span is of the commit that will hold the step, which may not be the one that came next.
	span := p.traceClose(c.before.step+1, c.begun)
	_, err := p.closed(span, c.begun.Add(c.took), c.messages, c.err)
	return p.applied(c.steps, err)
}
