package stream

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/internal/trace"
	"streamdp/stream/core"
)

// feed is what reading partitions for a task needs of the process. It has no key, no state and no ledger.
type feed struct {
	*repeater
	s       *config.Stream
	task    core.Task
	log     *slog.Logger
	client  *kafka.Client
	memory  *kafka.Memory
	schemas *Schemas
	metrics *metrics
	trace   *trace.Tracer
	now     func() time.Time

	fetchBytes int
	lookEvery  time.Duration
	// sameLog halts where the input is not the log of an epoch any more; nil: somebody else looks.
	sameLog     func(ctx context.Context, epoch uint64) error
	showSchemas func([]SchemaStatus) // shows what the registry said; nil: nobody looks
	expected    int                  // readers of the input that have a share of the memory

	logStart, logEnd *atomic.Int64 // the ends of the log that were seen last
}

func newFeed(h *host, t core.Task, s *config.Stream, changed func()) *feed {
	f := &feed{
		s: s, task: t, log: h.log.With("task", t.String()), client: h.client, memory: h.memory, schemas: h.schemas, metrics: h.metrics, trace: h.trace,
		now: h.now, fetchBytes: h.fetchBytes, lookEvery: h.lookEvery, logStart: new(atomic.Int64), logEnd: new(atomic.Int64),
	}
	f.repeater = newRepeater(f.log, h.metrics.kafkaError, changed)
	return f
}

// expect sets for how many readers the task has shares of the memory.
func (f *feed) expect(readers int) {
	f.memory.Expect(readers - f.expected)
	f.expected = readers
}
