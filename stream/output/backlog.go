package output

import (
	"context"
	"errors"
	"sync"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// backlogs runs shared readings of the releases that an output partition held before tasks began. One reading serves
// all tasks that ask before it begins. Otherwise each of a thousand restarting tasks would read the releases of all
// others since its own last one.
type backlogs struct {
	Next *backlog // the reading that begins next; nil: none
	Busy bool     // a reading is in progress
}

// backlog is one shared reading. It keeps no releases: it passes each to its task as soon as it has read it. It is
// cancelled when no task waits for it any more.
type backlog struct {
	Ctx    context.Context
	cancel context.CancelFunc

	mu  sync.Mutex
	of  map[core.Task]*backlogReader
	end int64 // everything below this offset was read
}

// backlogReader is a task that waits for a reading.
type backlogReader struct {
	from     int64
	add      func(released) error
	troubled func(error)

	// The result of the reading for this task.
	next  int64 // add was called for everything below this offset
	whole bool  // next is the end of the partition
	err   error // from add
	done  chan struct{}
}

// readBacklog calls add with the task's releases, from an offset to the end that the partition has after the call
// began. It stops if add returns an error; if that is failure.ErrStop, readBacklog returns nil. It calls troubled with
// each error of a broker call that is retried. add was called for everything below next. If whole is false, the task
// must itself read on from next, because it is alone in the partition or the shared reading failed.
func (t *Partition) readBacklog(ctx context.Context, task core.Task, from int64, add func(released) error,
	troubled func(error)) (next int64, whole bool, err error) {
	t.mu.Lock()
	if len(t.tasks) < 2 || from == state.UnknownOutput {
		t.mu.Unlock()
		return from, false, nil
	}
	h := t.past.Next
	if h == nil {
		h = &backlog{of: map[core.Task]*backlogReader{}}
		h.Ctx, h.cancel = context.WithCancel(context.Background())
		t.past.Next = h
	}
	mine := &backlogReader{from: from, add: add, troubled: troubled, done: make(chan struct{})}
	h.mu.Lock()
	h.of[task] = mine
	h.mu.Unlock()
	if !t.past.Busy {
		t.past.Busy = true
		go t.readBacklogs()
	}
	t.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.leave(task, mine)
		return from, false, nil
	}
	if errors.Is(mine.err, failure.ErrStop) {
		return mine.next, true, nil
	}
	return mine.next, mine.whole, mine.err
}

// leave removes a waiting task. The caller holds h.mu.
func (h *backlog) leave(task core.Task, l *backlogReader) {
	if h.of[task] != l {
		return // the task has left already
	}
	delete(h.of, task)
	close(l.done)
	if len(h.of) == 0 {
		h.cancel()
	}
}

// readBacklogs runs readings until no task waits.
func (t *Partition) readBacklogs() {
	for {
		t.mu.Lock()
		h := t.past.Next
		t.past.Next = nil
		if h == nil {
			t.past.Busy = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		err := t.read(h)
		h.cancel()
		h.mu.Lock()
		for task, l := range h.of {
			l.next, l.whole = max(l.from, h.end), err == nil && h.end >= l.from
			h.leave(task, l)
		}
		h.mu.Unlock()
	}
}

// read reads from the lowest offset that a task wants. It fails if the topic is missing; then each task handles that
// itself.
func (t *Partition) read(h *backlog) error {
	h.mu.Lock()
	first := true
	for _, l := range h.of {
		if first || l.from < h.end {
			first, h.end = false, l.from
		}
	}
	from := h.end
	h.mu.Unlock()
	give := func(rec *kafka.Record) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.end = rec.Offset + 1
		task, r, ok := releasedIn(rec,
			func(task core.Task) bool { return h.of[task] != nil && h.of[task].from <= rec.Offset })
		if !ok {
			return nil
		}
		l := h.of[task]
		if l.err = l.add(r); l.err != nil {
			l.next = h.end
			h.leave(task, l)
		}
		return nil
	}
	return t.client.ReadBackOr(h.Ctx, t.topic, t.partition, from, give, func(err error) error {
		if kafka.UnknownTopic(err) {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, l := range h.of {
			l.troubled(err)
		}
		return nil
	})
}
