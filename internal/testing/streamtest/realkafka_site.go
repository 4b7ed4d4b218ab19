package streamtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Site is a daemon's state directory, with an input and an output topic that only it uses, on any broker.
type Site struct {
	T       *testing.T
	Addrs   []string
	Client  *kafka.Client
	Dir     string
	In, Out string
	From    string // further settings of the input
	Table   string // further settings of the stream
	Edit    *strings.Replacer
	Log     *fixtures.Journal // nil: logs go to the test's output only
	Fetch   int               // Options.FetchBytes
	Look    time.Duration     // Options.lookEvery
}

func NewSite(t *testing.T, addrs []string, in string) *Site {
	t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &Site{T: t, Addrs: addrs, Client: c, Dir: t.TempDir(), In: in, Out: fmt.Sprint("dp-", time.Now().UnixNano())}
}

// File returns the site's configuration. The digest of a stream does not depend on its output.
func (s *Site) File() string {
	text := fmt.Sprintf(`
[kafka]
brokers = [%q]
[state]
dir = %q
key_file = %q
commit_interval = "10ms"
[http]
listen = "127.0.0.1:0"
[stream.orders]
input  = { topic = %q, codec = "json", columns = ["amount", "items", "weight"]%s }
output = { topic = %q }
centre = [40.0, 3.0, 1.2]
scale  = [80.0, 5.0, 2.0]
step   = 100
%s
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.orders.moments]
clip = 1.0
`, s.Addrs[0], filepath.Join(s.Dir, "state"), filepath.Join(s.Dir, "key"), s.In, s.From, s.Out, s.Table)
	if s.Edit != nil {
		text = s.Edit.Replace(text)
	}
	return text
}

// SiteRun is a running daemon of a site.
type SiteRun struct {
	T    *testing.T
	D    *stream.Daemon
	Stop context.CancelFunc
	Done chan struct{}
	Err  error // set when done is closed
}

// Run starts a daemon with a fixed seed.
func (s *Site) Run() *SiteRun {
	s.T.Helper()
	c, err := config.Parse("test.toml", []byte(s.File()))
	if err != nil {
		s.T.Fatal(err)
	}
	seed := uint64(7)
	logged := s.T.Output()
	if s.Log != nil {
		logged = io.MultiWriter(logged, s.Log)
	}
	d, err := stream.New(stream.Options{
		Config: c, Key: connect.InsecureKey(seed), InsecureSeed: &seed, Version: "test",
		Hooks: stream.Hooks{FetchBytes: s.Fetch, LookEvery: s.Look, Rotation: 200 * time.Millisecond},
		Log:   slog.New(slog.NewTextHandler(logged, nil)),
	})
	if err != nil {
		s.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &SiteRun{T: s.T, D: d, Stop: cancel, Done: make(chan struct{})}
	go func() {
		defer close(r.Done)
		r.Err = d.Run(ctx)
		d.Close()
	}()
	s.T.Cleanup(func() { cancel(); <-r.Done })
	return r
}

// Wait waits until ok accepts the task's status.
func (r *SiteRun) Wait(what string, ok func(monitor.TaskStatus) bool) {
	r.T.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(r.D.Status()[0]); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.T.Fatalf("%s: not reached: %+v", what, r.D.Status()[0])
		}
	}
}

func (r *SiteRun) Published(n uint64) {
	r.T.Helper()
	r.Wait(fmt.Sprint("step ", n), func(s monitor.TaskStatus) bool {
		return s.Step >= n && s.Outbox == 0 && s.State == monitor.StateRunning
	})
}

func (r *SiteRun) Halts(reason string) {
	r.T.Helper()
	r.Wait("a halt", func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted })
	if s := r.D.Status()[0]; s.Reason != reason {
		r.T.Fatalf("halted by %s, want %s: %s", s.Reason, reason, s.Message)
	}
}

// HaltsAtStart waits for a halt that ends the run.
func (r *SiteRun) HaltsAtStart(reason string) {
	r.T.Helper()
	r.Halts(reason)
	if <-r.Done; !errors.Is(r.Err, failure.ErrHalted) {
		r.T.Fatalf("ended with %v", r.Err)
	}
}

// Ready returns the HTTP status of the readiness probe.
func (r *SiteRun) Ready() int {
	r.T.Helper()
	res, err := http.Get("http://" + r.D.Addr() + "/-/ready")
	if err != nil {
		r.T.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

func (r *SiteRun) End() {
	r.T.Helper()
	r.Stop()
	if <-r.Done; r.Err != nil {
		r.T.Fatal(r.Err)
	}
}

// traffic writes records of many kinds to a topic: committed and aborted transactions of two producers, interleaved
// with each other and with records outside of transactions. Some records are invalid rows.
type traffic struct {
	t         *testing.T
	rng       *rand.Rand
	plain     *kafkatest.Producer
	Txns      [2]*kafkatest.Producer
	Open      [2]bool
	Sent      [2][]kafkatest.Record
	Committed []kafkatest.Record
	Slots     int64 // records and markers
	Aborted   int
}

func NewTraffic(t *testing.T, addrs []string, topic string) *traffic {
	w := &traffic{t: t, rng: rand.New(rand.NewPCG(5, 5)), plain: kafkatest.NewProducer(t, addrs, topic, 0, "")}
	for i := range w.Txns {
		w.Txns[i] = kafkatest.NewProducer(t, addrs, topic, 0, fmt.Sprint(topic, "-", i))
	}
	return w
}

func (w *traffic) Batch() []kafkatest.Record {
	rs := make([]kafkatest.Record, 1+w.rng.IntN(40))
	for i := range rs {
		switch w.rng.IntN(20) {
		case 0: // null value
			rs[i].Key = []byte("k")
		case 1:
			rs[i].Value = []byte(`{"amount": "none"}`)
		default:
			rs[i].Value = fixtures.OrderRecord(w.rng.IntN(1000))
		}
	}
	return rs
}

func (w *traffic) Send(p *kafkatest.Producer, rs []kafkatest.Record) []kafkatest.Record {
	first := p.Send(rs...)
	for i := range rs {
		rs[i].Offset = first + int64(i)
	}
	w.Slots += int64(len(rs))
	return rs
}

func (w *traffic) Finish(i int, commit bool) {
	w.Txns[i].End(commit)
	w.Slots++
	if commit {
		w.Committed = append(w.Committed, w.Sent[i]...)
	} else {
		w.Aborted += len(w.Sent[i])
	}
	w.Open[i], w.Sent[i] = false, nil
}

// step writes one batch, or ends a transaction.
func (w *traffic) step() {
	i := w.rng.IntN(3)
	switch {
	case i == 2:
		w.Committed = append(w.Committed, w.Send(w.plain, w.Batch())...)
	case w.Open[i] && w.rng.IntN(3) == 0:
		w.Finish(i, w.rng.IntN(2) == 0)
	default:
		if !w.Open[i] {
			w.Txns[i].Begin()
			w.Open[i] = true
		}
		rs := w.Batch()
		if w.rng.IntN(2) == 0 {
			// Aborted records have a value that would visibly change the result if they counted.
			for j := range rs {
				rs[j].Value = []byte(`{"amount": 1e6, "items": 0, "weight": 0}`)
			}
		}
		w.Sent[i] = append(w.Sent[i], w.Send(w.Txns[i], rs)...)
		if string(rs[0].Value) == `{"amount": 1e6, "items": 0, "weight": 0}` {
			w.Finish(i, false)
		}
	}
}

func (w *traffic) Write(slots int64) {
	for end := w.Slots + slots; w.Slots < end; {
		w.step()
	}
}

// Settle ends all transactions and waits until the log has their markers.
func (w *traffic) Settle(s *Site) {
	w.t.Helper()
	for i := range w.Open {
		if w.Open[i] {
			w.Finish(i, i == 0)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		at, err := s.Client.Offsets(context.Background(), s.In, 0)
		if err == nil && at.Stable == w.Slots && at.End == w.Slots {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the log is stable to %d and ends at %d, want %d: %v", at.Stable, at.End, w.Slots, err)
		}
	}
}

// topicRecord is a release in the output topic.
type topicRecord struct {
	key, Value string
	headers    []kafka.Header
}

func (p topicRecord) Equal(q topicRecord) bool {
	return p.key == q.key && p.Value == q.Value &&
		slices.EqualFunc(p.headers, q.headers,
			func(a, b kafka.Header) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) })
}

// Output reads the output topic. A release may occur twice, but not with two different values.
func (s *Site) Output() map[string]topicRecord {
	s.T.Helper()
	all := map[string]topicRecord{}
	err := s.Client.ReadBack(context.Background(), s.Out, 0, 0, func(rec *kafka.Record) error {
		p := topicRecord{key: string(rec.Key), Value: string(rec.Value)}
		for _, h := range rec.Headers {
			p.headers = append(p.headers, kafka.Header{Key: h.Key, Value: slices.Clone(h.Value)})
		}
		if was, ok := all[p.key]; ok && !was.Equal(p) {
			s.T.Errorf("two different releases %s:\n%s\n%s", p.key, was.Value, p.Value)
		}
		all[p.key] = p
		return nil
	})
	if err != nil {
		s.T.Fatal(err)
	}
	return all
}

// Expect compares the releases of the only epoch with the log. Every step must occur once, with its offsets and its
// number of committed records. The means must be as close to the true ones as the noise permits.
func (w *traffic) Expect(got map[string]topicRecord) {
	w.t.Helper()
	steps := w.Slots / 100
	rows := make([]uint64, steps)
	sum := make([][3]float64, steps)
	for _, r := range w.Committed {
		t := r.Offset / 100
		if t >= steps {
			continue
		}
		rows[t]++
		var v struct{ Amount, Items, Weight *float64 }
		if json.Unmarshal(r.Value, &v) != nil || v.Amount == nil {
			continue
		}
		x := [3]float64{(*v.Amount - 40) / 80, (*v.Items - 3) / 5, (*v.Weight - 1.2) / 2}
		norm := math.Max(1, math.Sqrt(x[0]*x[0]+x[1]*x[1]+x[2]*x[2]))
		for j := range x {
			sum[t][j] += x[j] / norm
		}
	}
	if len(got) != int(steps) {
		w.t.Errorf("%d releases, want %d", len(got), steps)
	}
	epoch := uint64(0)
	for key := range got {
		_, epoch, _, _ = core.ParseIdentity([]byte(key))
		break
	}
	var total [3]float64
	var n uint64
	for t := range steps {
		p, ok := got[fmt.Sprintf("orders/0/%d/%d", epoch, t+1)]
		if !ok {
			w.t.Errorf("no release of step %d", t+1)
			continue
		}
		var rel struct {
			Step    int64
			Rows    uint64
			Offsets [2]int64
			Covers  [2]int64
			Values  struct {
				Mean struct {
					Data []float64
					SE   float64
				}
			}
		}
		if err := json.Unmarshal([]byte(p.Value), &rel); err != nil {
			w.t.Fatal(err)
		}
		if rel.Step != t+1 || rel.Rows != rows[t] || rel.Offsets != [2]int64{100 * t, 100*t + 100} ||
			rel.Covers != [2]int64{0, 100*t + 100} {
			w.t.Errorf("release %s: step %d, %d rows, offsets %v, covers %v; want %d rows", p.key, rel.Step, rel.Rows,
				rel.Offsets, rel.Covers, rows[t])
		}
		n += rows[t]
		for j := range total {
			total[j] += sum[t][j]
			if z := (rel.Values.Mean.Data[j] - total[j]/float64(n)) / rel.Values.Mean.SE; math.Abs(z) > 6.6 {
				w.t.Errorf("release %s: mean %d is %.3f standard errors off", p.key, j, z)
			}
		}
	}
}
