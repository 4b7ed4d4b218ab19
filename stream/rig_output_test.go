package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// output reads an output topic.
func (r *rig) output(topic string) (list []published) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A client that has followed the cluster learns of a new topic late.
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{r.addr}})
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	start, _, _, err := client.Offsets(ctx, topic, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	err = client.ReadBack(ctx, topic, 0, start, func(rec *kafka.Record) error {
		_, epoch, step, ok := core.ParseIdentity(rec.Key)
		if !ok {
			return fmt.Errorf("key %q", rec.Key)
		}
		list = append(list, published{rec.Offset, string(rec.Key), string(rec.Value), core.ReleaseHash(rec.Key, rec.Value, rec.Headers), epoch, step})
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// hold makes the broker refuse or hold requests to publish into a topic, as decide says. held
// is closed when it holds one, until release is called.
func (r *rig) hold(topic string, decide func(*kmsg.ProduceRequest) (refused *kerr.Error, hold bool)) (held chan struct{}, release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(free) })
	r.t.Cleanup(release)
	c := r.broker.Cluster()
	c.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		q := request.(*kmsg.ProduceRequest)
		to := q.Topics[0]
		if to.Topic != topic {
			return nil, nil, false
		}
		refused, hold := decide(q)
		if refused != nil {
			answer := q.ResponseKind().(*kmsg.ProduceResponse)
			answer.Topics = []kmsg.ProduceResponseTopic{{Topic: to.Topic, TopicID: to.TopicID,
				Partitions: []kmsg.ProduceResponseTopicPartition{{Partition: to.Partitions[0].Partition, ErrorCode: refused.Code}}}}
			return answer, nil, true
		}
		if hold {
			c.SleepControl(func() {
				close(held)
				<-free
			})
		}
		return nil, nil, false
	})
	return held, release
}

// verdict is what the checker finds in an output topic.
type verdict struct {
	steps      uint64              // largest
	duplicates int                 // releases published again, the same bytes
	forks      []string            // keys with two different values
	missing    []string            // steps that are not there
	gaps       []string            // offsets that do not follow the step before
	bytes      map[string][32]byte // key → hash
	byKey      map[string]published
}

// judge checks the releases of one task: one distinct value a key, no step
// missing within an epoch, offsets contiguous.
func judge(t testing.TB, list []published) verdict {
	t.Helper()
	v := verdict{bytes: map[string][32]byte{}, byKey: map[string]published{}}
	for _, p := range list {
		was, known := v.bytes[p.key]
		switch {
		case !known:
			v.bytes[p.key], v.byKey[p.key] = p.hash, p
		case was == p.hash:
			v.duplicates++
		default:
			v.forks = append(v.forks, p.key)
		}
		v.steps = max(v.steps, p.step)
	}
	all := make([]published, 0, len(v.byKey))
	for _, p := range v.byKey {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b published) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.step, b.step))
	})
	for i := range all {
		rel := all[i].parse(t)
		if rel.Epoch != all[i].epoch || rel.Step != all[i].step {
			v.gaps = append(v.gaps, all[i].key+": another identity inside")
		}
		first := i == 0 || all[i].epoch != all[i-1].epoch
		// Searches come behind a warm-up.
		begins := len(rel.Warmup) == 0 && (first || len(all[i-1].parse(t).Warmup) > 0)
		silent, offsets := rel.silent(begins)
		if first {
			if rel.Step != 1+silent {
				v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].key))
			}
			if rel.Offsets[0] != rel.Covers[0]+offsets {
				v.gaps = append(v.gaps, all[i].key)
			}
			continue
		}
		if rel.Step != all[i-1].step+1+silent {
			v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].key))
		}
		if prev := all[i-1].parse(t); rel.Offsets[0] != prev.Offsets[1]+offsets || rel.Covers[0] != prev.Covers[0] {
			v.gaps = append(v.gaps, all[i].key)
		}
	}
	return v
}

// faultless fails unless an output is a correct history.
func (v *verdict) faultless(t testing.TB) {
	t.Helper()
	if len(v.forks) > 0 || len(v.missing) > 0 || len(v.gaps) > 0 {
		t.Errorf("%d steps with two different releases %v, missing %v, offsets that do not follow %v", len(v.forks), v.forks, v.missing, v.gaps)
	}
}

// equals fails unless both outputs have the same bytes under the same keys.
func (v *verdict) equals(t testing.TB, want *verdict) {
	t.Helper()
	if len(v.bytes) != len(want.bytes) {
		t.Errorf("%d releases, want %d", len(v.bytes), len(want.bytes))
	}
	for key, hash := range want.bytes {
		if got, ok := v.bytes[key]; !ok || got != hash {
			t.Errorf("release %s is not that of the uninterrupted run:\n%s\n%s", key, v.byKey[key].value, want.byKey[key].value)
			return
		}
	}
}

// history reads and judges the output topic.
func (r *rig) history(topic string) *verdict {
	r.t.Helper()
	v := judge(r.t, r.output(topic))
	v.faultless(r.t)
	return &v
}
