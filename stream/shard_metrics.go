package stream

import (
	"context"
	"sync"
	"time"

	"streamdp/internal/cluster"
)

// measured is a holding of which the metrics tell.
type measured struct {
	holding
	m *metrics

	mu    sync.Mutex
	lines int // of the ledger, as the metrics count them
	ended bool
}

// measure counts what was read of a holding, and what is written to it from now on.
func measure(h holding, m *metrics) *measured {
	var bytes int
	for _, v := range h.Values() {
		bytes += len(v.Data)
	}
	lines := h.Lines()
	for _, l := range lines {
		bytes += len(l)
	}
	m.counters["restored_bytes_total"].WithLabelValues().Add(float64(bytes))
	counted := &measured{holding: h, m: m}
	counted.count(len(lines))
	return counted
}

// Update implements holding.
func (h *measured) Update(ctx context.Context, put map[string]cluster.Value, remove []string, lines [][]byte) error {
	begin := time.Now()
	err := h.holding.Update(ctx, put, remove, lines)
	if err != nil {
		h.m.counters["state_transactions_total"].WithLabelValues("lost").Inc()
		return err
	}
	h.m.counters["state_transactions_total"].WithLabelValues("committed").Inc()
	h.m.times["state_commit_seconds"].WithLabelValues().Observe(time.Since(begin).Seconds())
	var bytes int
	for _, v := range put {
		bytes += len(v.Data)
	}
	for _, l := range lines {
		bytes += len(l)
	}
	h.m.counters["state_bytes_total"].WithLabelValues().Add(float64(bytes))
	h.count(len(lines))
	return nil
}

// count adds lines to those of the shards that this instance has.
func (h *measured) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.lines += n
		h.m.gauges["ledger_lines"].WithLabelValues().Add(float64(n))
	}
}

// end says that the shard is this instance's no longer.
func (h *measured) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		h.m.gauges["ledger_lines"].WithLabelValues().Sub(float64(h.lines))
	}
}
