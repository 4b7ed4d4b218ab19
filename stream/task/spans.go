package task

import (
	"time"

	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/monitor"
)

// commitTrace holds the trace spans of commits, and of steps that wait for a commit.
type commitTrace struct {
	work      trace.Work // attributes of the epoch's spans
	steps     trace.Span // span of the steps closed since the last commit
	closes    int        // number of close spans within steps
	committed trace.Span // span of the steps that the last commit made durable
}

// close begins the span of a step that is being closed. For the first step after a commit, it also begins the span of
// the steps that the next commit makes durable.
func (x *commitTrace) close(t *trace.Tracer, step uint64, at time.Time) trace.Span {
	if t == nil {
		return trace.Span{}
	}
	work := x.work
	work.First = step
	if !x.steps.Begun() {
		x.steps, x.closes = t.Begin(trace.Steps, work, at), 0
	}
	if x.closes++; x.closes > monitor.MostCloses {
		return trace.Span{}
	}
	return t.Within(x.steps, trace.Close, work, at)
}

// commit begins the span of a commit that holds the steps first to last.
func (x *commitTrace) commit(t *trace.Tracer, first, last uint64, at time.Time) trace.Span {
	work := x.work
	if work.First, work.Last = first, last; first > last {
		work.First, work.Last = 0, 0 // the commit holds no step, only acknowledgements
	}
	return t.Within(x.steps, trace.Commit, work, at)
}

// take returns the span of the steps that a commit makes durable. Steps closed after this call belong to the next
// commit's span.
func (x *commitTrace) take() trace.Span {
	steps := x.steps
	x.steps = trace.Span{}
	return steps
}

// endSpans ends the commit's span and, unless the commit failed, the span of its steps. Publishing adds to the span of
// the steps after that.
func (c *commit) endSpans() {
	at := c.begun.Add(c.took)
	c.span.Failed = monitor.WhyFailed(c.err)
	c.span.End(at)
	if c.err == nil && c.steps.Begun() {
		c.steps.End(at)
	}
}
