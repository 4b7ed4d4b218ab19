package streamtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// NewMergedRig starts a broker with the topic "orders" of several partitions.
func NewMergedRig(t testing.TB, toml string, partitions int) *Rig {
	t.Helper()
	r := NewRigOn(t, toml, embedded.Options{})
	fixtures.Must(t, r.Broker.CreateTopic(context.Background(), "orders", partitions, nil))
	return r
}

// SendTo appends n records, numbered from first, to a partition of "orders".
func (r *Rig) SendTo(partition, first, n int) {
	r.T.Helper()
	for part := range slices.Chunk(make([]struct{}, n), 500) {
		list := make([]kafka.Message, len(part))
		for i := range list {
			list[i] = kafka.Message{Value: fixtures.OrderRecord(first), Time: time.UnixMilli(1)}
			if r.Key != nil {
				list[i].Key = r.Key(first)
			}
			first++
		}
		if _, err := r.Client.Produce(context.Background(), "orders", int32(partition), list); err != nil {
			r.T.Fatal(err)
		}
	}
}

// OutputOf returns the values in a topic of releases, by key. It fails if a key has two different values.
func (r *Rig) OutputOf(topic string) map[string]string {
	r.T.Helper()
	all := map[string]string{}
	err := r.Client.ReadBack(context.Background(), topic, 0, 0, func(rec *kafka.Record) error {
		if was, known := all[string(rec.Key)]; known && was != string(rec.Value) {
			r.T.Errorf("two different releases %s", rec.Key)
		}
		all[string(rec.Key)] = string(rec.Value)
		return nil
	})
	fixtures.Must(r.T, err)
	return all
}

// AddPartitions increases the number of a topic's partitions to count.
func AddPartitions(t testing.TB, r *Rig, name string, count int32) {
	t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, count
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 5000
	kafkatest.Ask(t, r.Broker.Addrs(), req)
}
