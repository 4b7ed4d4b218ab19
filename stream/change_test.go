package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// ofTopic is ordersStream under another name, over a topic of that name.
func ofTopic(name string) string { return strings.ReplaceAll(ordersStream, "orders", name) }

// streamsNow makes the streams of a running daemon those of some tables. Streams that were there
// stay the same where their table does, which was before.
func streamsNow(x *running, open bool, before, after []string) error {
	x.t.Helper()
	text := func(tables []string) string { return strings.Join(tables, "") }
	r := x.r.sibling(text(after))
	r.dir = x.r.dir
	c := r.options().Config
	return x.d.change(func(now *config.Config) (*config.Config, bool, error) {
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

// goroutines returns a function that counts the goroutines that the test has started, and
// those that they have started, beside other tests that run.
func goroutines(t testing.TB) (count func() int) {
	t.Helper()
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels("test", t.Name())))
	label := fmt.Sprintf("{%q:%q}", "test", t.Name())
	return func() (n int) {
		var all bytes.Buffer
		must(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		for stack := range strings.SplitSeq(all.String(), "\n\n") {
			if !strings.Contains(stack, label) {
				continue
			}
			for line := range strings.Lines(stack) { // "goroutine profile: total N" is above the first one
				var alike int
				if _, err := fmt.Sscanf(line, "%d @ ", &alike); err == nil {
					n += alike
				}
			}
		}
		if n == 0 {
			t.Fatal("the goroutine that counts is not among those that the test has started")
		}
		return n
	}
}

// TestChange: streams come, go and change while others run, and while records come in. One that
// comes back goes on with its epoch; every release is that of a run without interruption. Of one
// that is gone nothing is left in the process. None opens an epoch unless that is allowed.
func TestChange(t *testing.T) {
	t.Parallel()
	own := goroutines(t)
	r := newRig(t, ordersStream+ofTopic("sales"))
	for _, topic := range []string{"sales", "visits", "returns"} {
		must(t, r.client.CreateTopic(t.Context(), topic, 1, nil))
	}
	produced := map[string]int{}
	produce := func(topic string, n int) {
		var list []kafka.Message
		for range n {
			list = append(list, kafka.Message{Value: orderRecord(produced[topic]), Time: time.UnixMilli(1)})
			produced[topic]++
		}
		_, err := r.client.Produce(t.Context(), topic, 0, list)
		must(t, err)
	}
	x := r.start()
	produce("orders", 500)
	produce("sales", 450)
	x.reaches("orders", 5)
	x.reaches("sales", 4)
	orders := x.in.Tasks()[0]

	orderTable, salesTable := ordersStream, ofTopic("sales")
	metrics := func() string {
		w := httptest.NewRecorder()
		x.d.server.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	both, one := []string{orderTable, salesTable}, []string{orderTable}

	produce("sales", 30)
	must(t, streamsNow(x, false, both, one))
	if s := x.d.Status(); len(s) != 1 || s[0].Stream != "orders" || x.in.Tasks()[0] != orders {
		t.Fatalf("after one was removed: %+v", s)
	}
	if text := metrics(); strings.Contains(text, `stream="sales"`) || !strings.Contains(text, `stream="orders"`) {
		t.Error("series of a stream that is gone, or none of one that is there")
	}
	if n := x.in.Process.tails.len(); n != 1 || x.in.Process.taskCount.Load() != 1 || x.d.own.running.Load() != 1 {
		t.Errorf("%d outputs are served, %d tasks have a share", n, x.in.Process.taskCount.Load())
	}
	if err := x.d.closeAbandoned(t.Context(), core.Task{Stream: "sales"}, request{kind: requestOpen}); err == nil || x.d.own.other(core.Task{Stream: "sales"}) == nil {
		t.Error("the epoch of the stream that is gone is not known as open:", err)
	}
	gone := own()
	produce("sales", 100)
	produce("orders", 100)

	must(t, streamsNow(x, false, one, both))
	produce("sales", 120)
	x.reaches("sales", 7)
	for range 5 {
		produce("sales", 20)
		must(t, streamsNow(x, false, both, one))
		produce("orders", 20)
		must(t, streamsNow(x, false, one, both))
	}
	must(t, streamsNow(x, false, both, one))
	for late := time.Now().Add(patience); own() > gone+3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d goroutines, %d after the stream had gone the first time", own(), gone)
		}
	}
	must(t, streamsNow(x, false, one, both))
	x.reaches("sales", 8)
	if kinds := r.kinds(); kinds != "open open" {
		t.Fatalf("the ledger has %s", kinds)
	}

	// The output moves.
	moved := with(salesTable, `"sales.dp"`, `"moved.dp"`)
	must(t, streamsNow(x, false, both, []string{orderTable, moved}))
	produce("sales", 200)
	x.reaches("sales", 10)
	before := judge(t, r.output("sales.dp"))
	for _, p := range r.output("moved.dp") {
		if _, again := before.bytes[p.key]; again {
			t.Errorf("%s is in both outputs", p.key)
		}
	}
	must(t, streamsNow(x, false, []string{orderTable, moved}, both))

	// A new one waits for somebody who opens its epoch.
	produce("visits", 100)
	three := append(slices.Clone(both), ofTopic("visits"))
	must(t, streamsNow(x, false, both, three))
	s := x.of("visits", "halted", func(s TaskStatus) bool { return s.State == stateHalted })
	if s.Reason != haltUnopened || !strings.Contains(s.Message, "streamdp epoch open visits") {
		t.Errorf("a new stream: %s: %s", s.Reason, s.Message)
	}
	if kinds := r.kinds(); kinds != "open open" {
		t.Fatalf("the ledger has %s", kinds)
	}
	must(t, x.controlOf("visits", requestOpen, OpenRequest{}))
	x.reaches("visits", 1)

	// Another one need not.
	produce("returns", 100)
	four := append(slices.Clone(three), ofTopic("returns"))
	must(t, streamsNow(x, true, three, four))
	x.reaches("returns", 1)

	if err := x.d.change(func(*config.Config) (*config.Config, bool, error) { return nil, false, errors.New("no") }); err == nil || err.Error() != "no" {
		t.Error(err)
	}
	must(t, x.d.own.alone(t.Context()))
	if err := streamsNow(x, true, four, one); !errors.Is(err, errClosing) || len(x.d.Status()) != 4 {
		t.Errorf("while an epoch is closed: %v, %d tasks", err, len(x.d.Status()))
	}
	x.d.own.free()
	x.reaches("orders", uint64(produced["orders"]/100))
	x.end()
	if err := streamsNow(x, true, four, one); !errors.Is(err, errStopping) {
		t.Error("after the end:", err)
	}

	// The output of the one that moved is in two topics.
	whole := r.sibling(orderTable + with(salesTable, `"sales.dp"`, `"sales.whole.dp"`))
	whole.toml = with(whole.toml, `"orders.dp"`, `"orders.whole.dp"`)
	y := whole.start()
	y.reaches("orders", uint64(produced["orders"]/100))
	y.reaches("sales", uint64(produced["sales"]/100))
	y.end()
	r.history("orders.dp").equals(t, whole.history("orders.whole.dp"))
	parts := judge(t, append(r.output("sales.dp"), r.output("moved.dp")...))
	parts.faultless(t)
	parts.equals(t, whole.history("sales.whole.dp"))
}

// TestRunEndsChange: a change that is under way when the daemon ends does not begin anything after
// that, nor does it hold up the end.
func TestRunEndsChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 100)
	x := r.start()
	x.published(1)
	under := make(chan struct{})
	changed := make(chan error)
	ended, cancel := context.WithCancel(t.Context())
	go func() {
		changed <- x.d.change(func(now *config.Config) (*config.Config, bool, error) {
			close(under)
			<-ended.Done()
			c := r.sibling(ordersStream).options().Config
			return c, true, nil
		})
	}()
	<-under
	x.stop()
	cancel()
	if err := <-changed; err != nil {
		t.Error(err)
	}
	if err := x.ends(); err != nil {
		t.Error(err)
	}
}
