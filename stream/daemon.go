// Package stream is the daemon: it consumes Kafka records, feeds them to
// private estimators and publishes what they release.
//
// A task is one stream's work on one partition. Its three goroutines fetch and
// decode, own the estimator, and publish; whatever must be consistent has one
// owner and goes to disk in one write. The rules that every part keeps:
//
//   - A release is a function of the keys, the epoch's manifest and the log up
//     to its step. Clocks, fetch sizes and scheduling decide when things
//     happen, never what.
//   - State, position, transcript and unpublished releases are one atomic
//     durable write, and no byte of a release leaves before it.
//   - What is published again is the stored bytes.
//   - The log is proven to be the same before it is read on. In doubt the task
//     halts, not the process, and says how to go on.
//   - The budget is charged, durably, before an epoch's first noise.
//   - Nothing derived from a record reaches a log, an error or a metric of
//     class "–".
//
// docs/theory/stream.md has the formats, the faults and what each one leads to.
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
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

//go:generate go test -run ^TestMetricsReference$ -update

// Options say what a daemon runs with.
type Options struct {
	Config *config.Config
	// Key is the master key. The daemon keeps it until Run returns.
	Key *[32]byte
	// Log receives messages. Required.
	Log *slog.Logger
	// Version is written into manifests.
	Version string
	// InsecureSeed fixes keys, secrets and nonces by a number, for
	// demonstrations: nothing is protected then, and every release says so.
	InsecureSeed *uint64
	// FetchBytes bounds a response of the broker; 0 is 1 MiB, as for most
	// consumers: more is no faster, and a task holds
	// three responses and their rows.
	FetchBytes int
	// Tasks restricts the daemon to some tasks, for commands; nil runs all.
	Tasks []Task

	disk    disk   // tests replace it
	observe func() // tests: called after each change of a task's status
}

// ErrState is in errors about the state directory: locked, damaged, of another
// version.
var ErrState = errors.New("state")

// ErrNothing says that every task's epoch is closed or its budget spent, so
// that there is nothing to run.
var ErrNothing = errors.New("nothing to run")

// ErrHalted says that every task halted at start.
var ErrHalted = errors.New("every task halted")

// Daemon is a running set of tasks over one state directory.
type Daemon struct {
	cfg      *config.Config
	key      *[32]byte
	insecure *uint64
	version  string
	log      *slog.Logger
	disk     disk
	client   *kafka.Client
	ledger   *ledger
	metrics  *metrics
	runners  []*runner
	others   []*runner // of tasks of the ledger that this process does not run
	lock     *os.File
	started  time.Time

	fetchBytes int
	changed    chan struct{} // a task's state changed
	observe    func()
	address    atomic.Pointer[net.TCPAddr] // of the HTTP server, once it listens
}

// New locks the state directory, reads the ledger and readies the tasks. Close
// releases what it took.
func New(o Options) (*Daemon, error) {
	d := &Daemon{
		cfg: o.Config, key: o.Key, insecure: o.InsecureSeed, version: o.Version, log: o.Log, disk: o.disk,
		started: time.Now(), fetchBytes: cmp.Or(o.FetchBytes, 1<<20), changed: make(chan struct{}, 1), observe: o.observe,
	}
	if d.insecure != nil && slices.ContainsFunc(d.cfg.Kafka.Brokers, func(b string) bool { return !loopback(b) }) {
		return nil, errors.New("an insecure seed is for brokers on loopback addresses only: nothing is protected with it")
	}
	if d.disk == nil {
		d.disk = osDisk{}
	}
	d.metrics = newMetrics(d.cfg.HTTP.Exposure == "public", d.version, d.insecure != nil)
	if err := d.open(o.Tasks); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) open(tasks []Task) (err error) {
	dir := d.cfg.State.Dir
	if err := d.disk.MkdirAll(filepath.Join(dir, "tasks")); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	// The name of the directory itself; its parent may be somebody else's.
	if err := d.disk.SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.lock, err = lockDir(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.ledger, err = openLedger(d.disk, dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if d.ledger.torn {
		d.log.Warn("a torn last line of the ledger was cut off")
	}
	cluster, err := Cluster(d.cfg)
	if err != nil {
		return err
	}
	if d.client, err = kafka.NewClient(cluster); err != nil {
		return err
	}
	for _, s := range d.cfg.Streams {
		for _, p := range s.Input.Partitions {
			if tasks != nil && !slices.Contains(tasks, Task{s.Name, p}) {
				continue
			}
			r, err := newRunner(d, s, p)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrState, err)
			}
			d.runners = append(d.runners, r)
		}
	}
	for _, t := range d.ledger.tasks() {
		if len(d.ledger.undestroyed(t)) == 0 || slices.ContainsFunc(d.runners, func(r *runner) bool { return r.task == t }) {
			continue
		}
		r, err := newAbandoned(d, t)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
		d.others = append(d.others, r)
	}
	d.metrics.watch(func() []*runner { return d.runners })
	return nil
}

// taskDir returns the directory of a task's files.
func (d *Daemon) taskDir(t Task) string { return d.cfg.State.Dir + "/tasks/" + t.String() }

// lockDir takes the directory for this process. The lock ends with the process,
// however that ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
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
	if d.lock != nil {
		// Closing alone would leave it to a process forked at this moment.
		syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN)
		d.lock.Close()
	}
}

// loopback reports whether host:port is on this machine.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Run runs all tasks until the context ends, all epochs are closed, or
// something concerns the whole process. It returns nil in the first two cases,
// and ErrNothing or ErrHalted where no task ever ran.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	stopHTTP, err := d.serve(ctx, &wg)
	if err != nil {
		return err
	}
	var failed atomic.Pointer[error] // the first failure of the process
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				d.log.Error("stopping", "error", err.Error())
				failed.CompareAndSwap(nil, &err)
				cancel(err)
			}
		})
	}
	for _, r := range d.runners {
		run(r.run)
	}
	if d.cfg.State.EpochSecretRetention > 0 || len(d.others) > 0 {
		run(d.destroySecrets)
	}
	err = d.watch(ctx)
	cancel(err)
	stopHTTP()
	wg.Wait()
	// A task may also fail after the context has ended, in its last commit.
	if f := failed.Load(); f != nil {
		return *f
	}
	if err == nil {
		d.log.Info("stopped")
	}
	return err
}

// destroySecrets destroys the secrets of closed epochs when their time has come.
func (d *Daemon) destroySecrets(ctx context.Context) error {
	if err := d.finishOthers(ctx); err != nil {
		return err
	}
	if d.cfg.State.EpochSecretRetention == 0 {
		return nil // each closing has done it
	}
	tick := time.NewTicker(min(d.cfg.State.EpochSecretRetention, time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, r := range slices.Concat(d.runners, d.others) {
			if err := r.destroySecrets(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("task %s: %w", r.task, err)
			}
		}
	}
}

// finishOthers finishes the closings of tasks that this process does not run,
// because a command runs another one or the configuration has them no longer.
func (d *Daemon) finishOthers(ctx context.Context) error {
	for _, r := range d.others {
		if err := r.finishClosings(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("task %s: %w", r.task, err)
		}
	}
	return nil
}

// watch waits until nothing is left to run.
func (d *Daemon) watch(ctx context.Context) error {
	for {
		done, stopped, ran := 0, 0, false
		for _, r := range d.runners {
			// Whether it ever ran is set before a state that follows.
			switch r.status.Load().State {
			case stateExhausted, stateClosed:
				done++
			case stateHalted:
				stopped++
			}
			ran = ran || r.ran.Load()
		}
		switch n := len(d.runners); {
		case done == n && ran:
			return nil
		case done == n:
			return fmt.Errorf("%w: every epoch is closed or at its horizon; streamdp epoch open STREAM opens another", ErrNothing)
		case done+stopped == n && !ran && stopped > 0:
			return d.haltedAtStart()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		}
	}
}

func (d *Daemon) haltedAtStart() error {
	budget := true
	errs := []error{ErrHalted}
	for _, r := range d.runners {
		if s := r.status.Load(); s.State == stateHalted {
			errs = append(errs, fmt.Errorf("task %s: %s", r.task, s.Message))
			budget = budget && s.Reason == haltBudget
		}
	}
	if budget {
		errs[0] = ErrNothing
	}
	return errors.Join(errs...)
}

// stateChanged wakes watch.
func (d *Daemon) stateChanged(*runner) { signal(d.changed) }

// Addr returns the address of the HTTP server, once Run serves it.
func (d *Daemon) Addr() string {
	if a := d.address.Load(); a != nil {
		return a.String()
	}
	return ""
}

// Status returns the status of all tasks.
func (d *Daemon) Status() []TaskStatus {
	out := make([]TaskStatus, len(d.runners))
	for i, r := range d.runners {
		out[i] = r.Status()
	}
	return out
}

// Epochs returns the ledger's entries.
func (d *Daemon) Epochs() []Entry { return d.ledger.all() }

// OpenEpoch closes the task's open epoch, if there is one, and opens another.
// Run must not have been called: a running daemon is asked through its control
// socket.
func (d *Daemon) OpenEpoch(ctx context.Context, t Task, o OpenRequest) error {
	return d.command(ctx, t, request{kind: requestOpen, open: o})
}

// CloseEpoch closes the task's open epoch; see OpenEpoch.
func (d *Daemon) CloseEpoch(ctx context.Context, t Task, dropOutbox bool) error {
	return d.command(ctx, t, request{kind: requestClose, open: OpenRequest{DropOutbox: dropOutbox}})
}

func (d *Daemon) command(ctx context.Context, t Task, q request) error {
	if err := d.finishOthers(ctx); err != nil {
		return err
	}
	for _, r := range d.runners {
		if r.task == t {
			return r.serve(ctx, q)
		}
	}
	return fmt.Errorf("the configuration has no task %s", t)
}

// now is the clock: for pauses, ticks and times in records, never for content.
func (d *Daemon) now() time.Time { return time.Now() }

// entropy returns an epoch's secret and nonce.
func (d *Daemon) entropy(t Task, epoch uint64) (secret [32]byte, nonce [16]byte) {
	if d.insecure == nil {
		return dp.NewSecret(), dp.NewNonce()
	}
	label := binary.BigEndian.AppendUint64([]byte("streamdp insecure "), *d.insecure)
	label = binary.BigEndian.AppendUint64(append(label, t.String()...), epoch)
	secret = sha256.Sum256(append(label, 's'))
	n := sha256.Sum256(append(label, 'n'))
	return secret, [16]byte(n[:])
}

// InsecureKey returns the master key of an insecure seed.
func InsecureKey(seed uint64) *[32]byte {
	key := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("streamdp insecure key "), seed))
	return &key
}

// build names what computed a checkpoint, to explain a difference in a replay.
func build() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }
