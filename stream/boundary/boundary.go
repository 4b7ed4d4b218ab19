// Package boundary decides where steps by the clock end. A sampler asks the brokers for the ends of the logs at each
// multiple of a task's period. The ends that are used become records with a MAC in the boundary topic. They are written
// before any noise of their step is drawn, so a release stays a function of logs.
package boundary

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/signedlog"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/notify"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// Boundary says where a step by the clock ends.
type Boundary struct {
	Step uint64
	Ends []int64 // offsets after the step's records, by partition
	At   int64   // offset of the boundary's record in the boundary topic
}

// Boundaries are the ends of an epoch's steps by the clock. At each multiple of the period one more boundary is made.
// It holds the last stable offset of each partition, but none below the last boundary. It is written to the boundary
// topic, and read back before it is used. If copies of a state directory write several boundaries for one step, all
// copies use the first one in the topic. So a boundary is durable before any noise of its step, and no step has two
// boundaries.
//
// Privacy: a boundary is a function of public values: the daemon's clock and the number of offsets of each partition.
// It does not depend on the content of a record or on the timestamps that producers or brokers set. Nor does it depend
// on the task's progress, that is, its lag and the time at which the work of the last epoch ended; see Sampler. So
// neighbouring streams, which differ in the content of one record, have the same boundaries, and no record moves to
// another step. One effect remains: work on a record may delay the sampling for a moment, as it may delay a release.
//
// A wrong clock moves only future boundaries. No boundaries are made later for a time in which the daemon did not run.
//
// A record of the topic has the key STREAM/PARTITION/EPOCH, the value {"step":t,"ends":[…]}, and a header with a MAC.
// The key of the MAC is derived from the master key, the epoch and its nonce. Records without a valid MAC are ignored.
// Boundaries is safe for concurrent use.
type Boundaries struct {
	*failure.Retrier
	log     signedlog.Log
	name    []byte // the records' key
	Sources []core.Source
	Most    int64                       // the largest number of offsets of a partition in a step
	Horizon uint64                      // last step; 0: none
	Stamp   func() time.Time            // returns the timestamp of a new record
	Same    func(context.Context) error // halts if the boundary topic is not the one at the epoch's opening
	Sampler *Sampler                    // source of samples; nil if this process makes no boundaries

	reading sync.Mutex // held while the topic is read
	next    int64      // the next offset of the topic to read

	refilling sync.Mutex // held while the queue is filled from the topic, without holding mu

	mu    sync.Mutex
	Last  Boundary         // the newest boundary
	queue []Boundary       // the boundaries of the next steps, without a gap; maybe not all known ones
	Kept  Boundary         // the newest boundary put into queue; at first, the epoch's beginning
	came  notify.Broadcast // guarded by mu; sent with each new boundary
}

// boundaryHeader is the name of the header of a boundary.
const boundaryHeader = "streamdp.boundary"

// maxQueued limits the boundaries in memory. Later ones are read again when they are needed.
const maxQueued = 4096

// New returns the boundaries of a manifest's epoch. Before Begin, the caller sets Most, Last, Kept, Stamp and Same, and
// Horizon and Sampler if they apply.
func New(r *failure.Retrier, client *kafka.Client, master *[32]byte, topic string, m *core.Manifest) *Boundaries {
	name := []byte(strings.TrimSuffix(core.Identity(m.Task(), m.Epoch, 0), "/0"))
	salt := binary.BigEndian.AppendUint64(nil, uint64(len(name)))
	key := keys.Derive(master, keys.ForBoundaries, slices.Concat(salt, name, m.Nonce))
	log := signedlog.Log{Client: client, Topic: topic, Header: boundaryHeader, Key: key}
	b := &Boundaries{Retrier: r, log: log, name: name}
	for _, partition := range core.Partitions(m) {
		src := m.Source
		src.Partition = partition
		b.Sources = append(b.Sources, src)
	}
	return b
}

// Topic returns the name of the boundary topic.
func (b *Boundaries) Topic() string { return b.log.Topic }

// Begin reads the topic from the checkpoint's boundary on, and halts if that boundary is missing. If the checkpoint has
// no boundary yet, Begin reads from the offset in the ledger's line `opened`, if there is one.
func (b *Boundaries) Begin(ctx context.Context, opened *ledger.EntryBoundaries) error {
	from := b.Last
	b.next = from.At + 1
	if from.Step == 0 && opened != nil {
		b.next = opened.First
	} else if from.At < 0 {
		// The offset of the epoch's first boundary is unknown.
		err := b.Do(ctx, "boundary topic", func() (err error) {
			b.next, err = b.log.Client.Start(ctx, b.log.Topic, 0)
			return err
		})
		if err != nil {
			return err
		}
	} else if from.Step > 0 {
		there := false
		err := b.scan(ctx, from.At, func(rec *kafka.Record) error {
			x, ours := b.parse(rec)
			there = ours && rec.Offset == from.At && x.Step == from.Step && slices.Equal(x.Ends, from.Ends)
			return failure.ErrStop
		})
		if err != nil {
			return err
		}
		if !there {
			return b.lost("does not hold the boundary of step %d at offset %d", from.Step, from.At)
		}
	}
	return b.read(ctx)
}

// lost returns the halt for a topic that lacks boundaries.
func (b *Boundaries) lost(format string, args ...any) error {
	return failure.Haltf(failure.BoundaryTopic,
		"boundary topic %s %s: it was created again, or lost records, and boundaries cannot be decided twice; open a "+
			"new epoch: streamdp epoch open %s",
		b.log.Topic, fmt.Sprintf(format, args...), strings.Split(string(b.name), "/")[0])
}

// scan reads the topic from an offset to its end, or until fn returns ErrStop.
func (b *Boundaries) scan(ctx context.Context, from int64, fn func(*kafka.Record) error) error {
	err := b.log.Read(ctx, from, fn)
	switch {
	case errors.Is(err, failure.ErrStop):
		return nil
	case kafka.Lost(err):
		return b.lost("cannot be read from offset %d on: %s", from, err)
	}
	return err
}

// parse parses a record of the topic. ours reports whether it is a boundary of this epoch.
func (b *Boundaries) parse(rec *kafka.Record) (x Boundary, ours bool) {
	if !bytes.Equal(rec.Key, b.name) || !b.log.Signed(rec, nil, rec.Value) {
		return x, false
	}
	var v boundaryValue
	err := json.Unmarshal(rec.Value, &v)
	return Boundary{v.Step, v.Ends, rec.Offset}, err == nil && v.Step > 0
}

// boundaryValue is the value of a record of the topic.
type boundaryValue struct {
	Step uint64  `json:"step"`
	Ends []int64 `json:"ends"`
}

// follows reports whether x can be the boundary after another one.
func (b *Boundaries) follows(x, before Boundary) bool {
	ok := x.Step == before.Step+1 && len(x.Ends) == len(before.Ends)
	for i := range x.Ends {
		ok = ok && x.Ends[i] >= before.Ends[i] && x.Ends[i]-before.Ends[i] <= b.Most
	}
	return ok
}

// read reads the new records of the topic.
func (b *Boundaries) read(ctx context.Context) error {
	b.reading.Lock()
	defer b.reading.Unlock()
	return b.scan(ctx, b.next, func(rec *kafka.Record) error {
		if x, ours := b.parse(rec); ours {
			if err := b.take(x); err != nil {
				return err
			}
		}
		b.next = rec.Offset + 1
		return nil
	})
}

// take handles the epoch's next boundary in the topic.
func (b *Boundaries) take(x Boundary) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.Step <= b.Last.Step {
		return nil // only the first boundary of a step counts
	}
	if !b.follows(x, b.Last) {
		return b.lost("holds the boundary of step %d after that of step %d", x.Step, b.Last.Step)
	}
	if b.Kept.Step == b.Last.Step && len(b.queue) < maxQueued {
		b.queue, b.Kept = append(b.queue, x), x
	}
	b.Last = x
	b.came.Send()
	return nil
}

// Newest returns the last step whose boundary is in the topic.
func (b *Boundaries) Newest(ctx context.Context) (step uint64, err error) {
	err = b.read(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Last.Step, err
}

// Of waits for the boundary of a step. Done must not have been called for that step.
func (b *Boundaries) Of(ctx context.Context, step uint64) (Boundary, error) {
	for {
		x, known, came, err := b.Known(ctx, step)
		if known || err != nil {
			return x, err
		}
		select {
		case <-ctx.Done():
			return Boundary{}, ctx.Err()
		case <-came:
		}
	}
}

// Known returns the boundary of a step if it is known. Otherwise it returns a channel that is closed when there is a
// new boundary. Done must not have been called for that step.
func (b *Boundaries) Known(ctx context.Context, step uint64) (x Boundary, known bool, came <-chan struct{}, err error) {
	if err := b.refill(ctx, step); err != nil {
		return x, false, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 && step >= b.queue[0].Step && step <= b.Kept.Step {
		return b.queue[step-b.queue[0].Step], true, nil, nil
	}
	return x, false, b.came.Next(), nil
}

// refill reads boundaries again that did not fit into memory, if a step needs them. A slow broker may delay the leaves
// that need these boundaries. It must not delay decide: reading again depends on the task's progress, and new
// boundaries must not depend on that.
func (b *Boundaries) refill(ctx context.Context, step uint64) error {
	state := func() (kept Boundary, last uint64, queued int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Kept, b.Last.Step, len(b.queue)
	}
	if kept, last, _ := state(); kept.Step >= step || last < step {
		return nil
	}
	b.refilling.Lock()
	defer b.refilling.Unlock()
	kept, last, queued := state()
	if kept.Step >= step {
		return nil // another leaf has already read it again
	}
	var more []Boundary
	err := b.scan(ctx, kept.At+1, func(rec *kafka.Record) error {
		x, ours := b.parse(rec)
		switch {
		case !ours || x.Step <= kept.Step:
			return nil
		case !b.follows(x, kept):
			return b.lost("holds the boundary of step %d after that of step %d", x.Step, kept.Step)
		}
		more, kept = append(more, x), x
		if queued+len(more) >= 2*maxQueued || kept.Step == last {
			return failure.ErrStop
		}
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue, b.Kept = append(b.queue, more...), kept
	return err
}

// Done drops the boundaries of all steps up to the given one.
func (b *Boundaries) Done(step uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for n < len(b.queue) && b.queue[n].Step <= step {
		n++
	}
	b.queue = b.queue[n:]
}

// Run makes boundaries from the sampler's samples, one after the other, until the context ends or the last step has a
// boundary.
func (b *Boundaries) Run(ctx context.Context) error {
	b.Sampler.begin(b.Sources)
	defer b.Sampler.pause()
	for {
		b.mu.Lock()
		last := b.Last
		b.mu.Unlock()
		if b.Horizon > 0 && last.Step >= b.Horizon {
			return nil
		}
		x, err := b.Sampler.next(ctx)
		if err == nil && !b.precedes(x, last) {
			err = b.decide(ctx, last.Step+1, x)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		b.Sampler.decided()
	}
}

// decide makes sure that the topic holds a boundary of a step. If another copy of the state has written one, decide
// uses it. So two copies with different clocks make no more boundaries than one.
func (b *Boundaries) decide(ctx context.Context, step uint64, x endOffsets) error {
	if step == 1 {
		// No record proves yet that the topic is the same as at the epoch's opening.
		if err := b.Same(ctx); err != nil {
			return err
		}
	}
	return b.Do(ctx, "boundary topic", func() error {
		if newest, err := b.Newest(ctx); err != nil || newest >= step {
			return err
		}
		b.mu.Lock()
		last := b.Last.Ends
		b.mu.Unlock()
		value, err := json.Marshal(boundaryValue{step, b.ends(x, last)})
		if err != nil {
			return err
		}
		signed := kafka.Message{Key: b.name, Value: value, Headers: b.log.Headers(b.log.Sign(nil, value)),
			Time: b.Stamp()}
		if err := b.log.Append(ctx, []kafka.Message{signed}); err != nil {
			return err
		}
		newest, err := b.Newest(ctx)
		if err == nil && newest < step {
			return b.lost("does not hold a record that was just written to it")
		}
		return err
	})
}

// StampOf returns the timestamp of a boundary record, which the topic's retention uses: the last multiple of the
// period. A more precise timestamp would reveal when the brokers had answered.
func StampOf(now time.Time, period time.Duration) time.Time {
	if at := now.Truncate(period); at.UnixMilli() > 0 {
		return at
	}
	return time.UnixMilli(1)
}

// Written returns a function that reads from the topic the boundary of a step that is repeated. It returns nil if steps
// are not by the clock. The function halts if a boundary is missing.
func (b *Boundaries) Written() func(context.Context, uint64) (Boundary, error) {
	if b == nil {
		return nil
	}
	return func(ctx context.Context, step uint64) (Boundary, error) {
		if _, err := b.Newest(ctx); err != nil {
			return Boundary{}, err
		}
		b.Done(step - 1)
		x, known, _, err := b.Known(ctx, step)
		if err == nil && !known {
			err = b.lost("lacks the boundary of step %d, whose release is in the output", step)
		}
		return x, err
	}
}
