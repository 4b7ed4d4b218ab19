package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/shardlog"
)

// Log writes and reads the two logs of a shard. It implements [shardlog.Log]. The id of its transactions is
// GROUP-SHARD. It serves one holding, until its first error. It is not safe for concurrent use, except for Close.
//
// A broker's answer to a commit is in one of these classes:
//   - 3, 5, 6, 7, 14, 15, 16, 19, 20, 51: the request is repeated, with the same producer epoch and
//     sequence numbers, while the transaction may still be open.
//   - 47, 48, 49, 90: another instance has fenced this one.
//   - 10, 18, 87: the broker refuses the record itself: a [shardlog.RefusedError].
//   - anything else, and no answer: it is unknown whether the commit takes place.
//
// All but the first class end the Log.
type Log struct {
	Reader
	client  *kgo.Client
	timeout time.Duration // maximum time of a transaction
	// Offsets of the last record in state and in ledger that this Log has written or, in the ledger, has read.
	last  [2]int64
	id    int64 // id of the producer
	epoch int16
	spent bool
	ends  ends
}

// ends counts the commits that the client sends. It is the client's logger, because the client reports commits only in
// its log. This check is needed because EndTransaction aborts, and still returns nil, if it finds no partition in the
// transaction. This can happen after all records were acknowledged: franz-go 1.22.2 first reports records to waiting
// callers, and only slightly later adds their partitions to the transaction that EndTransaction sees.
type ends struct{ commits atomic.Int64 }

// Level returns the level of the client messages that Log needs.
func (*ends) Level() kgo.LogLevel { return kgo.LogLevelInfo }

// Log counts the client's log messages about commits. If another version of the client words them differently, every
// commit ends with an error.
func (e *ends) Log(_ kgo.LogLevel, message string, pairs ...any) {
	if message != "ending transaction" {
		return
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "commit" && pairs[i+1] == kgo.TryCommit {
			e.commits.Add(1)
		}
	}
}

const (
	// fenceTime is how long Fence waits for the former owner's transaction to end.
	fenceTime = time.Minute
	// slack is the time that the broker has to answer after the transaction timeout.
	slack = 5 * time.Second
	// metadataAge is the minimum interval at which the client asks which broker leads a partition. It is short because
	// a transaction waits for the answer while its timeout runs.
	metadataAge = 100 * time.Millisecond
	// batchBytes is less than what brokers accept by default (1048588), but more than any record of a shard.
	batchBytes = 1_000_000
)

// NewLog returns a log. It opens no connection.
func NewLog(o LogOptions) *Log {
	l := &Log{last: [2]int64{-1, -1}}
	l.o = NewReader(o).o
	return l
}

// TransactionalID returns the id of the transactions on a shard of a group.
func TransactionalID(group string, shard int) string { return group + "-" + strconv.Itoa(shard) }

// Confirm calls Confirm of the options.
func (l *Log) Confirm(ctx context.Context) error {
	if l.o.Confirm == nil {
		return nil
	}
	return l.o.Confirm(ctx)
}

// Fence takes over the shard's transactional id by InitProducerID. This fences the former owner and aborts its open
// transaction; if that transaction is already being committed, Fence waits for it. Fence refuses a cluster whose
// transactions have version 1 or less, because there a delayed copy of a request could end the next transaction.
func (l *Log) Fence(ctx context.Context, timeout time.Duration) error {
	if l.client != nil || l.spent {
		return errSpent
	}
	l.spent = true                         // until success is certain
	if _, err := l.prepare(); err != nil { // The logs are read later; this prepares the connections.
		return err
	}
	opts, err := clientOptions(l.o.Kafka)
	if err != nil {
		return err
	}
	l.timeout = timeout
	l.client, err = kgo.NewClient(append(append(opts,
		kgo.TransactionalID(TransactionalID(l.o.Group, l.o.Shard)),
		kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // sealed values are random bytes
		kgo.ProducerBatchMaxBytes(batchBytes),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(math.MaxInt32),
		kgo.RetryTimeout(timeout+slack),
		kgo.MetadataMinAge(metadataAge),
		kgo.WithLogger(&l.ends),
	), l.o.extra...)...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fenceTime)
	defer cancel()
	// On a new connection the client waits for the broker's first answer without regard to the context.
	defer context.AfterFunc(ctx, l.client.Close)()
	for pause := (kafka.Backoff{Max: time.Second}); ; {
		var version int16
		var unknown error
		var asking sync.WaitGroup
		// The question most likely goes to another broker than the coordinator.
		asking.Go(func() { version, unknown = transactionVersion(ctx, l.client) })
		// Without this call the client would ask for a producer id only at the first record.
		id, epoch, err := l.client.ProducerID(ctx)
		asking.Wait()
		if unknown == nil && version < 2 {
			return fmt.Errorf(
				"the cluster has transactions of version %d: raise its feature transaction.version to 2, available "+
					"since Kafka 4.0", version)
		}
		if err = cmp.Or(err, unknown); err == nil {
			if id < 0 {
				return errors.New("the broker did not assign a producer id")
			}
			l.id, l.epoch, l.spent = id, epoch, false
			return nil
		}
		if !repeatable(err) {
			return fmt.Errorf("InitProducerID of %s: %w", TransactionalID(l.o.Group, l.o.Shard), err)
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf(
				"InitProducerID of %s: the former owner's transaction did not end, or its coordinator did not "+
					"answer: %w", TransactionalID(l.o.Group, l.o.Shard), err)
		}
	}
}

// repeatable reports whether a fence that failed with err may succeed later. Repeating a fence is always safe: it
// fences any former owner.
func repeatable(err error) bool {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Retriable || code == kerr.ConcurrentTransactions
	}
	return true // an error of the connection
}

// Commit writes records to both logs in one transaction. Its first error ends the log.
func (l *Log) Commit(ctx context.Context, state, ledger []shardlog.Record) error {
	if l.client == nil || l.spent {
		return errSpent
	}
	l.spent = true // until success is certain
	// The coordinator aborts the transaction after its timeout.
	ctx, cancel := context.WithTimeout(ctx, l.timeout+slack)
	defer cancel()
	records := make([]*kgo.Record, 0, len(state)+len(ledger))
	for i, all := range [][]shardlog.Record{state, ledger} {
		topic := StateTopic(l.o.Group)
		if i == 1 {
			topic = LedgerTopic(l.o.Group)
		}
		for _, r := range all {
			records = append(records,
				&kgo.Record{Topic: topic, Partition: int32(l.o.Shard), Key: r.Key, Value: r.Value})
		}
	}
	if len(records) == 0 {
		return errors.New("internal: a commit without records")
	}
	if err := l.client.BeginTransaction(); err != nil {
		return err
	}
	if err := l.produce(ctx, records); err != nil {
		return err // the next fence or the timeout aborts the transaction
	}
	last, err := l.checkAppended(records, len(state))
	if err != nil {
		return err
	}
	l.waitSeen(records)
	if err := l.end(ctx); err != nil {
		return err
	}
	l.last, l.spent = last, false
	return nil
}

// end commits the open transaction, after all its records were acknowledged. The client's EndTransaction also returns
// nil in cases in which it commits nothing, or only a part: if a record failed, if the client believes that no record
// was acknowledged, or if the producer was restarted meanwhile. So end checks three things: the client still has the
// producer epoch with which this transaction began; the client sent a commit and not an abort; and the answer has the
// next epoch.
func (l *Log) end(ctx context.Context) error {
	if err := l.same(ctx); err != nil {
		return err
	}
	commits := l.ends.commits.Load()
	if err := l.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("EndTxn: %w", err)
	}
	if l.ends.commits.Load() != commits+1 {
		return errors.New("the client aborted the transaction instead of committing it")
	}
	id, epoch, err := l.client.ProducerID(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("after EndTxn: %w", err)
	case id == l.id && epoch == l.epoch+1, id != l.id && epoch == 0: // after epoch 32767 the producer id changes
	default:
		return fmt.Errorf("EndTxn returned producer id %d with producer epoch %d, but the transaction had producer "+
			"id %d with producer epoch %d", id, epoch, l.id, l.epoch)
	}
	l.id, l.epoch = id, epoch
	return nil
}

// waitSeen waits until EndTransaction sees the partitions of these records; see ends. It gives up after a short time,
// which is harmless: the commit then fails and the Log ends.
func (l *Log) waitSeen(records []*kgo.Record) {
	late := time.Now().Add(slack)
	for _, r := range records {
		for time.Now().Before(late) {
			if leader, _, err := l.client.PartitionLeader(r.Topic, r.Partition); leader >= 0 || err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// checkAppended checks that the records were appended after earlier records and in order. The records of the state come
// first in the argument. A log that an unclean election cut, or that was recreated, accepts records too, but is then
// shorter than the copy that this instance has in memory.
func (l *Log) checkAppended(records []*kgo.Record, state int) (last [2]int64, err error) {
	last = l.last
	for i, r := range records {
		at := &last[0]
		if i >= state {
			at = &last[1]
		}
		if r.Offset <= *at {
			return last, fmt.Errorf("%s/%d appended a record at offset %d, although it already had one at offset %d: "+
				"the topic lost records, or was recreated",
				r.Topic, r.Partition, r.Offset, *at)
		}
		*at = r.Offset
	}
	return last, nil
}

// same checks that the client still has the producer epoch with which this transaction began.
func (l *Log) same(ctx context.Context) error {
	id, epoch, err := l.client.ProducerID(ctx)
	if err != nil {
		return fmt.Errorf("before EndTxn: %w", err)
	}
	if id != l.id || epoch != l.epoch {
		return fmt.Errorf("the client changed to producer id %d with producer epoch %d during a transaction of "+
			"producer id %d with producer epoch %d", id, epoch, l.id, l.epoch)
	}
	return nil
}

// produce writes records, and waits until all of them are acknowledged or one fails.
func (l *Log) produce(ctx context.Context, records []*kgo.Record) error {
	type answer struct {
		record *kgo.Record
		err    error
	}
	answers := make(chan answer, len(records))
	for _, r := range records {
		l.client.Produce(ctx, r, func(r *kgo.Record, err error) { answers <- answer{r, err} })
	}
	var refused answer
	for range records {
		var a answer
		select {
		case a = <-answers:
		case <-ctx.Done(): // needed because the client may wait for an answer indefinitely
			return fmt.Errorf("produce: %w", ctx.Err())
		}
		switch r := a.record; {
		case errors.Is(a.err, kerr.MessageTooLarge), errors.Is(a.err, kerr.RecordListTooLarge),
			errors.Is(a.err, kerr.InvalidRecord):
			// A broker refuses all records of a batch because of one of them, most likely the largest.
			if refused.err == nil || len(r.Value) > len(refused.record.Value) {
				refused = a
			}
		case refused.err != nil:
		case a.err != nil:
			return fmt.Errorf("produce: %w", a.err)
		case r.Offset < 0 || r.ProducerID != l.id || r.ProducerEpoch != l.epoch:
			return fmt.Errorf("the record at offset %d has producer id %d and producer epoch %d, but its transaction "+
				"has producer id %d and producer epoch %d",
				r.Offset, r.ProducerID, r.ProducerEpoch, l.id, l.epoch)
		}
	}
	if refused.err != nil {
		return &shardlog.RefusedError{Key: string(refused.record.Key), Err: refused.err}
	}
	return nil
}

// ReadState is like [Reader.ReadState], and reads at least to the last record that this log wrote.
func (l *Log) ReadState(ctx context.Context, each func(shardlog.Record) error) error {
	_, err := l.read(ctx, StateTopic(l.o.Group), l.last[0], false, each)
	return err
}

// ReadLedger is like [Reader.ReadLedger].
func (l *Log) ReadLedger(ctx context.Context, each func(shardlog.Record) error) error {
	end, err := l.read(ctx, LedgerTopic(l.o.Group), -1, true, each)
	l.last[1] = max(l.last[1], end-1) // 0 after an error
	return err
}

// Close ends pending calls and closes all connections.
func (l *Log) Close() {
	l.follow(nil)
	if l.client != nil {
		l.client.Close()
	}
}
