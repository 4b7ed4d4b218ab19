package stream

import (
	"errors"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
)

// mostCloses bounds the spans of closed steps in a trace. A commit may make a thousand steps
// durable.
const mostCloses = 100

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
