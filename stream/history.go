package stream

import (
	"context"

	"streamdp/internal/kafka"
	"streamdp/stream/core"
)

// histories are readings of what an output partition held before tasks began, each for all
// tasks that ask before it begins. With each reading for itself, a thousand tasks that start
// again would read a thousand times what all have published since a task's last release.
type histories struct {
	next *history // that begins next; nil: none
	busy bool     // one is under way
}

// history is one such reading. It is given up when the last task that wants it has given up.
type history struct {
	ctx    context.Context
	cancel context.CancelFunc
	wanted int // by so many tasks
	of     map[core.Task]*gained
	end    int64
	err    error
	done   chan struct{}
}

// history returns the task's releases from an offset to the end that the partition has after
// the call has begun. ok is false if the task must read for itself: it is alone in the
// partition, the reading failed, or there are too many releases to keep.
func (t *tail) history(ctx context.Context, task core.Task, from int64) (list []released, end int64, ok bool) {
	t.mu.Lock()
	if len(t.tasks) < 2 || from == unknownOutput {
		t.mu.Unlock()
		return nil, 0, false
	}
	h := t.past.next
	if h == nil {
		h = &history{of: map[core.Task]*gained{}, done: make(chan struct{})}
		h.ctx, h.cancel = context.WithCancel(context.Background())
		t.past.next = h
	}
	mine := &gained{from: from}
	h.of[task] = mine
	h.wanted++
	if !t.past.busy {
		t.past.busy = true
		go t.readHistories()
	}
	t.mu.Unlock()
	select {
	case <-h.done:
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		if h.wanted--; h.wanted == 0 {
			h.cancel()
		}
		return nil, 0, false
	}
	if h.err != nil || mine.from == unknownOutput || h.end < from {
		return nil, 0, false
	}
	return mine.list, h.end, true
}

// readHistories reads until nobody waits.
func (t *tail) readHistories() {
	for {
		t.mu.Lock()
		h := t.past.next
		t.past.next = nil
		if h == nil {
			t.past.busy = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		h.err = t.read(h)
		h.cancel()
		close(h.done)
	}
}

// read reads from the first offset that a task wants.
func (t *tail) read(h *history) error {
	first := true
	for _, g := range h.of {
		if first || g.from < h.end {
			first, h.end = false, g.from
		}
	}
	return t.client.ReadBack(h.ctx, t.topic, t.partition, h.end, func(rec *kafka.Record) error {
		h.end = rec.Offset + 1
		task, r, ok := releasedIn(rec, func(task core.Task) bool {
			g := h.of[task]
			return g != nil && g.from != unknownOutput && g.from <= rec.Offset
		})
		if !ok {
			return nil
		}
		g := h.of[task]
		if g.list = append(g.list, r); len(g.list) > maxFound {
			*g = gained{from: unknownOutput}
		}
		return nil
	})
}
