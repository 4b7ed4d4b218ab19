package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// ofTopic returns OrdersStream under another name, over a topic of that name.
func ofTopic(name string) string { return strings.ReplaceAll(fixtures.OrdersStream, "orders", name) }

// streamsNow changes the streams of a running daemon to those of the tables in after. A stream whose table is in before
// keeps its pointer.
func streamsNow(x *streamtest.Running, open bool, before, after []string) error {
	x.T.Helper()
	text := func(tables []string) string { return strings.Join(tables, "") }
	r := x.R.Sibling(text(after))
	r.Dir = x.R.Dir
	c := r.Options().Config
	return x.D.Change(func(now *config.Config) (*config.Config, bool, error) {
		for i, s := range c.Streams {
			same := func(table string) bool { return strings.Contains(table, "[stream."+s.Name+"]") }
			was, is := slices.IndexFunc(before, same), slices.IndexFunc(after, same)
			if was >= 0 && before[was] == after[is] {
				c.Streams[i] = now.Stream(s.Name)
			}
		}
		return c, open, nil
	})
}

// goroutines returns a function that counts the goroutines started by this test, directly or indirectly. Goroutines of
// other tests do not count.
func goroutines(t testing.TB) (count func() int) {
	t.Helper()
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	label := fmt.Sprintf("{%q:%q}", "test", t.Name())
	return func() (n int) {
		var all bytes.Buffer
		fixtures.Must(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		for stack := range strings.SplitSeq(all.String(), "\n\n") {
			if !strings.Contains(stack, label) {
				continue
			}
			for line := range strings.Lines(stack) { // the line before the first stack is "goroutine profile: total N"
				var alike int
				if _, err := fmt.Sscanf(line, "%d @ ", &alike); err == nil {
					n += alike
				}
			}
		}
		if n == 0 {
			t.Fatal("the counting goroutine is not among those of the test")
		}
		return n
	}
}

// TestChange adds, removes and changes streams while others run under load. A stream that is added again continues its
// epoch. Every release equals that of an uninterrupted run. A removed stream leaves nothing in the process. No stream
// opens an epoch unless that is allowed.
func TestChange(t *testing.T) {
	t.Parallel()
	own := goroutines(t)
	r := streamtest.NewRig(t, fixtures.OrdersStream+ofTopic("sales"))
	for _, topic := range []string{"sales", "visits", "returns"} {
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), topic, 1, nil))
	}
	produced := map[string]int{}
	produce := func(topic string, n int) {
		var list []kafka.Message
		for range n {
			list = append(list, kafka.Message{Value: fixtures.OrderRecord(produced[topic]), Time: time.UnixMilli(1)})
			produced[topic]++
		}
		_, err := r.Client.Produce(t.Context(), topic, 0, list)
		fixtures.Must(t, err)
	}
	x := r.Start()
	produce("orders", 500)
	produce("sales", 450)
	x.Reaches("orders", 5)
	x.Reaches("sales", 4)
	orders := x.In.Tasks()[0]

	orderTable, salesTable := fixtures.OrdersStream, ofTopic("sales")
	metrics := func() string {
		w := httptest.NewRecorder()
		(*x.D.Server()).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	both, one := []string{orderTable, salesTable}, []string{orderTable}

	produce("sales", 30)
	fixtures.Must(t, streamsNow(x, false, both, one))
	if s := x.D.Status(); len(s) != 1 || s[0].Stream != "orders" || x.In.Tasks()[0] != orders {
		t.Fatalf("after one was removed: %+v", s)
	}
	if text := metrics(); strings.Contains(text, `stream="sales"`) || !strings.Contains(text, `stream="orders"`) {
		t.Error("a removed stream still has series, or a present one has none")
	}
	if n := x.In.Process.Tails.Len(); n != 1 || x.In.Process.TaskCount.Load() != 1 || (*x.D.Own()).Running.Load() != 1 {
		t.Errorf("%d outputs are served, %d tasks have a share", n, x.In.Process.TaskCount.Load())
	}
	if err := x.D.CloseAbandoned(t.Context(), task.Request{Kind: task.RequestOpen, Stream: "sales"}); err == nil ||
		(*x.D.Own()).Other(core.Task{Stream: "sales"}) == nil {
		t.Error("the epoch of the removed stream is not known as open:", err)
	}
	gone := own()
	produce("sales", 100)
	produce("orders", 100)

	fixtures.Must(t, streamsNow(x, false, one, both))
	produce("sales", 120)
	x.Reaches("sales", 7)
	for range 5 {
		produce("sales", 20)
		fixtures.Must(t, streamsNow(x, false, both, one))
		produce("orders", 20)
		fixtures.Must(t, streamsNow(x, false, one, both))
	}
	fixtures.Must(t, streamsNow(x, false, both, one))
	for late := time.Now().Add(fixtures.Patience); own() > gone+3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d goroutines, %d after the stream had gone the first time", own(), gone)
		}
	}
	fixtures.Must(t, streamsNow(x, false, one, both))
	x.Reaches("sales", 8)
	if kinds := r.Kinds(); kinds != "open open" {
		t.Fatalf("the ledger has %s", kinds)
	}

	// The stream gets another output topic.
	moved := fixtures.With(salesTable, `"sales.dp"`, `"moved.dp"`)
	fixtures.Must(t, streamsNow(x, false, both, []string{orderTable, moved}))
	produce("sales", 200)
	x.Reaches("sales", 10)
	before := streamtest.Judge(t, r.Output("sales.dp"))
	for _, p := range r.Output("moved.dp") {
		if _, again := before.Bytes[p.Key]; again {
			t.Errorf("%s is in both outputs", p.Key)
		}
	}
	fixtures.Must(t, streamsNow(x, false, []string{orderTable, moved}, both))

	// A new stream waits until somebody opens its epoch.
	produce("visits", 100)
	three := append(slices.Clone(both), ofTopic("visits"))
	fixtures.Must(t, streamsNow(x, false, both, three))
	s := x.Of("visits", "halted", func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted })
	if s.Reason != failure.Unopened || !strings.Contains(s.Message, "streamdp epoch open visits") {
		t.Errorf("a new stream: %s: %s", s.Reason, s.Message)
	}
	if kinds := r.Kinds(); kinds != "open open" {
		t.Fatalf("the ledger has %s", kinds)
	}
	fixtures.Must(t, x.ControlOf("visits", task.RequestOpen, epoch.OpenRequest{}))
	x.Reaches("visits", 1)

	// Another new stream may open its epoch.
	produce("returns", 100)
	four := append(slices.Clone(three), ofTopic("returns"))
	fixtures.Must(t, streamsNow(x, true, three, four))
	x.Reaches("returns", 1)

	if err := x.D.Change(func(*config.Config) (*config.Config, bool, error) {
		return nil, false, errors.New("no")
	}); err == nil || err.Error() != "no" {
		t.Error(err)
	}
	fixtures.Must(t, (*x.D.Own()).Alone(t.Context()))
	if err := streamsNow(x, true, four, one); !errors.Is(err, stream.ErrClosing) || len(x.D.Status()) != 4 {
		t.Errorf("while an epoch is closed: %v, %d tasks", err, len(x.D.Status()))
	}
	(*x.D.Own()).Free()
	x.Reaches("orders", uint64(produced["orders"]/100))
	x.End()
	if err := streamsNow(x, true, four, one); !errors.Is(err, stream.ErrStopping) {
		t.Error("after the end:", err)
	}

	// The output of the moved stream is in two topics.
	whole := r.Sibling(orderTable + fixtures.With(salesTable, `"sales.dp"`, `"sales.whole.dp"`))
	whole.Toml = fixtures.With(whole.Toml, `"orders.dp"`, `"orders.whole.dp"`)
	y := whole.Start()
	y.Reaches("orders", uint64(produced["orders"]/100))
	y.Reaches("sales", uint64(produced["sales"]/100))
	y.End()
	r.History("orders.dp").Equals(t, whole.History("orders.whole.dp"))
	parts := streamtest.Judge(t, append(r.Output("sales.dp"), r.Output("moved.dp")...))
	parts.Faultless(t)
	parts.Equals(t, whole.History("sales.whole.dp"))
}

// TestRunEndsChange: if the daemon ends during a change, the change starts no more tasks and does not delay the end.
func TestRunEndsChange(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 100)
	x := r.Start()
	x.Published(1)
	under := make(chan struct{})
	changed := make(chan error)
	ended, cancel := context.WithCancel(t.Context())
	go func() {
		changed <- x.D.Change(func(now *config.Config) (*config.Config, bool, error) {
			close(under)
			<-ended.Done()
			c := r.Sibling(fixtures.OrdersStream).Options().Config
			return c, true, nil
		})
	}()
	<-under
	x.Stop()
	cancel()
	if err := <-changed; err != nil {
		t.Error(err)
	}
	if err := x.Ends(); err != nil {
		t.Error(err)
	}
}
