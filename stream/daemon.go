// Package stream is the daemon. It reads Kafka records, feeds them to private estimators, and publishes their releases.
// [New] makes a [Daemon] from a configuration and a master key, and [Daemon.Run] runs it. [RepairLedger] reconstructs
// the ledger of a state directory whose own is damaged or lost.
//
// A task is the work of one stream on one partition. It has four goroutines: one fetches records, one decodes them, one
// owns the estimator, and one publishes. All state that must be consistent has one owner, and goes to disk in one
// write. These rules hold everywhere:
//
//   - A release is a function of the keys, the epoch's manifest and the log up to its step. Clocks,
//     fetch sizes and scheduling change only the time at which something happens.
//   - State, position, transcript and unpublished releases become durable in one atomic write. No
//     byte of a release is sent before that.
//   - A release that is published again is sent from the stored bytes.
//   - Before a task continues reading, it checks that the log has not been replaced. If in doubt it halts, and
//     the process goes on. The message says what the operator can do.
//   - The budget is charged, durably, before an epoch's first noise.
//   - Nothing computed from a record reaches a log, an error or a metric of class "–".
//
// docs/theory/stream.md describes the formats, the faults, and what happens after each fault.
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
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// Options are the parameters of a daemon.
type Options struct {
	Config *config.Config
	// Key is the master key. The daemon keeps it until Run returns.
	Key *[32]byte
	// Log receives messages. It is required.
	Log *slog.Logger
	// Version is written into manifests.
	Version string
	// InsecureSeed fixes keys, secrets and nonces by a number, for demonstrations. Then nothing is protected, and every
	// release says so.
	InsecureSeed *uint64
	// Load reads the configuration again; see [Daemon.Reload]. nil: it cannot be read again.
	Load func() (*config.Config, error)
	// SetLevel sets the lowest level of messages that Log writes, given a word of log.level. It may be nil.
	SetLevel func(level string)
	// Tasks are the tasks to run, for commands; nil: all.
	Tasks []core.Task

	// Truth is for demonstrations only. It returns what a value of a release would be without noise, or nil if that is
	// unknown. The API and the page show the result next to the value.
	Truth func(r *core.Released, value string) []float64

	// Hooks are for tests.
	Hooks Hooks
}

// Hooks are parts of the daemon that tests replace or watch. Programs must not set them.
type Hooks struct {
	Disk  state.Disk  // the disk of the state directory; nil: the machine's
	Shard state.Shard // holds the state; nil: files of Disk
	// Chunk is the size in bytes above which a release is published in pieces; 0: the default.
	Chunk int
	// FetchBytes is the size of the broker's largest response; 0: 4 MiB. Smaller responses waste more: each starts with
	// the rest of a batch that was already read. The configuration's kafka.fetch_memory may allow a task less.
	FetchBytes int
	// LookEvery, LagEvery and Rotation are the intervals at which a task looks for added partitions, the lag is
	// reported, and certificate files are read again; 0: the defaults.
	LookEvery, LagEvery, Rotation time.Duration
	Clock                         func() time.Time // nil: the machine's clock
	// Beat waits until the next boundary is due; nil: it waits by the clock.
	Beat    func(context.Context) error
	Observe func()        // called after each change of a task's status; may be nil
	Opened  func(*Inside) // called at the end of New; may be nil
}

// Inside are parts of a daemon that tests inspect.
type Inside struct {
	Process *epoch.Process
	Own     *epoch.Shard    // nil: the daemon shares tasks with other instances
	Member  *cluster.Member // nil: it does not share tasks
	Tasks   func() []*task.Runner
}

// lookEvery is the interval at which a task looks for added partitions, and a halted task measures its lag.
const lookEvery = 30 * time.Second

// Daemon is a running set of tasks over one state directory, or an instance that shares tasks with others.
type Daemon struct {
	process  epoch.Process
	server   *httpapi.Server // serves status and control socket
	reach    kafka.Options   // how to connect to the cluster
	certs    connect.Certificates
	own      *shardTasks     // tasks of the state directory; nil: tasks are shared
	sharing  *cluster.Member // nil: tasks are not shared
	patterns patterns
	mu       sync.Mutex
	shards   []*shardTasks // shards whose tasks run, or will run
	// changing is held while streams begin and end, and while watch reads the states of tasks.
	changing sync.Mutex
	// reloading is held from reading the configuration file until its changes are made. So the later of two reloads
	// wins, and the Open of a reload applies only to its own streams.
	reloading sync.Mutex
	load      func() (*config.Config, error)
	setLevel  func(string)
	begun     chan struct{} // closed by begin when the tasks run, or never will
	begin     func()
	ended     bool // no more tasks begin
	lock      *os.File
	held      *ledger.Held
}

// New locks the state directory, reads the ledger and prepares the tasks. Close releases the lock and everything else.
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
		in := &Inside{Process: &d.process, Member: d.sharing, Tasks: d.tasks}
		if d.own != nil {
			in.Own = &d.own.Shard
		}
		o.Hooks.Opened(in)
	}
	return d, nil
}

// prepare makes a daemon without opening or locking anything.
func prepare(o Options) (*Daemon, error) {
	h := &o.Hooks
	d := &Daemon{process: epoch.Process{
		Cfg: o.Config, Key: o.Key, Insecure: o.InsecureSeed, Version: o.Version, Log: o.Log,
		Started: time.Now(), FetchBytes: cmp.Or(h.FetchBytes, 4<<20), Changed: make(chan struct{}, 1),
		Observe: h.Observe, Chunk: h.Chunk,
		LookEvery: cmp.Or(h.LookEvery, lookEvery), LagEvery: cmp.Or(h.LagEvery, monitor.LagEvery), Clock: h.Clock,
		Beat: h.Beat, Truth: o.Truth,
	}}
	d.load, d.setLevel = o.Load, o.SetLevel
	d.begun = make(chan struct{})
	d.begin = sync.OnceFunc(func() { close(d.begun) })
	d.process.Current.Store(o.Config)
	d.patterns.changed = make(chan struct{}, 1)
	if d.process.Insecure != nil &&
		slices.ContainsFunc(d.process.Cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) }) {
		return nil,
			errors.New("an insecure seed protects nothing: it is allowed only with brokers on loopback addresses")
	}
	if d.process.Truth != nil &&
		(d.process.Cfg.HTTP.Exposure == "public" ||
			slices.ContainsFunc(d.process.Cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) })) {
		return nil,
			errors.New("true values are for demonstrations only: with brokers on loopback addresses, and for operators")
	}
	d.certs.Every = cmp.Or(h.Rotation, connect.RotationEvery)
	switch {
	case d.process.Cfg.Cluster != nil:
	case h.Shard != nil:
		d.own = newShardTasks(&d.process, h.Shard, "")
	case h.Disk != nil:
		d.own = newShardTasks(&d.process, state.FileShard{Disk: h.Disk}, d.process.Cfg.State.Dir)
	default:
		d.own = newShardTasks(&d.process, state.FileShard{Disk: state.OS{}}, d.process.Cfg.State.Dir)
	}
	d.process.Metrics = monitor.NewMetrics(d.process.Cfg.HTTP.Exposure == "public",
		d.process.Cfg.HTTP.Metrics == "aggregate", d.process.Version, d.process.Insecure != nil)
	return d, nil
}

// lockState locks the state directory and its ledger for this process.
func (d *Daemon) lockState() (err error) {
	dir := d.process.Cfg.State.Dir
	if err := d.own.Disk.MkdirAll(filepath.Join(dir, "tasks")); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	// Sync the parent, because it holds the entry of the directory. The parent may belong to another user.
	if err := d.own.Disk.SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if d.lock, err = state.Lock(dir); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if d.held, err = ledger.Hold(d.own.Disk, dir); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return nil
}

func (d *Daemon) open(tasks []core.Task) (err error) {
	if d.process.Cfg.Cluster != nil {
		return d.openShared()
	}
	if err := d.lockState(); err != nil {
		return err
	}
	if err := d.own.OpenLedger(); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	d.own.Ledger.Held = d.held
	if err := d.connect(); err != nil {
		return err
	}
	d.expandKnown(tasks)
	d.own.Mirror = ledger.NewControlTopic(d.own.Ledger, d.process.Key, d.process.Client,
		d.process.Cfg.Kafka.ControlTopic, failure.NewRetrier(d.process.Log, d.process.Metrics.KafkaError, func() {}))
	if err := d.own.Prepare(tasks); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	d.join(d.own)
	return nil
}

// connect makes the connections to the cluster, and the HTTP server.
func (d *Daemon) connect() error {
	c, files, err := connect.KafkaOptions(d.process.Cfg)
	if err != nil {
		return err
	}
	access, err := httpapi.NewAccess(d.process.Cfg)
	if err != nil {
		return err
	}
	d.server = &httpapi.Server{Daemon: served{d}, Access: access, HTTP: d.process.Cfg.HTTP,
		Dir: d.process.Cfg.State.Dir, Private: "tasks", Registry: d.process.Metrics.Registry, Log: d.process.Log,
		Version: d.process.Version, Started: d.process.Started, Insecure: d.process.Insecure != nil}
	if d.process.Cfg.Cluster != nil {
		d.server.Private = cluster.WitnessDir
	}
	if d.process.Cfg.Trace != nil {
		var certs *credentials.Rotation
		if d.process.Trace, certs, err = connect.NewTracer(d.process.Cfg, d.process.Version, d.traced()); err != nil {
			return err
		}
		d.certs.Add("trace.tls", certs)
		d.process.Metrics.Traced(0, 0) // a counter that begins above 0 hides its first count
	}
	if d.process.Schemas, err = connect.OpenSchemas(d.process.Cfg); err != nil {
		return err
	}
	d.certs.Add("registry.tls", d.process.Schemas.Files)
	if d.process.Client, err = kafka.NewClient(c); err != nil {
		return err
	}
	d.reach = c
	d.certs.Add("kafka.tls", files)
	d.certs.Add("http.tls", access.TLS)
	d.certs.Show(d.process.Metrics.Certificate)
	d.process.Tails.Client = d.process.Client
	if d.process.Cfg.Kafka.Group != "" {
		d.process.Lag = monitor.NewLagReport(d.process.Client, d.process.Cfg.Kafka.Group, d.process.LagEvery,
			failure.NewRetrier(d.process.Log.With("group", d.process.Cfg.Kafka.Group),
				d.process.Metrics.KafkaError, func() {}))
	}
	d.process.Memory = kafka.NewMemory(d.process.Cfg.Kafka.FetchMemory)
	d.process.Metrics.Watch(d.Status)
	return nil
}

// traced returns a function that counts sent and dropped spans, and warns once while spans are dropped.
func (d *Daemon) traced() func(sent, dropped int, err error) {
	r := failure.NewRetrier(d.process.Log.With("endpoint", d.process.Cfg.Trace.URL()),
		d.process.Metrics.KafkaError, func() {})
	return func(sent, dropped int, err error) {
		d.process.Metrics.Traced(sent, dropped)
		if err != nil {
			r.Failing("send traces", err)
		} else {
			r.Recovered("send traces")
		}
	}
}

// Close releases the state directory and the connections. Run must have returned.
func (d *Daemon) Close() {
	if d.process.Client != nil {
		d.process.Client.Close()
	}
	d.process.Schemas.Close()
	d.held.Release()
	if d.lock != nil {
		osfile.Unlock(d.lock)
		d.lock.Close()
	}
}

// Addr returns the address of the HTTP server, once Run serves it.
func (d *Daemon) Addr() string { return d.server.Addr() }

// join adds a shard, whose tasks the process then shows.
func (d *Daemon) join(c *shardTasks) {
	d.mu.Lock()
	d.shards = append(d.shards, c)
	d.mu.Unlock()
	d.process.StateChanged()
}

// part removes the tasks of a shard. None of them may be running.
func (d *Daemon) part(c *shardTasks) {
	d.mu.Lock()
	d.shards = slices.DeleteFunc(d.shards, func(x *shardTasks) bool { return x == c })
	d.mu.Unlock()
	c.leave()
	d.process.StateChanged()
}

// shardsNow returns the present shards.
func (d *Daemon) shardsNow() []*shardTasks {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.shards)
}

// tasks returns the present runners of all shards. With several shards, they are in the order of streams in the
// configuration, then of partitions.
func (d *Daemon) tasks() (all []*task.Runner) {
	shards := d.shardsNow()
	for _, c := range shards {
		all = append(all, c.Tasks()...)
	}
	if len(shards) > 1 {
		place := map[string]int{}
		for i, s := range d.process.Config().Streams {
			place[s.Name] = i
		}
		slices.SortFunc(all, func(a, b *task.Runner) int {
			return cmp.Or(place[a.S.Name]-place[b.S.Name], a.Task.Partition-b.Task.Partition)
		})
	}
	return all
}

// searching reports whether some partitions of input topics are not known yet.
func (d *Daemon) searching() bool {
	return slices.ContainsFunc(d.shardsNow(), (*shardTasks).searching)
}

// Status returns the status of all tasks.
func (d *Daemon) Status() []monitor.TaskStatus {
	runners := d.tasks()
	out := make([]monitor.TaskStatus, len(runners))
	for i, r := range runners {
		out[i] = r.Status()
	}
	return out
}
