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
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/internal/osfile"
	"streamdp/stream/core"
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
	// FetchBytes is the largest response of the broker; 0: 1 MiB, as for most consumers.
	// More is not faster. The configuration's kafka.fetch_memory may allow a task less.
	FetchBytes int
	// Tasks are the tasks to run, for commands; nil: all.
	Tasks []core.Task

	// Truth is for demonstrations only: it returns what a value of a release would be
	// without noise, nil where nobody knows. The API and the page show it beside the value.
	Truth func(r *core.Released, value string) []float64

	disk    disk   // tests replace it
	observe func() // tests: called after each change of a task's status
	chunk   int    // tests: the size above which a release is published in pieces
	// lookEvery replaces the constant lookEvery; tests shorten it.
	lookEvery time.Duration
	clock     func() time.Time            // tests replace it
	beat      func(context.Context) error // tests: waits for the next boundary by the clock
}

// lookEvery is how often a task looks for added partitions, and a halted task for its lag.
const lookEvery = 30 * time.Second

// Daemon is a running set of tasks over one state directory.
type Daemon struct {
	host
	access  *access
	growing sync.Mutex // held while runners is read or grows
	runners []*runner
	// searching counts the streams that read every partition of a topic whose partitions are
	// not known yet.
	searching atomic.Int32
	others    []*runner // of tasks of the ledger that this process does not run
	lock      *os.File
	held      *heldLedger
	closing   sync.Mutex                  // held while an epoch of another task is closed
	address   atomic.Pointer[net.TCPAddr] // of the HTTP server, once it listens
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
	return d, nil
}

// prepare makes a daemon that has taken nothing yet.
func prepare(o Options) (*Daemon, error) {
	d := &Daemon{host: host{
		cfg: o.Config, key: o.Key, insecure: o.InsecureSeed, version: o.Version, log: o.Log, disk: o.disk,
		started: time.Now(), fetchBytes: cmp.Or(o.FetchBytes, 1<<20), changed: make(chan struct{}, 1), observe: o.observe, chunk: o.chunk, lookEvery: cmp.Or(o.lookEvery, lookEvery), clock: o.clock, beat: o.beat, truth: o.Truth,
	}}
	if d.cfg.Cluster != nil {
		return nil, ErrCluster
	}
	if d.insecure != nil && slices.ContainsFunc(d.cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) }) {
		return nil, errors.New("an insecure seed is for brokers on loopback addresses only: nothing is protected with it")
	}
	if d.truth != nil && (d.cfg.HTTP.Exposure == "public" || slices.ContainsFunc(d.cfg.Kafka.Brokers, func(b string) bool { return !config.Loopback(b) })) {
		return nil, errors.New("the truth is for demonstrations only: with brokers on loopback addresses, for operators")
	}
	if d.disk == nil {
		d.disk = osDisk{}
	}
	d.metrics = newMetrics(d.cfg.HTTP.Exposure == "public", d.cfg.HTTP.Metrics == "aggregate", d.version, d.insecure != nil)
	return d, nil
}

// lockState takes the state directory and its ledger for this process.
func (d *Daemon) lockState() (err error) {
	dir := d.cfg.State.Dir
	if err := d.disk.MkdirAll(filepath.Join(dir, "tasks")); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	// Sync the parent, which has the directory's name. The parent may belong to somebody else.
	if err := d.disk.SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.lock, err = lockDir(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.held, err = holdLedger(d.disk, dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	return nil
}

func (d *Daemon) open(tasks []core.Task) (err error) {
	if err := d.lockState(); err != nil {
		return err
	}
	dir := d.cfg.State.Dir
	if d.ledger, err = openLedger(d.disk, dir, newLedgerKey(d.key)); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	d.ledger.held, d.ledger.now = d.held, d.now
	if d.ledger.torn {
		d.log.Warn("a torn last line of the ledger was cut off")
	}
	cluster, err := Cluster(d.cfg)
	if err != nil {
		return err
	}
	if d.access, err = newAccess(d.cfg); err != nil {
		return err
	}
	if d.client, err = kafka.NewClient(cluster); err != nil {
		return err
	}
	d.tails.client = d.client
	d.memory = kafka.NewMemory(d.cfg.Kafka.FetchMemory)
	d.mirror = newMirror(&d.host, newRepeater(d.log, d.metrics, func() {}))
	for _, s := range d.cfg.Streams {
		if tasks == nil && s.Input.All() && !s.Merge {
			d.searching.Add(1)
		}
		for _, p := range d.partitionsAtStart(s, tasks) {
			if tasks != nil && !slices.Contains(tasks, core.Task{Stream: s.Name, Partition: p}) {
				continue
			}
			r, err := newRunner(&d.host, s, p)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrState, err)
			}
			d.runners = append(d.runners, r)
		}
	}
	for _, t := range d.ledger.tasks() {
		if slices.ContainsFunc(d.runners, func(r *runner) bool { return r.task == t }) {
			continue
		}
		if last := d.ledger.newest(t); len(d.ledger.undestroyed(t)) == 0 && (last == nil || last.Kind != kindOpen) {
			continue
		}
		r, err := newAbandoned(&d.host, t)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		d.others = append(d.others, r)
	}
	d.metrics.watch(d.Status)
	return nil
}

// lockDir locks the directory for this process. The lock ends with the process, even if
// that is killed.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := osfile.Lock(f); err != nil {
		f.Close()
		if errors.Is(err, osfile.ErrLocked) {
			return nil, fmt.Errorf("directory %s is in use by another process", dir)
		}
		return nil, err
	}
	return f, nil
}

// Close releases the state directory and the connections. Run must have
// returned.
func (d *Daemon) Close() {
	if d.client != nil {
		d.client.Close()
	}
	d.held.release()
	if d.lock != nil {
		osfile.Unlock(d.lock)
		d.lock.Close()
	}
}

// Addr returns the address of the HTTP server, once Run serves it.
func (d *Daemon) Addr() string {
	if a := d.address.Load(); a != nil {
		return a.String()
	}
	return ""
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

// Epochs returns the ledger's entries.
func (d *Daemon) Epochs() []Entry { return d.ledger.all() }

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
	d.ledger.word(q)
	if err := d.finishOthers(ctx); err != nil {
		return err
	}
	for _, r := range d.tasks() {
		if r.task == t {
			return r.serve(ctx, q)
		}
	}
	return d.closeAbandoned(ctx, t, q)
}

// closeAbandoned closes the open epoch of a task that is no longer in the configuration.
// Otherwise new records would be charged for it, without a horizon for ever. Where its
// releases went, its checkpoint says or, where that is lost, the line that opened it. They
// say how far the epoch read at least, which a log that lost its end does not. So where
// neither says it, the charge keeps its end, the horizon's or none.
func (d *Daemon) closeAbandoned(ctx context.Context, t core.Task, q request) error {
	i := slices.IndexFunc(d.others, func(r *runner) bool { return r.task == t })
	if i < 0 || q.kind != requestClose {
		return fmt.Errorf("the configuration has no task %s", t)
	}
	d.closing.Lock()
	defer d.closing.Unlock()
	d.ledger.word(q)
	r := d.others[i]
	opened := d.ledger.newest(t)
	if opened == nil || opened.Kind != kindOpen {
		return errors.New("the task has no open epoch")
	}
	cp, err := r.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return err
	}
	to := opened.Output
	if err == nil && cp != nil && cp.epoch == opened.Epoch {
		to = &EntryOutput{cp.outputTopic, cp.outputPartition}
	}
	if to != nil {
		r.release(config.Output{Topic: to.Topic, Partition: to.Partition})
		return r.closeHalted(ctx, opened, q.open.DropOutbox)
	}
	r.log.Warn("epoch closed without its checkpoint, and the ledger does not say where its releases went: its charge has the end that it was opened with, which is none without a horizon")
	var ends []EntryPart
	for _, v := range opened.views() {
		ends = append(ends, EntryPart{Partition: v.Partition, End: v.End})
	}
	return r.closeEpoch(ctx, opened, ends, 0, reasonRequest)
}

// InsecureKey returns the master key of an insecure seed.
func InsecureKey(seed uint64) *[32]byte {
	key := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("streamdp insecure key "), seed))
	return &key
}

// finishOthers finishes the closings of tasks that this process does not run: a command runs
// another task, or the configuration no longer has them.
func (d *Daemon) finishOthers(ctx context.Context) error {
	if d.ledger.waits() {
		return nil
	}
	for _, r := range d.others {
		if err := r.finishClosings(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("task %s: %w", r.task, err)
		}
	}
	return nil
}
