package stream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/shardlog"
)

// measured is a holding of which the metrics tell: what is read of it, and what is written to it.
type measured struct {
	holding
	m *metrics

	mu    sync.Mutex
	lines int // of the ledger, as the metrics count them
	ended bool
}

func measure(h holding, m *metrics) *measured { return &measured{holding: h, m: m} }

// Values implements holding. Like those of the holding they are given away once.
func (h *measured) Values() map[string]shardlog.Value {
	values := h.holding.Values()
	var bytes int
	for _, v := range values {
		bytes += len(v.Data)
	}
	h.m.restored(bytes)
	return values
}

// Lines implements holding, like Values.
func (h *measured) Lines() [][]byte {
	lines := h.holding.Lines()
	h.m.restored(sizeOf(lines))
	h.count(len(lines))
	return lines
}

func sizeOf(lines [][]byte) (bytes int) {
	for _, l := range lines {
		bytes += len(l)
	}
	return bytes
}

// Update implements holding.
func (h *measured) Update(ctx context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	begin := time.Now()
	err := h.holding.Update(ctx, put, remove, lines)
	switch {
	case err == nil:
		h.m.transaction("committed")
	case errors.Is(err, errLost):
		h.m.transaction("lost")
		return err
	default:
		h.m.transaction("refused")
		return err
	}
	took := time.Since(begin)
	bytes := sizeOf(lines)
	for _, v := range put {
		bytes += len(v.Data)
	}
	h.m.stateCommitted(took, bytes)
	h.count(len(lines))
	return nil
}

// count adds lines to those of the shards that this instance has.
func (h *measured) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.lines += n
		h.m.ledgerLines(n)
	}
}

// end says that the shard is this instance's no longer.
func (h *measured) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		h.m.ledgerLines(-h.lines)
	}
}
