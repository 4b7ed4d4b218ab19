// Package stream is the daemon. It reads Kafka records, feeds them to private estimators,
// and publishes their releases. [New] makes a [Daemon] from a configuration and a master
// key, and [Daemon.Run] runs it. [Replay] runs an estimator on records without Kafka.
// [Verify] computes published releases again and compares them.
//
// A task is the work of one stream on one partition. It has four goroutines: one fetches
// records, one decodes them, one owns the estimator, and one publishes. Everything that
// must be consistent has one owner, and goes to disk in one write. These rules hold
// everywhere:
//
//   - A release is a function of the keys, the epoch's manifest and the log up to its step. Clocks,
//     fetch sizes and scheduling change when something happens, and never what.
//   - State, position, transcript and unpublished releases become durable in one atomic write. No
//     byte of a release leaves before that.
//   - A release that is published again is sent from the stored bytes.
//   - Before a task reads on, it checks that the log is still the same. In doubt it halts; the
//     process goes on. The message says what the operator can do.
//   - The budget is charged, durably, before an epoch's first noise.
//   - Nothing computed from a record reaches a log, an error or a metric of class "–".
//
// docs/theory/stream.md has the formats and the faults, and what happens after each
// fault.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/stream/core"
)

//go:generate go test -run ^TestMetricsReference$ -update

// Options are the parameters of a daemon.
type Options struct {
	Config *config.Config
	// Key is the master key. The daemon keeps it until Run returns.
	Key *[32]byte
	// Log receives messages. Required.
	Log *slog.Logger
	// Version is written into manifests.
	Version string
	// InsecureSeed fixes keys, secrets and nonces by a number, for demonstrations. Then
	// nothing is protected, and every release says so.
	InsecureSeed *uint64
	// Load reads the configuration again; see [Daemon.Reload]. Nil: it can't be.
	Load func() (*config.Config, error)
	// SetLevel sets the least level of messages that Log writes, a word of log.level. It may be nil.
	SetLevel func(level string)
	// Tasks are the tasks to run, for commands; nil: all.
	Tasks []core.Task

	// Truth is for demonstrations only: it returns what a value of a release would be
	// without noise, nil where nobody knows. The API and the page show it beside the value.
	Truth func(r *core.Released, value string) []float64

	// Hooks are for tests.
	Hooks Hooks
}

// Hooks are what tests replace or watch. A program leaves them alone.
type Hooks struct {
	Disk  disk  // nil: the disk
	Shard shard // where the state is; nil: in files of Disk
	// Chunk is the size above which a release is published in pieces; 0: the usual one.
	Chunk int
	// FetchBytes is the largest response of the broker; 0: 4 MiB. With less, each repeats more of the batch
	// before it. The configuration's kafka.fetch_memory may allow a task less.
	FetchBytes int
	// LookEvery, LagEvery and Rotation replace how often a task looks for added partitions, the lag is
	// reported, and files of certificates are read again; 0: the usual times.
	LookEvery, LagEvery, Rotation time.Duration
	Clock                         func() time.Time            // nil: the machine's
	Beat                          func(context.Context) error // waits for the next boundary by the clock; nil: until the clock is there
	Observe                       func()                      // is called after each change of a task's status; may be nil
	Opened                        func(*Inside)               // is called at the end of New; may be nil
}

// Inside are parts of a daemon that tests look into.
type Inside struct {
	Process *host
	Own     *home    // nil: the daemon shares tasks with others
	Member  *sharing // nil: it does not
	Tasks   func() []*runner
}

// lookEvery is how often a task looks for added partitions, and a halted task for its lag.
const lookEvery = 30 * time.Second

// Daemon is a running set of tasks over one state directory.
type Daemon struct {
	host
	server   *server       // of the status, and the control socket
	reach    kafka.Options // how the cluster is reached
	certs    certificates
	own      *crew    // of the state directory; nil: tasks are shared
	sharing  *sharing // nil: tasks are not shared
	patterns patterns
	mu       sync.Mutex
	crews    []*crew // that run, or will
	// changing is held while streams begin and end, and while watch looks at the tasks.
	changing sync.Mutex
	// reloading is held from the reading of a file to the end of what follows from it: of two reloads the
	// later one has the last word, and what one of them allows is allowed to its own streams.
	reloading sync.Mutex
	load      func() (*config.Config, error)
	setLevel  func(string)
	begun     chan struct{} // closed by begin: the tasks run, or never will
	begin     func()
	ended     bool // nothing begins any more
	lock      *os.File
	held      *heldLedger
}

// New locks the state directory, reads the ledger and prepares the tasks. Close releases the
// lock and everything else.
func New(o Options) (*Daemon, error) {
	d, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := d.open(o.Tasks); err != nil {
		d.Close()
		return nil, err
	}
	if o.Hooks.Opened != nil {
		in := &Inside{Process: &d.host, Member: d.sharing, Tasks: d.tasks}
		if d.own != nil {
			in.Own = &d.own.home
		}
		o.Hooks.Opened(in)
	}
	return d, nil
}

// prepare makes a daemon that has taken nothing yet.
func prepare(o Options) (*Daemon, error) {
	h := &o.Hooks
	d := &Daemon{host: host{
		cfg: o.Config, key: o.Key, insecure: o.InsecureSeed, version: o.Version, log: o.Log,
		started: time.Now(), fetchBytes: cmp.Or(h.FetchBytes, 4<<20), changed: make(chan struct{}, 1), observe: h.Observe, chunk: h.Chunk,
		lookEvery: cmp.Or(h.LookEvery, lookEvery), lagEvery: cmp.Or(h.LagEvery, lagEvery), clock: h.Clock, beat: h.Beat, truth: o.Truth,
	}}
	d.load, d.setLevel = o.Load, o.SetLevel
	d.begun = make(chan struct{})
	d.begin = sync.OnceFunc(func() { close(d.begun) })
	d.current.Store(o.Config)
	d.patterns.changed = make(chan struct{}, 1)
	if d.insecure != nil && slices.ContainsFunc(d.cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) }) {
		return nil, errors.New("an insecure seed is for brokers on loopback addresses only: nothing is protected with it")
	}
	if d.truth != nil && (d.cfg.HTTP.Exposure == "public" || slices.ContainsFunc(d.cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) })) {
		return nil, errors.New("the truth is for demonstrations only: with brokers on loopback addresses, for operators")
	}
	d.certs.every = cmp.Or(h.Rotation, rotationEvery)
	switch {
	case d.cfg.Cluster != nil:
	case h.Shard != nil:
		d.own = newCrew(&d.host, h.Shard, "")
	case h.Disk != nil:
		d.own = newCrew(&d.host, fileShard{h.Disk}, d.cfg.State.Dir)
	default:
		d.own = newCrew(&d.host, fileShard{osDisk{}}, d.cfg.State.Dir)
	}
	d.metrics = newMetrics(d.cfg.HTTP.Exposure == "public", d.cfg.HTTP.Metrics == "aggregate", d.version, d.insecure != nil)
	return d, nil
}

// lockState takes the state directory and its ledger for this process.
func (d *Daemon) lockState() (err error) {
	dir := d.cfg.State.Dir
	if err := d.own.disk.MkdirAll(filepath.Join(dir, "tasks")); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	// Sync the parent, which has the directory's name. The parent may belong to somebody else.
	if err := d.own.disk.SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.lock, err = lockDir(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.held, err = holdLedger(d.own.disk, dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return nil
}

func (d *Daemon) open(tasks []core.Task) (err error) {
	if d.cfg.Cluster != nil {
		return d.openShared()
	}
	if err := d.lockState(); err != nil {
		return err
	}
	if err := d.own.openLedger(); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	d.own.ledger.held = d.held
	if err := d.connect(); err != nil {
		return err
	}
	d.expandKnown(tasks)
	d.own.mirror = newMirror(d.own.ledger, d.key, d.client, d.cfg.Kafka.ControlTopic, newRepeater(d.log, d.metrics.kafkaError, func() {}))
	if err := d.own.prepare(tasks); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	d.join(d.own)
	return nil
}

// connect makes what reaches the cluster, and what readers of the status reach.
func (d *Daemon) connect() error {
	cluster, files, err := reach(d.cfg)
	if err != nil {
		return err
	}
	access, err := newAccess(d.cfg)
	if err != nil {
		return err
	}
	d.server = &server{d: d, access: access, http: d.cfg.HTTP, dir: d.cfg.State.Dir, private: "tasks", registry: d.metrics.registry, log: d.log,
		version: d.version, started: d.started, insecure: d.insecure != nil}
	if d.cfg.Cluster != nil {
		d.server.private = witnessDir
	}
	if d.cfg.Trace != nil {
		var certs *credentials.Rotation
		if d.trace, certs, err = newTracer(d.cfg, d.version, d.traced()); err != nil {
			return err
		}
		d.certs.add("trace.tls", certs)
		d.metrics.traced(0, 0) // a counter that begins above 0 hides its first count
	}
	if d.schemas, err = OpenSchemas(d.cfg); err != nil {
		return err
	}
	d.certs.add("registry.tls", d.schemas.files)
	if d.client, err = kafka.NewClient(cluster); err != nil {
		return err
	}
	d.reach = cluster
	d.certs.add("kafka.tls", files)
	d.certs.add("http.tls", access.tls)
	d.certs.show(d.metrics.certificate)
	d.tails.client = d.client
	if d.cfg.Kafka.Group != "" {
		d.lag = newLagReport(d.client, d.cfg.Kafka.Group, d.lagEvery, newRepeater(d.log.With("group", d.cfg.Kafka.Group), d.metrics.kafkaError, func() {}))
	}
	d.memory = kafka.NewMemory(d.cfg.Kafka.FetchMemory)
	d.metrics.watch(d.Status)
	return nil
}

// Close releases the state directory and the connections. Run must have
// returned.
func (d *Daemon) Close() {
	if d.client != nil {
		d.client.Close()
	}
	d.schemas.Close()
	d.held.release()
	if d.lock != nil {
		osfile.Unlock(d.lock)
		d.lock.Close()
	}
}

// Addr returns the address of the HTTP server, once Run serves it.
func (d *Daemon) Addr() string { return d.server.Addr() }

// join adds the tasks of a shard to those that the process shows.
func (d *Daemon) join(c *crew) {
	d.mu.Lock()
	d.crews = append(d.crews, c)
	d.mu.Unlock()
	d.stateChanged()
}

// part takes the tasks of a shard, none of which runs any more, away again.
func (d *Daemon) part(c *crew) {
	d.mu.Lock()
	d.crews = slices.DeleteFunc(d.crews, func(x *crew) bool { return x == c })
	d.mu.Unlock()
	c.leave()
	d.stateChanged()
}

// crewsNow returns the crews as they are now.
func (d *Daemon) crewsNow() []*crew {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.crews)
}

// tasks returns the runners of all crews as they are now: of several in the order of their
// streams in the configuration, then of their partitions.
func (d *Daemon) tasks() (all []*runner) {
	crews := d.crewsNow()
	for _, c := range crews {
		all = append(all, c.tasks()...)
	}
	if len(crews) > 1 {
		place := map[string]int{}
		for i, s := range d.config().Streams {
			place[s.Name] = i
		}
		slices.SortFunc(all, func(a, b *runner) int {
			return cmp.Or(place[a.s.Name]-place[b.s.Name], a.task.Partition-b.task.Partition)
		})
	}
	return all
}

// searching reports whether partitions of input topics are not known yet.
func (d *Daemon) searching() bool {
	return slices.ContainsFunc(d.crewsNow(), (*crew).searching)
}

// Status returns the status of all tasks.
func (d *Daemon) Status() []TaskStatus {
	runners := d.tasks()
	out := make([]TaskStatus, len(runners))
	for i, r := range runners {
		out[i] = r.Status()
	}
	return out
}

// Epochs returns the entries of all ledgers that the process has.
func (d *Daemon) Epochs() (all []Entry) {
	for _, c := range d.crewsNow() {
		all = append(all, c.ledger.all()...)
	}
	return all
}

// OpenEpoch closes the task's open epoch, if there is one, and opens another one. It is for a
// daemon whose Run has not been called; a running daemon is asked through its control socket.
func (d *Daemon) OpenEpoch(ctx context.Context, t core.Task, o OpenRequest) error {
	return d.command(ctx, t, request{kind: requestOpen, open: o})
}

// CloseEpoch closes the task's open epoch; see OpenEpoch.
func (d *Daemon) CloseEpoch(ctx context.Context, t core.Task, dropOutbox bool) error {
	return d.command(ctx, t, request{kind: requestClose, open: OpenRequest{DropOutbox: dropOutbox}})
}

func (d *Daemon) command(ctx context.Context, t core.Task, q request) error {
	if q.changesEpoch() {
		d.own.ledger.acceptKey()
	}
	if err := d.own.finishOthers(ctx); err != nil {
		return err
	}
	for _, r := range d.tasks() {
		if r.task == t {
			return r.serve(ctx, q)
		}
	}
	return d.closeAbandoned(ctx, t, q)
}

// closeAbandoned closes the open epoch of a task that nobody runs; see [crew.closeAbandoned].
func (d *Daemon) closeAbandoned(ctx context.Context, t core.Task, q request) error {
	for _, c := range d.crewsNow() {
		if c.other(t) != nil {
			return c.closeAbandoned(ctx, t, q)
		}
	}
	return fmt.Errorf("the configuration has no task %s", t)
}
