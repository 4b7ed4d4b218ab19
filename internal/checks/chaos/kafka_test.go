package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// createTopic creates a topic with three replicas, in which brokers set the timestamps of records.
func createTopic(t *testing.T, addrs []string, name string, partitions int32) {
	t.Helper()
	client := newClient(t, addrs)
	q := kmsg.NewPtrCreateTopicsRequest()
	q.TimeoutMillis = 20_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 3
	for k, v := range map[string]string{"message.timestamp.type": "LogAppendTime", "retention.ms": "-1",
		"min.insync.replicas": "2"} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, &v
		topic.Configs = append(topic.Configs, c)
	}
	q.Topics = append(q.Topics, topic)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := q.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("topic %s: %v", name, err)
	}
}

// compactSoon makes brokers compact a topic within seconds, not within hours.
func (s *site) compactSoon(topic string) {
	s.t.Helper()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	for k, v := range map[string]string{"segment.ms": "5000", "max.compaction.lag.ms": "5000",
		"min.cleanable.dirty.ratio": "0.01"} {
		c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		c.Name, c.Value = k, &v
		resource.Configs = append(resource.Configs, c)
	}
	q := kmsg.NewPtrIncrementalAlterConfigsRequest()
	q.Resources = append(q.Resources, resource)
	answer := kafkatest.Ask(s.t, s.three.Addrs, q).(*kmsg.IncrementalAlterConfigsResponse)
	if err := kerr.ErrorForCode(answer.Resources[0].ErrorCode); err != nil {
		s.t.Fatalf("topic %s: %v", topic, err)
	}
}

// logState logs how much of a state topic is left after compaction.
func (s *site) logState(topic string) {
	s.t.Helper()
	offsets, records, bytes := int64(0), 0, 0
	for shard := range shards {
		s.read(topic, shard, func(r *kgo.Record) {
			records, bytes = records+1, bytes+len(r.Key)+len(r.Value)
		})
		offsets += s.end(topic, shard)
	}
	s.t.Logf("the states took %d offsets; %d records of %d bytes in total are left", offsets, records, bytes)
}

func newClient(t *testing.T, addrs []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(addrs...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// feed sends records to all partitions, ten steps a second, until end.
type feed struct {
	s    *site
	stop context.CancelFunc
	done sync.WaitGroup
}

func newFeed(s *site) *feed {
	ctx, stop := context.WithCancel(s.t.Context())
	f := &feed{s: s, stop: stop}
	client := newClient(s.t, s.three.Addrs, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	for p := range int32(partitions) {
		f.done.Go(func() {
			for n := 0; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				var batch []*kgo.Record
				for range stepLength / 2 {
					value := fmt.Appendf(nil, `{"amount":%d,"items":%d}`, n*37%97, n%7)
					batch = append(batch, &kgo.Record{Topic: s.in, Partition: p, Value: value})
					n++
				}
				sending, cancel := context.WithTimeout(context.Background(), patience)
				if err := client.ProduceSync(sending, batch...).FirstErr(); err != nil {
					s.t.Errorf("feeding partition %d: %v", p, err)
					stop()
				}
				cancel()
			}
		})
	}
	s.t.Cleanup(func() { stop(); f.done.Wait() })
	return f
}

// end ends the feed and returns the ends of all partitions.
func (f *feed) end() (ends [partitions]int64) {
	f.s.t.Helper()
	f.stop()
	f.done.Wait()
	for p := range ends {
		ends[p] = f.s.end(f.s.in, p)
	}
	return ends
}

// end returns the end of a partition.
func (s *site) end(topic string, partition int) int64 {
	s.t.Helper()
	client, err := kafka.NewClient(kafka.Options{Brokers: s.three.Addrs})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		at, err := client.Offsets(ctx, topic, int32(partition))
		cancel()
		if err == nil && at.Stable == at.End {
			return at.End
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s/%d: stable up to %d of %d, %v", topic, partition, at.Stable, at.End, err)
		}
	}
}

// watch reads the outputs continuously.
type watch struct {
	mu       sync.Mutex
	releases []release
	times    map[task][]time.Time // when releases were appended, in order
	ends     map[task]int64       // the end of the newest epoch's last step
}

func newWatch(s *site) *watch {
	w := &watch{times: map[task][]time.Time{}, ends: map[task]int64{}}
	var topics []string
	for _, stream := range streams {
		topics = append(topics, s.out(stream))
	}
	client := newClient(s.t, s.three.Addrs, kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	var reading sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	s.t.Cleanup(func() { stop(); reading.Wait() })
	reading.Go(func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				got, err := parseRelease(r.Key, r.Value, r.Timestamp)
				if err != nil {
					s.t.Errorf("%s: %v", r.Topic, err)
					return
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				w.releases = append(w.releases, got)
				w.times[got.task] = append(w.times[got.task], got.at)
				w.ends[got.task] = max(w.ends[got.task], got.offsets[1])
			})
		}
	})
	return w
}

// next returns the time at which a task's first release after `since` was appended.
func (w *watch) next(t task, since time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, _ := slices.BinarySearchFunc(w.times[t], since, func(at, since time.Time) int {
		if at.After(since) {
			return 1
		}
		return -1
	})
	if i == len(w.times[t]) {
		return time.Time{}, false
	}
	return w.times[t][i], true
}

func (w *watch) all() []release {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.releases)
}
