package stream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/internal/kafka/embedded"
	"streamdp/internal/race"
)

// slow skips what the default run has no time for.
func slow(t testing.TB) {
	t.Helper()
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("takes long: runs with STREAMDP_SLOW=1, which the CI script sets")
	}
}

// patience is how long a test waits for what must happen.
var patience = 60 * time.Second

func init() {
	if race.Enabled {
		patience *= 5
	}
}

// rig is a broker, a topic of records, and what daemons need to run on them.
type rig struct {
	t      testing.TB
	broker *embedded.Broker
	client *kafka.Client
	addr   string
	dir    string // state and key
	commit string // commit_interval
	toml   string // the streams' tables
	http   string // further lines of [http]
	seed   uint64
	log    *journal
	disk   disk
	fetch  int

	references int // uninterrupted runs so far
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

// with returns a stream's tables with texts replaced: old, new, old, new.
func with(toml string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(toml, pairs[i]) {
			panic("nothing to replace: " + pairs[i])
		}
		toml = strings.Replace(toml, pairs[i], pairs[i+1], 1)
	}
	return toml
}

// newRig starts a broker with the topic "orders".
func newRig(t testing.TB, toml string) *rig {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return newRigAt(t, b, b.Addr(), toml)
}

// newRigAt makes a rig at a broker, which may be shared.
func newRigAt(t testing.TB, b *embedded.Broker, addr, toml string) *rig {
	t.Helper()
	r := &rig{t: t, broker: b, addr: addr, dir: shortDir(t), commit: "10ms", toml: toml, seed: 7, log: &journal{}}
	r.client = dial(t, addr)
	return r
}

// shortDir is a temporary directory whose name leaves room for that of a
// socket, which may have 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func dial(t testing.TB, addr string) *kafka.Client {
	t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// sibling is a rig at the same broker with a state of its own.
func (r *rig) sibling(toml string) *rig {
	s := *r
	s.dir, s.toml, s.log = shortDir(r.t), toml, &journal{}
	return &s
}

// copyState makes the state directory of s a copy of r's, sockets left out.
func (r *rig) copyState(s *rig) {
	r.t.Helper()
	copyDir(r.t, filepath.Join(s.dir, "state"), filepath.Join(r.dir, "state"))
}

func copyDir(t testing.TB, to, from string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.Join(to, strings.TrimPrefix(path, from))
		if e.IsDir() {
			return os.MkdirAll(name, 0o700)
		}
		if !e.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// file returns the path of a file of the task orders-0.
func (r *rig) file(name string) string {
	return filepath.Join(r.dir, "state", "tasks", "orders-0", name)
}

// ledgerFile returns the path of the ledger.
func (r *rig) ledgerFile() string { return filepath.Join(r.dir, "state", "ledger.jsonl") }

// journal keeps what a daemon logs.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	if testing.Verbose() {
		os.Stderr.Write(p)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// text is the configuration file.
func (r *rig) text() []byte {
	return fmt.Appendf(nil, "[kafka]\nbrokers = [%q]\n[state]\ndir = %q\nkey_file = %q\ncommit_interval = %q\n[http]\nlisten = \"127.0.0.1:0\"\n%s\n%s",
		r.addr, filepath.Join(r.dir, "state"), filepath.Join(r.dir, "key"), r.commit, r.http, r.toml)
}

func (r *rig) options() Options {
	r.t.Helper()
	c, err := config.Parse("test.toml", r.text())
	if err != nil {
		r.t.Fatal(err)
	}
	return Options{
		Config: c, Key: InsecureKey(r.seed), InsecureSeed: &r.seed, Version: "test", FetchBytes: r.fetch, disk: r.disk,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// running is a daemon that runs.
type running struct {
	t      testing.TB
	r      *rig
	d      *Daemon
	stop   context.CancelFunc
	wake   chan struct{}
	done   chan struct{}
	result error
}

// start starts a daemon over the rig's state.
func (r *rig) start(edits ...func(*Options)) *running {
	r.t.Helper()
	x, err := r.try(edits...)
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

func (r *rig) try(edits ...func(*Options)) (*running, error) {
	r.t.Helper()
	x := &running{t: r.t, r: r, wake: make(chan struct{}, 1), done: make(chan struct{})}
	o := r.options()
	o.observe = func() { signal(x.wake) }
	for _, edit := range edits {
		edit(&o)
	}
	var err error
	if x.d, err = New(o); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	x.stop = stop
	go func() {
		x.result = x.d.Run(ctx)
		x.d.Close()
		close(x.done)
	}()
	r.t.Cleanup(func() { stop(); <-x.done })
	return x, nil
}

// until waits until the first task's status is as wanted.
func (x *running) until(what string, ok func(TaskStatus) bool) {
	x.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for !ok(x.d.Status()[0]) {
		select {
		case <-x.wake:
		case <-x.done:
			if !ok(x.d.Status()[0]) {
				x.t.Fatalf("the daemon ended before %s: %v\n%+v\n%s", what, x.result, x.d.Status()[0], x.r.log)
			}
		case <-late.C:
			x.t.Fatalf("not reached: %s: %+v\n%s", what, x.d.Status()[0], x.r.log)
		}
	}
}

// published waits until a step is published, and everything before it.
func (x *running) published(step uint64) {
	x.t.Helper()
	x.until(fmt.Sprintf("step %d is published", step), func(s TaskStatus) bool { return s.Step >= step && s.Outbox == 0 && !s.Comparing })
}

// halts waits for a halt and checks its reason and words.
func (x *running) halts(reason string, words ...string) TaskStatus {
	x.t.Helper()
	x.until("halt", func(s TaskStatus) bool { return s.State == stateHalted })
	s := x.d.Status()[0]
	if s.Reason != reason {
		x.t.Fatalf("halted with %q (%s), want %q", s.Reason, s.Message, reason)
	}
	for _, w := range words {
		if !strings.Contains(s.Message, w) {
			x.t.Errorf("halt says %q, without %q", s.Message, w)
		}
	}
	return s
}

// ends waits for the end of Run and returns its error.
func (x *running) ends() error {
	x.t.Helper()
	select {
	case <-x.done:
		return x.result
	case <-time.After(patience):
		x.t.Fatalf("the daemon does not end: %+v\n%s", x.d.Status(), x.r.log)
		return nil
	}
}

// end stops the daemon and fails unless it ends well.
func (x *running) end() {
	x.t.Helper()
	x.stop()
	if err := x.ends(); err != nil {
		x.t.Fatalf("daemon: %v", err)
	}
}

// control sends a request to the daemon's control socket, as commands do.
func (x *running) control(kind string, open OpenRequest) error {
	x.t.Helper()
	return x.controlOf("orders", kind, open)
}

func (x *running) controlOf(stream, kind string, open OpenRequest) error {
	x.t.Helper()
	body, err := json.Marshal(ControlRequest{Stream: stream, Open: open})
	if err != nil {
		x.t.Fatal(err)
	}
	req, err := http.NewRequest("POST", "http://daemon/epoch/"+kind, bytes.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	res := x.controlRaw(req)
	var answer struct{ Status, Error string }
	if err := json.Unmarshal([]byte(readAll(x.t, res)), &answer); err != nil {
		x.t.Fatal(err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

func (x *running) controlRaw(req *http.Request) *http.Response {
	x.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(x.r.dir, "state", ControlSocket))
		},
	}}
	res, err := client.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { res.Body.Close() })
	return res
}

func readAll(t testing.TB, res *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// get reads a page of the HTTP server.
func (x *running) get(path string) (code int, body string) {
	x.t.Helper()
	return fetch(x.t, "http://"+x.d.Addr()+path)
}

func fetch(t testing.TB, url string) (code int, body string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, readAll(t, res)
}

// offline runs a command of an operator without a daemon.
func (r *rig) offline(f func(context.Context, *Daemon) error) error {
	r.t.Helper()
	d, err := New(r.options())
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx, d)
}

var ordersTask = Task{"orders", 0}

// produce appends n JSON records, numbered from first, in batches of 500.
func (r *rig) produce(first, n int) {
	r.t.Helper()
	values := make([][]byte, n)
	for i := range values {
		values[i] = orderRecord(first + i)
	}
	r.send(values...)
}

func orderRecord(i int) []byte {
	return fmt.Appendf(nil, `{"amount": %d.25, "items": %d, "weight": 0.%d, "note": "x"}`, 20+i%60, 1+i%7, i%10)
}

// send appends values to the topic "orders".
func (r *rig) send(values ...[]byte) {
	r.t.Helper()
	for part := range slices.Chunk(values, 500) {
		list := make([]kafka.Message, len(part))
		for i, v := range part {
			list[i] = kafka.Message{Value: v, Time: time.UnixMilli(1)}
		}
		if _, err := r.client.Produce(context.Background(), "orders", 0, list); err != nil {
			r.t.Fatal(err)
		}
	}
}

// copy of a release in the output topic.
type published struct {
	offset int64
	key    string
	value  string
	hash   [32]byte // of key, value and headers
	epoch  uint64
	step   uint64
}

// output reads an output topic.
func (r *rig) output(topic string) (list []published) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A client that has followed the cluster learns of a new topic late.
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{r.addr}})
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	start, _, _, err := client.Offsets(ctx, topic, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	err = client.ReadBack(ctx, topic, 0, start, func(rec *kafka.Record) error {
		_, epoch, step, ok := parseIdentity(rec.Key)
		if !ok {
			return fmt.Errorf("key %q", rec.Key)
		}
		list = append(list, published{rec.Offset, string(rec.Key), string(rec.Value), releaseHash(rec.Key, rec.Value, rec.Headers), epoch, step})
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// release is what tests read of a release's value.
type release struct {
	Schema    string
	Stream    string
	Partition int
	Epoch     uint64
	Step      uint64
	Rows      uint64
	Offsets   [2]int64
	Covers    [2]int64
	Mechanism struct {
		Method string
		Clip   string
		Search int64
	}
	Values map[string]struct {
		Shape []int
		Data  []float64
	}
}

// silent returns how many steps without a release, searches, are between this
// release and the one before, or the epoch's begin where it is the first, and
// their offsets.
func (r *release) silent(first bool) (steps uint64, offsets int64) {
	switch {
	case r.Mechanism.Search == 0 || r.Mechanism.Clip != "bisect" && r.Mechanism.Clip != "scan" && !first:
		return 0, 0
	case r.Mechanism.Method == "newton":
		return 2, 2 * r.Mechanism.Search
	}
	return 1, r.Mechanism.Search
}

func (p *published) parse(t testing.TB) (rel release) {
	t.Helper()
	if err := json.Unmarshal([]byte(p.value), &rel); err != nil {
		t.Fatalf("release %s: %v", p.key, err)
	}
	return rel
}

// verdict is what the checker finds in an output topic.
type verdict struct {
	steps      uint64              // largest
	duplicates int                 // releases published again, the same bytes
	forks      []string            // keys with two different values
	missing    []string            // steps that are not there
	gaps       []string            // offsets that do not follow the step before
	bytes      map[string][32]byte // key → hash
	byKey      map[string]published
}

// judge checks the releases of one task: one distinct value a key, no step
// missing within an epoch, offsets contiguous.
func judge(t testing.TB, list []published) verdict {
	t.Helper()
	v := verdict{bytes: map[string][32]byte{}, byKey: map[string]published{}}
	for _, p := range list {
		was, known := v.bytes[p.key]
		switch {
		case !known:
			v.bytes[p.key], v.byKey[p.key] = p.hash, p
		case was == p.hash:
			v.duplicates++
		default:
			v.forks = append(v.forks, p.key)
		}
		v.steps = max(v.steps, p.step)
	}
	all := make([]published, 0, len(v.byKey))
	for _, p := range v.byKey {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b published) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.step, b.step))
	})
	for i := range all {
		rel := all[i].parse(t)
		if rel.Epoch != all[i].epoch || rel.Step != all[i].step {
			v.gaps = append(v.gaps, all[i].key+": another identity inside")
		}
		first := i == 0 || all[i].epoch != all[i-1].epoch
		silent, offsets := rel.silent(first)
		if first {
			if rel.Step != 1+silent {
				v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].key))
			}
			if rel.Offsets[0] != rel.Covers[0]+offsets {
				v.gaps = append(v.gaps, all[i].key)
			}
			continue
		}
		if rel.Step != all[i-1].step+1+silent {
			v.missing = append(v.missing, fmt.Sprintf("before %s", all[i].key))
		}
		if prev := all[i-1].parse(t); rel.Offsets[0] != prev.Offsets[1]+offsets || rel.Covers[0] != prev.Covers[0] {
			v.gaps = append(v.gaps, all[i].key)
		}
	}
	return v
}

// faultless fails unless an output is a correct history.
func (v *verdict) faultless(t testing.TB) {
	t.Helper()
	if len(v.forks) > 0 || len(v.missing) > 0 || len(v.gaps) > 0 {
		t.Errorf("%d steps with two different releases %v, missing %v, offsets that do not follow %v", len(v.forks), v.forks, v.missing, v.gaps)
	}
}

// equals fails unless both outputs have the same bytes under the same keys.
func (v *verdict) equals(t testing.TB, want *verdict) {
	t.Helper()
	if len(v.bytes) != len(want.bytes) {
		t.Errorf("%d releases, want %d", len(v.bytes), len(want.bytes))
	}
	for key, hash := range want.bytes {
		if got, ok := v.bytes[key]; !ok || got != hash {
			t.Errorf("release %s is not that of the uninterrupted run:\n%s\n%s", key, v.byKey[key].value, want.byKey[key].value)
			return
		}
	}
}

// history reads and judges the output topic.
func (r *rig) history(topic string) *verdict {
	r.t.Helper()
	v := judge(r.t, r.output(topic))
	v.faultless(r.t)
	return &v
}

// entries reads the ledger.
func (r *rig) entries() []Entry {
	r.t.Helper()
	data, err := os.ReadFile(r.ledgerFile())
	if err != nil {
		r.t.Fatal(err)
	}
	list, _, err := parseLedger(data)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// kinds are the kinds of the ledger's entries, in order.
func (r *rig) kinds() string {
	var all []string
	for _, e := range r.entries() {
		all = append(all, e.Kind)
	}
	return strings.Join(all, " ")
}
