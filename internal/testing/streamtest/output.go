package streamtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Output reads an output topic.
func (r *Rig) Output(topic string) (list []fixtures.Published) {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	// Use a new client, because an existing client learns of a new topic late.
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{r.Addr}})
	if err != nil {
		r.T.Fatal(err)
	}
	defer client.Close()
	start, err := client.Start(ctx, topic, 0)
	if err != nil {
		r.T.Fatal(err)
	}
	err = client.ReadBack(ctx, topic, 0, start, func(rec *kafka.Record) error {
		_, epoch, step, ok := core.ParseIdentity(rec.Key)
		if !ok {
			return fmt.Errorf("key %q", rec.Key)
		}
		list = append(list,
			fixtures.Published{Offset: rec.Offset, Key: string(rec.Key), Value: string(rec.Value),
				Hash: core.ReleaseHash(rec.Key, rec.Value, rec.Headers), Epoch: epoch, Step: step})
		return nil
	})
	if err != nil {
		r.T.Fatal(err)
	}
	return list
}

// Hold makes the broker refuse or delay requests to publish into a topic; `decide` says which. The channel `held` is
// closed when the broker delays a request; `release` ends the delay.
func (r *Rig) Hold(topic string,
	decide func(*kmsg.ProduceRequest) (refused *kerr.Error, hold bool)) (held chan struct{}, release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(free) })
	r.T.Cleanup(release)
	c := r.Broker.Cluster()
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
				Partitions: []kmsg.ProduceResponseTopicPartition{
					{Partition: to.Partitions[0].Partition, ErrorCode: refused.Code}}}}
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

// Verdict is the result of Judge.
type Verdict struct {
	Steps      uint64              // the largest step number
	Duplicates int                 // releases published again with the same bytes
	Forks      []string            // keys with two different values
	missing    []string            // steps without a release
	gaps       []string            // releases whose offsets do not follow the step before
	Bytes      map[string][32]byte // key → hash
	ByKey      map[string]fixtures.Published
}

// Judge checks the releases of one task: each key has one distinct value, no step is missing within an epoch, and
// offsets are contiguous.
func Judge(t testing.TB, list []fixtures.Published) Verdict {
	t.Helper()
	v := Verdict{Bytes: map[string][32]byte{}, ByKey: map[string]fixtures.Published{}}
	for _, p := range list {
		was, known := v.Bytes[p.Key]
		switch {
		case !known:
			v.Bytes[p.Key], v.ByKey[p.Key] = p.Hash, p
		case was == p.Hash:
			v.Duplicates++
		default:
			v.Forks = append(v.Forks, p.Key)
		}
		v.Steps = max(v.Steps, p.Step)
	}
	all := make([]fixtures.Published, 0, len(v.ByKey))
	for _, p := range v.ByKey {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b fixtures.Published) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Step, b.Step))
	})
	for i := range all {
		rel := all[i].Parse(t)
		if rel.Epoch != all[i].Epoch || rel.Step != all[i].Step {
			v.gaps = append(v.gaps, all[i].Key+": the value has another identity than the key")
		}
		first := i == 0 || all[i].Epoch != all[i-1].Epoch
		// Searches of a mechanism follow the warm-up.
		begins := len(rel.Warmup) == 0 && (first || len(all[i-1].Parse(t).Warmup) > 0)
		silent, offsets := rel.Silent(begins)
		if first {
			if rel.Step != 1+silent {
				v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].Key))
			}
			if rel.Offsets[0] != rel.Covers[0]+offsets {
				v.gaps = append(v.gaps, all[i].Key)
			}
			continue
		}
		if rel.Step != all[i-1].Step+1+silent {
			v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].Key))
		}
		if prev := all[i-1].Parse(t); rel.Offsets[0] != prev.Offsets[1]+offsets || rel.Covers[0] != prev.Covers[0] {
			v.gaps = append(v.gaps, all[i].Key)
		}
	}
	return v
}

// Faultless fails unless an output is a correct history.
func (v *Verdict) Faultless(t testing.TB) {
	t.Helper()
	if len(v.Forks) > 0 || len(v.missing) > 0 || len(v.gaps) > 0 {
		t.Errorf("%d steps with two different releases %v, missing %v, offsets that do not follow %v", len(v.Forks),
			v.Forks, v.missing, v.gaps)
	}
}

// Equals fails unless both outputs have the same bytes under the same keys.
func (v *Verdict) Equals(t testing.TB, want *Verdict) {
	t.Helper()
	if len(v.Bytes) != len(want.Bytes) {
		t.Errorf("%d releases, want %d", len(v.Bytes), len(want.Bytes))
	}
	for key, hash := range want.Bytes {
		if got, ok := v.Bytes[key]; !ok || got != hash {
			t.Errorf("release %s differs from the uninterrupted run:\n%s\n%s", key, v.ByKey[key].Value,
				want.ByKey[key].Value)
			return
		}
	}
}

// History reads and judges the output topic.
func (r *Rig) History(topic string) *Verdict {
	r.T.Helper()
	v := Judge(r.T, r.Output(topic))
	v.Faultless(r.T)
	return &v
}
