package output

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// Partitions are the output partitions that tasks of this process publish into.
type Partitions struct {
	Client *kafka.Client
	mu     sync.Mutex
	of     map[partitionKey]*Partition
}

// partitionKey identifies a partition.
type partitionKey struct {
	Topic     string
	Partition int
}

// Len returns how many partitions tasks of this process publish into.
func (t *Partitions) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}

// join adds a task to a partition, and returns the partition.
func (t *Partitions) join(at config.Output, task core.Task) *Partition {
	key := partitionKey{at.Topic, at.Partition}
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.of[key]
	if x == nil {
		x = &Partition{among: t, client: t.Client, topic: at.Topic, partition: int32(at.Partition),
			tasks: map[core.Task]*newReleases{}, sent: map[core.Task][]*sending{}, next: state.UnknownOutput}
		if t.of == nil {
			t.of = map[partitionKey]*Partition{}
		}
		t.of[key] = x
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tasks[task] == nil {
		x.tasks[task] = &newReleases{From: state.UnknownOutput}
	}
	return x
}

// leave removes a task. Messages in flight are still sent. A partition without tasks and messages in flight is
// forgotten.
func (t *Partition) leave(task core.Task) {
	t.among.mu.Lock()
	defer t.among.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.tasks[task]; g != nil {
		t.kept -= len(g.list)
		delete(t.tasks, task)
	}
	key := partitionKey{t.topic, int(t.partition)}
	if len(t.tasks) == 0 && len(t.sent) == 0 && t.among.of[key] == t {
		delete(t.among.of, key)
	}
}

// Partition reads additions to an output partition once for all tasks that publish into it, and sends their messages in
// shared requests. Otherwise each of a thousand tasks would read the messages of all of them. Partition does not read
// its own messages: the offsets in produce responses show whether another writer appended before them. Messages in
// flight are still sent when their task stops, because the broker may append them anyway; WaitInFlight waits for them.
//
// Some tasks must read for themselves: a task that is alone in its partition, a task that has not yet read up to the
// offset where Partition began, tasks whose lists were dropped, and all tasks after an error.
type Partition struct {
	among     *Partitions
	client    *kafka.Client
	topic     string
	partition int32

	mu    sync.Mutex
	tasks map[core.Task]*newReleases
	next  int64    // everything below was read, or sent by this process
	round *endLook // the look that begins next; nil: none
	queue []*sending
	sent  map[core.Task][]*sending // messages queued or in flight
	most  int                      // limit of a request's bytes after the broker refused a larger one; 0: sharedBytes
	busy  bool                     // a look or a request is in progress
	past  backlogs
	kept  int // number of releases in the lists of all tasks, at most maxFound
	// Counters for tests. reads counts the looks that had to read, waits the waits for messages in flight.
	looks, reads, requests, waits int
}

// sending holds the messages that one task publishes at a time.
type sending struct {
	task     core.Task
	from     int64 // offset; the task has compared everything below it
	messages []kafka.Message
	bytes    int
	Gone     bool // the task has stopped waiting
	done     chan struct{}
	at       []kafka.Appended
	err      error
}

// sharedBytes limits the bytes of a request with messages of several tasks. By default, brokers refuse batches of more
// than 1 MiB.
const sharedBytes = 800_000

// leastShared is the lowest value to which the limit falls when brokers refuse requests.
const leastShared = 16 << 10

// newReleases holds the releases of a task that were added to the partition from an offset on.
type newReleases struct {
	From int64 // UnknownOutput: none are kept
	list []released
}

// released is a message in an output with the key of a release.
type released struct {
	Offset      int64
	key         string
	epoch, Step uint64
	hash        [32]byte
}

// releasedIn parses a record of an output. ok is false if it is not a release of a wanted task.
func releasedIn(rec *kafka.Record, wanted func(core.Task) bool) (t core.Task, r released, ok bool) {
	t, epoch, step, ok := core.ParseIdentity(rec.Key)
	if !ok || !wanted(t) {
		return t, r, false
	}
	return t, released{rec.Offset, string(rec.Key), epoch, step,
		core.ReleaseHash(rec.Key, rec.Value, rec.Headers)}, true
}

// endLook is one look at the end of the partition, shared by all tasks that asked before it began.
type endLook struct {
	done chan struct{}
	err  error
}

// lookTime is the longest time that a shared look may take. After that, each waiting task looks for itself.
const lookTime = 10 * time.Second

// since returns the task's releases from an offset to the end of the partition, as found after the call began. ok is
// false if the task must read for itself.
func (t *Partition) since(ctx context.Context, task core.Task, from int64) (list []released, end int64, ok bool) {
	t.mu.Lock()
	mine := t.tasks[task]
	if len(t.tasks) < 2 || from == state.UnknownOutput {
		t.mu.Unlock()
		return nil, 0, false
	}
	if mine.From == state.UnknownOutput {
		mine.From = t.next
	}
	n := 0
	for n < len(mine.list) && mine.list[n].Offset < from {
		n++
	}
	mine.list = mine.list[n:]
	t.kept -= n
	r := t.round
	if r == nil {
		r = &endLook{done: make(chan struct{})}
		t.round = r
	}
	t.begin()
	t.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, 0, false
	}
	if r.err != nil {
		return nil, 0, false
	}
	return t.known(task, from, from)
}

// known returns the task's releases from an offset to the end that Partition knows. ok is false if Partition does not
// know everything below the offset `to`.
func (t *Partition) known(task core.Task, from, to int64) (list []released, end int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.tasks[task]
	if mine.From == state.UnknownOutput || mine.From > from || t.next < to {
		return nil, 0, false
	}
	for _, r := range mine.list {
		if r.Offset >= from {
			list = append(list, r)
		}
	}
	return list, t.next, true
}

// send appends a task's messages to the partition, as kafka.Client.Produce does. Messages of all waiting tasks share
// requests. The task has compared everything below the offset `from`. If the partition has releases of the task from
// there on, send fails with errOvertaken and sends nothing. When the context ends, send returns; messages in flight are
// still sent.
func (t *Partition) send(ctx context.Context, task core.Task, from int64,
	messages []kafka.Message) ([]kafka.Appended, error) {
	s := &sending{task: task, from: from, messages: messages, done: make(chan struct{})}
	for i := range messages {
		m := &messages[i]
		s.bytes += len(m.Key) + len(m.Value) + 256
	}
	t.mu.Lock()
	t.queue, t.sent[task] = append(t.queue, s), append(t.sent[task], s)
	t.begin()
	t.mu.Unlock()
	select {
	case <-s.done:
		return s.at, s.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Gone = true
	if i := slices.Index(t.queue, s); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
		t.end(s, nil, ctx.Err())
	}
	return nil, ctx.Err()
}

// end gives the task the result of its messages. The caller holds t.mu.
func (t *Partition) end(s *sending, at []kafka.Appended, err error) {
	s.at, s.err = at, err
	left := slices.DeleteFunc(t.sent[s.task], func(x *sending) bool { return x == s })
	if t.sent[s.task] = left; len(left) == 0 {
		delete(t.sent, s.task)
	}
	close(s.done)
}

// WaitInFlight waits until no message of the task is in flight.
func (t *Partition) WaitInFlight(ctx context.Context, task core.Task) error {
	for t != nil {
		t.mu.Lock()
		sent := t.sent[task]
		if len(sent) == 0 {
			t.mu.Unlock()
			return nil
		}
		done := sent[0].done
		t.waits++
		t.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// begin starts a goroutine that serves waiting tasks, if none is running.
func (t *Partition) begin() {
	if !t.busy {
		t.busy = true
		go t.work()
	}
}

// work looks and sends in turn, until no task waits. It does not look during a request, because that would read the
// request's own messages.
func (t *Partition) work() {
	for {
		t.mu.Lock()
		r, shared := t.round, t.share()
		t.round = nil
		if r == nil && len(shared) == 0 {
			t.busy = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		if r != nil {
			r.err = t.look()
			close(r.done)
		}
		if len(shared) > 0 {
			t.append(shared)
		}
	}
}

// share removes the messages of the next request from the queue.
func (t *Partition) share() []*sending {
	n, bytes := 0, 0
	for n < len(t.queue) {
		if bytes += t.queue[n].bytes; n > 0 && bytes > cmp.Or(t.most, sharedBytes) {
			break
		}
		n++
	}
	shared := slices.Clone(t.queue[:n])
	t.queue = slices.Delete(t.queue, 0, n)
	return shared
}

// append sends messages in one request. Each task gets only the result of its own messages: if the broker has
// acknowledged them before an error, the task gets no error. If the broker permanently refuses the rest, append sends
// each task's messages in a request of their own, so that one task's bad message does not block the others.
func (t *Partition) append(shared []*sending) {
	if shared = slices.DeleteFunc(shared, t.dropped); len(shared) == 0 {
		return
	}
	at, err := t.request(shared)
	t.mu.Lock()
	if len(at) > 1 && len(shared) > 1 {
		t.most = max(cmp.Or(t.most, sharedBytes)/2, leastShared)
	}
	left := shared
	for len(left) > 0 && appended(at) >= len(left[0].messages) {
		var own []kafka.Appended
		own, at = divide(at, len(left[0].messages))
		t.end(left[0], own, nil)
		left = left[1:]
	}
	t.mu.Unlock()
	alone := len(shared) > 1 && !kafka.Retriable(err)
	at = nil
	for i, s := range left {
		if alone {
			if t.dropped(s) {
				continue
			}
			at, err = t.request(left[i : i+1])
		}
		t.mu.Lock()
		t.end(s, at, err)
		t.mu.Unlock()
	}
}

// errOvertaken says that a task must compare releases before it sends anything.
var errOvertaken = errors.New("the output has releases that are not compared yet")

// dropped ends a sending that must not be sent, and reports whether it did. The task has stopped waiting, or the output
// has releases of the task that the task has not compared. Another task's look may have read these releases after the
// task's own look.
func (t *Partition) dropped(s *sending) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.tasks[s.task]
	switch {
	case s.Gone:
		t.end(s, nil, context.Canceled)
	case g == nil:
		t.end(s, nil, context.Canceled)
	case g.From > s.from, slices.ContainsFunc(g.list, func(r released) bool { return r.Offset >= s.from }):
		t.end(s, nil, errOvertaken)
	default:
		return false
	}
	return true
}

// request sends messages, and returns where they were appended. After an error, it returns where the messages before
// the error were appended. The context of a single task does not end it; the client limits its time.
func (t *Partition) request(shared []*sending) ([]kafka.Appended, error) {
	var messages []kafka.Message
	for _, s := range shared {
		messages = append(messages, s.messages...)
	}
	at, err := t.client.Produce(context.Background(), t.topic, t.partition, messages)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests++
	for _, p := range at {
		switch {
		case p.Base == t.next:
			t.next += int64(p.Count)
		case p.Base < t.next: // the topic was deleted and created again, or lost its end
			t.forget()
		}
	}
	return at, err
}

// appended returns how many messages were appended.
func appended(at []kafka.Appended) (n int) {
	for _, p := range at {
		n += p.Count
	}
	return n
}

// divide splits offsets into those of the first n messages and those of the rest.
func divide(at []kafka.Appended, n int) (first, rest []kafka.Appended) {
	for n > 0 {
		p := at[0]
		if p.Count > n {
			return append(first,
					kafka.Appended{Base: p.Base, Count: n}),
				append([]kafka.Appended{{Base: p.Base + int64(n), Count: p.Count - n}}, at[1:]...)
		}
		first, at, n = append(first, p), at[1:], n-p.Count
	}
	return first, at
}

// look reads the releases that were added to the partition since the last look, and sorts them by task.
func (t *Partition) look() error {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	end, err := t.client.End(ctx, t.topic, t.partition)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.looks++
	from := t.next
	switch {
	case from == state.UnknownOutput:
		t.next = end
		for _, g := range t.tasks {
			g.From = end
		}
	case end < from: // the topic was deleted and created again, or lost its end
		err = errors.New("the output now ends before a record that was already read from it")
		t.forget()
	}
	if err != nil || from == state.UnknownOutput || end == from {
		t.mu.Unlock()
		return err
	}
	t.reads++
	t.mu.Unlock()
	err = t.client.ReadBack(ctx, t.topic, t.partition, from, func(rec *kafka.Record) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.next = rec.Offset + 1
		task, r, ok := releasedIn(rec,
			func(task core.Task) bool { return t.tasks[task] != nil && t.tasks[task].From != state.UnknownOutput })
		if ok {
			t.tasks[task].list = append(t.tasks[task].list, r)
			if t.kept++; t.kept > maxFound {
				t.drop()
			}
		}
		return nil
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.next = max(t.next, end)
	case kafka.Lost(err):
		t.forget()
	}
	return err
}

// drop clears the lists of all tasks. Each task must then read the releases of its list for itself.
func (t *Partition) drop() {
	for _, g := range t.tasks {
		if len(g.list) > 0 {
			*g = newReleases{From: t.next}
		}
	}
	t.kept = 0
}

// forget makes the next look start at the output's end. Tasks must then read earlier releases for themselves. forget is
// called after the output lost messages that were not read yet.
func (t *Partition) forget() {
	t.next, t.kept = state.UnknownOutput, 0
	for _, g := range t.tasks {
		*g = newReleases{From: state.UnknownOutput}
	}
}

// Served returns how many tasks publish to the partition.
func (t *Partition) Served() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.tasks)
}
