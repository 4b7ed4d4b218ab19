package stream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// waitedFor is a context that tells when somebody waits for its end.
type waitedFor struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (w *waitedFor) Done() <-chan struct{} {
	w.once.Do(func() { close(w.asked) })
	return w.Context.Done()
}

// TestPart: when the tasks of a shard leave a process, nothing of them is left in it: no status,
// no series, no share of what tasks share. A request that waits for one learns that. They may
// come again.
func TestPart(t *testing.T) {
	t.Parallel()
	for _, metrics := range []string{"task", "aggregate"} {
		r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "in", partition = [0, 1]`, `topic = "orders.dp"`, `topic = "orders.dp", partition = 0`))
		r.http = "metrics = \"" + metrics + "\"\n"
		must(t, r.client.CreateTopic(t.Context(), "in", 2, nil))
		d, err := New(r.options())
		must(t, err)
		t.Cleanup(d.Close)
		get := func(path string) string {
			w := httptest.NewRecorder()
			d.server.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Body.String()
		}
		for p := range int32(2) {
			var records []kafka.Message
			for i := range 250 {
				records = append(records, kafka.Message{Value: orderRecord(i), Time: time.UnixMilli(1)})
			}
			_, err := r.client.Produce(t.Context(), "in", p, records)
			must(t, err)
		}
		runs := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 2)
			for _, run := range d.own.tasks() {
				go func() { done <- run.run(ctx) }()
			}
			for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				if s := d.Status(); len(s) == 2 && s[0].State == stateRunning && s[1].State == stateRunning && s[0].Step > 0 && s[0].Outbox == 0 {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("not running: %+v\n%s", d.Status(), r.log)
				}
			}
			return func() {
				cancel()
				for range 2 {
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		runs()()
		first := d.own.tasks()[0]
		if text := get("/metrics"); metrics == "task" && !strings.Contains(text, `stream="orders"`) || !strings.Contains(get("/api/v1/streams/orders"), "orders") {
			t.Fatalf("nothing is shown: %s", text)
		}
		asked := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		waits := &waitedFor{Context: ctx, asked: make(chan struct{})}
		go func() {
			asked <- d.ask(waits, ctx, core.Task{Stream: "orders"}, request{kind: requestClose, reply: make(chan error, 1)})
		}()
		<-waits.asked
		d.part(d.own)
		if err := <-asked; !errors.Is(err, errGone) {
			t.Errorf("a request to a task that left: %v", err)
		}
		if s := d.Status(); len(s) != 0 {
			t.Errorf("status %+v", s)
		}
		if text := get("/metrics"); strings.Contains(text, `stream="orders"`) || strings.Contains(text, "streamdp_lag_records") {
			t.Errorf("%s: series are left: %s", metrics, text)
		}
		if strings.Contains(get("/api/v1/streams/orders"), "success") {
			t.Error("the stream is shown still")
		}
		if n := d.taskCount.Load(); n != 0 || first.expected != 0 {
			t.Errorf("%d tasks have a share, %d readers of the first", n, first.expected)
		}
		if n := first.out.tail.served(); n != 0 {
			t.Errorf("the output's tail serves %d tasks", n)
		}
		if n := d.metrics.tasks(); n != 0 {
			t.Errorf("%d numbers of tasks are kept", n)
		}
		select {
		case <-first.gone:
		default:
			t.Error("the task does not know that it left")
		}

		d.own = newCrew(&d.host, d.own.disk, d.own.dir)
		must(t, d.own.openLedger())
		must(t, d.own.prepare(nil))
		d.join(d.own)
		runs()()
		if s := d.Status(); len(s) != 2 || s[0].Epoch != 1 {
			t.Errorf("after they came back: %+v", s)
		}
	}
}
