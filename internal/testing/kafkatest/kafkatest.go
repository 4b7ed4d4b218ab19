// Package kafkatest has helpers for tests against any Kafka broker: transactional producers, a reference consumer, and
// an encoder of record batches that no producer would send. It uses franz-go, so that the code under test does not
// judge itself.
package kafkatest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is a record as a test writes or reads it.
type Record struct {
	Offset     int64
	Key, Value []byte // nil: a null key or value
	Headers    []kgo.RecordHeader
}

// Producer writes to one partition, in exactly the batches that its caller passes.
type Producer struct {
	tb        testing.TB
	client    *kgo.Client
	topic     string
	partition int32
	txn       bool
}

// NewProducer returns a producer. With a transactional id, readers see its records only after End(true). The producer
// is closed when the test ends.
func NewProducer(tb testing.TB, addrs []string, topic string, partition int32, txnID string,
	opts ...kgo.Opt) *Producer {
	tb.Helper()
	o := []kgo.Opt{
		kgo.SeedBrokers(addrs...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(time.Minute), // waits until Send has produced all records of a batch
	}
	if txnID != "" {
		o = append(o, kgo.TransactionalID(txnID))
	}
	client, err := kgo.NewClient(append(o, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return &Producer{tb: tb, client: client, topic: topic, partition: partition, txn: txnID != ""}
}

// Send appends one batch and returns the offset of its first record.
func (p *Producer) Send(records ...Record) int64 {
	p.tb.Helper()
	rs := make([]*kgo.Record, len(records))
	for i, r := range records {
		rs[i] = &kgo.Record{Topic: p.topic, Partition: p.partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var failed error // written by a single goroutine, which finishes before Flush returns
	for _, r := range rs {
		p.client.Produce(ctx, r, func(_ *kgo.Record, err error) { failed = cmp.Or(failed, err) })
	}
	err := p.client.Flush(ctx)
	if err = cmp.Or(failed, err); err != nil {
		p.tb.Fatal(err)
	}
	// The client learns of a new topic's partition slightly after the partition's first records are acknowledged. If
	// the transaction ended before that, it would be aborted, and the partition's sequence numbers would stay
	// unchanged.
	for leader := int32(-1); leader < 0 && err == nil; time.Sleep(time.Millisecond / 10) {
		if leader, _, err = p.client.PartitionLeader(p.topic, p.partition); ctx.Err() != nil {
			p.tb.Fatal(ctx.Err())
		}
	}
	first := rs[0].Offset
	for _, r := range rs {
		first = min(first, r.Offset)
	}
	return first
}

// Begin starts a transaction.
func (p *Producer) Begin() {
	p.tb.Helper()
	if err := p.client.BeginTransaction(); err != nil {
		p.tb.Fatal(err)
	}
}

// End commits or aborts the transaction. Both append a marker to every partition that the transaction has written to.
func (p *Producer) End(commit bool) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := p.client.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
		p.tb.Fatal(err)
	}
}

// ReadCommitted reads committed records with the reference consumer, from the offset `from` until it has passed the
// record or marker at offset `last`.
func ReadCommitted(tb testing.TB, addrs []string, topic string, partition int32, from, last int64) []Record {
	tb.Helper()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addrs...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}),
	)
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var all []Record
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			tb.Fatal(err)
		}
		done := false
		fetches.EachRecord(func(r *kgo.Record) {
			done = done || r.Offset >= last
			if !r.Attrs.IsControl() {
				all = append(all, Record{Offset: r.Offset, Key: r.Key, Value: r.Value, Headers: r.Headers})
			}
		})
		if done {
			return all
		}
	}
}

func request[R any](tb testing.TB, addrs []string, do func(context.Context, *kgo.Client) (R, error)) R {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	res, err := do(ctx, client)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func check(tb testing.TB, code int16) {
	tb.Helper()
	if err := kerr.ErrorForCode(code); err != nil {
		tb.Fatal(err)
	}
}

// CreateTopic creates a topic of one partition, and waits until its leader
// serves it.
func CreateTopic(tb testing.TB, addrs []string, topic string, config map[string]string) {
	tb.Helper()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, 1, -1
	create(tb, addrs, t, config)
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp = -1
	l := kmsg.NewListOffsetsRequestTopic()
	l.Topic, l.Partitions = topic, append(l.Partitions, p)
	list := kmsg.NewPtrListOffsetsRequest()
	list.ReplicaID, list.Topics = -1, append(list.Topics, l)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// Brokers learn of the topic with a delay and report that by several errors.
		err := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (error, error) {
			res, err := list.RequestWith(ctx, c)
			if err != nil {
				return err, nil
			}
			return kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode), nil
		})
		if err == nil {
			return
		}
		if !kerr.IsRetriable(err) || time.Now().After(deadline) {
			tb.Fatal(err)
		}
	}
}

// create requests a new topic with these settings.
func create(tb testing.TB, addrs []string, t kmsg.CreateTopicsRequestTopic, config map[string]string) {
	tb.Helper()
	for k, v := range config {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, &v
		t.Configs = append(t.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, t)
	res := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.CreateTopicsResponse, error) {
		return req.RequestWith(ctx, c)
	})
	check(tb, res.Topics[0].ErrorCode)
}

// DeleteTopic deletes a topic.
func DeleteTopic(tb testing.TB, addrs []string, topic string) {
	tb.Helper()
	t := kmsg.NewDeleteTopicsRequestTopic()
	t.Topic = &topic
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Topics, req.TopicNames = append(req.Topics, t), []string{topic}
	res := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.DeleteTopicsResponse, error) {
		return req.RequestWith(ctx, c)
	})
	check(tb, res.Topics[0].ErrorCode)
}

// DeleteRecords deletes the records below the offset `before`, as retention would.
func DeleteRecords(tb testing.TB, addrs []string, topic string, partition int32, before int64) {
	tb.Helper()
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = partition, before
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.Topics = append(req.Topics, t)
	res := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.DeleteRecordsResponse, error) {
		return req.RequestWith(ctx, c)
	})
	check(tb, res.Topics[0].Partitions[0].ErrorCode)
}

// CommittedOffset returns the offset that a group has committed, −1 if there is none.
func CommittedOffset(tb testing.TB, addrs []string, group, topic string, partition int32) int64 {
	tb.Helper()
	t := kmsg.NewOffsetFetchRequestTopic()
	t.Topic, t.Partitions = topic, []int32{partition}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.Topics = group, append(req.Topics, t)
	res := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.OffsetFetchResponse, error) {
		return req.RequestWith(ctx, c)
	})
	if len(res.Topics) == 0 {
		return -1 // the group does not exist yet
	}
	check(tb, res.Topics[0].Partitions[0].ErrorCode)
	return res.Topics[0].Partitions[0].Offset
}

// SetQuota limits how fast a client id may read, in bytes a second.
func SetQuota(tb testing.TB, addrs []string, clientID string, rate float64) {
	tb.Helper()
	e := kmsg.NewAlterClientQuotasRequestEntry()
	e.Entity = append(e.Entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: "client-id", Name: &clientID})
	e.Ops = append(e.Ops, kmsg.AlterClientQuotasRequestEntryOp{Key: "consumer_byte_rate", Value: rate})
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.Entries = append(req.Entries, e)
	res := request(tb, addrs, func(ctx context.Context, c *kgo.Client) (*kmsg.AlterClientQuotasResponse, error) {
		return req.RequestWith(ctx, c)
	})
	check(tb, res.Entries[0].ErrorCode)
}

// Batch is a record batch of format 2 that is encoded exactly as its fields say. It may have gaps between offsets, have
// no records, be a marker, or be damaged.
type Batch struct {
	Base          int64
	LastDelta     int32 // last offset − Base; may be larger than that of the last record
	Epoch         int32
	Producer      int64 // −1: no producer id
	Transactional bool
	Control       bool
	Records       []Record // offsets ≥ Base
	// Codec compresses the records, unless that makes them larger.
	Codec kgo.CompressionCodec
	// Body replaces the encoded records. It must be compressed already, with codec Attributes&7. Count is the number of
	// records that the batch claims to have.
	Body       []byte
	Attributes int16
	Count      int32
}

// Marker returns the batch that ends a transaction.
func Marker(offset, producer int64, commit bool) Batch {
	typ := byte(0)
	if commit {
		typ = 1
	}
	return Batch{
		Base: offset, Producer: producer, Transactional: true, Control: true,
		Records: []Record{{Offset: offset, Key: []byte{0, 0, 0, typ}, Value: []byte{0, 0, 0, 0, 0, 0}}},
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the batch in the wire format to dst.
func (b Batch) Append(dst []byte) []byte {
	records, attributes, count := b.Body, b.Attributes, b.Count
	if records == nil {
		records, attributes = b.encode()
		count = int32(len(b.Records))
	}
	if b.Transactional {
		attributes |= 1 << 4
	}
	if b.Control {
		attributes |= 1 << 5
	}
	w := kmsg.RecordBatch{
		FirstOffset: b.Base, PartitionLeaderEpoch: b.Epoch, Magic: 2, Attributes: attributes,
		LastOffsetDelta: b.LastDelta, ProducerID: b.Producer, ProducerEpoch: -1, FirstSequence: -1,
		NumRecords: count, Records: records,
	}
	raw := w.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], castagnoli))
	return append(dst, raw...)
}

// encode returns the encoded records and the attribute bits of their compression.
func (b Batch) encode() (records []byte, attributes int16) {
	for _, r := range b.Records {
		k := kmsg.Record{OffsetDelta: int32(r.Offset - b.Base), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		// The field Length counts the bytes after it. While Length is 0, it takes one byte.
		k.Length = int32(len(k.AppendTo(nil)) - 1)
		records = k.AppendTo(records)
	}
	compressor, err := kgo.DefaultCompressor(b.Codec)
	if err != nil {
		panic(err)
	}
	if compressor == nil {
		return records, 0
	}
	packed, codec := compressor.Compress(new(bytes.Buffer), records)
	return packed, int16(codec)
}

// Ask sends any request. It fails the test if the request gets no answer.
func Ask(tb testing.TB, addrs []string, req kmsg.Request) kmsg.Response {
	tb.Helper()
	return request(tb, addrs,
		func(ctx context.Context, c *kgo.Client) (kmsg.Response, error) { return c.Request(ctx, req) })
}

// Bomb returns a batch of three records: `first`, n zeros, and `last`. zstd stores the zeros in 4 bytes for each 128
// kB.
func Bomb(first, last []byte, n int) Batch {
	block := func(kind uint32, stored []byte, size int, final uint32) []byte {
		h := uint32(size)<<3 | kind<<1 | final
		return append([]byte{byte(h), byte(h >> 8), byte(h >> 16)}, stored...)
	}
	record := func(delta int64, value []byte, size int) []byte {
		b := binary.AppendVarint([]byte{0, 0}, delta)
		b = binary.AppendVarint(append(b, 1), int64(size))
		length := int64(len(b) + size + 1)
		return append(append(binary.AppendVarint(nil, length), b...), value...)
	}
	const raw, repeated, largest = 0, 1, 128 << 10
	body := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3} // a window of 8 MB
	head := append(append(record(0, first, len(first)), 0), record(1, nil, n)...)
	body = append(body, block(raw, head, len(head), 0)...)
	for left := n; left > 0; left -= largest {
		body = append(body, block(repeated, []byte{0}, min(left, largest), 0)...)
	}
	tail := append(append([]byte{0}, record(2, last, len(last))...), 0)
	body = append(body, block(raw, tail, len(tail), 1)...)
	return Batch{LastDelta: 2, Producer: -1, Body: body, Count: 3, Attributes: 4}
}

// Append appends a batch to a partition without changing it.
func Append(tb testing.TB, addrs []string, topic string, partition int32, b Batch) {
	tb.Helper()
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, b.Append(nil)
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &topic
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = append(meta.Topics, asked)
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	t.TopicID = Ask(tb, addrs, meta).(*kmsg.MetadataResponse).Topics[0].TopicID // newer requests name the topic by id
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.Topics = -1, 10_000, append(req.Topics, t)
	res := Ask(tb, addrs, req).(*kmsg.ProduceResponse)
	check(tb, res.Topics[0].Partitions[0].ErrorCode)
}
