package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/task"
)

// deskRig is one partition of a control topic.
type deskRig struct {
	*streamtest.Rig
	cfg *config.Cluster
}

func newDeskRig(t *testing.T) *deskRig {
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	if err := r.Broker.CreateTopic(t.Context(), "g.control", 1, nil); err != nil {
		t.Fatal(err)
	}
	return &deskRig{r, &config.Cluster{Group: "g", Shards: 1}}
}

func (r *deskRig) answers() *cluster.RequestTopic {
	return cluster.NewRequestTopic(r.Client, r.cfg, connect.InsecureKey(r.Seed), 0)
}

// desk runs a request server until the end of the test. When desk returns, the server has read what was in the topic.
func (r *deskRig) desk(name string, meet func(ctx context.Context, q task.Request) error) {
	r.T.Helper()
	// The server answers this request once it has read it.
	if err := r.answers().Write(r.T.Context(), "before "+name, cluster.PartTaken,
		cluster.TakenRecord{By: "gone", Instance: "gone"}); err != nil {
		r.T.Fatal(err)
	}
	d := cluster.NewRequestServer(r.answers(), slog.New(slog.NewTextHandler(io.Discard, nil)), name, time.Now, meet)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	r.T.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			r.T.Error(err)
		}
	})
	if err := r.await("before "+name, fixtures.Patience); err == nil ||
		!strings.Contains(err.Error(), "stopped, or lost the shard") {
		r.T.Error(err)
	}
}

// ask writes a request to close the epoch of stream id.
func (r *deskRig) ask(id string, expires time.Time) {
	r.T.Helper()
	if err := r.answers().Write(r.T.Context(), id, cluster.PartAsked,
		cluster.AskedRecord{Kind: task.RequestClose, Request: task.Request{Stream: id}, Expires: expires}); err != nil {
		r.T.Fatal(err)
	}
}

func (r *deskRig) await(id string, life time.Duration) error {
	r.T.Helper()
	return r.answers().Await(r.T.Context(), id, 0, life, fixtures.Patience)
}

// TestRequests: if two instances both believe that they own a shard, one of them carries out each request, once.
// Requests that are late, forged, or for another shard are not carried out.
func TestRequests(t *testing.T) {
	t.Parallel()
	r := newDeskRig(t)
	soon := time.Now().Add(time.Minute)
	var met atomic.Int32
	for _, name := range []string{"a", "b"} {
		r.desk(name, func(_ context.Context, q task.Request) error {
			met.Add(1)
			if q.Kind != task.RequestClose || q.Stream == "bad" {
				return failure.Haltf(failure.Gap, "no")
			}
			return nil
		})
	}
	for i := range 10 {
		id := fmt.Sprint(i)
		r.ask(id, soon)
		if err := r.await(id, fixtures.Patience); err != nil {
			t.Error(err)
		}
	}
	if n := met.Load(); n != 10 {
		t.Errorf("10 requests were met %d times", n)
	}
	// The same record again is the same request.
	r.ask("3", soon)
	r.ask("bad", soon)
	var h *failure.Halt
	if err := r.await("bad", fixtures.Patience); !errors.As(err, &h) || h.Reason != failure.Gap || h.Error() != "no" {
		t.Errorf("%v", err)
	}
	if n := met.Load(); n != 11 {
		t.Errorf("met %d times", n)
	}
	// No server takes these requests. When a later request has been carried out, they have been read.
	r.ask("late", time.Now().Add(-time.Second))
	for _, other := range []*cluster.RequestTopic{
		cluster.NewRequestTopic(r.Client, &config.Cluster{Group: "h"}, connect.InsecureKey(r.Seed), 0),
		cluster.NewRequestTopic(r.Client, r.cfg, connect.InsecureKey(r.Seed+1), 0),
	} {
		other.SetTopic("g.control")
		if err := other.Write(t.Context(), "forged", cluster.PartAsked,
			cluster.AskedRecord{Kind: task.RequestClose, Request: task.Request{}, Expires: soon}); err != nil {
			t.Fatal(err)
		}
	}
	moved := cluster.NewRequestTopic(r.Client, r.cfg, connect.InsecureKey(r.Seed), 1)
	key, value := []byte(cluster.RequestPrefix+"moved/"+cluster.PartAsked),
		fmt.Appendf(nil, `{"kind":"close","expires":%q}`, soon.Format(time.RFC3339))
	if _, err := r.Client.Produce(t.Context(), "g.control", 0,
		[]kafka.Message{{Key: key, Value: value, Time: time.UnixMilli(1), Headers: moved.Headers(key, value)}}); err !=
		nil {
		t.Fatal(err)
	}
	r.ask("last", soon)
	if err := r.await("last", fixtures.Patience); err != nil {
		t.Error(err)
	}
	if n := met.Load(); n != 12 {
		t.Errorf("met %d times", n)
	}
	for _, id := range []string{"late", "forged", "moved"} {
		if err := r.await(id, 50*time.Millisecond); err == nil ||
			!strings.Contains(err.Error(), "no instance accepted the request") {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestRequestTaken: a request that an instance took but did not answer before another one acquired the shard is not
// carried out again; a request that no instance took is.
func TestRequestTaken(t *testing.T) {
	t.Parallel()
	r := newDeskRig(t)
	soon := time.Now().Add(time.Minute)
	for _, id := range []string{"taken", "open", "answered"} {
		r.ask(id, soon)
	}
	for _, id := range []string{"taken", "answered"} {
		if err := r.answers().Write(t.Context(), id, cluster.PartTaken,
			cluster.TakenRecord{By: "gone", Instance: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.answers().Write(t.Context(), "answered", cluster.PartAnswered,
		task.Answer{Status: "success"}); err != nil {
		t.Fatal(err)
	}
	met := make(chan string, 10)
	r.desk("b", func(_ context.Context, q task.Request) error {
		met <- q.Stream
		return nil
	})
	if err := r.await("open", fixtures.Patience); err != nil {
		t.Error(err)
	}
	if err := r.await("answered", fixtures.Patience); err != nil {
		t.Error(err)
	}
	if err := r.await("taken", fixtures.Patience); err == nil ||
		!strings.Contains(err.Error(), "stopped, or lost the shard") {
		t.Error(err)
	}
	if len(met) != 1 || <-met != "open" {
		t.Errorf("%d requests were met", len(met)+1)
	}
}
