package task

import (
	"time"

	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/monitor"
)

// commitTrace is what an epoch's trace says of the steps that wait for a commit, and of commits.
type commitTrace struct {
	work      trace.Work // what spans of the epoch say
	steps     trace.Span // of what was closed since the last commit
	closes    int        // of it: spans
	committed trace.Span // of what the last commit made durable
}

// close begins the span of a step that is being closed, and that of the steps that the
// next commit makes durable.
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

// commit begins the span of a commit of steps.
func (x *commitTrace) commit(t *trace.Tracer, first, last uint64, at time.Time) trace.Span {
	work := x.work
	if work.First, work.Last = first, last; first > last {
		work.First, work.Last = 0, 0 // it writes what was acknowledged
	}
	return t.Within(x.steps, trace.Commit, work, at)
}

// take returns the span of the steps that a commit makes durable. What is closed from now on is of the next one.
func (x *commitTrace) take() trace.Span {
	steps := x.steps
	x.steps = trace.Span{}
	return steps
}

// endSpans ends the commit's span and, unless the commit failed, that of its steps, to which what is
// published now still belongs.
func (c *commit) endSpans() {
	at := c.begun.Add(c.took)
	c.span.Failed = monitor.WhyFailed(c.err)
	c.span.End(at)
	if c.err == nil && c.steps.Begun() {
		c.steps.End(at)
	}
}
