package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

var master = [32]byte{1, 2, 3}

// shard is shard 1 of a group with two shards; each test has its own group.
type shard struct {
	t       *testing.T
	addrs   []string
	group   string
	timeout time.Duration
}

// logs starts a broker with the topics of a group, and begins its shard 1.
func logs(t *testing.T, extra ...kfake.Opt) (*embedded.Broker, *shard) {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Extra: extra})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, newShard(t, b.Addrs(), "g", shardTimeout)
}

// shardTimeout is how long a transaction may stay open, longer than a slow machine needs for one.
const shardTimeout = 30 * time.Second

// newShard creates the topics of a group, and begins its shard 1. The embedded broker keeps the first timeout that it
// received for a transactional id.
func newShard(t *testing.T, addrs []string, group string, timeout time.Duration) *shard {
	t.Helper()
	s := &shard{t, addrs, group, timeout}
	makeTopic(t, addrs, StateTopic(group), "compact")
	makeTopic(t, addrs, LedgerTopic(group), "delete")
	if _, err := shardlog.Create(t.Context(), s.log(), s.options()); err != nil {
		t.Fatal(err)
	}
	return s
}

func makeTopic(t *testing.T, addrs []string, topic, policy string) {
	r := kmsg.NewCreateTopicsRequestTopic()
	r.Topic, r.NumPartitions, r.ReplicationFactor = topic, 2, 1
	c := kmsg.NewCreateTopicsRequestTopicConfig()
	c.Name, c.Value = "cleanup.policy", &policy
	r.Configs = append(r.Configs, c)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, r)
	kafkatest.Ask(t, addrs, req)
}

func (s *shard) logOptions() LogOptions {
	return LogOptions{Kafka: kafka.Options{Brokers: s.addrs}, Group: s.group, Shard: 1}
}

func (s *shard) log() *Log { return NewLog(s.logOptions()) }

func (s *shard) options() shardlog.Options {
	return shardlog.Options{
		Genesis: shardlog.Genesis{Group: s.group, Shards: 2, Shard: 1, Assign: "partition", Key: "k"}, Master: &master,
		Instance: "i", Timeout: s.timeout}
}

func (s *shard) acquire() *shardlog.Holding {
	s.t.Helper()
	h, err := shardlog.Acquire(s.t.Context(), s.log(), s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(h.Close)
	return h
}

// padding makes a value larger than the state's head.
const padding = "                                                                "

// put updates a value and appends a line, both with the given text.
func (s *shard) put(h *shardlog.Holding, text string) error {
	return h.Update(s.t.Context(), map[string]shardlog.Value{"a": {Data: []byte(text + padding)}}, nil,
		[][]byte{[]byte(text)})
}

// want checks that a reader finds the value with this text, and this number of lines. The last line must have the same
// text.
func (s *shard) want(text string, lines int) {
	s.t.Helper()
	v, err := shardlog.Read(s.t.Context(), NewReader(s.logOptions()), s.options())
	if err != nil {
		s.t.Fatal(err)
	}
	last := ""
	if n := len(v.Lines); n > 0 {
		last = string(v.Lines[n-1])
	}
	if got := strings.TrimSpace(string(v.Values["a"].Data)); got != text || last != text || len(v.Lines) != lines {
		s.t.Errorf("value %q, %d lines, the last %q; want %q, %d", got, len(v.Lines), last, text, lines)
	}
}

// TestSession: a holding reads everything that the previous holding committed, for values of many records and after
// several transactions. A fenced holding learns that it was fenced.
func TestSession(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	h := s.acquire()
	large := slices.Repeat([]byte("0123456789abcdef"), 200_000)
	for i := range 3 {
		if err := s.put(h, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Update(t.Context(), map[string]shardlog.Value{"large": {Data: large}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	next := s.acquire()
	if v := next.Values(); strings.TrimSpace(string(v["a"].Data)) != "2" || string(v["large"].Data) != string(large) {
		t.Errorf("a is %q, large has %d bytes", v["a"].Data, len(v["large"].Data))
	}
	if l := next.Lines(); len(l) != 3 {
		t.Errorf("lines %q", l)
	}
	if err := s.put(h, "zombie"); !errors.Is(err, shardlog.ErrLost) {
		t.Errorf("a fenced owner got %v", err)
	}
	if err := s.put(next, "3"); err != nil {
		t.Fatal(err)
	}
	s.want("3", 4)
}

// TestSessionAnswers gives each class of answers to each request of a commit, and checks how the Log reacts.
func TestSessionAnswers(t *testing.T) {
	t.Parallel()
	b, s := logs(t)
	again := []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable, kerr.NotLeaderForPartition,
		kerr.RequestTimedOut, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.ConcurrentTransactions}
	coordinator := []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator,
		kerr.ConcurrentTransactions}
	fenced := []*kerr.Error{kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping,
		kerr.ProducerFenced}
	refused := []*kerr.Error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord}
	other := []*kerr.Error{kerr.UnknownServerError, kerr.TopicAuthorizationFailed, kerr.TransactionAbortable,
		kerr.OutOfOrderSequenceNumber, kerr.DuplicateSequenceNumber, kerr.PolicyViolation}
	committed, lines := "", 0
	for _, test := range []struct {
		request kmsg.Key
		topic   string
		codes   []*kerr.Error
		fine    bool
	}{
		{kmsg.Produce, StateTopic("g"), again, true},
		{kmsg.Produce, LedgerTopic("g"), again, true},
		{kmsg.EndTxn, "", coordinator, true},
		{kmsg.Produce, StateTopic("g"), fenced, false},
		{kmsg.Produce, LedgerTopic("g"), fenced, false},
		{kmsg.EndTxn, "", fenced, false},
		{kmsg.Produce, StateTopic("g"), refused, false},
		{kmsg.Produce, LedgerTopic("g"), refused, false},
		{kmsg.Produce, LedgerTopic("g"), other, false},
		{kmsg.EndTxn, "", other, false},
	} {
		for _, code := range test.codes {
			var log shardlog.Log = s.log()
			if test.topic == StateTopic("g") && slices.Contains(refused, code) {
				o := s.logOptions()
				o.extra = []kgo.Opt{kgo.ManualFlushing()}
				log = batched{NewLog(o)}
			}
			h, err := shardlog.Acquire(t.Context(), log, s.options())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(h.Close)
			text := fmt.Sprintf("%s %s %d", test.request.Name(), test.topic, code.Code)
			f := b.Cluster().Fault(
				kfake.Fault{Keys: []kmsg.Key{test.request}, Topic: test.topic, TopLevel: test.topic == "", Err: code})
			err = s.put(h, text)
			if f.Hits() != 1 {
				t.Fatalf("%s: %d faults", text, f.Hits())
			}
			f.Remove()
			if test.fine {
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				committed, lines = text, lines+1
			} else {
				if !errors.Is(err, shardlog.ErrLost) {
					t.Fatalf("%s: %v", text, err)
				}
				r := (*shardlog.RefusedError)(nil)
				if errors.As(err, &r) != slices.Contains(test.codes, kerr.InvalidRecord) {
					t.Errorf("%s: %v", text, err)
				} else if r != nil &&
					r.Key != map[string]string{StateTopic("g"): "a:0", LedgerTopic("g"): ""}[test.topic] {
					t.Errorf("%s: %q was refused", text, r.Key)
				}
			}
			h.Close()
		}
		s.acquire().Close()
		s.want(committed, lines)
	}
}

// batched is a log that sends the records of a commit together, so the records of a topic are in one batch, and the
// largest of them is refused.
type batched struct{ *Log }

func (b batched) Commit(ctx context.Context, state, ledger []shardlog.Record) error {
	ctx, cancel := context.WithCancel(ctx)
	var flush sync.WaitGroup
	flush.Go(func() {
		for b.client.BufferedProduceRecords() < int64(len(state)+len(ledger)) && ctx.Err() == nil {
			time.Sleep(100 * time.Microsecond)
		}
		b.client.Flush(ctx)
	})
	err := b.Log.Commit(ctx, state, ledger)
	cancel()
	flush.Wait()
	return err
}

// TestSessionCutOff: connections break within a commit, before the broker reads a request or after it carries it out.
func TestSessionCutOff(t *testing.T) {
	t.Parallel()
	b, s := logs(t)
	for i, key := range []kmsg.Key{kmsg.Produce, kmsg.EndTxn} {
		h := s.acquire()
		b.Cluster().ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, errors.New("cut off"), true
		})
		if err := s.put(h, fmt.Sprint(i)); err != nil {
			t.Errorf("%s: a cut off request was not repeated: %v", key.Name(), err)
		}
		s.want(fmt.Sprint(i), i+1)
		h.Close()
	}
	// A coordinator that never answers.
	s.timeout = 200 * time.Millisecond
	h := s.acquire()
	b.Cluster().ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		return nil, errors.New("cut off"), true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := h.Update(ctx, map[string]shardlog.Value{"a": {}}, nil, nil); !errors.Is(err, shardlog.ErrLost) {
		t.Errorf("without an answer: %v", err)
	}
}

// TestSessionFence: an owner with an open transaction is fenced and its transaction aborted; a fence retries transient
// errors; old transaction versions are refused.
func TestSessionFence(t *testing.T) {
	t.Parallel()
	b, s := logs(t)
	h := s.acquire()
	if err := s.put(h, "first"); err != nil {
		t.Fatal(err)
	}
	h.Close()
	s.hang()
	for _, code := range []*kerr.Error{
		kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator,
		kerr.ConcurrentTransactions,
	} {
		f := b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: code})
		s.acquire().Close()
		if f.Hits() != 1 {
			t.Errorf("%v: %d faults", code, f.Hits())
		}
	}
	// A fence retries for longer than the client does.
	impatient := s.logOptions()
	impatient.extra = []kgo.Opt{kgo.RequestRetries(0)}
	f := b.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.CoordinatorNotAvailable})
	if h, err := shardlog.Acquire(s.t.Context(), NewLog(impatient), s.options()); err != nil || f.Hits() != 1 {
		t.Errorf("%v, %d faults", err, f.Hits())
	} else {
		h.Close()
	}
	s.want("first again", 2)
	f = b.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true,
			Err: kerr.TransactionalIDAuthorizationFailed})
	if _, err := shardlog.Acquire(t.Context(), s.log(), s.options()); !errors.Is(err,
		kerr.TransactionalIDAuthorizationFailed) || f.Hits() != 1 {
		t.Errorf("without the right to the id: %v", err)
	}
	moved := s.logOptions()
	moved.Confirm = func(context.Context) error { return ErrMoved }
	if _, err := shardlog.Acquire(t.Context(), NewLog(moved), s.options()); !errors.Is(err, shardlog.ErrMoved) {
		t.Errorf("moved: %v", err)
	}
}

// hang checks that an owner is fenced while it has records in an open transaction: none of them is ever read, the end
// of the transaction is refused, and the Log is not used again.
func (s *shard) hang() {
	s.t.Helper()
	zombie := s.log()
	s.t.Cleanup(zombie.Close)
	if err := zombie.Fence(s.t.Context(), time.Minute); err != nil {
		s.t.Fatal(err)
	}
	if err := zombie.client.BeginTransaction(); err != nil {
		s.t.Fatal(err)
	}
	var half []*kgo.Record
	for _, topic := range []string{StateTopic(s.group), LedgerTopic(s.group)} {
		half = append(half, &kgo.Record{Topic: topic, Partition: 1, Key: []byte("x:0"), Value: []byte("half")})
	}
	if err := zombie.produce(s.t.Context(), half); err != nil {
		s.t.Fatal(err)
	}
	h := s.acquire()
	if err := zombie.client.EndTransaction(s.t.Context(), kgo.TryCommit); !errors.Is(err, kerr.InvalidProducerEpoch) &&
		!errors.Is(err, kerr.ProducerFenced) {
		s.t.Errorf("the end of a fenced owner's transaction: %v", err)
	}
	if err := zombie.Commit(s.t.Context(), []shardlog.Record{{Key: []byte("x:0")}}, nil); err == nil {
		s.t.Error("a fenced owner has committed")
	}
	if err := zombie.Commit(s.t.Context(), []shardlog.Record{{Key: []byte("x:0")}}, nil); !errors.Is(err, errSpent) {
		s.t.Errorf("a spent log: %v", err)
	}
	if v := h.Values(); strings.TrimSpace(string(v["a"].Data)) != "first" || len(v) != 1 {
		s.t.Errorf("read %d values, a is %q", len(v), v["a"].Data)
	}
	if err := s.put(h, "first again"); err != nil {
		s.t.Error(err)
	}
	s.want("first again", 2)
}

// TestSessionVersion: transactions that a late copy of a request could end are refused.
func TestSessionVersion(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.MaxVersions(kversion.V3_9_0())}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := &shard{t, b.Addrs(), "g", time.Second}
	if _, err := shardlog.Acquire(t.Context(), s.log(), s.options()); err == nil ||
		!strings.Contains(err.Error(), "transaction.version") {
		t.Errorf("old transactions: %v", err)
	}
}

// deaf breaks a connection when an answer to the end of a transaction has arrived, so that the client does not read it.
type deaf struct {
	net.Conn
	asked, lost *atomic.Bool
}

func (d deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.asked.CompareAndSwap(true, false) {
		d.lost.Store(true)
		d.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

// OnBrokerWrite is called by the client.
func (d deaf) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.EndTxn) && !d.lost.Load() {
		d.asked.Store(true)
	}
}

// TestSessionLostAnswer: if the answer to the end of a transaction is lost, the request is repeated, and the
// transaction is committed once.
func TestSessionLostAnswer(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	o := s.logOptions()
	d := deaf{asked: new(atomic.Bool), lost: new(atomic.Bool)}
	d.lost.Store(true) // not yet
	o.extra = []kgo.Opt{kgo.WithHooks(d), kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, host)
		return deaf{c, d.asked, d.lost}, err
	})}
	h, err := shardlog.Acquire(t.Context(), NewLog(o), s.options())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	d.lost.Store(false)
	if err := s.put(h, "first"); err != nil || !d.lost.Load() {
		t.Errorf("%v; an answer was lost: %v", err, d.lost.Load())
	}
	s.want("first", 1)
	if err := s.put(h, "second"); err != nil {
		t.Error(err)
	}
	s.want("second", 2)
}

// TestRealKafkaShard repeats with Apache Kafka what was tested with the embedded broker. Its transactions end in
// observable steps.
func TestRealKafkaShard(t *testing.T) {
	real := kafkatest.NewReal(t)
	s := newShard(t, real.Addrs, fmt.Sprintf("shard-%d", time.Now().UnixNano()), shardTimeout)
	h := s.acquire()
	if err := s.put(h, "first"); err != nil {
		t.Fatal(err)
	}
	s.hang()
	if err := s.put(h, "zombie"); !errors.Is(err, shardlog.ErrLost) {
		t.Errorf("a fenced owner got %v", err)
	}
	h = s.acquire()
	large := slices.Repeat([]byte("0123456789abcdef"), 200_000)
	if err := h.Update(t.Context(), map[string]shardlog.Value{"large": {Data: large}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	const rounds = 50
	begin := time.Now()
	for i := range rounds {
		if err := s.put(h, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v a transaction", time.Since(begin)/rounds)
	begin = time.Now()
	h = s.acquire()
	t.Logf("acquired in %v", time.Since(begin))
	if v := h.Values(); string(v["large"].Data) != string(large) || len(h.Lines()) != rounds+2 {
		t.Error("the next owner reads something else")
	}
	s.want(fmt.Sprint(rounds-1), rounds+2)
}

// TestSessionReads: a ledger without its beginning is a halt, and a reader waits for a transaction that is open before
// its own record.
func TestSessionReads(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	h := s.acquire()
	for i := range 3 {
		if err := s.put(h, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	foreign := kafkatest.NewProducer(t, s.addrs, StateTopic("g"), 1, "foreign")
	foreign.Begin()
	foreign.Send(kafkatest.Record{Key: []byte("b:0"), Value: []byte("open")})
	o := s.logOptions()
	o.patience = 100 * time.Millisecond
	if _, err := shardlog.Acquire(t.Context(), NewLog(o), s.options()); err == nil ||
		!strings.Contains(err.Error(), "another id") {
		t.Errorf("behind an open transaction: %v", err)
	}
	s.want("2", 3) // a reader that wrote nothing reads what is committed
	foreign.End(false)
	if n := len(s.acquire().Lines()); n != 3 {
		t.Errorf("%d lines", n)
	}
	kafkatest.DeleteRecords(t, s.addrs, LedgerTopic("g"), 1, 1)
	_, err := shardlog.Acquire(t.Context(), s.log(), s.options())
	halt := (*shardlog.HaltError)(nil)
	if !errors.As(err, &halt) || halt.Halt != shardlog.HaltLedger {
		t.Errorf("a ledger without its beginning: %v", err)
	}
}

// TestSessionAborted: if the client ends a transaction with an abort, this is no commit, although the client returns no
// error and has the next epoch. The client aborts if it knows of no written record.
func TestSessionAborted(t *testing.T) {
	t.Parallel()
	b, s := logs(t)
	l := s.log()
	defer l.Close()
	if err := l.Fence(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []bool{false, true} {
		if err := l.client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if refused {
			b.Cluster().Fault(
				kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: StateTopic("g"), Err: kerr.MessageTooLarge})
		}
		record := &kgo.Record{Topic: StateTopic("g"), Partition: 1, Key: []byte("x:0")}
		if err := l.produce(t.Context(), []*kgo.Record{record}); (err != nil) != refused {
			t.Fatal(err)
		}
		switch err := l.end(t.Context()); {
		case !refused && err != nil:
			t.Error(err)
		case refused && (err == nil || !strings.Contains(err.Error(), "aborted")):
			t.Errorf("an abort was taken for a commit: %v", err)
		}
	}
}

// TestSessionLate: a transaction that took too long was aborted by its coordinator.
func TestSessionLate(t *testing.T) {
	t.Parallel()
	b := start(t, 1)
	const timeout = 3 * time.Second
	s := newShard(t, b.Addrs(), "g", timeout)
	h := s.acquire()
	var slept atomic.Bool
	b.Cluster().ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		if slept.CompareAndSwap(false, true) {
			b.Cluster().SleepControl(func() { time.Sleep(timeout + timeout/2) })
		}
		return nil, nil, false
	})
	if err := s.put(h, "late"); !errors.Is(err, shardlog.ErrLost) {
		t.Errorf("an aborted transaction: %v", err)
	}
	if n := len(s.acquire().Values()); n != 0 {
		t.Errorf("%d values of an aborted transaction", n)
	}
}

// TestSessionTopicMadeAnew: an owner whose topic is deleted does not create it, and an owner whose topic was recreated
// commits nothing to it.
func TestSessionTopicMadeAnew(t *testing.T) {
	t.Parallel()
	for _, anew := range []bool{false, true} {
		_, s := logs(t)
		h := s.acquire()
		kafkatest.DeleteTopic(t, s.addrs, LedgerTopic("g"))
		if anew {
			makeTopic(t, s.addrs, LedgerTopic("g"), "delete")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Update(ctx, map[string]shardlog.Value{"a": {}}, nil, [][]byte{[]byte("line")}); !errors.Is(err,
			shardlog.ErrLost) {
			t.Errorf("topic recreated %v: %v", anew, err)
		}
		for _, topic := range []string{LedgerTopic("g"), StateTopic("g")} {
			client, err := kafka.NewClient(kafka.Options{Brokers: s.addrs, Topics: []string{topic}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if found, err := client.Topic(t.Context(), topic); err != nil ||
				found.Exists != (anew || topic == StateTopic("g")) {
				t.Errorf("topic recreated %v: %s exists: %v, %v", anew, topic, found.Exists, err)
			}
		}
	}
}

// TestSessionOtherProducer: a producer other than the one with which the log was fenced commits nothing.
func TestSessionOtherProducer(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	for _, change := range []func(*Log){func(l *Log) { l.id++ }, func(l *Log) { l.epoch-- }} {
		l := s.log()
		defer l.Close()
		if err := l.Fence(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		change(l)
		if err := l.Commit(t.Context(), []shardlog.Record{{Key: []byte("x:0")}}, nil); err == nil {
			t.Error("another producer has committed")
		}
	}
}

// TestSessionCutLog: an owner notices that a log has lost its end since the last commit.
func TestSessionCutLog(t *testing.T) {
	t.Parallel()
	_, s := logs(t)
	record := []shardlog.Record{{Key: []byte("x:0")}}
	for log := range 2 {
		l := s.log()
		defer l.Close()
		if err := l.Fence(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := l.Commit(t.Context(), record, record); err != nil {
			t.Fatal(err)
		}
		l.last[log] += 100 // as if the log had had 100 more records
		if err := l.Commit(t.Context(), record, record); err == nil ||
			!strings.Contains(err.Error(), "lost records, or was recreated") {
			t.Errorf("log %d has lost its end: %v", log, err)
		}
		if err := l.Commit(t.Context(), record, record); !errors.Is(err, errSpent) {
			t.Errorf("and accepts another commit: %v", err)
		}
	}
}

// TestSessionEpochs: commits continue after the 32 767 epochs of a producer id.
func TestSessionEpochs(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("seconds of fences: STREAMDP_SLOW=1")
	}
	t.Parallel()
	_, s := logs(t)
	s.epochs()
}

// TestRealKafkaEpochs is TestSessionEpochs with Apache Kafka.
func TestRealKafkaEpochs(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("minutes of fences: STREAMDP_SLOW=1")
	}
	real := kafkatest.NewReal(t)
	newShard(t, real.Addrs, fmt.Sprintf("epochs-%d", time.Now().UnixNano()), shardTimeout).epochs()
}

// epochs fences until a producer id has few epochs left, and then commits beyond the last one.
func (s *shard) epochs() {
	t := s.t
	client, err := kgo.NewClient(kgo.SeedBrokers(s.addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrInitProducerIDRequest()
	id := TransactionalID(s.group, 1)
	req.TransactionalID, req.TransactionTimeoutMillis = &id, 10_000
	fence := func() int16 {
		for {
			resp, err := req.RequestWith(t.Context(), client)
			if err == nil {
				err = kerr.ErrorForCode(resp.ErrorCode)
			}
			if err == nil {
				return resp.ProducerEpoch
			}
			if !repeatable(err) {
				t.Fatal(err)
			}
		}
	}
	for fence() < math.MaxInt16-20 {
	}
	h := s.acquire()
	const rounds = 40
	for i := range rounds {
		if err := s.put(h, fmt.Sprint(i)); err != nil {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	s.want(fmt.Sprint(rounds-1), rounds)
	if epoch := fence(); epoch > 2*rounds {
		t.Errorf("the test has not reached the end: epoch %d", epoch)
	}
}
