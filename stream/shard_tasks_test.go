package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// waitedFor is a context that signals when a goroutine waits for its end.
type waitedFor struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (w *waitedFor) Done() <-chan struct{} {
	w.once.Do(func() { close(w.asked) })
	return w.Context.Done()
}

// TestPart: when the tasks of a shard leave a process, nothing of them remains: no status, no series, no share of
// shared resources. A request that waits for one of them gets an error. The tasks may come back.
func TestPart(t *testing.T) {
	t.Parallel()
	for _, metrics := range []string{"task", "aggregate"} {
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "in", partition = [0, 1]`,
				`topic = "orders.dp"`, `topic = "orders.dp", partition = 0`))
		r.Http = "metrics = \"" + metrics + "\"\n"
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), "in", 2, nil))
		d, err := stream.New(r.Options())
		fixtures.Must(t, err)
		t.Cleanup(d.Close)
		get := func(path string) string {
			w := httptest.NewRecorder()
			(*d.Server()).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Body.String()
		}
		for p := range int32(2) {
			var records []kafka.Message
			for i := range 250 {
				records = append(records, kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)})
			}
			_, err := r.Client.Produce(t.Context(), "in", p, records)
			fixtures.Must(t, err)
		}
		runs := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 2)
			for _, run := range (*d.Own()).Tasks() {
				go func() { done <- run.Run(ctx) }()
			}
			for late := time.Now().Add(fixtures.Patience); ; time.Sleep(time.Millisecond) {
				if s := d.Status(); len(s) == 2 && s[0].State == monitor.StateRunning &&
					s[1].State == monitor.StateRunning && s[0].Step > 0 && s[0].Outbox == 0 {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("not running: %+v\n%s", d.Status(), r.Log)
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
		first := (*d.Own()).Tasks()[0]
		if text := get("/metrics"); metrics == "task" && !strings.Contains(text, `stream="orders"`) ||
			!strings.Contains(get("/api/v1/streams/orders"), "orders") {
			t.Fatalf("the tasks are not shown: %s", text)
		}
		asked := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), fixtures.Patience)
		defer cancel()
		waits := &waitedFor{Context: ctx, asked: make(chan struct{})}
		go func() {
			asked <- d.Ask(waits, ctx, task.Request{Kind: task.RequestClose, Stream: "orders"})
		}()
		<-waits.asked
		d.Part((*d.Own()))
		if err := <-asked; !errors.Is(err, task.ErrGone) {
			t.Errorf("a request to a task that left: %v", err)
		}
		if s := d.Status(); len(s) != 0 {
			t.Errorf("status %+v", s)
		}
		if text := get("/metrics"); strings.Contains(text, `stream="orders"`) ||
			strings.Contains(text, "streamdp_lag_records") {
			t.Errorf("%s: series remain: %s", metrics, text)
		}
		if strings.Contains(get("/api/v1/streams/orders"), "success") {
			t.Error("the stream is still shown")
		}
		if n := d.Process().TaskCount.Load(); n != 0 || first.Expected != 0 {
			t.Errorf("%d tasks have a share, %d readers of the first", n, first.Expected)
		}
		if n := first.Out.Partition.Served(); n != 0 {
			t.Errorf("the output's partition serves %d tasks", n)
		}
		if n := d.Process().Metrics.Tasks(); n != 0 {
			t.Errorf("%d numbers of tasks are kept", n)
		}
		select {
		case <-first.Gone():
		default:
			t.Error("the task does not know that it left")
		}

		(*d.Own()) = stream.NewShardTasks(d.Process(), (*d.Own()).Disk, (*d.Own()).Dir)
		fixtures.Must(t, (*d.Own()).OpenLedger())
		fixtures.Must(t, (*d.Own()).Prepare(nil))
		d.Join((*d.Own()))
		runs()()
		if s := d.Status(); len(s) != 2 || s[0].Epoch != 1 {
			t.Errorf("after they came back: %+v", s)
		}
	}
}
