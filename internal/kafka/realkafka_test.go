package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// These tests repeat with Apache Kafka what was tested with the embedded broker.
func TestRealKafka(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	for name, test := range map[string]func(*testing.T, []string){
		"read committed":     readCommitted,
		"open transaction":   openTransaction,
		"trailing markers":   trailingMarkers,
		"replaced log":       replacedLog,
		"retention":          retention,
		"compression":        compression,
		"concurrent use":     concurrentUse,
		"cancel a long poll": cancelDuringLongPoll,
		"produce":            produceAndRead,
		"too large":          tooLarge,
		"topic id":           topicID,
		"read back":          func(t *testing.T, addrs []string) { readBack(t, addrs, func() {}) },
	} {
		t.Run(name, func(t *testing.T) { test(t, addrs) })
	}
}

// The reader relies on a broker that answers single fetch requests like this.
func TestRealKafkaFetch(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	p := kafkatest.NewProducer(t, addrs, topic, 0, "")
	big := numbered("big", 20)
	for i := range big {
		big[i].Value = bytes.Repeat([]byte{byte(i)}, 10_000)
	}
	p.Send(big...)
	p.Send(numbered("a", 10)...)
	var chunk Chunk

	// A whole batch is returned, however small the limits.
	r := newReader(t, c, ReaderOptions{Topic: topic, MaxBytes: 2, PartitionMaxBytes: 1}, start)
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || len(chunk.Records) != 20 || chunk.Next != 20 {
		t.Fatalf("first batch: %v, %d records", err, len(chunk.Records))
	}
	drain(t, r, 30, nil)

	// At the end of the log the broker delays every other answer: the one that identifies the log comes at once. New
	// records end the wait.
	const wait = 5 * time.Second
	r = newReader(t, c, ReaderOptions{Topic: topic, MaxWait: wait}, r.Position())
	for _, atLeast := range []time.Duration{0, wait - 50*time.Millisecond} {
		begin := time.Now()
		err := r.Fetch(t.Context(), &chunk)
		if took := time.Since(begin); err != nil || len(chunk.Records) != 0 || took < atLeast ||
			atLeast == 0 && took > wait*3/4 {
			t.Errorf("at the end: %v, %d records after %v", err, len(chunk.Records), took)
		}
	}
	if err := r.Fetch(t.Context(), &chunk); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { p.Send(numbered("b", 1)...) })
	begin := time.Now()
	if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) != 1 || time.Since(begin) > wait*3/4 {
		t.Errorf("a record that arrives: %v, %d records after %v", err, len(chunk.Records), time.Since(begin))
	}

	// The fetches have another leader epoch than the leader.
	epoch := chunk.LeaderEpoch
	if epoch < 0 {
		t.Fatal("no leader epoch")
	}
	for code, asked := range map[int16]int32{0: epoch, 75: epoch + 1} {
		if err := c.fetch(t.Context(), &r.o, 0, 1, asked, 5*time.Second, &r.ans); err != nil || r.ans.code != code {
			t.Errorf("epoch %d where it is %d: code %d, %v", asked, epoch, r.ans.code, err)
		}
	}
	// These positions are outside the log.
	for _, at := range []int64{31 + 1, 1 << 40} {
		if err := c.fetch(t.Context(), &r.o, at, 1, -1, 5*time.Second, &r.ans); err != nil || r.ans.code != 1 {
			t.Errorf("fetch at %d: code %d, %v", at, r.ans.code, err)
		}
	}
}

// These are the credentials that brokers accept, and the permissions that the daemon's calls need: on the input, to
// read it and its settings; on the output, to write, create and read it; and on a group, to commit its offsets. On the
// cluster, none.
func TestRealKafkaAccess(t *testing.T) {
	b := kafkatest.NewReal(t)
	if b.SASL == "" {
		t.Skip("this broker has no listener with SASL: make test-kafka starts one that has")
	}
	b.Enrol()
	ctx := t.Context()
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		for password, fine := range map[string]bool{"secret": true, "wrong": false} {
			c, err := NewClient(
				Options{Brokers: []string{b.SASL},
					SASL: SASL{Mechanism: mechanism, Username: "streamdp", Password: password}})
			if err != nil {
				t.Fatal(err)
			}
			// New credentials take a moment to become valid.
			var pause Backoff
			err = c.Probe(ctx)
			for i := 0; fine && err != nil && i < 10; i++ {
				pause.Wait(ctx)
				err = c.Probe(ctx)
			}
			if fine && err != nil || !fine && !Unauthorized(err) {
				t.Errorf("%s, %s: %v", mechanism, password, err)
			}
			c.Close()
		}
	}

	in := kafkatest.Topic(t, b.Addrs, nil)
	kafkatest.NewProducer(t, b.Addrs, in, 0, "").Send(numbered("a", 10)...)
	out := in + "-out"
	c, err := NewClient(
		Options{Brokers: []string{b.SASL}, SASL: SASL{Mechanism: "plain", Username: "streamdp", Password: "secret"},
			metadataTTL: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const topic, group = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup
	for _, step := range []struct {
		what  string
		call  func() error
		grant func()
	}{
		{"see the input", func() error { _, err := c.Topic(ctx, in); return err },
			func() { b.Grant(topic, in, kmsg.ACLOperationRead) }},
		{"its settings", func() error { _, err := c.TopicConfig(ctx, in, "cleanup.policy"); return err },
			func() { b.Grant(topic, in, kmsg.ACLOperationDescribeConfigs) }},
		{"its offsets", func() error { _, err := c.Offsets(ctx, in, 0); return err }, nil},
		{"its records",
			func() error { return newReader(t, c, ReaderOptions{Topic: in}, start).Fetch(ctx, new(Chunk)) }, nil},
		{"see the output", func() error { _, err := c.Topic(ctx, out); return err },
			func() { b.Grant(topic, out, kmsg.ACLOperationWrite) }},
		{"create it", func() error { return c.CreateTopic(ctx, out, 1, map[string]string{"retention.ms": "-1"}) },
			func() { b.Grant(topic, out, kmsg.ACLOperationCreate) }},
		{"write it", func() error { _, err := c.Produce(ctx, out, 0, messages("a", 1)); return err }, nil},
		{"read it", func() error { return newReader(t, c, ReaderOptions{Topic: out}, start).Fetch(ctx, new(Chunk)) },
			func() { b.Grant(topic, out, kmsg.ACLOperationRead) }},
		{"commit", func() error { return c.CommitOffsets(ctx, out, []GroupOffset{{in, 0, 1}}) },
			func() { b.Grant(group, out, kmsg.ACLOperationRead) }},
	} {
		// Broker and client both take a moment to learn of a change.
		until := func(done func(error) bool) error {
			var pause Backoff
			err := step.call()
			for i := 0; Retriable(err) && !done(err) && i < 12; i++ {
				pause.Wait(ctx)
				err = step.call()
			}
			return err
		}
		if step.grant != nil {
			if err := until(Unauthorized); !Unauthorized(err) || !Retriable(err) {
				t.Fatalf("%s, not allowed: %v", step.what, err)
			}
			step.grant()
		}
		if err := until(func(err error) bool { return err == nil }); err != nil {
			t.Fatalf("%s, allowed: %v", step.what, err)
		}
	}
}

// A reader above its quota is slow but gets no errors.
func TestRealKafkaQuota(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	topic := kafkatest.Topic(t, addrs, nil)
	p := kafkatest.NewProducer(t, addrs, topic, 0, "")
	batch := numbered("a", 100)
	for i := range batch {
		batch[i].Value = make([]byte, 1000)
	}
	for range 40 {
		p.Send(batch...)
	}
	kafkatest.SetQuota(t, addrs, topic, 1e6)
	c, err := NewClient(Options{Brokers: addrs, ClientID: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The broker takes a moment to learn its quotas: data that it sends earlier is counted but not delayed.
	for deadline := time.Now().Add(20 * time.Second); ; {
		r := newReader(t, c, ReaderOptions{Topic: topic}, start)
		if err := fetchOnce(t.Context(), r, new(Chunk)); err != nil { // the first fetch may find the topic too new
			t.Fatal(err)
		}
		begin, empty := time.Now(), 0
		for r.Position().Next < 4000 {
			var chunk Chunk
			if err := r.Fetch(t.Context(), &chunk); err != nil {
				t.Fatalf("after %v, at %d: %v", time.Since(begin), r.Position().Next, err)
			}
			if len(chunk.Records) == 0 {
				empty++
			}
		}
		if took := time.Since(begin); took > time.Second {
			t.Logf("4 MB in %v, with %d empty answers", took.Round(time.Millisecond), empty)
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the quota had no effect")
		}
	}
}

// If a transaction's producer is gone, the broker aborts it after its timeout, and records that waited after it are
// read.
func TestRealKafkaDeadProducer(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	// the other producer writes within this time
	dead := kafkatest.NewProducer(t, addrs, topic, 0, topic, kgo.TransactionTimeout(4*time.Second))
	dead.Begin()
	dead.Send(numbered("dead", 3)...)
	kafkatest.NewProducer(t, addrs, topic, 0, "").Send(numbered("a", 2)...)
	if got := values(drain(t, newReader(t, c, ReaderOptions{Topic: topic}, start), 6, nil)); got != "3=a0 4=a1 " {
		t.Error(got)
	}
}

// A broker is killed and comes back with its data: once with all of it, and once without what it had not written to
// disk yet.
func TestRealKafkaCrash(t *testing.T) {
	b := kafkatest.NewReal(t)
	c := dialBroker(t, b.Addrs...)
	topic := kafkatest.Topic(t, b.Addrs, nil)
	r := newReader(t, c, ReaderOptions{Topic: topic}, start)
	if _, err := c.Produce(t.Context(), topic, 0, messages("a", 50)); err != nil {
		t.Fatal(err)
	}
	drain(t, r, 50, nil)
	before := r.Position()
	// Offsets 50 to 52 are in an open transaction when the broker dies.
	open := kafkatest.NewProducer(t, b.Addrs, topic, 0, topic)
	open.Begin()
	open.Send(numbered("open", 3)...)
	if _, err := c.Produce(t.Context(), topic, 0, messages("b", 50)); err != nil {
		t.Fatal(err)
	}
	remade, o := readHundred(t, c, b.Addrs, ReaderOptions{epochGrace: time.Second})

	cut := kafkatest.Topic(t, b.Addrs, nil)
	p := kafkatest.NewProducer(t, b.Addrs, cut, 0, "")
	for i := range 10 {
		p.Send(numbered(fmt.Sprint(i, "-"), 10)...)
	}
	shorter := newReader(t, c, ReaderOptions{Topic: cut}, start)
	drain(t, shorter, 100, nil)

	b.Kill()
	log := filepath.Join(b.Data, cut+"-0", "00000000000000000000.log")
	info, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(log, info.Size()*55/100); err != nil {
		t.Fatal(err)
	}
	var chunk Chunk
	labels := map[string]bool{}
	for range 5 {
		var e *Error
		if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || !e.Retriable() {
			t.Fatalf("without a broker: %v", err)
		}
		labels[e.Label()] = true
		if _, err := c.Produce(t.Context(), topic, 0, messages("lost", 1)); !Retriable(err) {
			t.Fatalf("without a broker: %v", err)
		}
		if _, err := c.Offsets(t.Context(), topic, 0); !Retriable(err) {
			t.Fatalf("without a broker: %v", err)
		}
	}
	begin := time.Now()
	b.Start()
	started := time.Now()

	// Nothing is lost, and the reader and the client that waited continue.
	codes := map[string]int{}
	var pause Backoff
	for {
		err := r.Fetch(t.Context(), &chunk)
		if err == nil {
			break
		}
		var e *Error
		if !errors.As(err, &e) || !e.Retriable() {
			t.Fatal(err)
		}
		codes[e.Label()]++
		if err := pause.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("errors while away %v, afterwards %v; up again after %v, read again %v later", labels, codes,
		started.Sub(begin).Round(time.Millisecond), time.Since(started).Round(time.Millisecond))
	if got, err := c.Offsets(t.Context(), topic, 0); err != nil || got.Stable != 50 || got.End != 103 {
		t.Fatalf("stable %d, end %d, %v", got.Stable, got.End, err)
	}
	if r.Position().Next != 50 {
		t.Fatalf("read past an open transaction, to %d", r.Position().Next)
	}
	open.End(false)
	if at, err := c.Produce(t.Context(), topic, 0, messages("c", 5)); err != nil || at[0].Base < 103 {
		t.Fatalf("appended at %v, %v", at, err)
	}
	waitStable(t, c, topic, 109)
	got := drain(t, r, 109, nil)
	if len(got) != 55 || got[0].Offset != 53 || string(got[49].Value) != "b49" || string(got[54].Value) != "c4" {
		t.Errorf("read %s", values(got))
	}

	// The epoch grew, and the leader refuses an older one until the metadata have it too.
	epoch := r.Position().LeaderEpoch
	if epoch <= before.LeaderEpoch {
		t.Fatalf("leader epoch %d after %d", epoch, before.LeaderEpoch)
	}
	if err := c.fetch(t.Context(), &r.o, 0, 1, before.LeaderEpoch, 5*time.Second, &r.ans); err != nil ||
		r.ans.code != 74 {
		t.Errorf("an older epoch: code %d, %v", r.ans.code, err)
	}
	if got := drain(t, newReader(t, c, ReaderOptions{Topic: topic}, before), 109, nil); len(got) != 55 {
		t.Errorf("from a position of an older epoch: %d records", len(got))
	}

	// A log that lost its end gives the lost offsets to other records.
	var truncated *TruncatedError
	if err := fetchOnce(t.Context(), shorter, &chunk); !errors.As(err, &truncated) || truncated.LogEnd != 50 ||
		truncated.Next != 100 {
		t.Errorf("the tail is gone: %v", err)
	}
	kafkatest.NewProducer(t, b.Addrs, cut, 0, "").Send(numbered("new", 80)...)
	var replaced *ReplacedError
	for _, r := range []*Reader{shorter, newReader(t, c, ReaderOptions{Topic: cut}, shorter.Position())} {
		if err := fetchOnce(t.Context(), r, &chunk); !errors.As(err, &replaced) || replaced.Evidence != AnchorDiffers {
			t.Errorf("the tail is another: %v", err)
		}
	}

	// A recreated topic starts at leader epoch 0. It may have exactly the records of the old one, but the decreased
	// epoch shows that it is another.
	kafkatest.NewProducer(t, b.Addrs, o.Topic, 0, "").Send(numbered("old", 1)...)
	drain(t, remade, 101, nil)
	again(t, b.Addrs, o.Topic, "old", 300)
	if err := fetchOnce(t.Context(), newReader(t, c, o, remade.Position()), &chunk); !errors.As(err, &replaced) ||
		replaced.Evidence != EpochWentBack {
		t.Errorf("older epoch: %v", err)
	}
}

// The reader and the reference consumer read the same from closed segments with transactions that the cleaner
// compacted.
func TestRealKafkaCompacted(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0",
	})
	rng := rand.New(rand.NewPCG(7, 7))
	plain := kafkatest.NewProducer(t, addrs, topic, 0, "")
	end := int64(0)
	batch := func(keys int) []kafkatest.Record {
		rs := make([]kafkatest.Record, 1+rng.IntN(5))
		for i := range rs {
			rs[i] = kafkatest.Record{Key: fmt.Append(nil, rng.IntN(keys)), Value: fmt.Append(nil, rng.Uint32())}
		}
		end += int64(len(rs))
		return rs
	}
	for i := range 40 {
		plain.Send(batch(30)...)
		if i%4 == 0 {
			// The batch has its own producer, because the cleaner keeps a producer's last batch, although empty.
			p := kafkatest.NewProducer(t, addrs, topic, 0, fmt.Sprint(topic, i))
			p.Begin()
			p.Send(batch(30)...)
			p.Send(batch(30)...)
			p.End(i%8 == 0)
			end++
			waitStable(t, c, topic, end)
		}
	}
	r := newReader(t, c, ReaderOptions{Topic: topic, Compacted: true}, start)
	drain(t, r, end, nil)
	anchored := r.Position()
	for i := range 30 {
		end = plain.Send(kafkatest.Record{Key: fmt.Append(nil, i), Value: []byte("newest")}) + 1
	}
	full := len(kafkatest.ReadCommitted(t, addrs, topic, 0, 0, end-1))

	// Two more records close the segments before them.
	time.Sleep(600 * time.Millisecond)
	end = plain.Send(kafkatest.Record{Key: []byte("30"), Value: []byte("x")},
		kafkatest.Record{Key: []byte("31"), Value: []byte("x")}) + 2
	var want []kafkatest.Record
	for deadline := time.Now().Add(30 * time.Second); len(want) != 32; time.Sleep(200 * time.Millisecond) {
		want = kafkatest.ReadCommitted(t, addrs, topic, 0, 0, end-1)
		if time.Now().After(deadline) {
			t.Fatalf("the cleaner left %d records of %d: %s", len(want), full, values(want))
		}
	}
	for _, size := range []int{1, 300, 4 << 20} {
		r := newReader(t, c, ReaderOptions{Topic: topic, PartitionMaxBytes: size}, start)
		compare(t, fmt.Sprint(size, " bytes"), drain(t, r, end, nil), want)
	}
	t.Logf("%d records of %d are left in %d offsets", len(want), full, end)

	// The anchor of an earlier position is gone by now.
	var replaced *ReplacedError
	var chunk Chunk
	err := fetchOnce(t.Context(), newReader(t, c, ReaderOptions{Topic: topic}, anchored), &chunk)
	gone := true
	for _, w := range want {
		gone = gone && w.Offset != anchored.Anchor.Offset
	}
	if !gone {
		t.Fatal("the cleaner left the anchor")
	}
	if !errors.As(err, &replaced) || replaced.Evidence != AnchorVanished {
		t.Errorf("an anchor that was compacted away: %v", err)
	}
	r = newReader(t, c, ReaderOptions{Topic: topic, Compacted: true}, anchored)
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || !chunk.AnchorDropped {
		t.Errorf("an anchor that may be compacted away: %v, %+v", err, chunk)
	}
	drain(t, r, end, nil)
}

func TestRealKafkaAdmin(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	c := dialBroker(t, addrs...)
	ctx := t.Context()
	if err := c.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	if id, err := c.ClusterID(ctx); err != nil || len(id) != 22 {
		t.Errorf("cluster id %q, %v", id, err)
	}
	name := fmt.Sprint("out-", time.Now().UnixNano())
	if topic, err := c.Topic(ctx, name); err != nil || topic.Exists {
		t.Errorf("a topic that is not there: %+v, %v", topic, err)
	}
	for range 2 { // the second time, the topic exists
		if err := c.CreateTopic(ctx, name, 3,
			map[string]string{"cleanup.policy": "compact", "max.message.bytes": "2000000"}); err != nil {
			t.Fatal(err)
		}
	}
	topic, err := c.Topic(ctx, name)
	if err != nil || !topic.Exists || len(topic.Partitions) != 3 || topic.Partitions[2].ID != 2 ||
		topic.Partitions[0].LeaderEpoch < 0 {
		t.Errorf("%+v, %v", topic, err)
	}
	got, err := c.TopicConfig(ctx, name, "cleanup.policy", "max.message.bytes", "retention.ms", "no.such.key")
	if err != nil || got["cleanup.policy"] != "compact" || got["max.message.bytes"] != "2000000" ||
		got["retention.ms"] != "604800000" || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	var e *Error
	if _, err := c.TopicConfig(ctx, "missing", "cleanup.policy"); !errors.As(err, &e) || e.Code != 3 {
		t.Errorf("config of a missing topic: %v", err)
	}
	if _, err := c.Offsets(ctx, "missing", 0); !errors.As(err, &e) || e.Code != 3 {
		t.Errorf("offsets of a missing topic: %v", err)
	}
	// A broker says which setting it refuses.
	for what, bad := range map[string]struct {
		name   string
		n      int
		config map[string]string
		code   int16
		text   string
	}{
		"unknown setting": {"bad", 1, map[string]string{"no.such.key": "1"}, 40, "no.such.key"},
		"wrong value":     {"bad", 1, map[string]string{"cleanup.policy": "shred"}, 40, "cleanup.policy"},
		"name":            {"no/topic", 1, nil, 17, ""},
		"partitions":      {"bad", 0, nil, 37, ""},
	} {
		if err := c.CreateTopic(ctx, bad.name, bad.n, bad.config); !errors.As(err, &e) || e.Code != bad.code ||
			Retriable(err) || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.Produce(ctx, name, 2, messages("a", 7)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Offsets(ctx, name, 2); err != nil || got != (Offsets{0, 7, 7}) {
		t.Errorf("offsets %+v, %v", got, err)
	}
	// The first commit of all makes the broker create the topic of offsets, but it does not wait for it.
	var pause Backoff
	for err := error(&Error{Code: 16}); err != nil; {
		if err = c.CommitOffsets(ctx, "lag-"+name, []GroupOffset{{name, 2, 4}}); err != nil {
			if !errors.As(err, &e) || !e.Retriable() {
				t.Fatal(err)
			}
			t.Log(err)
			if err := pause.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if at := kafkatest.CommittedOffset(t, addrs, "lag-"+name, name, 2); at != 4 {
		t.Errorf("committed offset %d", at)
	}
	// The timestamp is far in the future.
	ms := messages("a", 1)
	ms[0].Time = time.Now().Add(3 * time.Hour).Truncate(time.Millisecond)
	if _, err := c.Produce(ctx, name, 0, ms); !errors.As(err, &e) || e.Code != 32 || Retriable(err) {
		t.Errorf("a time in the future: %v", err)
	}
	// The value has no key, but the cleaner needs keys.
	ms = messages("a", 1)
	ms[0].Key = nil
	if _, err := c.Produce(ctx, name, 0, ms); !errors.As(err, &e) || e.Code != 87 || Retriable(err) {
		t.Errorf("no key: %v", err)
	}
}
