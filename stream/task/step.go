package task

import (
	"errors"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
)

// workOff applies the records or sums that have been read.
func (p *processor) workOff() error {
	if p.applier.merge != nil {
		return p.applySums()
	}
	return p.apply()
}

// apply applies records of the current batch until the batch ends, a tick comes, or a commit must come first.
func (p *processor) apply() error {
	a := p.applier
	for {
		ended, done := a.add(p.resting)
		if done {
			a.finishBatch()
		}
		if !ended {
			return nil
		}
		if stop, err := p.close(a.core.Close); stop || err != nil || p.resting() {
			return err
		}
	}
}

// applySums merges the sums of a step, and closes the step.
func (p *processor) applySums() error {
	a, w := p.applier, p.committer
	steps := a.whole
	a.whole = nil
	merge := func() ([]core.Message, error) {
		return a.core.Merge(input.SumsOf(steps), func() { a.merge.Emptied(steps) })
	}
	if a.merge.Ahead && w.concurrent() {
		return a.startClosing(steps, merge)
	}
	_, err := p.close(merge)
	return p.releaseSums(steps, err)
}

// releaseSums gives the sums of a closed step back to the merger. It keeps them if err says that the step was not
// closed.
func (p *processor) releaseSums(steps []input.StepSum, err error) error {
	if err != nil || p.applier.core.Step() < steps[0].Step {
		return err // the epoch ended before the step
	}
	p.applier.finishSums(steps)
	return nil
}

// close closes the open step by calling the function `by`. If stop is true, the caller must return to the loop.
func (p *processor) close(by func() ([]core.Message, error)) (stop bool, err error) {
	var span trace.Span
	var now time.Time
	if p.r.D.Trace != nil {
		span = p.committer.trace.close(p.r.D.Trace, p.applier.core.Step()+1, p.r.D.Now())
	}
	messages, err := by()
	if p.r.D.Trace != nil {
		now = p.r.D.Now()
	}
	return p.handleClosed(span, now, messages, err)
}

// handleClosed handles the result of closing a step. at is the time at which the close ended.
func (p *processor) handleClosed(span trace.Span, at time.Time, messages []core.Message,
	err error) (stop bool, _ error) {
	a, w := p.applier, p.committer
	if errors.Is(err, dp.ErrExhausted) {
		p.exhausted = true
		return true, nil
	}
	span.Failed = monitor.WhyFailed(err)
	span.End(at)
	if err != nil {
		return true, failure.Haltf(failure.Mechanism, "step %d: %w", a.core.Step()+1, err)
	}
	w.quiet++
	a.work.Steps++
	p.exhausted = a.over()
	// Compare with the output. It may lack some pieces of a release.
	if messages, err = p.r.Guard.Closed(a.core.Step(), messages); err != nil {
		return true, err
	}
	p.updateComparing()
	if err := w.take(messages); err != nil {
		return true, err
	}
	if len(messages) > 0 {
		a.work.Releases++
	}
	full := w.full()
	if full && w.period > 0 {
		p.tick = w.soon(p.r.D.Now())
	}
	return p.exhausted || full, nil
}

// handleConcurrentClose handles the step that another goroutine has closed.
func (p *processor) handleConcurrentClose() error {
	c := p.applier.closing
	p.applier.closing, p.worked = nil, true
	// The span belongs to the commit that will hold the step. That may not be the next commit.
	span := p.committer.trace.close(p.r.D.Trace, c.before.step+1, c.begun)
	_, err := p.handleClosed(span, c.begun.Add(c.took), c.messages, c.err)
	return p.releaseSums(c.steps, err)
}
