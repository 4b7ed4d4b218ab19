package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"streamdp/internal/cluster"
	"streamdp/internal/kafka"
)

// LogOptions say which shard's logs are meant.
type LogOptions struct {
	// Kafka is how to reach the cluster. Its Topics are not looked at.
	Kafka kafka.Options
	// Group and Shard name the partitions: Shard of [StateTopic] and of [LedgerTopic].
	Group string
	Shard int
	// Confirm asks the group whether the shard is still this instance's, like [Member.Confirm].
	// Nil: nobody is asked, which is for commands while the group is stopped.
	Confirm func(context.Context) error

	patience time.Duration // without progress of a read; default a minute
	extra    []kgo.Opt     // of tests
}

const (
	readPatience = time.Minute
	// maxReadRecord is more than any record of ours has.
	maxReadRecord = 2 << 20
)

// Reader reads the two logs of a shard. It implements [cluster.Reader]. Each read has connections
// of its own, so that it asks brokers that are known at its beginning.
type Reader struct {
	o LogOptions
}

// NewReader returns a reader. It connects to nothing.
func NewReader(o LogOptions) *Reader {
	if o.patience == 0 {
		o.patience = readPatience
	}
	return &Reader{o}
}

// ReadState gives the committed records of the state to each, up to the end that they have now.
// Calls that fail are repeated for a minute.
func (r *Reader) ReadState(ctx context.Context, each func(cluster.Record) error) error {
	_, err := r.read(ctx, StateTopic(r.o.Group), -1, false, each)
	return err
}

// ReadLedger is like ReadState, for the ledger, and fails with a [cluster.HaltError] where records
// at the ledger's beginning are gone.
func (r *Reader) ReadLedger(ctx context.Context, each func(cluster.Record) error) error {
	_, err := r.read(ctx, LedgerTopic(r.o.Group), -1, true, each)
	return err
}

// read reads what is committed, at least past the offset wrote, and returns the end up to
// which it has. whole: the log must begin at 0.
func (r *Reader) read(ctx context.Context, topic string, wrote int64, whole bool, each func(cluster.Record) error) (end int64, err error) {
	o := r.o.Kafka
	o.Topics = []string{topic}
	client, err := kafka.NewClient(o)
	if err != nil {
		return 0, err
	}
	defer client.Close()
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
	var start int64
	if err := repeat(func() (err error) {
		start, end, _, err = client.Offsets(ctx, topic, partition)
		return err
	}); err != nil {
		return 0, err
	}
	for until := time.Now().Add(r.o.patience); end <= wrote; {
		if time.Now().After(until) {
			return 0, fmt.Errorf("%s/%d: committed records end at offset %d, before this instance's own at %d: a transaction of another id may be open, or its broker is no longer the leader", topic, partition, end, wrote)
		}
		if err := pause.Wait(ctx); err != nil {
			return 0, err
		}
		if end, err = client.LastStable(ctx, topic, partition); err != nil && !kafka.Retriable(err) {
			return 0, err
		}
	}
	if whole && start > 0 {
		return 0, &cluster.HaltError{Halt: cluster.HaltLedger, Err: fmt.Errorf("%s/%d begins at offset %d: its first records were deleted", topic, partition, start)}
	}
	reader, err := client.NewReader(kafka.ReaderOptions{Topic: topic, Partition: partition, Compacted: true, MaxRecordBytes: maxReadRecord}, kafka.Position{Next: start, LeaderEpoch: -1})
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	ctx, cancel := context.WithCancel(ctx) // also of a request sent ahead
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
				return 0, fmt.Errorf("%s/%d: nothing comes at offset %d, and there must be something up to %d", topic, partition, before, end)
			}
		}
		for i := range chunk.Records {
			rec := &chunk.Records[i]
			if rec.Offset >= end {
				return end, nil
			}
			if rec.TooLarge {
				return 0, &cluster.HaltError{Halt: cluster.HaltState, Err: fmt.Errorf("%s/%d has a record above %d bytes, which nobody writes", topic, partition, maxReadRecord)}
			}
			if err := each(cluster.Record{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value)}); err != nil {
				return 0, err
			}
		}
	}
	return end, nil
}

var errSpent = errors.New("internal: a log is used after its first error")
