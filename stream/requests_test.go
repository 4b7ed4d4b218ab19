package stream

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
)

// deskRig is one partition of a control topic.
type deskRig struct {
	*rig
	cfg *config.Cluster
}

func newDeskRig(t *testing.T) *deskRig {
	r := newRig(t, ordersStream)
	if err := r.broker.CreateTopic(t.Context(), "g.control", 1, nil); err != nil {
		t.Fatal(err)
	}
	return &deskRig{r, &config.Cluster{Group: "g", Shards: 1}}
}

func (r *deskRig) answers() *answers { return newAnswers(r.client, r.cfg, InsecureKey(r.seed), 0) }

// desk runs a desk until the end of the test. It has read what was there when desk returns.
func (r *deskRig) desk(name string, meet func(ctx context.Context, kind string, q ControlRequest) error) {
	r.t.Helper()
	// It answers this once it has read that.
	if err := r.answers().write(r.t.Context(), "before "+name, partTaken, takenRecord{"gone", "gone"}); err != nil {
		r.t.Fatal(err)
	}
	d := newDesk(r.answers(), slog.New(slog.NewTextHandler(io.Discard, nil)), name, time.Now, meet)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	if err := r.await("before "+name, patience); err == nil || !strings.Contains(err.Error(), "has ended, or lost the shard") {
		r.t.Error(err)
	}
}

// ask writes a request to close the epoch of stream id.
func (r *deskRig) ask(id string, expires time.Time) {
	r.t.Helper()
	if err := r.answers().write(r.t.Context(), id, partAsked, askedRecord{requestClose, ControlRequest{Stream: id}, expires}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *deskRig) await(id string, life time.Duration) error {
	r.t.Helper()
	return r.answers().await(r.t.Context(), id, 0, life, patience)
}

// TestRequests: of two instances that both think that they own a shard one meets a request, once,
// and what is late, forged, or another shard's nobody meets.
func TestRequests(t *testing.T) {
	t.Parallel()
	r := newDeskRig(t)
	soon := time.Now().Add(time.Minute)
	var met atomic.Int32
	for _, name := range []string{"a", "b"} {
		r.desk(name, func(_ context.Context, kind string, q ControlRequest) error {
			met.Add(1)
			if kind != requestClose || q.Stream == "bad" {
				return halted(haltGap, "no")
			}
			return nil
		})
	}
	for i := range 10 {
		id := fmt.Sprint(i)
		r.ask(id, soon)
		if err := r.await(id, patience); err != nil {
			t.Error(err)
		}
	}
	if n := met.Load(); n != 10 {
		t.Errorf("10 requests were met %d times", n)
	}
	// The same again is the same request.
	r.ask("3", soon)
	r.ask("bad", soon)
	var h *halt
	if err := r.await("bad", patience); !errors.As(err, &h) || h.reason != haltGap || h.Error() != "no" {
		t.Errorf("%v", err)
	}
	if n := met.Load(); n != 11 {
		t.Errorf("met %d times", n)
	}
	// Nobody takes these. A request behind them is met, so they have been read.
	r.ask("late", time.Now().Add(-time.Second))
	for _, other := range []*answers{
		newAnswers(r.client, &config.Cluster{Group: "h"}, InsecureKey(r.seed), 0),
		newAnswers(r.client, r.cfg, InsecureKey(r.seed+1), 0),
	} {
		other.topic = "g.control"
		if err := other.write(t.Context(), "forged", partAsked, askedRecord{requestClose, ControlRequest{}, soon}); err != nil {
			t.Fatal(err)
		}
	}
	moved := newAnswers(r.client, r.cfg, InsecureKey(r.seed), 1)
	key, value := []byte(requestPrefix+"moved/"+partAsked), fmt.Appendf(nil, `{"kind":"close","expires":%q}`, soon.Format(time.RFC3339))
	if _, err := r.client.Produce(t.Context(), "g.control", 0, []kafka.Message{{Key: key, Value: value, Time: time.UnixMilli(1), Headers: []kafka.Header{{Key: requestHeader, Value: moved.mac(key, value)}}}}); err != nil {
		t.Fatal(err)
	}
	r.ask("last", soon)
	if err := r.await("last", patience); err != nil {
		t.Error(err)
	}
	if n := met.Load(); n != 12 {
		t.Errorf("met %d times", n)
	}
	for _, id := range []string{"late", "forged", "moved"} {
		if err := r.await(id, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no instance took the request") {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestRequestTaken: what an instance took and did not answer before another one acquired the shard is
// not met again, and one that nobody took is.
func TestRequestTaken(t *testing.T) {
	t.Parallel()
	r := newDeskRig(t)
	soon := time.Now().Add(time.Minute)
	for _, id := range []string{"taken", "open", "answered"} {
		r.ask(id, soon)
	}
	for _, id := range []string{"taken", "answered"} {
		if err := r.answers().write(t.Context(), id, partTaken, takenRecord{"gone", "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.answers().write(t.Context(), "answered", partAnswered, ControlAnswer{Status: "success"}); err != nil {
		t.Fatal(err)
	}
	met := make(chan string, 10)
	r.desk("b", func(_ context.Context, _ string, q ControlRequest) error {
		met <- q.Stream
		return nil
	})
	if err := r.await("open", patience); err != nil {
		t.Error(err)
	}
	if err := r.await("answered", patience); err != nil {
		t.Error(err)
	}
	if err := r.await("taken", patience); err == nil || !strings.Contains(err.Error(), "has ended, or lost the shard") {
		t.Error(err)
	}
	if len(met) != 1 || <-met != "open" {
		t.Errorf("%d requests were met", len(met)+1)
	}
}
