package stream

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
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// site is a daemon's state, with an input and an output topic of its own on any
// broker.
type site struct {
	t       *testing.T
	addrs   []string
	client  *kafka.Client
	dir     string
	in, out string
	from    string // of further settings of the input
	table   string // of further stream settings
	edit    *strings.Replacer
	log     *journal      // nil: the test's output alone
	fetch   int           // Options.FetchBytes
	look    time.Duration // Options.lookEvery
}

func newSite(t *testing.T, addrs []string, in string) *site {
	t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &site{t: t, addrs: addrs, client: c, dir: t.TempDir(), in: in, out: fmt.Sprint("dp-", time.Now().UnixNano())}
}

// file is the site's configuration. The digest of a stream does not depend on
// its output.
func (s *site) file() string {
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
`, s.addrs[0], filepath.Join(s.dir, "state"), filepath.Join(s.dir, "key"), s.in, s.from, s.out, s.table)
	if s.edit != nil {
		text = s.edit.Replace(text)
	}
	return text
}

// siteRun is a daemon in progress at a site.
type siteRun struct {
	t    *testing.T
	d    *Daemon
	stop context.CancelFunc
	done chan struct{}
	err  error // after done
}

// run starts a daemon with a fixed seed.
func (s *site) run() *siteRun {
	s.t.Helper()
	c, err := config.Parse("test.toml", []byte(s.file()))
	if err != nil {
		s.t.Fatal(err)
	}
	seed := uint64(7)
	logged := s.t.Output()
	if s.log != nil {
		logged = io.MultiWriter(logged, s.log)
	}
	d, err := New(Options{
		Config: c, Key: InsecureKey(seed), InsecureSeed: &seed, Version: "test",
		Hooks: Hooks{FetchBytes: s.fetch, LookEvery: s.look, Rotation: 200 * time.Millisecond},
		Log:   slog.New(slog.NewTextHandler(logged, nil)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &siteRun{t: s.t, d: d, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = d.Run(ctx)
		d.Close()
	}()
	s.t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// wait waits until the task's status is as it should be.
func (r *siteRun) wait(what string, ok func(TaskStatus) bool) {
	r.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(r.d.Status()[0]); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not reached: %+v", what, r.d.Status()[0])
		}
	}
}

func (r *siteRun) published(n uint64) {
	r.t.Helper()
	r.wait(fmt.Sprint("step ", n), func(s TaskStatus) bool { return s.Step >= n && s.Outbox == 0 && s.State == stateRunning })
}

func (r *siteRun) halts(reason string) {
	r.t.Helper()
	r.wait("a halt", func(s TaskStatus) bool { return s.State == stateHalted })
	if s := r.d.Status()[0]; s.Reason != reason {
		r.t.Fatalf("halted by %s, want %s: %s", s.Reason, reason, s.Message)
	}
}

// haltsAtStart waits for a halt that ends the run.
func (r *siteRun) haltsAtStart(reason string) {
	r.t.Helper()
	r.halts(reason)
	if <-r.done; !errors.Is(r.err, ErrHalted) {
		r.t.Fatalf("ended with %v", r.err)
	}
}

// ready is the status of the readiness probe.
func (r *siteRun) ready() int {
	r.t.Helper()
	res, err := http.Get("http://" + r.d.Addr() + "/-/ready")
	if err != nil {
		r.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

func (r *siteRun) end() {
	r.t.Helper()
	r.stop()
	if <-r.done; r.err != nil {
		r.t.Fatal(r.err)
	}
}

// traffic writes to a topic what the daemon has to take apart: committed and
// aborted transactions of two producers, interleaved with each other and with
// records outside of transactions, some of which are no rows at all.
type traffic struct {
	t         *testing.T
	rng       *rand.Rand
	plain     *kafkatest.Producer
	txns      [2]*kafkatest.Producer
	open      [2]bool
	sent      [2][]kafkatest.Record
	committed []kafkatest.Record
	slots     int64 // records and markers
	aborted   int
}

func newTraffic(t *testing.T, addrs []string, topic string) *traffic {
	w := &traffic{t: t, rng: rand.New(rand.NewPCG(5, 5)), plain: kafkatest.NewProducer(t, addrs, topic, 0, "")}
	for i := range w.txns {
		w.txns[i] = kafkatest.NewProducer(t, addrs, topic, 0, fmt.Sprint(topic, "-", i))
	}
	return w
}

func (w *traffic) batch() []kafkatest.Record {
	rs := make([]kafkatest.Record, 1+w.rng.IntN(40))
	for i := range rs {
		switch w.rng.IntN(20) {
		case 0: // a tombstone
			rs[i].Key = []byte("k")
		case 1:
			rs[i].Value = []byte(`{"amount": "none"}`)
		default:
			rs[i].Value = orderRecord(w.rng.IntN(1000))
		}
	}
	return rs
}

func (w *traffic) send(p *kafkatest.Producer, rs []kafkatest.Record) []kafkatest.Record {
	first := p.Send(rs...)
	for i := range rs {
		rs[i].Offset = first + int64(i)
	}
	w.slots += int64(len(rs))
	return rs
}

func (w *traffic) finish(i int, commit bool) {
	w.txns[i].End(commit)
	w.slots++
	if commit {
		w.committed = append(w.committed, w.sent[i]...)
	} else {
		w.aborted += len(w.sent[i])
	}
	w.open[i], w.sent[i] = false, nil
}

// step writes one batch, or ends a transaction.
func (w *traffic) step() {
	i := w.rng.IntN(3)
	switch {
	case i == 2:
		w.committed = append(w.committed, w.send(w.plain, w.batch())...)
	case w.open[i] && w.rng.IntN(3) == 0:
		w.finish(i, w.rng.IntN(2) == 0)
	default:
		if !w.open[i] {
			w.txns[i].Begin()
			w.open[i] = true
		}
		rs := w.batch()
		if w.rng.IntN(2) == 0 {
			// What counts in no case shows if it is counted.
			for j := range rs {
				rs[j].Value = []byte(`{"amount": 1e6, "items": 0, "weight": 0}`)
			}
		}
		w.sent[i] = append(w.sent[i], w.send(w.txns[i], rs)...)
		if string(rs[0].Value) == `{"amount": 1e6, "items": 0, "weight": 0}` {
			w.finish(i, false)
		}
	}
}

func (w *traffic) write(slots int64) {
	for end := w.slots + slots; w.slots < end; {
		w.step()
	}
}

// settle ends all transactions and waits until the log has their markers.
func (w *traffic) settle(s *site) {
	w.t.Helper()
	for i := range w.open {
		if w.open[i] {
			w.finish(i, i == 0)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		_, stable, end, err := s.client.Offsets(context.Background(), s.in, 0)
		if err == nil && stable == w.slots && end == w.slots {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the log is stable to %d and ends at %d, want %d: %v", stable, end, w.slots, err)
		}
	}
}

// topicRecord is a release as it lies in the output topic.
type topicRecord struct {
	key, value string
	headers    []kafka.Header
}

func (p topicRecord) equal(q topicRecord) bool {
	return p.key == q.key && p.value == q.value &&
		slices.EqualFunc(p.headers, q.headers, func(a, b kafka.Header) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) })
}

// output reads the output topic. A release may be there twice, but not two.
func (s *site) output() map[string]topicRecord {
	s.t.Helper()
	all := map[string]topicRecord{}
	err := s.client.ReadBack(context.Background(), s.out, 0, 0, func(rec *kafka.Record) error {
		p := topicRecord{key: string(rec.Key), value: string(rec.Value)}
		for _, h := range rec.Headers {
			p.headers = append(p.headers, kafka.Header{Key: h.Key, Value: slices.Clone(h.Value)})
		}
		if was, ok := all[p.key]; ok && !was.equal(p) {
			s.t.Errorf("two releases %s:\n%s\n%s", p.key, was.value, p.value)
		}
		all[p.key] = p
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// expect compares the releases of the only epoch with what the log calls for:
// every step once, with its offsets, the number of committed records in it, and
// their mean as far as the noise lets it show.
func (w *traffic) expect(got map[string]topicRecord) {
	w.t.Helper()
	steps := w.slots / 100
	rows := make([]uint64, steps)
	sum := make([][3]float64, steps)
	for _, r := range w.committed {
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
		if err := json.Unmarshal([]byte(p.value), &rel); err != nil {
			w.t.Fatal(err)
		}
		if rel.Step != t+1 || rel.Rows != rows[t] || rel.Offsets != [2]int64{100 * t, 100*t + 100} || rel.Covers != [2]int64{0, 100*t + 100} {
			w.t.Errorf("release %s: step %d, %d rows, offsets %v, covers %v; want %d rows", p.key, rel.Step, rel.Rows, rel.Offsets, rel.Covers, rows[t])
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
