package epoch

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// Process holds what all tasks of a process share.
type Process struct {
	// Cfg is the configuration at start. Use it for the tables of the process, which never change; use Config for
	// streams.
	Cfg     *config.Config
	Current atomic.Pointer[config.Config] // the present configuration; read it by Config
	Version string                        // version of the program
	Started time.Time

	// Keys.
	Key      *[32]byte // the master key
	Insecure *uint64   // the seed of a demonstration, which protects nothing; nil: none

	// Connections.
	Client  *kafka.Client
	Schemas *connect.Schemas

	// Resources shared by tasks.
	Memory    *kafka.Memory          // memory for fetched records of all tasks
	Tails     output.Partitions      // the output partitions
	Plans     MechanismCache         // mechanisms for recorded plans
	Openings  OpenGate               // gate for epochs that are being opened
	Partials  *input.SharedSummation // nil: no other instance helps to read merged streams
	TaskCount atomic.Int64           // number of tasks in this process

	// Values shown outside.
	Log     *slog.Logger
	Metrics *monitor.Metrics
	Lag     *monitor.LagReport // nil: disabled
	Trace   *trace.Tracer      // nil: disabled
	Changed chan struct{}      // receives when a task's state has changed
	Observe func()             // called after each change of a task's status; may be nil
	// Truth returns what a value of a release would be without noise. It is nil except in a demonstration.
	Truth func(r *core.Released, value string) []float64

	// Sizes and times.
	FetchBytes int           // size of the largest response of a broker
	Chunk      int           // size in bytes above which a release is published in pieces; 0: the default
	LookEvery  time.Duration // interval of queries for partitions, topics, schemas and lag
	LagEvery   time.Duration // interval at which offsets are committed to a consumer group

	// For tests.
	Clock func() time.Time            // nil: the machine's clock
	Beat  func(context.Context) error // waits for the next boundary; nil: see Beats
}

// Config returns the present configuration. A returned configuration never changes. A reload of the daemon may add,
// remove and change streams; then Config returns a new one.
func (p *Process) Config() *config.Config { return p.Current.Load() }

// keptTasks is the number of tasks above which each keeps fewer of its published releases.
const keptTasks = 32

// Kept returns how many bytes of its published releases a task may keep for readers. If the process has few tasks, that
// is the argument most.
func (p *Process) Kept(most int) int {
	return most * keptTasks / max(int(p.TaskCount.Load()), keptTasks)
}

// Sealer returns the encryption of a task's files.
func (p *Process) Sealer(t core.Task) *state.Sealer {
	return &state.Sealer{Master: p.Key, Task: t.String(), On: p.Cfg.State.Encrypt}
}

// StateChanged signals that a task's state has changed.
func (p *Process) StateChanged() { failure.Signal(p.Changed) }

// Now returns the time. Use it for pauses, ticks and times in records, never for the content of releases. Ticks and
// pauses follow the monotonic clock in it. Only the retention of secrets and the times in the ledger follow the wall
// clock.
func (p *Process) Now() time.Time {
	if p.Clock != nil {
		return p.Clock()
	}
	return time.Now()
}

// entropy returns an epoch's secret and nonce.
func (p *Process) entropy(t core.Task, epoch uint64) (secret [32]byte, nonce [16]byte) {
	if p.Insecure == nil {
		return dp.NewSecret(), keys.NewNonce()
	}
	label := binary.BigEndian.AppendUint64([]byte("streamdp insecure "), *p.Insecure)
	label = binary.BigEndian.AppendUint64(append(label, t.String()...), epoch)
	secret = sha256.Sum256(append(label, 's'))
	n := sha256.Sum256(append(label, 'n'))
	return secret, [16]byte(n[:])
}

// Beats returns a function that waits for the next multiple of a period by the wall clock. Even if the clock is
// changed, it waits for at most one and a half periods. Multiples that were missed are skipped.
func (p *Process) Beats(period time.Duration) func(context.Context) error {
	if p.Beat != nil {
		return p.Beat
	}
	var last time.Time
	return func(ctx context.Context) error {
		now := p.Now().Round(0)
		next := now.Truncate(period).Add(period)
		if !last.IsZero() && next.Sub(last).Abs() < period/2 {
			next = next.Add(period) // the timer was early
		}
		last = next
		timer := time.NewTimer(next.Sub(now))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
}

// NewFeed returns the feed of a task. The stream s may be nil. changed is called when a call to the cluster starts to
// fail or recovers.
func NewFeed(p *Process, t core.Task, s *config.Stream, changed func()) *input.Feed {
	f := &input.Feed{
		S: s, Task: t, Log: p.Log.With("task", t.String()), Client: p.Client, Memory: p.Memory, Schemas: p.Schemas,
		Metrics: p.Metrics, Trace: p.Trace,
		Now: p.Now, FetchBytes: p.FetchBytes, LookEvery: p.LookEvery, LogStart: new(atomic.Int64),
		LogEnd: new(atomic.Int64),
	}
	f.Retrier = failure.NewRetrier(f.Log, p.Metrics.KafkaError, changed)
	return f
}

// Build names the Go version and the platform. A checkpoint records them, so that a difference between releases can be
// explained later.
func Build() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }

// PartialsKey returns the function that derives the keys of sum records from a master key.
func PartialsKey(master *[32]byte) func(salt []byte) [32]byte {
	return func(salt []byte) [32]byte { return keys.Derive(master, keys.ForPartials, salt) }
}

// PartialsOf returns the options for shared summation in a group.
func (p *Process) PartialsOf(group string, log input.SumLog, shard func(*config.Stream) int) input.SummationOptions {
	return input.SummationOptions{
		Group: group, Sums: log, Shard: shard, KeyID: credentials.KeyID(p.Key), Derive: PartialsKey(p.Key),
		Config: p.Config, Now: p.Now, Log: p.Log, Failed: p.Metrics.KafkaError,
		Feed: func(s *config.Stream) *input.Feed {
			return NewFeed(p, core.Task{Stream: s.Name, Partition: core.Merged}, s, func() {})
		}}
}
