package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// rig is a broker, a topic of records, and what daemons need to run on them.
type rig struct {
	t                testing.TB
	broker           *embedded.Broker
	client           *kafka.Client
	addr             string
	dir              string // state and key
	commit           string // commit_interval
	toml             string // the streams' tables
	http             string // further lines of [http]
	archive, encrypt bool   // of [state]
	seed             uint64
	log              *journal
	disk             disk
	prepare          func(*Inside) // before it runs; may be nil
	before           func(*Daemon) // likewise
	fetch            int
	chunk            int                // Options.chunk
	record           func(i int) []byte // of the input; nil: orderRecord
	key              func(i int) []byte // of records of several partitions; nil: none

	topic      string // kafka.control_topic
	boundaries string // kafka.boundary_topic
	group      string // [cluster]
	lag        string // kafka.group
	traces     string // lines of [trace]; empty: no such table
	real       bool   // secrets and nonces are drawn: copies of a state that open epochs have others

	shared holding // the shard's logs; nil: its files are in dir

	references int // uninterrupted runs so far
}

// newRig starts a broker with the topic "orders".
func newRig(t testing.TB, toml string) *rig {
	t.Helper()
	return newRigOn(t, toml, embedded.Options{Topics: []string{"orders"}})
}

// newOldRig is newRig with a broker whose topics have no ids: a topic that is made
// anew is known by its records alone, like one whose records were lost.
func newOldRig(t testing.TB, toml string) *rig {
	t.Helper()
	return newRigOn(t, toml, embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{kfake.MaxVersions(kversion.V2_7_0())}})
}

func newRigOn(t testing.TB, toml string, o embedded.Options) *rig {
	t.Helper()
	b, err := embedded.Start(o)
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

// file returns the path of a file of the task orders-0.
func (r *rig) file(name string) string {
	return filepath.Join(r.dir, "state", "tasks", "orders-0", name)
}

// ledgerFile returns the path of the ledger.
func (r *rig) ledgerFile() string { return filepath.Join(r.dir, "state", "ledger.jsonl") }

// text is the configuration file.
func (r *rig) text() []byte {
	control := ""
	if r.topic != "" {
		control = fmt.Sprintf("control_topic = %q\n", r.topic)
	}
	if r.boundaries != "" {
		control += fmt.Sprintf("boundary_topic = %q\n", r.boundaries)
	}
	if r.lag != "" {
		control += fmt.Sprintf("group = %q\n", r.lag)
	}
	group := r.group
	if r.traces != "" {
		group = "[trace]\n" + r.traces + "\n" + group
	}
	return fmt.Appendf(nil, "[kafka]\nbrokers = [%q]\n%s[state]\ndir = %q\nkey_file = %q\ncommit_interval = %q\narchive = %t\nencrypt = %t\n[http]\nlisten = \"127.0.0.1:0\"\n%s\n%s%s",
		r.addr, control, filepath.Join(r.dir, "state"), filepath.Join(r.dir, "key"), r.commit, r.archive, r.encrypt, r.http, group, r.toml)
}

func (r *rig) options() Options {
	r.t.Helper()
	c, err := config.Parse("test.toml", r.text())
	if err != nil {
		r.t.Fatal(err)
	}
	o := Options{
		Config: c, Key: InsecureKey(r.seed), InsecureSeed: &r.seed, Version: "test",
		Hooks: Hooks{FetchBytes: r.fetch, Disk: r.disk, Chunk: r.chunk, Rotation: 5 * time.Millisecond},
		Log:   slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if r.real {
		o.InsecureSeed = nil
	}
	return o
}

// running is a daemon that runs.
type running struct {
	t      testing.TB
	r      *rig
	d      *Daemon
	in     *Inside
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
	o.Hooks.Observe = func() { signal(x.wake) }
	for _, edit := range edits {
		edit(&o)
	}
	if r.shared != nil {
		if err := shared(&o, r.shared); err != nil {
			return nil, err
		}
	}
	o.Hooks.Opened = func(in *Inside) {
		x.in = in
		if r.prepare != nil {
			r.prepare(in)
		}
	}
	var err error
	if x.d, err = New(o); err != nil {
		return nil, err
	}
	if r.before != nil {
		r.before(x.d)
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
	if x.within(what, ok) {
		return
	}
	x.t.Fatalf("not reached: %s: %+v\n%s", what, x.d.Status()[0], x.r.log)
}

// within is until, and reports whether that was so before patience was over.
func (x *running) within(what string, ok func(TaskStatus) bool) bool {
	x.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	look := time.NewTicker(10 * time.Millisecond) // what is waited for may be of another daemon, which does not wake this one
	defer look.Stop()
	for !ok(x.d.Status()[0]) {
		select {
		case <-x.wake:
		case <-look.C:
		case <-x.done:
			if !ok(x.d.Status()[0]) {
				x.t.Fatalf("the daemon ended before %s: %v\n%+v\n%s", what, x.result, x.d.Status()[0], x.r.log)
			}
		case <-late.C:
			return false
		}
	}
	return true
}

// published waits until a step is published, and everything before it. It waits on for as long as there are more
// steps: how many there are to do may depend on how long the test has taken.
func (x *running) published(step uint64) {
	x.t.Helper()
	what, ok := fmt.Sprintf("step %d is published", step), func(s TaskStatus) bool { return s.Step >= step && s.Outbox == 0 && !s.Comparing }
	for n := 1; ; n++ {
		before := x.d.Status()[0].Step
		if x.within(what, ok) {
			return
		}
		if s := x.d.Status()[0]; s.Step <= before || n == 10 {
			x.t.Fatalf("not reached: %s: %+v\n%s", what, s, x.r.log)
		}
	}
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

// endHalted stops a daemon of which every task may have halted.
func (x *running) endHalted() {
	x.t.Helper()
	x.stop()
	if err := x.ends(); err != nil && !errors.Is(err, ErrHalted) {
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
	return x.ask(kind, ControlRequest{Stream: stream, Open: open})
}

func (x *running) ask(kind string, q ControlRequest) error {
	x.t.Helper()
	body, err := json.Marshal(q)
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

// get reads a page of the HTTP server.
func (x *running) get(path string) (code int, body string) {
	x.t.Helper()
	return fetch(x.t, "http://"+x.d.Addr()+path)
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

// inside runs f over a daemon that does not run.
func (r *rig) inside(f func(context.Context, *Inside) error) error {
	r.t.Helper()
	var in *Inside
	o := r.options()
	o.Hooks.Opened = func(i *Inside) { in = i }
	d, err := New(o)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx, in)
}

// produce appends n JSON records, numbered from first, in batches of 500.
func (r *rig) produce(first, n int) {
	r.t.Helper()
	values := make([][]byte, n)
	for i := range values {
		values[i] = r.recordOf(first + i)
	}
	r.send(values...)
}

func (r *rig) recordOf(i int) []byte {
	if r.record != nil {
		return r.record(i)
	}
	return orderRecord(i)
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

// entries reads the ledger.
func (r *rig) entries() []Entry {
	r.t.Helper()
	data, err := os.ReadFile(r.ledgerFile())
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := parseLedger(data, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return l.entries
}

// sealedAnew gives the only line of a ledger, which was changed, the MAC and sum of
// what it says now.
func (r *rig) sealedAnew(line []byte) []byte {
	body := bytes.TrimSuffix(line, []byte("\n"))
	body = append(slices.Clone(body[:len(body)-sealBytes]), '}')
	return append(newLedgerKey(InsecureKey(r.seed)).seal(body), '\n')
}

// kinds are the kinds of the ledger's entries, in order.
func (r *rig) kinds() string {
	var all []string
	for _, e := range r.entries() {
		all = append(all, e.Kind)
	}
	return strings.Join(all, " ")
}
