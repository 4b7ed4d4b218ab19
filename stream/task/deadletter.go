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

// deadLetters writes which records of an epoch gave no row to a topic of its own. It
// follows the last commit with a reader and a decoder of its own: what it writes is
// worked out of the log again, so the log is its outbox, and a file says how far it has
// come. So it takes nothing from the releases, waits as long as its topic is away, and
// loses nothing that the log still holds. After a crash it may write a record twice,
// under the same key.
//
// Privacy: a dead letter is an exact fact about one record. Nothing of it, not even
// that writing one fails, shows in a log line or a metric other than those of class P.
type deadLetters struct {
	r         *Runner
	m         *core.Manifest
	topic     string
	full      bool
	committed atomic.Int64 // offsets below it are
	wake      chan struct{}
	next      atomic.Int64 // offsets below it are done
	ended     atomic.Bool  // committed does not change any more
	stop      context.CancelFunc
	done      chan struct{} // closed when nothing more is written
	saved     int64
	savedAt   time.Time

	batch []kafka.Message
	bytes int
}

// What goes to the topic at once, and how often the file is written.
const (
	deadLetterBatch = 500
	deadLetterBytes = 1 << 20
	deadLetterSave  = time.Second
	deadLetterGrace = time.Second // at the end of the process, for what is left
	// deadLetterSchema is the version of a reference.
	deadLetterSchema = "streamdp.deadletter.v1"
)

// deadLetterMark is the file that says how far dead letters have come.
type deadLetterMark struct {
	Incarnation uint64 `json:"incarnation"` // of the log
	Next        int64  `json:"next"`        // offsets below it are done
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

// newDeadLetters returns nil where the stream wants none.
func newDeadLetters(r *Runner, l *epoch.OpenEpoch) *deadLetters {
	if r.S.DeadLetter.Mode == "off" {
		return nil
	}
	d := &deadLetters{r: r, m: l.M, topic: r.S.DeadLetter.Topic, full: r.S.DeadLetter.Mode == "full",
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.committed.Store(l.Cp.Position.Next)
	return d
}

// commit says that offsets below next are committed.
func (d *deadLetters) commit(next int64) {
	if d != nil {
		d.committed.Store(next)
		failure.Signal(d.wake)
	}
}

// end says that nothing more is committed: the epoch is closed, or the task stops. Nobody
// waits for what is left to write. Whether there is any shows if a record was invalid, and
// a successor that opened later would tell it. So the writing goes on beside the task.
func (d *deadLetters) end() {
	if d != nil {
		d.ended.Store(true)
		failure.Signal(d.wake)
	}
}

// letters begins to write the dead letters of an epoch, beside those of the one before.
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
			// On the same log this one goes on where that one stops. The letters of another
			// log would be lost, so they are written first.
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

// stopLetters ends the writing of dead letters with the task's process. It waits for a
// time that does not depend on what is left to write. The next epoch on the same log,
// or the same one after a restart, writes the rest.
func (r *Runner) stopLetters() {
	if r.dead != nil {
		time.Sleep(deadLetterGrace)
		r.dead.stop()
		<-r.dead.done
	}
}

// run writes dead letters until all of an epoch that has ended are written, or the
// context ends.
func (d *deadLetters) run(ctx context.Context) {
	if t, err := d.r.D.Client.Topic(ctx, d.topic); err == nil && !t.Exists {
		d.r.Log.Warn("the topic of dead letters does not exist: they wait until it does", "topic", d.topic)
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
		// Of the disk or the log, never of the topic.
		d.r.Log.Warn("no dead letters are written until the task starts again", "error", err.Error())
	}
}

// start returns where to go on: at the file's offset, else at the epoch's first one.
// Offsets in [skipFrom, skipTo) were read by no epoch.
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
	end := int64(0) // of the epochs before, on this log
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

// follow reads the log from an offset on, up to what is committed.
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
			r.Log.Warn("records were deleted before dead letters were looked for among them", "first", b.First,
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

// wait waits until an offset is committed; false: it will not be, or the context has
// ended.
func (d *deadLetters) wait(ctx context.Context, offset int64) bool {
	for {
		ended := d.ended.Load() // before committed is read: it was the last one
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

// add adds a record to what is written next.
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
		if rec.Value == nil { // a compacted topic would take a null for a deletion
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

// refer makes a dead letter a reference.
func (d *deadLetters) refer(msg *kafka.Message, offset int64, why string) {
	m := d.m
	// strings and integers
	msg.Value, _ = json.Marshal(letterReference{deadLetterSchema, m.Stream, m.Topic, m.Partition, offset, why})
	msg.Headers = []kafka.Header{{Key: "content-type", Value: []byte("application/json")},
		{Key: "streamdp_mode", Value: []byte("reference")}}
}

// flush writes what was added, for as long as that takes; false: the context has ended.
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
			offset, _ := strconv.ParseInt(headerOf(msg, "streamdp_offset"), 10, 64) // our own
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

// headerOf returns the first header of a name, "" where there is none.
func headerOf(m *kafka.Message, name string) string {
	for _, h := range m.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// save writes the file: at once, or when it is time.
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
			return nil // more is written twice after a crash, nothing is lost
		}
		return err
	}
	d.saved, d.savedAt = next, time.Now()
	return nil
}
