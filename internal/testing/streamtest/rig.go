// Package streamtest has what tests need to run daemons: an embedded broker, topics of records, daemons in this process
// or in child processes, and a judge of their releases.
package streamtest

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Rig is a broker, a topic of records, and the settings and files of daemons that use them.
type Rig struct {
	T                testing.TB
	Broker           *embedded.Broker
	Client           *kafka.Client
	Addr             string
	Dir              string // of state and key
	Commit           string // the setting commit_interval
	Toml             string // the streams' tables
	Http             string // further lines of [http]
	Archive, Encrypt bool   // settings of [state]
	Seed             uint64
	Log              *fixtures.Journal
	Disk             state.Disk
	Prepare          func(*stream.Inside) // called before the daemon runs; may be nil
	Before           func(*stream.Daemon) // called before the daemon runs; may be nil
	Fetch            int
	Chunk            int                // Options.chunk
	Record           func(i int) []byte // returns record i of the input; nil: OrderRecord
	Key              func(i int) []byte // returns the key of record i if there are several partitions; nil: no keys

	Topic      string // the setting kafka.control_topic
	Boundaries string // the setting kafka.boundary_topic
	Group      string // the table [cluster]
	Lag        string // the setting kafka.group
	Traces     string // lines of the table [trace]; empty: no such table
	Real       bool   // secrets and nonces are random: copies of a state that open epochs draw different ones

	Shared cluster.Holding // the shard's logs; nil: the state is in files in Dir

	references int // number of calls of Uninterrupted so far
}

// NewRig starts a broker with the topic "orders".
func NewRig(t testing.TB, toml string) *Rig {
	t.Helper()
	return NewRigOn(t, toml, embedded.Options{Topics: []string{"orders"}})
}

// NewOldRig does what NewRig does, with a broker whose topics have no ids. There the daemon can recognize a recreated
// topic only by its records, like a topic that lost records.
func NewOldRig(t testing.TB, toml string) *Rig {
	t.Helper()
	return NewRigOn(t, toml,
		embedded.Options{Topics: []string{"orders"}, Extra: []kfake.Opt{kfake.MaxVersions(kversion.V2_7_0())}})
}

func NewRigOn(t testing.TB, toml string, o embedded.Options) *Rig {
	t.Helper()
	b, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return NewRigAt(t, b, b.Addr(), toml)
}

// NewRigAt returns a rig at a broker, which may be shared.
func NewRigAt(t testing.TB, b *embedded.Broker, addr, toml string) *Rig {
	t.Helper()
	r := &Rig{T: t, Broker: b, Addr: addr, Dir: fixtures.ShortDir(t), Commit: "10ms", Toml: toml, Seed: 7,
		Log: &fixtures.Journal{}}
	r.Client = fixtures.Dial(t, addr)
	return r
}

// Sibling returns a rig at the same broker with a separate state directory.
func (r *Rig) Sibling(toml string) *Rig {
	s := *r
	s.Dir, s.Toml, s.Log = fixtures.ShortDir(r.T), toml, &fixtures.Journal{}
	return &s
}

// CopyState replaces the state directory of s by a copy of r's, without sockets.
func (r *Rig) CopyState(s *Rig) {
	r.T.Helper()
	fixtures.CopyDir(r.T, filepath.Join(s.Dir, "state"), filepath.Join(r.Dir, "state"))
}

// File returns the path of a file of the task orders-0.
func (r *Rig) File(name string) string {
	return filepath.Join(r.Dir, "state", "tasks", "orders-0", name)
}

// LedgerFile returns the path of the ledger.
func (r *Rig) LedgerFile() string { return filepath.Join(r.Dir, "state", "ledger.jsonl") }

// Text returns the configuration file.
func (r *Rig) Text() []byte {
	control := ""
	if r.Topic != "" {
		control = fmt.Sprintf("control_topic = %q\n", r.Topic)
	}
	if r.Boundaries != "" {
		control += fmt.Sprintf("boundary_topic = %q\n", r.Boundaries)
	}
	if r.Lag != "" {
		control += fmt.Sprintf("group = %q\n", r.Lag)
	}
	group := r.Group
	if r.Traces != "" {
		group = "[trace]\n" + r.Traces + "\n" + group
	}
	return fmt.Appendf(nil,
		"[kafka]\nbrokers = [%q]\n%s[state]\ndir = %q\nkey_file = %q\ncommit_interval = %q\narchive = %t\n"+
			"encrypt = %t\n[http]\nlisten = \"127.0.0.1:0\"\n%s\n%s%s",
		r.Addr, control, filepath.Join(r.Dir, "state"), filepath.Join(r.Dir, "key"), r.Commit, r.Archive, r.Encrypt,
		r.Http, group, r.Toml)
}

func (r *Rig) Options() stream.Options {
	r.T.Helper()
	c, err := config.Parse("test.toml", r.Text())
	if err != nil {
		r.T.Fatal(err)
	}
	o := stream.Options{
		Config: c, Key: connect.InsecureKey(r.Seed), InsecureSeed: &r.Seed, Version: "test",
		Hooks: stream.Hooks{FetchBytes: r.Fetch, Disk: r.Disk, Chunk: r.Chunk, Rotation: 5 * time.Millisecond},
		Log:   slog.New(slog.NewTextHandler(r.Log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if r.Real {
		o.InsecureSeed = nil
	}
	return o
}

// Running is a running daemon.
type Running struct {
	T      testing.TB
	R      *Rig
	D      *stream.Daemon
	In     *stream.Inside
	Stop   context.CancelFunc
	Wake   chan struct{}
	Done   chan struct{}
	Result error
}

// Start starts a daemon over the rig's state.
func (r *Rig) Start(edits ...func(*stream.Options)) *Running {
	r.T.Helper()
	x, err := r.Try(edits...)
	if err != nil {
		r.T.Fatal(err)
	}
	return x
}

func (r *Rig) Try(edits ...func(*stream.Options)) (*Running, error) {
	r.T.Helper()
	x := &Running{T: r.T, R: r, Wake: make(chan struct{}, 1), Done: make(chan struct{})}
	o := r.Options()
	o.Hooks.Observe = func() { failure.Signal(x.Wake) }
	for _, edit := range edits {
		edit(&o)
	}
	if r.Shared != nil {
		if err := shared(&o, r.Shared); err != nil {
			return nil, err
		}
	}
	o.Hooks.Opened = func(in *stream.Inside) {
		x.In = in
		if r.Prepare != nil {
			r.Prepare(in)
		}
	}
	var err error
	if x.D, err = stream.New(o); err != nil {
		return nil, err
	}
	if r.Before != nil {
		r.Before(x.D)
	}
	ctx, stop := context.WithCancel(context.Background())
	x.Stop = stop
	go func() {
		x.Result = x.D.Run(ctx)
		x.D.Close()
		close(x.Done)
	}()
	r.T.Cleanup(func() { stop(); <-x.Done })
	return x, nil
}

// Until waits until ok accepts the first task's status.
func (x *Running) Until(what string, ok func(monitor.TaskStatus) bool) {
	x.T.Helper()
	if x.within(what, ok) {
		return
	}
	x.T.Fatalf("the daemon did not reach: %s: %+v\n%s", what, x.D.Status()[0], x.R.Log)
}

// within does what Until does, but instead of failing it reports whether ok accepted the status in time.
func (x *Running) within(what string, ok func(monitor.TaskStatus) bool) bool {
	x.T.Helper()
	late := time.NewTimer(fixtures.Patience)
	defer late.Stop()
	// Poll in addition: another daemon may make the change, and does not wake this one.
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !ok(x.D.Status()[0]) {
		select {
		case <-x.Wake:
		case <-look.C:
		case <-x.Done:
			if !ok(x.D.Status()[0]) {
				x.T.Fatalf("the daemon ended before %s: %v\n%+v\n%s", what, x.Result, x.D.Status()[0], x.R.Log)
			}
		case <-late.C:
			return false
		}
	}
	return true
}

// Published waits until a step, and everything before it, is published. As long as further steps are closed it goes on
// waiting, because the time that a test needs may decide how many steps there are.
func (x *Running) Published(step uint64) {
	x.T.Helper()
	what, ok := fmt.Sprintf("step %d is published", step),
		func(s monitor.TaskStatus) bool { return s.Step >= step && s.Outbox == 0 && !s.Comparing }
	for n := 1; ; n++ {
		before := x.D.Status()[0].Step
		if x.within(what, ok) {
			return
		}
		if s := x.D.Status()[0]; s.Step <= before || n == 10 {
			x.T.Fatalf("not reached: %s: %+v\n%s", what, s, x.R.Log)
		}
	}
}

// Halts waits for a halt, and checks its reason and the words of its message.
func (x *Running) Halts(reason string, words ...string) monitor.TaskStatus {
	x.T.Helper()
	x.Until("halt", func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted })
	s := x.D.Status()[0]
	if s.Reason != reason {
		x.T.Fatalf("halted with %q (%s), want %q", s.Reason, s.Message, reason)
	}
	for _, w := range words {
		if !strings.Contains(s.Message, w) {
			x.T.Errorf("halt says %q, without %q", s.Message, w)
		}
	}
	return s
}

// Ends waits for the end of Run and returns its error.
func (x *Running) Ends() error {
	x.T.Helper()
	select {
	case <-x.Done:
		return x.Result
	case <-time.After(fixtures.Patience):
		x.T.Fatalf("the daemon does not end: %+v\n%s", x.D.Status(), x.R.Log)
		return nil
	}
}

// End stops the daemon and fails the test unless it ends without an error.
func (x *Running) End() {
	x.T.Helper()
	x.Stop()
	if err := x.Ends(); err != nil {
		x.T.Fatalf("daemon: %v", err)
	}
}

// EndHalted stops a daemon whose tasks may all have halted.
func (x *Running) EndHalted() {
	x.T.Helper()
	x.Stop()
	if err := x.Ends(); err != nil && !errors.Is(err, failure.ErrHalted) {
		x.T.Fatalf("daemon: %v", err)
	}
}

// Control sends a request to the daemon's control socket, as commands do.
func (x *Running) Control(kind string, open epoch.OpenRequest) error {
	x.T.Helper()
	return x.ControlOf("orders", kind, open)
}

func (x *Running) ControlOf(stream, kind string, open epoch.OpenRequest) error {
	x.T.Helper()
	return x.Ask(task.Request{Kind: kind, Stream: stream, Open: open})
}

// Ask sends a request to the daemon's control socket, as commands do.
func (x *Running) Ask(q task.Request) error {
	x.T.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		x.T.Fatal(err)
	}
	req, err := http.NewRequest("POST", "http://daemon/epoch/"+q.Kind, bytes.NewReader(body))
	if err != nil {
		x.T.Fatal(err)
	}
	res := x.ControlRaw(req)
	var answer struct{ Status, Error string }
	if err := json.Unmarshal([]byte(fixtures.ReadAll(x.T, res)), &answer); err != nil {
		x.T.Fatal(err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

func (x *Running) ControlRaw(req *http.Request) *http.Response {
	x.T.Helper()
	client := &http.Client{Timeout: fixtures.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(x.R.Dir, "state", httpapi.ControlSocket))
		},
	}}
	res, err := client.Do(req)
	if err != nil {
		x.T.Fatal(err)
	}
	x.T.Cleanup(func() { res.Body.Close() })
	return res
}

// Get reads a page of the HTTP server.
func (x *Running) Get(path string) (code int, body string) {
	x.T.Helper()
	return fixtures.Fetch(x.T, "http://"+x.D.Addr()+path)
}

// OpenEpoch opens an epoch of a task. Call it in Offline.
func OpenEpoch(ctx context.Context, d *stream.Daemon, t core.Task, open epoch.OpenRequest) error {
	q := task.NewRequest(task.RequestOpen, t)
	q.Open = open
	return d.Do(ctx, q)
}

// CloseEpoch closes a task's open epoch. Call it in Offline.
func CloseEpoch(ctx context.Context, d *stream.Daemon, t core.Task, dropOutbox bool) error {
	q := task.NewRequest(task.RequestClose, t)
	q.Open.DropOutbox = dropOutbox
	return d.Do(ctx, q)
}

// Recover restores a task's state. Call it in Offline.
func Recover(ctx context.Context, d *stream.Daemon, t core.Task, from *recovery.Export) error {
	q := task.NewRequest(task.RequestRecover, t)
	q.From = from
	return d.Do(ctx, q)
}

// Republish publishes a task's releases again. Call it in Offline.
func Republish(ctx context.Context, d *stream.Daemon, t core.Task, what recovery.RepublishRequest) error {
	q := task.NewRequest(task.RequestRepublish, t)
	q.Republish = what
	return d.Do(ctx, q)
}

// Offline runs an operator's command without a running daemon.
func (r *Rig) Offline(f func(context.Context, *stream.Daemon) error) error {
	r.T.Helper()
	d, err := stream.New(r.Options())
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	return f(ctx, d)
}

// Inside runs f with a daemon that has not been started.
func (r *Rig) Inside(f func(context.Context, *stream.Inside) error) error {
	r.T.Helper()
	var in *stream.Inside
	o := r.Options()
	o.Hooks.Opened = func(i *stream.Inside) { in = i }
	d, err := stream.New(o)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	return f(ctx, in)
}

// Produce appends n JSON records, numbered from first, in batches of 500.
func (r *Rig) Produce(first, n int) {
	r.T.Helper()
	values := make([][]byte, n)
	for i := range values {
		values[i] = r.RecordOf(first + i)
	}
	r.Send(values...)
}

func (r *Rig) RecordOf(i int) []byte {
	if r.Record != nil {
		return r.Record(i)
	}
	return fixtures.OrderRecord(i)
}

// Send appends values to the topic "orders".
func (r *Rig) Send(values ...[]byte) {
	r.T.Helper()
	for part := range slices.Chunk(values, 500) {
		list := make([]kafka.Message, len(part))
		for i, v := range part {
			list[i] = kafka.Message{Value: v, Time: time.UnixMilli(1)}
		}
		if _, err := r.Client.Produce(context.Background(), "orders", 0, list); err != nil {
			r.T.Fatal(err)
		}
	}
}

// Entries reads the ledger.
func (r *Rig) Entries() []ledger.Entry {
	r.T.Helper()
	data, err := os.ReadFile(r.LedgerFile())
	if err != nil {
		r.T.Fatal(err)
	}
	l, err := ledger.Parse(data, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	return l.Entries
}

// SealedAnew returns the only line of a ledger, after a change, with a new MAC and checksum.
func (r *Rig) SealedAnew(line []byte) []byte {
	body := bytes.TrimSuffix(line, []byte("\n"))
	body = append(slices.Clone(body[:len(body)-ledger.SealBytes]), '}')
	return append(ledger.NewKey(connect.InsecureKey(r.Seed)).Seal(body), '\n')
}

// Kinds returns the kinds of the ledger's entries, in order.
func (r *Rig) Kinds() string {
	var all []string
	for _, e := range r.Entries() {
		all = append(all, e.Kind)
	}
	return strings.Join(all, " ")
}
