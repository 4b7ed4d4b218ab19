package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"streamdp/internal/kafka"
)

// unknownOutput in a checkpoint: the output was not looked at when it was
// written, and is read from its start.
const unknownOutput = -1

// parseIdentity reads the key of a release, STREAM/PARTITION/EPOCH/STEP, or of
// one of its pieces, with /PIECE behind that.
func parseIdentity(key []byte) (t Task, epoch, step uint64, ok bool) {
	parts := strings.Split(string(key), "/")
	if len(parts) == 5 {
		if n, err := strconv.ParseUint(parts[4], 10, 31); err != nil || n == 0 || parts[4] != strconv.FormatUint(n, 10) {
			return t, 0, 0, false
		}
		key = key[:len(key)-len(parts[4])-1]
		parts = parts[:4]
	}
	if len(parts) != 4 {
		return t, 0, 0, false
	}
	p, err1 := strconv.ParseUint(parts[1], 10, 31)
	epoch, err2 := strconv.ParseUint(parts[2], 10, 64)
	step, err3 := strconv.ParseUint(parts[3], 10, 64)
	t = Task{parts[0], int(p)}
	// One spelling only: a key with a leading zero is nobody's release.
	if err1 != nil || err2 != nil || err3 != nil || string(key) != identity(t, epoch, step) {
		return Task{}, 0, 0, false
	}
	return t, epoch, step, true
}

// identity returns a release's key.
func identity(t Task, epoch, step uint64) string {
	return fmt.Sprintf("%s/%d/%d/%d", t.Stream, t.Partition, epoch, step)
}

// outputUnused reports whether the output partition holds no release of the
// task. It makes the topic where it is missing.
func (r *runner) outputUnused(ctx context.Context) (bool, error) {
	if _, err := r.outputEnd(ctx); err != nil {
		return false, err
	}
	unused := true
	err := r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, unknownOutput, func(rec *kafka.Record) error {
		if t, _, _, ok := parseIdentity(rec.Key); ok && t == r.task {
			unused = false
			return errStop
		}
		return nil
	})
	return unused, err
}

// outputEnd returns the end of the output partition, after making the topic
// where it is missing and may be made.
func (r *runner) outputEnd(ctx context.Context) (end int64, err error) {
	err = r.retry(ctx, "output", func() error {
		if err := r.makeOutput(ctx); err != nil {
			return err
		}
		_, _, end, err = r.d.client.Offsets(ctx, r.s.Output.Topic, int32(r.s.Output.Partition))
		return err
	})
	return end, err
}

// makeOutput creates the output topic if it is missing and output.create allows
// it: compacted, because readers and Kafka then both tell releases apart by
// their keys.
func (r *runner) makeOutput(ctx context.Context) error {
	t, err := r.d.client.Topic(ctx, r.s.Output.Topic)
	if err != nil {
		return err
	}
	if t.Exists {
		if r.s.Output.Partition >= len(t.Partitions) {
			return &notYet{fmt.Errorf("output topic %s has %d partitions, partition %d is configured", t.Name, len(t.Partitions), r.s.Output.Partition)}
		}
		return nil
	}
	if !r.s.Output.Create {
		return &notYet{fmt.Errorf("output topic %s does not exist, and output.create is false", r.s.Output.Topic)}
	}
	return r.d.client.CreateTopic(ctx, r.s.Output.Topic, r.s.Output.Partition+1, map[string]string{"cleanup.policy": "compact"})
}

// readOutput reads a partition of releases to its end, from its start where
// from is unknown. errStop of fn ends it without an error.
func (r *runner) readOutput(ctx context.Context, topic string, partition int, from int64, fn func(*kafka.Record) error) error {
	exists := true
	err := r.retry(ctx, "output", func() error {
		t, err := r.d.client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		if exists = partition < len(t.Partitions); !exists {
			return nil
		}
		start, _, _, err := r.d.client.Offsets(ctx, topic, int32(partition))
		if from == unknownOutput {
			from = start
		}
		return err
	})
	if err == nil {
		if !exists {
			return halted(haltOutputGone, "%s/%d does not exist any more: it can't be told whether this state is the newest; if it is no restored copy, start anew with: streamdp epoch open %s",
				topic, partition, r.task.Stream)
		}
		err = r.d.client.ReadBack(ctx, topic, int32(partition), from, fn)
	}
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	switch {
	case errors.Is(err, errStop):
		return nil
	case errors.As(err, &gap), errors.As(err, &truncated):
		return halted(haltOutputGone, "%w: it can't be told any more whether this state is the newest; if it is no restored copy, start anew with: streamdp epoch open %s", err, r.task.Stream)
	}
	return err
}

// findPublished reads what the output holds since a checkpoint of the epoch, and
// makes sure that it is what this epoch could have released: a state that is
// older than the world, a restored backup, must repeat it byte for byte before
// it publishes anything. It returns the hashes of the messages after the
// checkpoint's step, by key, and the largest of their steps.
func (r *runner) findPublished(ctx context.Context, epoch uint64, cp *checkpoint) (published map[string][32]byte, ahead uint64, err error) {
	seen := map[string][32]byte{} // what this state owes, then what was published
	for i := range cp.outbox {
		p := &cp.outbox[i]
		seen[string(p.key)] = releaseHash(p.key, p.value, p.headers)
	}
	note := func(rec *kafka.Record) error {
		t, of, step, ok := parseIdentity(rec.Key)
		if !ok || t != r.task {
			return nil
		}
		if r.d.ledger.opening(r.task, of) == nil || of > epoch {
			return r.unknownEpoch(of)
		}
		if of != epoch {
			return nil
		}
		hash := releaseHash(rec.Key, rec.Value, rec.Headers)
		if was, known := seen[string(rec.Key)]; known && was != hash {
			return r.differs(string(rec.Key))
		}
		seen[string(rec.Key)] = hash
		ahead = max(ahead, step)
		return nil
	}
	end, err := r.outputEnd(ctx)
	if err != nil {
		return nil, 0, err
	}
	moved := cp.outputTopic != r.s.Output.Topic || cp.outputPartition != r.s.Output.Partition
	if err := r.outputWhole(ctx, cp); err != nil {
		return nil, 0, err
	}
	if err := r.readOutput(ctx, cp.outputTopic, cp.outputPartition, cp.output, note); err != nil {
		return nil, 0, err
	}
	if moved {
		if err := r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, unknownOutput, note); err != nil {
			return nil, 0, err
		}
		cp.outputTopic, cp.outputPartition, cp.output, cp.acknowledged = r.s.Output.Topic, r.s.Output.Partition, end, false
	}
	if cp.output == unknownOutput {
		cp.output = end
	}
	return seen, ahead, nil
}

// unknownEpoch is the halt of a state that is older than its output.
func (r *runner) unknownEpoch(epoch uint64) error {
	return halted(haltOutput, "%s/%d holds a release of epoch %d, which this ledger does not know: "+
		"this state directory is an old copy; restore the newest one, or start anew with: streamdp epoch open %s",
		r.s.Output.Topic, r.s.Output.Partition, epoch, r.task.Stream)
}

// newestReleased returns the largest epoch of the task of which the output holds
// a release from an offset on, 0 for all; 0 where there is none. Where that offset
// is gone it looks everywhere.
func (r *runner) newestReleased(ctx context.Context, from int64) (newest uint64, err error) {
	note := func(rec *kafka.Record) error {
		if t, epoch, _, ok := parseIdentity(rec.Key); ok && t == r.task {
			newest = max(newest, epoch)
		}
		return nil
	}
	var gone *halt
	if from > 0 {
		if err = r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, from, note); !errors.As(err, &gone) {
			return newest, err
		}
	}
	return newest, r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, unknownOutput, note)
}

// outputWhole halts where the output lost what would tell whether the
// checkpoint is the newest: the release that is known to be there, or, where
// none is known, anything.
func (r *runner) outputWhole(ctx context.Context, cp *checkpoint) error {
	if cp.output != unknownOutput && !cp.acknowledged {
		return nil // readOutput looks whether the offset is there
	}
	var start, end int64
	gone := false
	err := r.retry(ctx, "output", func() error {
		t, err := r.d.client.Topic(ctx, cp.outputTopic)
		if gone = err == nil && cp.outputPartition >= len(t.Partitions); gone || err != nil {
			return err
		}
		start, _, end, err = r.d.client.Offsets(ctx, cp.outputTopic, int32(cp.outputPartition))
		return err
	})
	switch {
	case err != nil:
		return err
	case cp.output == unknownOutput && start > 0:
		return halted(haltOutputGone, "%s/%d starts at offset %d, and without a checkpoint it can't be told what was before: restore the checkpoint, or start anew with: streamdp epoch open %s",
			cp.outputTopic, cp.outputPartition, start, r.task.Stream)
	case gone || cp.acknowledged && (cp.output < start || cp.output >= end):
		return halted(haltOutputGone, "%s/%d lost the release at offset %d: it can't be told any more whether this state is the newest; if it is no restored copy, start anew with: streamdp epoch open %s",
			cp.outputTopic, cp.outputPartition, cp.output, r.task.Stream)
	}
	return nil
}

// differs is the halt of a fork: two different releases of one step.
func (r *runner) differs(key string) error {
	return halted(haltOutput, "release %s differs from the one that was published: the state is a copy, and the log, the build or the other copy gave other integers; "+
		"start anew with: streamdp epoch open %s", key, r.task.Stream)
}

// releasedTo returns the end of the offsets that published releases of an epoch
// cover, −1 where the output holds none.
func (r *runner) releasedTo(ctx context.Context, opened *Entry) (end int64, err error) {
	end = -1
	err = r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, unknownOutput, func(rec *kafka.Record) error {
		t, epoch, _, ok := parseIdentity(rec.Key)
		if !ok || t != r.task || epoch != opened.Epoch {
			return nil
		}
		end = max(end, opened.First, releaseEnd(rec.Value))
		return nil
	})
	var gone *halt
	if errors.As(err, &gone) {
		return end, nil // no output, no releases in it
	}
	return end, err
}

// releaseEnd returns where the offsets end that a release is of, −1 where value is
// none. It is content with the first piece of one, which has its offsets.
func releaseEnd(value []byte) int64 {
	d := json.NewDecoder(bytes.NewReader(value))
	for depth := 0; ; {
		token, err := d.Token()
		if err != nil {
			return -1
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		case "offsets":
			var offsets [2]int64
			if depth == 1 && d.Decode(&offsets) == nil {
				return offsets[1]
			}
		}
	}
}

// publisher sends committed releases in order, one request at a time, until
// the broker has acknowledged them: for ever, with pauses, the same bytes.
type publisher struct {
	r      *runner
	mu     sync.Mutex
	queue  []pending
	wake   chan struct{}
	acked  atomic.Uint64 // step of the last acknowledged release
	output int64         // as in checkpoint
	held   bool          // checkpoint.acknowledged
	failed chan error    // receives the error that ended it
	notify chan struct{} // after each acknowledgement
}

func newPublisher(r *runner, cp *checkpoint) *publisher {
	return &publisher{
		r: r, wake: make(chan struct{}, 1), failed: make(chan error, 1), notify: make(chan struct{}, 1),
		output: cp.output, held: cp.acknowledged,
	}
}

// position returns what a checkpoint says of the output.
func (p *publisher) position() (output int64, acknowledged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output, p.held
}

// enqueue hands over releases that a durable checkpoint holds.
func (p *publisher) enqueue(list []pending) {
	if len(list) == 0 {
		return
	}
	p.mu.Lock()
	p.queue = append(p.queue, list...)
	p.mu.Unlock()
	signal(p.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run publishes until the context ends.
func (p *publisher) run(ctx context.Context) {
	for {
		p.mu.Lock()
		batch := some(p.queue)
		p.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-p.wake:
			}
			continue
		}
		if err := p.send(ctx, batch); err != nil {
			if ctx.Err() == nil {
				p.failed <- err
			}
			return
		}
		p.mu.Lock()
		p.queue = p.queue[len(batch):]
		if len(p.queue) == 0 {
			p.queue = nil
		}
		p.mu.Unlock()
		p.acked.Store(batch[len(batch)-1].step)
		signal(p.notify)
	}
}

// some returns a part of the queue that can be acknowledged by its last step: all
// pieces of a release or none.
func some(queue []pending) []pending {
	n := min(len(queue), 500)
	for 0 < n && n < len(queue) && queue[n].step == queue[n-1].step {
		n++
	}
	return queue[:n]
}

func (p *publisher) send(ctx context.Context, batch []pending) error {
	r := p.r
	messages := make([]kafka.Message, len(batch))
	for i := range batch {
		b := &batch[i]
		messages[i] = kafka.Message{Key: b.key, Value: b.value, Headers: b.headers, Time: b.time}
	}
	err := r.retry(ctx, "publish", func() error {
		begun := r.d.now()
		base, err := r.d.client.Produce(ctx, r.s.Output.Topic, int32(r.s.Output.Partition), messages)
		if kafka.UnknownTopic(err) {
			// It was deleted under us. Readers lose what was in it; what is
			// to come must not wait for them.
			if e := r.makeOutput(ctx); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.output, p.held = base, true
		p.mu.Unlock()
		r.d.metrics.published(r.task, r.d.now().Sub(begun), r.d.now())
		return nil
	})
	var large *kafka.TooLargeError
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &large):
		return halted(haltTooLarge, "release %s: %w: raise max.message.bytes of %s or publish fewer output.values", batch[large.Index].key, err, r.s.Output.Topic)
	}
	return halted(haltPublish, "%w", err)
}
