package stream

import (
	"context"
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

// parseIdentity reads a release's key, STREAM/PARTITION/EPOCH/STEP.
func parseIdentity(key []byte) (t Task, epoch, step uint64, ok bool) {
	parts := strings.Split(string(key), "/")
	if len(parts) != 4 {
		return t, 0, 0, false
	}
	p, err1 := strconv.ParseUint(parts[1], 10, 31)
	epoch, err2 := strconv.ParseUint(parts[2], 10, 64)
	step, err3 := strconv.ParseUint(parts[3], 10, 64)
	return Task{parts[0], int(p)}, epoch, step, err1 == nil && err2 == nil && err3 == nil
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
	if from == unknownOutput {
		if err := r.retry(ctx, "output", func() (err error) {
			from, _, _, err = r.d.client.Offsets(ctx, topic, int32(partition))
			return err
		}); err != nil {
			return err
		}
	}
	err := r.d.client.ReadBack(ctx, topic, int32(partition), from, fn)
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

// findPublished reads what the output holds since the checkpoint, and makes
// sure that it is what this epoch could have released: a state that is older
// than the world, a restored backup, must repeat it byte for byte before it
// publishes anything.
func (r *runner) findPublished(ctx context.Context, l *live) error {
	cp := l.cp
	l.published = map[uint64][32]byte{}
	note := func(rec *kafka.Record) error {
		t, epoch, step, ok := parseIdentity(rec.Key)
		if !ok || t != r.task {
			return nil
		}
		if r.d.ledger.opening(r.task, epoch) == nil || epoch > l.m.Epoch {
			return halted(haltOutput, "%s/%d holds a release of epoch %d, which this ledger does not know: "+
				"this state directory is an old copy; restore the newest one, or start anew with: streamdp epoch open %s",
				r.s.Output.Topic, r.s.Output.Partition, epoch, r.task.Stream)
		}
		if epoch == l.m.Epoch && step > cp.step {
			l.published[step] = releaseHash(rec.Key, rec.Value, rec.Headers)
			l.ahead = max(l.ahead, step)
		}
		return nil
	}
	end, err := r.outputEnd(ctx)
	if err != nil {
		return err
	}
	moved := cp.outputTopic != r.s.Output.Topic || cp.outputPartition != r.s.Output.Partition
	if err := r.readOutput(ctx, cp.outputTopic, cp.outputPartition, cp.output, note); err != nil {
		return err
	}
	if moved {
		if err := r.readOutput(ctx, r.s.Output.Topic, r.s.Output.Partition, unknownOutput, note); err != nil {
			return err
		}
		cp.outputTopic, cp.outputPartition, cp.output = r.s.Output.Topic, r.s.Output.Partition, end
	}
	if cp.output == unknownOutput {
		cp.output = end
	}
	return nil
}

// publisher sends committed releases in order, one request at a time, until
// the broker has acknowledged them: for ever, with pauses, the same bytes.
type publisher struct {
	r       *runner
	mu      sync.Mutex
	queue   []pending
	wake    chan struct{}
	acked   atomic.Uint64 // step of the last acknowledged release
	output  atomic.Int64  // offset from which the next published ones are found
	failed  chan error    // receives the error that ended it
	notify  chan struct{} // after each acknowledgement
	onAcked func(sent []pending)
}

func newPublisher(r *runner, cp *checkpoint) *publisher {
	p := &publisher{r: r, wake: make(chan struct{}, 1), failed: make(chan error, 1), notify: make(chan struct{}, 1)}
	p.output.Store(cp.output)
	return p
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
		batch := p.queue
		if len(batch) > 500 {
			batch = batch[:500]
		}
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
		p.output.Store(base)
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
