package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/internal/trace"
	"streamdp/stream/core"
)

// mostCloses bounds the spans of closed steps in a trace. A commit may make a thousand steps
// durable.
const mostCloses = 100

// newTracer returns what sends traces, nil where none are wanted, and its files of TLS. sent learns what became of
// spans.
//
// Errors: ErrCredentials.
func newTracer(c *config.Config, version string, sent func(sent, dropped int, err error)) (*trace.Tracer, *config.Rotation, error) {
	t := c.Trace
	if t == nil {
		return nil, nil, nil
	}
	o := trace.Options{Endpoint: t.URL(), Sample: t.Sample, Service: t.Service, Version: version, Sent: sent}
	if c.Cluster != nil {
		o.Instance = InstanceName(c)
	}
	var err error
	if t.HeadersFile != "" {
		if o.Header, err = config.LoadHeaders(t.HeadersFile, c.State.KeyGroupReadable); err != nil {
			return nil, nil, fmt.Errorf("%w: trace: %w", ErrCredentials, err)
		}
	}
	var files *config.Rotation
	if t.TLS != nil {
		if files, err = config.OpenTLS(t.TLS, c.State.KeyGroupReadable); err != nil {
			return nil, nil, fmt.Errorf("%w: trace.tls: %w", ErrCredentials, err)
		}
		o.TLS = files.Config
	}
	return trace.New(o), files, nil
}

// CheckTrace reads the files of [trace], as a daemon does at start. With connect it also sends
// a request without spans, and returns as refused why the collector does not take it.
//
// Errors: ErrCredentials.
func CheckTrace(ctx context.Context, c *config.Config, connect bool) (refused, err error) {
	t, _, err := newTracer(c, "", nil)
	if err != nil || t == nil || !connect {
		return nil, err
	}
	return t.Probe(ctx), nil
}

// traced counts what became of spans, and warns once while they are lost.
func (d *Daemon) traced() func(sent, dropped int, err error) {
	r := newRepeater(d.log.With("endpoint", d.cfg.Trace.URL()), d.metrics.kafkaError, func() {})
	return func(sent, dropped int, err error) {
		d.metrics.traced(sent, dropped)
		if err != nil {
			r.troubled("send traces", err)
		} else {
			r.untroubled("send traces")
		}
	}
}

// spanOf returns what spans of a task's epoch say.
func spanOf(t core.Task, epoch uint64) trace.Work {
	return trace.Work{Stream: t.Stream, Partition: core.PartitionName(t.Partition), Epoch: epoch}
}

// whyFailed returns a word for an error, of a set that does not depend on records.
func whyFailed(err error) string {
	var e *kafka.Error
	var h *halt
	switch {
	case err == nil:
		return ""
	case errors.As(err, &h):
		return h.reason
	case errors.As(err, &e):
		return e.API + " " + e.Label()
	case full(err):
		return "disk"
	}
	return "other"
}

// traceClose begins the span of a step that is being closed, and that of the steps that the
// next commit makes durable.
func (p *processor) traceClose(step uint64, at time.Time) trace.Span {
	t, w := p.r.d.trace, p.span
	if t == nil {
		return trace.Span{}
	}
	w.First = step
	if !p.steps.Begun() {
		p.steps, p.closes = t.Begin(trace.Steps, w, at), 0
	}
	if p.closes++; p.closes > mostCloses {
		return trace.Span{}
	}
	return t.Within(p.steps, trace.Close, w, at)
}

// traceCommit begins the span of a commit.
func (p *processor) traceCommit(at time.Time) trace.Span {
	w := p.span
	w.Last = p.boundary().step
	if w.First = p.epoch.cp.step + 1; w.First > w.Last {
		w.First, w.Last = 0, 0 // it writes what was acknowledged
	}
	return p.r.d.trace.Within(p.steps, trace.Commit, w, at)
}

// tracedCommit ends that span and, unless the commit failed, the trace, to which what is
// published now still belongs.
func (p *processor) tracedCommit(c *commit) {
	at := c.begun.Add(c.took)
	c.span.Failed = whyFailed(c.err)
	c.span.End(at)
	if c.err == nil && c.steps.Begun() {
		c.steps.End(at)
	}
}
