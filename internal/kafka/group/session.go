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

// Log writes and reads the two logs of a shard. It implements [shardlog.Log]: its transactions have
// the id GROUP-SHARD, and it serves one holding, to its first error. It is not safe for concurrent
// use, except Close.
//
// What a broker answers to a commit is of one of these classes:
//   - 3, 5, 6, 7, 14, 15, 16, 19, 20, 51: the request is repeated, with the same producer epoch and
//     sequence numbers, while the transaction may still be open.
//   - 47, 48, 49, 90: another instance has fenced this one.
//   - 10, 18, 87: the record is refused for what it is: a [shardlog.RefusedError].
//   - anything else, and no answer: it is not known whether the commit takes place.
//
// All but the first end the Log.
type Log struct {
	Reader
	client  *kgo.Client
	timeout time.Duration // of a transaction
	last    [2]int64      // offsets of the last records that it wrote in state and ledger, or read in the ledger
	id      int64         // of the producer
	epoch   int16
	spent   bool
	ends    ends
}

// ends counts the ends of transactions that the client sends as commits. It learns of them as the
// client's logger, for the client does not say it otherwise: its EndTransaction aborts and returns
// nil where it finds no partition in the transaction. That may be so after all records were
// acknowledged: franz-go 1.22.2 tells a topic's partitions to those who wait for them, and lets
// EndTransaction see them a moment later.
type ends struct{ commits atomic.Int64 }

// Level is of the messages that the client gives to Log.
func (*ends) Level() kgo.LogLevel { return kgo.LogLevelInfo }

// Log takes a message of the client. Another wording in another version ends every commit with an
// error.
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
	// fenceTime is how long a fence waits for the former owner's transaction to end.
	fenceTime = time.Minute
	// slack is added to what a transaction may take, for the broker to answer.
	slack = 5 * time.Second
	// metadataAge is how soon the client may ask again who leads a partition. A transaction must
	// not wait for that for long, for its time runs.
	metadataAge = 100 * time.Millisecond
	// batchBytes is below what brokers accept by default, 1048588, and above a record of ours.
	batchBytes = 1_000_000
)

// NewLog returns a log. It connects to nothing.
func NewLog(o LogOptions) *Log {
	l := &Log{last: [2]int64{-1, -1}}
	l.o = NewReader(o).o
	return l
}

// TransactionalID is the id of the transactions on a group's shard.
func TransactionalID(group string, shard int) string { return group + "-" + strconv.Itoa(shard) }

// Confirm asks the function in the options.
func (l *Log) Confirm(ctx context.Context) error {
	if l.o.Confirm == nil {
		return nil
	}
	return l.o.Confirm(ctx)
}

// Fence takes the shard's transactional id by InitProducerID, which fences its former owner, and
// aborts what that left open, or waits until it is committed. It refuses a cluster whose
// transactions have version 1 or less: there a late copy of a request can end the next transaction.
func (l *Log) Fence(ctx context.Context, timeout time.Duration) error {
	if l.client != nil || l.spent {
		return errSpent
	}
	l.spent = true                         // until it is known to have succeeded
	if _, err := l.prepare(); err != nil { // the logs are read behind this
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
	// The client waits for a broker's first answer on a new connection whatever the context says.
	defer context.AfterFunc(ctx, l.client.Close)()
	for pause := (kafka.Backoff{Max: time.Second}); ; {
		var version int16
		var unknown error
		var asking sync.WaitGroup
		// another broker than the coordinator, most likely
		asking.Go(func() { version, unknown = transactionVersion(ctx, l.client) })
		// Without a call of ProducerID it would wait for the first record.
		id, epoch, err := l.client.ProducerID(ctx)
		asking.Wait()
		if unknown == nil && version < 2 {
			return fmt.Errorf(
				"the cluster has transactions of version %d: raise its feature transaction.version to 2, which is "+
					"there since Kafka 4.0", version)
		}
		if err = cmp.Or(err, unknown); err == nil {
			if id < 0 {
				return errors.New("the broker knows no producer ids")
			}
			l.id, l.epoch, l.spent = id, epoch, false
			return nil
		}
		if !repeatable(err) {
			return fmt.Errorf("InitProducerID of %s: %w", TransactionalID(l.o.Group, l.o.Shard), err)
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf(
				"InitProducerID of %s: the former owner's transaction does not end, or its coordinator does "+
					"not answer: %w", TransactionalID(l.o.Group, l.o.Shard), err)
		}
	}
}

// repeatable reports whether a fence that failed with err may succeed later. To repeat it is
// always safe: it fences whoever was before.
func repeatable(err error) bool {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Retriable || code == kerr.ConcurrentTransactions
	}
	return true // a connection's error
}

// Commit writes records to both logs in one transaction. Its first error ends the log.
func (l *Log) Commit(ctx context.Context, state, ledger []shardlog.Record) error {
	if l.client == nil || l.spent {
		return errSpent
	}
	l.spent = true // until it is known to have succeeded
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
		return errors.New("internal: a commit of nothing")
	}
	if err := l.client.BeginTransaction(); err != nil {
		return err
	}
	if err := l.produce(ctx, records); err != nil {
		return err // what was written is aborted by the next fence, or by its timeout
	}
	last, err := l.grown(records, len(state))
	if err != nil {
		return err
	}
	l.seen(records)
	if err := l.end(ctx); err != nil {
		return err
	}
	l.last, l.spent = last, false
	return nil
}

// end commits the open transaction, all records of which were acknowledged. The client's
// EndTransaction returns nil in cases in which it commits nothing, or a part: where a record has
// failed, where it believes that none was acknowledged, where the producer was begun anew
// meanwhile. So the client must still have the epoch that this transaction began with, a commit must
// have been sent and not an abort, and it must have brought the next epoch.
func (l *Log) end(ctx context.Context) error {
	if err := l.same(ctx); err != nil {
		return err
	}
	commits := l.ends.commits.Load()
	if err := l.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("EndTxn: %w", err)
	}
	if l.ends.commits.Load() != commits+1 {
		return errors.New("the client has aborted the transaction instead of committing it")
	}
	id, epoch, err := l.client.ProducerID(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("after EndTxn: %w", err)
	case id == l.id && epoch == l.epoch+1, id != l.id && epoch == 0: // epochs end at 32767
	default:
		return fmt.Errorf("EndTxn was answered with producer %d, epoch %d after %d, %d", id, epoch, l.id, l.epoch)
	}
	l.id, l.epoch = id, epoch
	return nil
}

// seen waits until the client's end of a transaction knows the partitions of these records; see
// ends. It does not wait for long: who does not know them ends the log, and nothing is harmed.
func (l *Log) seen(records []*kgo.Record) {
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

// grown checks that records, the first ones of the state, came behind those before them, in their
// order. A log that an unclean election has cut, or that was made anew, takes them all the same, and
// then holds less than this instance has in memory.
func (l *Log) grown(records []*kgo.Record, state int) (last [2]int64, err error) {
	last = l.last
	for i, r := range records {
		at := &last[0]
		if i >= state {
			at = &last[1]
		}
		if r.Offset <= *at {
			return last, fmt.Errorf("%s/%d took a record at offset %d, and had one at %d: it was cut, or made anew",
				r.Topic, r.Partition, r.Offset, *at)
		}
		*at = r.Offset
	}
	return last, nil
}

// same checks that the client has the producer epoch that this transaction began with.
func (l *Log) same(ctx context.Context) error {
	id, epoch, err := l.client.ProducerID(ctx)
	if err != nil {
		return fmt.Errorf("before EndTxn: %w", err)
	}
	if id != l.id || epoch != l.epoch {
		return fmt.Errorf("the producer became %d, epoch %d within a transaction of %d, %d", id, epoch, l.id, l.epoch)
	}
	return nil
}

// produce writes records, and waits until all are acknowledged or one is not.
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
		case <-ctx.Done(): // the client waits for an answer that may never come
			return fmt.Errorf("produce: %w", ctx.Err())
		}
		switch r := a.record; {
		case errors.Is(a.err, kerr.MessageTooLarge), errors.Is(a.err, kerr.RecordListTooLarge),
			errors.Is(a.err, kerr.InvalidRecord):
			// All records of a batch are refused for one of them, most likely the largest.
			if refused.err == nil || len(r.Value) > len(refused.record.Value) {
				refused = a
			}
		case refused.err != nil:
		case a.err != nil:
			return fmt.Errorf("produce: %w", a.err)
		case r.Offset < 0 || r.ProducerID != l.id || r.ProducerEpoch != l.epoch:
			return fmt.Errorf("a record was written at offset %d by producer %d, epoch %d in a transaction of %d, %d",
				r.Offset, r.ProducerID, r.ProducerEpoch, l.id, l.epoch)
		}
	}
	if refused.err != nil {
		return &shardlog.RefusedError{Key: string(refused.record.Key), Err: refused.err}
	}
	return nil
}

// ReadState is like that of [Reader], and reads past the last record that this log wrote.
func (l *Log) ReadState(ctx context.Context, each func(shardlog.Record) error) error {
	_, err := l.read(ctx, StateTopic(l.o.Group), l.last[0], false, each)
	return err
}

// ReadLedger is like that of [Reader].
func (l *Log) ReadLedger(ctx context.Context, each func(shardlog.Record) error) error {
	end, err := l.read(ctx, LedgerTopic(l.o.Group), -1, true, each)
	l.last[1] = max(l.last[1], end-1) // 0 after an error
	return err
}

// Close ends what is under way and closes all connections.
func (l *Log) Close() {
	l.follow(nil)
	if l.client != nil {
		l.client.Close()
	}
}
