package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Rivals are functions that read n records of partition 0 of a topic, from its start. They return how many records came
// after the first response, and in what time. "kafka-go" and "franz-go" do nothing with the records. "consumer-packed"
// and "consumer-json" sum the columns and their products, without privacy. Run each rival in a separate process that
// reads nothing else.
var Rivals = map[string]func(ctx context.Context, addrs []string, topic string, n int) (int, time.Duration, error){
	"kafka-go": readKafkaGo,
	"franz-go": readFranzGo,

	"consumer-packed": consumer(unpack),
	"consumer-json":   consumer(fromJSON),
}

// readKafkaGo decodes the responses of single fetches of up to 4 MiB with kafka-go's own reader.
func readKafkaGo(ctx context.Context, addrs []string, topic string, n int) (int, time.Duration, error) {
	// Package kafka has registered a type of its own for this request, so replace that type.
	protocol.Register(&fetch.Request{}, &fetch.Response{})
	t := kafkago.Transport{MetadataTopics: []string{topic}}
	defer t.CloseIdleConnections()
	var begun time.Time
	count, next := 0, int64(0)
	for next < int64(n) {
		m, err := t.RoundTrip(ctx, kafkago.TCP(addrs...), &fetch.Request{
			ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: 8 << 20, IsolationLevel: 1, SessionID: -1,
			SessionEpoch: -1,
			Topics: []fetch.RequestTopic{
				{Topic: topic,
					Partitions: []fetch.RequestPartition{
						{CurrentLeaderEpoch: -1, FetchOffset: next, PartitionMaxBytes: 4 << 20}}}},
		})
		if err != nil {
			return 0, 0, err
		}
		p := &m.(*fetch.Response).Topics[0].Partitions[0]
		if p.ErrorCode != 0 {
			return 0, 0, kafkago.Error(p.ErrorCode)
		}
		for {
			rec, err := p.RecordSet.Records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return 0, 0, err
			}
			next = rec.Offset + 1
			for _, b := range []protocol.Bytes{rec.Key, rec.Value} {
				if b != nil {
					b.Close()
				}
			}
			count++
		}
		if begun.IsZero() && count > 0 {
			begun, count = time.Now(), 0
		}
	}
	return count, time.Since(begun), nil
}

// readFranzGo polls with franz-go's default settings.
func readFranzGo(ctx context.Context, addrs []string, topic string, n int) (int, time.Duration, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	var begun time.Time
	count, next := 0, int64(0)
	for next < int64(n) {
		f := c.PollFetches(ctx)
		if errs := f.Errors(); len(errs) > 0 {
			return 0, 0, fmt.Errorf("%s/%d: %w", errs[0].Topic, errs[0].Partition, errs[0].Err)
		}
		f.EachRecord(func(r *kgo.Record) { count, next = count+1, r.Offset+1 })
		if begun.IsZero() && count > 0 {
			begun, count = time.Now(), 0
		}
	}
	return count, time.Since(begun), nil
}
