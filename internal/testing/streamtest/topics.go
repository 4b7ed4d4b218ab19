package streamtest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Records reads an output topic with headers.
func (r *Rig) Records(topic string) (list []kafka.Record) {
	r.T.Helper()
	start, err := r.Client.Start(context.Background(), topic, 0)
	fixtures.Must(r.T, err)
	fixtures.Must(r.T, r.Client.ReadBack(context.Background(), topic, 0, start, func(rec *kafka.Record) error {
		c := *rec
		c.Key, c.Value, c.Headers = slices.Clone(rec.Key), slices.Clone(rec.Value), slices.Clone(rec.Headers)
		for i, h := range c.Headers {
			c.Headers[i].Value = slices.Clone(h.Value)
		}
		list = append(list, c)
		return nil
	}))
	return list
}

// Of waits until ok accepts the status of a stream's only task, and returns it.
func (x *Running) Of(stream, what string, ok func(monitor.TaskStatus) bool) monitor.TaskStatus {
	x.T.Helper()
	for late := time.Now().Add(fixtures.Patience); ; time.Sleep(time.Millisecond) {
		for _, s := range x.D.Status() {
			if s.Stream == stream && ok(s) {
				return s
			}
		}
		if time.Now().After(late) {
			x.T.Fatalf("%s: not %s: %+v\n%s", stream, what, x.D.Status(), x.R.Log)
		}
	}
}

// Reaches waits until a stream has published a step, and everything before it.
func (x *Running) Reaches(stream string, step uint64) {
	x.T.Helper()
	x.Of(stream, fmt.Sprintf("at step %d", step), func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRunning && s.Step >= step && s.Outbox == 0
	})
}

// Ran returns a rig whose daemon has published ten steps and ended.
func Ran(t testing.TB, toml string) *Rig {
	t.Helper()
	return NewRig(t, toml).TenSteps()
}

// TenSteps runs a daemon over 1050 records.
func (r *Rig) TenSteps() *Rig {
	r.T.Helper()
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	return r
}

// Recreate replaces the input by another log of n records, numbered from first.
func (r *Rig) Recreate(first, n int) {
	r.T.Helper()
	kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders")
	kafkatest.CreateTopic(r.T, r.Broker.Addrs(), "orders", nil)
	r.Client = fixtures.Dial(r.T, r.Addr)
	if n > 0 {
		r.Produce(first, n)
	}
}

// SetTopicConfig changes a topic's setting.
func SetTopicConfig(t testing.TB, r *Rig, topic, key, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = key, &value
	res.Configs = append(res.Configs, cfg)
	req.Resources = append(req.Resources, res)
	kafkatest.Ask(t, r.Broker.Addrs(), req)
}

func GoldenCheckpoint() *state.Checkpoint {
	c := &state.Checkpoint{
		Epoch: 3, Seq: 41, Step: 7,
		Position:    kafka.Position{Next: 1700, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 1698, LeaderEpoch: 1}},
		OutputTopic: "orders.dp", OutputPartition: 1, Output: 12, Acknowledged: true,
		Build: "go1.26.0 linux/amd64", State: []byte{1, 2, 3, 0, 255},
		Outbox: []state.Message{
			{Message: core.Message{Step: 6, Key: []byte("orders/0/3/6"), Value: []byte(`{"x":1}`),
				Headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "n"}}},
				Time: time.UnixMilli(1700000000123)},
			{Message: core.Message{Step: 7, Key: []byte("orders/0/3/7"), Value: []byte{}},
				Time: time.UnixMilli(1700000000124)},
		},
	}
	for i := range 32 {
		c.Manifest[i], c.Transcript[i], c.Ledger[i], c.Position.Anchor.Hash[i] = byte(i), byte(i+32),
			byte(i+64), byte(i+96)
	}
	return c
}

// Forge appends records with the given keys to the output.
func (r *Rig) Forge(value string, keys ...string) {
	r.T.Helper()
	for _, key := range keys {
		m := kafka.Message{Key: []byte(key), Value: []byte(value), Time: time.UnixMilli(1)}
		if _, err := fixtures.Dial(r.T, r.Addr).Produce(r.T.Context(), "orders.dp", 0, []kafka.Message{m}); err != nil {
			r.T.Fatal(err)
		}
	}
}

// Verify verifies the published releases of the task orders-0.
func (r *Rig) Verify(edits ...func(*recovery.Audit)) ([]recovery.Verification, error) {
	r.T.Helper()
	o := r.Options()
	a := recovery.Audit{Config: o.Config, Key: o.Key, Log: slog.New(slog.NewTextHandler(r.Log, nil)), Chunk: r.Chunk}
	for _, edit := range edits {
		edit(&a)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	return recovery.Verify(ctx, a, fixtures.OrdersTask)
}

// Verified fails unless Verify recomputed exactly epoch 1, with the given number of releases.
func (r *Rig) Verified(releases int, edits ...func(*recovery.Audit)) {
	r.T.Helper()
	all, err := r.Verify(edits...)
	fixtures.Must(r.T, err)
	if len(all) != 1 || all[0].Releases != releases || all[0].Difference+all[0].Unverifiable != "" ||
		all[0].Missing != 0 {
		r.T.Errorf("found %+v, want %d releases that are the same", all, releases)
	}
}
