package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// deadLetters writes a message to the dead-letter topic for each record of an epoch that gave no row. It reads the log
// a second time, with its own reader and decoder, up to the last commit. A file holds its position. So it needs no
// queue, never delays releases, waits as long as its topic is unavailable, and loses no record that the log still
// holds. After a crash it may write a message twice, under the same key.
//
// Privacy: a dead letter is an exact fact about one record. Only metrics of class P depend on dead letters. No log line
// and no other metric does, not even if writing one fails.
type deadLetters struct {
	r         *Runner
	m         *core.Manifest
	topic     string
	full      bool
	committed atomic.Int64 // offsets below it are committed
	wake      chan struct{}
	next      atomic.Int64 // offsets below it are processed
	ended     atomic.Bool  // committed is final
	stop      context.CancelFunc
	done      chan struct{} // closed when the last message is written
	saved     int64
	savedAt   time.Time

	batch []kafka.Message
	bytes int
}

// The limits of one produce request, and the interval at which the file is written.
const (
	deadLetterBatch = 500
	deadLetterBytes = 1 << 20
	deadLetterSave  = time.Second
	deadLetterGrace = time.Second // time to write the remaining messages when the process ends
	// deadLetterSchema is the version of a reference's format.
	deadLetterSchema = "streamdp.deadletter.v1"
)

// deadLetterMark is the file that holds the position of the dead letters.
type deadLetterMark struct {
	Incarnation uint64 `json:"incarnation"` // incarnation of the log that Next refers to
	Next        int64  `json:"next"`        // offsets below it are processed
}

// letterReference is the value of a dead letter of mode "reference".
type letterReference struct {
	Schema    string `json:"schema"`
	Stream    string `json:"stream"`
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
	Reason    string `json:"reason"`
}

// newDeadLetters returns nil if the stream writes no dead letters.
func newDeadLetters(r *Runner, l *epoch.OpenEpoch) *deadLetters {
	if r.S.DeadLetter.Mode == "off" {
		return nil
	}
	d := &deadLetters{r: r, m: l.M, topic: r.S.DeadLetter.Topic, full: r.S.DeadLetter.Mode == "full",
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.committed.Store(l.Cp.Position.Next)
	return d
}

// commit tells d that offsets below next are committed.
func (d *deadLetters) commit(next int64) {
	if d != nil {
		d.committed.Store(next)
		failure.Signal(d.wake)
	}
}

// end tells d that no more offsets will be committed, because the epoch is closed or the task stops. It does not wait
// for the remaining dead letters to be written: whether there are any depends on whether a record was invalid, and a
// delayed opening of the next epoch would reveal it.
func (d *deadLetters) end() {
	if d != nil {
		d.ended.Store(true)
		failure.Signal(d.wake)
	}
}

// letters starts to write the dead letters of an epoch. The writer of the epoch before may still be running.
func (r *Runner) letters(ctx context.Context, l *epoch.OpenEpoch) *deadLetters {
	d := newDeadLetters(r, l)
	if d == nil {
		return nil
	}
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	before := r.dead
	r.dead = d
	go func() {
		defer close(d.done)
		if before != nil {
			// On the same log, the new writer continues where the one before stops. On another log, the dead letters of
			// the old log would be lost, so the writer before finishes first.
			if before.m.Incarnation == d.m.Incarnation {
				before.stop()
			}
			select {
			case <-before.done:
			case <-ctx.Done():
				before.stop()
				<-before.done
			}
		}
		if ctx.Err() == nil {
			d.run(ctx)
		}
	}()
	return d
}

// stopLetters ends the writing of dead letters at the end of the task's run. The time that it waits does not depend on
// what is left to write. The next epoch on the same log, or the same epoch after a restart, writes the rest.
func (r *Runner) stopLetters() {
	if r.dead != nil {
		time.Sleep(deadLetterGrace)
		r.dead.stop()
		<-r.dead.done
	}
}

// run writes dead letters until the epoch has ended and all of them are written, or the context ends.
func (d *deadLetters) run(ctx context.Context) {
	if t, err := d.r.D.Client.Topic(ctx, d.topic); err == nil && !t.Exists {
		d.r.Log.Warn("the dead-letter topic does not exist: dead letters wait until it is created", "topic", d.topic)
	}
	from, skipFrom, skipTo, err := d.start()
	if err == nil {
		d.next.Store(from)
		err = d.follow(ctx, from, skipFrom, skipTo)
		if e := d.save(true); err == nil {
			err = e
		}
	}
	if err != nil && ctx.Err() == nil {
		// The error is from the disk or the input log, never from the dead-letter topic.
		d.r.Log.Warn("cannot write dead letters: they wait until the task restarts", "error", err.Error())
	}
}

// start returns where to continue: at the file's offset or, without one, at the epoch's first offset. The offsets in
// [skipFrom, skipTo) must be skipped, because no epoch has read them.
func (d *deadLetters) start() (from, skipFrom, skipTo int64, err error) {
	m := d.m
	data, err := d.r.Store.DeadLetters()
	if errors.Is(err, fs.ErrNotExist) {
		return m.Base, 0, 0, nil
	}
	if err != nil {
		return 0, 0, 0, err
	}
	var mark deadLetterMark
	if json.Unmarshal(data, &mark) != nil || mark.Incarnation != m.Incarnation || mark.Next < 0 {
		return m.Base, 0, 0, nil
	}
	end := int64(0) // end of the earlier epochs on this log
	for _, e := range d.r.D.Ledger.All() {
		if e.Kind == ledger.KindClose && e.Task() == m.Task() && e.Epoch < m.Epoch {
			if o := d.r.D.Ledger.Opening(m.Task(), e.Epoch); o != nil && o.Incarnation == m.Incarnation {
				end = max(end, e.End)
			}
		}
	}
	if mark.Next >= end {
		return max(mark.Next, m.Base), 0, 0, nil
	}
	return mark.Next, end, m.Base, nil
}

// follow reads the log from an offset up to what is committed.
func (d *deadLetters) follow(ctx context.Context, from, skipFrom, skipTo int64) error {
	r := d.r
	reader, err := r.D.Client.NewReader(kafka.ReaderOptions{
		Topic: d.m.Topic, Partition: int32(d.m.Partition), ClusterID: d.m.Cluster, SkipGaps: true, Compacted: true,
		PartitionMaxBytes: min(r.D.FetchBytes, 1<<20), MaxRecordBytes: core.MaxRecordBytes(r.S),
	}, kafka.Position{Next: from, LeaderEpoch: -1})
	if err != nil {
		return err
	}
	format, err := r.D.Schemas.Format(r.S)
	if err != nil {
		return err
	}
	decoder, err := codec.NewDecoder(format, 1)
	if err != nil {
		return err
	}
	var b codec.Batch
	var pause kafka.Backoff
	for {
		if !d.wait(ctx, d.next.Load()) {
			return nil
		}
		if err := reader.Fetch(ctx, &b.Chunk); err != nil {
			if !kafka.Retriable(err) {
				return err
			}
			if pause.Wait(ctx) != nil {
				return nil
			}
			continue
		}
		pause.Reset()
		if b.Lost > 0 {
			r.Log.Warn("records were deleted before they were checked for dead letters", "first", b.First,
				"offsets", b.Lost)
		}
		decoder.Decode(&b)
		for i := range b.Records {
			rec := &b.Records[i]
			if b.Reasons[i] == codec.Decoded || rec.Offset >= skipFrom && rec.Offset < skipTo {
				continue
			}
			if rec.Offset >= d.committed.Load() {
				if !d.flush(ctx) {
					return nil
				}
				d.next.Store(rec.Offset)
				if !d.wait(ctx, rec.Offset) {
					return nil
				}
			}
			d.add(rec, b.Reasons[i])
			if (len(d.batch) >= deadLetterBatch || d.bytes >= deadLetterBytes) && !d.flush(ctx) {
				return nil
			}
		}
		if !d.flush(ctx) {
			return nil
		}
		d.next.Store(b.Next)
		if err := d.save(false); err != nil {
			return err
		}
	}
}

// wait waits until an offset is committed. It returns false if the offset will not be committed or the context has
// ended.
func (d *deadLetters) wait(ctx context.Context, offset int64) bool {
	for {
		ended := d.ended.Load() // read ended before committed: if ended is true, committed is final
		if offset < d.committed.Load() {
			break
		}
		if d.save(true) != nil || ended {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.wake:
		}
	}
	return ctx.Err() == nil
}

// add adds a record to the next produce request.
func (d *deadLetters) add(rec *kafka.Record, why codec.Reason) {
	m := d.m
	key := fmt.Appendf(nil, "%s/%d/%d", m.Stream, m.Partition, rec.Offset)
	msg := kafka.Message{Key: key, Time: d.r.D.Now().Truncate(time.Millisecond)}
	if d.full && !rec.TooLarge {
		msg.Value = rec.Value
		header := func(k, v string) { msg.Headers = append(msg.Headers, kafka.Header{Key: k, Value: []byte(v)}) }
		header("streamdp_mode", "full")
		header("streamdp_topic", m.Topic)
		header("streamdp_offset", strconv.FormatInt(rec.Offset, 10))
		header("streamdp_reason", why.String())
		if rec.Key != nil {
			msg.Headers = append(msg.Headers, kafka.Header{Key: "streamdp_key", Value: rec.Key})
		}
		if rec.Value == nil { // a compacted topic would treat null as a deletion
			header("streamdp_null", "value")
			msg.Value = []byte{}
		}
		msg.Headers = append(msg.Headers, rec.Headers...)
	} else {
		d.refer(&msg, rec.Offset, why.String())
	}
	d.batch = append(d.batch, msg)
	d.bytes += len(msg.Key) + len(msg.Value) + 64*len(msg.Headers)
	for _, h := range msg.Headers {
		d.bytes += len(h.Value)
	}
}

// refer turns a dead letter into a reference.
func (d *deadLetters) refer(msg *kafka.Message, offset int64, why string) {
	m := d.m
	// Marshalling strings and integers cannot fail.
	msg.Value, _ = json.Marshal(letterReference{deadLetterSchema, m.Stream, m.Topic, m.Partition, offset, why})
	msg.Headers = []kafka.Header{{Key: "content-type", Value: []byte("application/json")},
		{Key: "streamdp_mode", Value: []byte("reference")}}
}

// flush writes the added messages, and retries as long as needed. It returns false if the context has ended.
func (d *deadLetters) flush(ctx context.Context) bool {
	var pause kafka.Backoff
	for len(d.batch) > 0 {
		_, err := d.r.D.Client.Produce(ctx, d.topic, 0, d.batch)
		var large *kafka.TooLargeError
		switch {
		case err == nil:
			d.r.D.Metrics.DeadLetters(d.r.Task, len(d.batch))
			clear(d.batch)
			d.batch, d.bytes = d.batch[:0], 0
		case errors.As(err, &large) && headerOf(&d.batch[large.Index], "streamdp_mode") == "full":
			msg := &d.batch[large.Index]
			offset, _ := strconv.ParseInt(headerOf(msg, "streamdp_offset"), 10, 64) // written by add
			d.refer(msg, offset, headerOf(msg, "streamdp_reason"))
		default:
			d.r.D.Metrics.DeadLetterFailed(d.r.Task)
			if pause.Wait(ctx) != nil {
				return false
			}
		}
	}
	return ctx.Err() == nil
}

// headerOf returns the first header of a name, or "" if there is none.
func headerOf(m *kafka.Message, name string) string {
	for _, h := range m.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// save writes the file if atOnce is true or the last write was at least deadLetterSave ago.
func (d *deadLetters) save(atOnce bool) error {
	next := d.next.Load()
	if next == d.saved || !atOnce && time.Since(d.savedAt) < deadLetterSave {
		return nil
	}
	data, err := json.Marshal(deadLetterMark{d.m.Incarnation, min(next, d.committed.Load())})
	if err != nil {
		return err
	}
	if err := d.r.Store.PutDeadLetters(data); err != nil {
		if failure.DiskFull(err) {
			return nil // not saving is safe: after a crash more messages are written twice, but none is lost
		}
		return err
	}
	d.saved, d.savedAt = next, time.Now()
	return nil
}
