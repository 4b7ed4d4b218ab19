package monitor

import (
	"errors"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// MostCloses is the maximum number of spans of closed steps in a trace. A commit may make a thousand steps durable.
const MostCloses = 100

// SpanOf returns the attributes of spans of a task's epoch.
func SpanOf(t core.Task, epoch uint64) trace.Work {
	return trace.Work{Stream: t.Stream, Partition: core.PartitionName(t.Partition), Epoch: epoch}
}

// WhyFailed returns a label for an error, from a set that does not depend on records.
func WhyFailed(err error) string {
	var e *kafka.Error
	var h *failure.Halt
	switch {
	case err == nil:
		return ""
	case errors.As(err, &h):
		return h.Reason
	case errors.As(err, &e):
		return e.API + " " + e.Label()
	case failure.DiskFull(err):
		return "disk"
	}
	return "other"
}
