package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/shardlog"
)

// LogOptions select the logs of one shard.
type LogOptions struct {
	// Kafka says how to reach the cluster. Its Topics are not used.
	Kafka kafka.Options
	// Group and Shard select the partitions: partition Shard of the group's [StateTopic] and [LedgerTopic].
	Group string
	Shard int
	// Confirm asks the group whether this instance still owns the shard, like [Member.Confirm]. nil: ownership is not
	// checked; this is for commands that run while the group is stopped.
	Confirm func(context.Context) error

	patience time.Duration // maximum time for which a read may make no progress; default 1 minute
	extra    []kgo.Opt     // for tests
}

const (
	readPatience = time.Minute
	// maxReadRecord is larger than any record in a shard's logs.
	maxReadRecord = 2 << 20
)

// Reader reads the two logs of a shard. It implements [shardlog.Reader]. Each read covers both logs, first the state
// and then the ledger. Each read has its own connections, so that the partitions' leaders are already known when it
// begins. A Reader is not safe for concurrent use.
type Reader struct {
	o    LogOptions
	mu   sync.Mutex // protects next, because a Log may be closed concurrently
	next *reading   // prepared read of both logs; nil: none
}

// reading is one read of both logs: its connections, and the offsets at which the logs begin.
type reading struct {
	client *kafka.Client
	begun  bool               // whether reading the state has begun
	starts map[string]*begins // by topic
}

// begins is the offset at which a log begins.
type begins struct {
	known chan struct{} // closed when the other fields are set
	at    int64
	err   error
}

// prepare opens connections for the next read of both logs, and starts finding their leaders and first offsets. It does
// not wait for the result.
func (r *Reader) prepare() (*reading, error) {
	state, ledger := StateTopic(r.o.Group), LedgerTopic(r.o.Group)
	o := r.o.Kafka
	o.Topics = []string{state, ledger}
	client, err := kafka.NewClient(o)
	if err != nil {
		return nil, err
	}
	x := &reading{client: client, starts: map[string]*begins{}}
	for _, topic := range o.Topics {
		b := &begins{known: make(chan struct{})}
		x.starts[topic] = b
		go func() {
			defer close(b.known)
			b.at, b.err = client.Start(context.Background(), topic, int32(r.o.Shard)) // until the client is closed
		}()
	}
	r.follow(x)
	return x, nil
}

// follow makes x the prepared read, and closes the old one.
func (r *Reader) follow(x *reading) {
	r.mu.Lock()
	old := r.next
	r.next = x
	r.mu.Unlock()
	if old != nil {
		old.client.Close()
	}
}

// reading returns the prepared read. If this read was already used for the same log, it returns a new one.
func (r *Reader) reading(ledger bool) (x *reading, err error) {
	r.mu.Lock()
	x = r.next
	r.mu.Unlock()
	if x == nil || x.begun && !ledger {
		if x, err = r.prepare(); err != nil {
			return nil, err
		}
	}
	x.begun = true
	return x, nil
}

// NewReader returns a reader. It opens no connection.
func NewReader(o LogOptions) *Reader {
	if o.patience == 0 {
		o.patience = readPatience
	}
	return &Reader{o: o}
}

// ReadState passes the committed records of the state to each, up to the log's current end. It retries calls that fail
// for a minute.
func (r *Reader) ReadState(ctx context.Context, each func(shardlog.Record) error) error {
	_, err := r.read(ctx, StateTopic(r.o.Group), -1, false, each)
	return err
}

// ReadLedger reads the ledger as ReadState reads the state. It returns a [shardlog.HaltError] if the ledger's first
// records were deleted.
func (r *Reader) ReadLedger(ctx context.Context, each func(shardlog.Record) error) error {
	_, err := r.read(ctx, LedgerTopic(r.o.Group), -1, true, each)
	return err
}

// read passes the committed records to `each`, at least up to offset `wrote`, and returns the offset after the last
// one. If whole is true, the log must begin at offset 0.
func (r *Reader) read(ctx context.Context, topic string, wrote int64, whole bool,
	each func(shardlog.Record) error) (end int64, err error) {
	x, err := r.reading(whole)
	if err != nil {
		return 0, err
	}
	defer func() {
		if whole || err != nil { // the ledger is read second
			r.follow(nil)
		}
	}()
	client := x.client
	var pause kafka.Backoff
	progress := time.Now()
	repeat := func(call func() error) error {
		for {
			err := call()
			if err == nil {
				progress = time.Now()
				pause.Reset()
				return nil
			}
			if !kafka.Retriable(err) || time.Since(progress) > r.o.patience {
				return err
			}
			if pause.Wait(ctx) != nil {
				return err
			}
		}
	}
	partition := int32(r.o.Shard)
	begins := x.starts[topic]
	select {
	case <-begins.known:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	start, err := begins.at, begins.err
	if err := repeat(func() (failed error) {
		if err != nil {
			if start, err = client.Start(ctx, topic, partition); err != nil {
				return err
			}
		}
		end, failed = client.LastStable(ctx, topic, partition)
		return failed
	}); err != nil {
		return 0, err
	}
	// Brokers write the commit marker shortly after they acknowledge the commit.
	soon := kafka.Backoff{Min: 5 * time.Millisecond}
	for until := time.Now().Add(r.o.patience); end <= wrote; {
		if time.Now().After(until) {
			return 0,
				fmt.Errorf("%s/%d: committed records end at offset %d, before this instance's own record at %d: a "+
					"transaction with another id may be open, or the broker that answered is no longer the leader",
					topic, partition, end, wrote)
		}
		if err := soon.Wait(ctx); err != nil {
			return 0, err
		}
		if end, err = client.LastStable(ctx, topic, partition); err != nil && !kafka.Retriable(err) {
			return 0, err
		}
	}
	if whole && start > 0 {
		return 0, &shardlog.HaltError{Halt: shardlog.HaltLedger,
			Err: fmt.Errorf("%s/%d begins at offset %d: its first records were deleted", topic, partition, start)}
	}
	reader, err := client.NewReader(
		kafka.ReaderOptions{Topic: topic, Partition: partition, Compacted: true, MaxRecordBytes: maxReadRecord},
		kafka.Position{Next: start, LeaderEpoch: -1})
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	ctx, cancel := context.WithCancel(ctx) // also cancels a request that was sent ahead
	defer cancel()
	var chunk kafka.Chunk
	for reader.Position().Next < end {
		before := reader.Position().Next
		was := progress
		if err := repeat(func() error { return reader.Fetch(ctx, &chunk) }); err != nil {
			return 0, err
		}
		if reader.Position().Next == before {
			if progress = was; time.Since(progress) > r.o.patience {
				return 0, fmt.Errorf("%s/%d: the broker returns no record at offset %d, although the log ends at "+
					"%d", topic,
					partition, before, end)
			}
		}
		for i := range chunk.Records {
			rec := &chunk.Records[i]
			if rec.Offset >= end {
				return end, nil
			}
			if rec.TooLarge {
				return 0, &shardlog.HaltError{Halt: shardlog.HaltState,
					Err: fmt.Errorf("%s/%d has a record above %d bytes, which streamdp never writes", topic, partition,
						maxReadRecord)}
			}
			if err := each(shardlog.Record{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value)}); err != nil {
				return 0, err
			}
		}
	}
	return end, nil
}

var errSpent = errors.New("internal: a log was used after its first error")
