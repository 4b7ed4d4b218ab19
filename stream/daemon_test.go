package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/internal/kafka/embedded"
)

// rig is a broker, a topic of records, and what a daemon needs to run on them.
type rig struct {
	t      testing.TB
	broker *embedded.Broker
	client *kafka.Client
	dir    string
	toml   string // the stream's tables
	log    io.Writer
}

const ordersStream = `
[stream.orders]
input  = { topic = "orders", codec = "json", columns = ["amount", "items", "weight"] }
output = { topic = "orders.dp" }
centre = [40.0, 3.0, 1.2]
scale  = [80.0, 5.0, 2.0]
step   = 100
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.orders.moments]
clip = 1.0
`

func newRig(t testing.TB, stream string) *rig {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{b.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &rig{t: t, broker: b, client: c, dir: t.TempDir(), toml: stream, log: testWriter{t}}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if testing.Verbose() {
		os.Stderr.Write(p)
	}
	return len(p), nil
}

// produce appends n JSON records, numbered from first.
func (r *rig) produce(first, n int) {
	r.t.Helper()
	var list []kafka.Message
	for i := first; i < first+n; i++ {
		list = append(list, kafka.Message{Value: orderRecord(i), Time: time.UnixMilli(1)})
	}
	if _, err := r.client.Produce(context.Background(), "orders", 0, list); err != nil {
		r.t.Fatal(err)
	}
}

func orderRecord(i int) []byte {
	return fmt.Appendf(nil, `{"amount": %d.25, "items": %d, "weight": 0.%d, "note": "x"}`, 20+i%60, 1+i%7, i%10)
}

// config parses the rig's configuration.
func (r *rig) config() *config.Config {
	r.t.Helper()
	text := fmt.Sprintf("[kafka]\nbrokers = [%q]\n[state]\ndir = %q\nkey_file = %q\ncommit_interval = \"10ms\"\n[http]\nlisten = \"127.0.0.1:0\"\n%s",
		r.broker.Addr(), filepath.Join(r.dir, "state"), filepath.Join(r.dir, "key"), r.toml)
	c, err := config.Parse("test.toml", []byte(text))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// daemon makes a daemon over the rig's state with a fixed key.
func (r *rig) daemon(edit func(*Options)) (*Daemon, error) {
	o := Options{
		Config: r.config(), Key: &[32]byte{7}, Version: "test",
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	if edit != nil {
		edit(&o)
	}
	return New(o)
}

// run runs a daemon until the condition holds, and returns what Run did.
func (r *rig) run(until func(*Daemon) bool, edit func(*Options)) error {
	r.t.Helper()
	d, err := r.daemon(edit)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(2 * time.Millisecond):
			if until(d) {
				cancel()
				return <-done
			}
		}
		if ctx.Err() != nil {
			r.t.Fatalf("not reached: %+v", d.Status())
		}
	}
}

// step waits until a step is published.
func step(n uint64) func(*Daemon) bool {
	return func(d *Daemon) bool {
		s := d.Status()[0]
		return s.Step >= n && s.Outbox == 0
	}
}

// releases reads the output topic.
func (r *rig) releases() map[string][]string {
	r.t.Helper()
	out := map[string][]string{}
	err := r.client.ReadBack(context.Background(), "orders.dp", 0, 0, func(rec *kafka.Record) error {
		out[string(rec.Key)] = append(out[string(rec.Key)], string(rec.Value))
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func TestDaemonEndToEnd(t *testing.T) {
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	if err := r.run(step(10), nil); err != nil {
		t.Fatal(err)
	}
	r.produce(1050, 1000)
	if err := r.run(step(20), nil); err != nil {
		t.Fatal(err)
	}
	got := r.releases()
	if len(got) != 20 {
		t.Fatalf("%d releases, want 20", len(got))
	}
	var rel map[string]any
	if err := json.Unmarshal([]byte(got["orders/0/1/20"][0]), &rel); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got["orders/0/1/20"][0], `"rows":100,"offsets":[1900,2000],"covers":[0,2000]`) {
		t.Errorf("release 20: %s", got["orders/0/1/20"][0])
	}
	t.Log(got["orders/0/1/20"][0])
}
