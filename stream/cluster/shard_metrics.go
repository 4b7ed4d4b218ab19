package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/monitor"
)

// measured is a Holding that records in the metrics how much is read from it and written to it.
type measured struct {
	Holding
	m *monitor.Metrics

	mu    sync.Mutex
	lines int // number of ledger lines that this holding has added to the metrics
	ended bool
}

func measure(h Holding, m *monitor.Metrics) *measured { return &measured{Holding: h, m: m} }

// Values implements [Holding]. Like the underlying holding, it returns the values only once.
func (h *measured) Values() map[string]shardlog.Value {
	values := h.Holding.Values()
	var bytes int
	for _, v := range values {
		bytes += len(v.Data)
	}
	h.m.Restored(bytes)
	return values
}

// Lines implements [Holding]; like Values, it returns the lines only once.
func (h *measured) Lines() [][]byte {
	lines := h.Holding.Lines()
	h.m.Restored(sizeOf(lines))
	h.count(len(lines))
	return lines
}

func sizeOf(lines [][]byte) (bytes int) {
	for _, l := range lines {
		bytes += len(l)
	}
	return bytes
}

// Update implements [Holding].
func (h *measured) Update(ctx context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	begin := time.Now()
	err := h.Holding.Update(ctx, put, remove, lines)
	switch {
	case err == nil:
		h.m.Transaction("committed")
	case errors.Is(err, errLost):
		h.m.Transaction("lost")
		return err
	default:
		h.m.Transaction("refused")
		return err
	}
	took := time.Since(begin)
	bytes := sizeOf(lines)
	for _, v := range put {
		bytes += len(v.Data)
	}
	h.m.StateCommitted(took, bytes)
	h.count(len(lines))
	return nil
}

// count adds n to the metric that counts the ledger lines of this instance's shards.
func (h *measured) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.lines += n
		h.m.LedgerLines(n)
	}
}

// end removes the shard's lines from the metrics, because this instance does not own the shard any more.
func (h *measured) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		h.m.LedgerLines(-h.lines)
	}
}
