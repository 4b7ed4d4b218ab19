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
	"github.com/streamdp/streamdp/internal/kafka"
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
	// Cfg is the configuration at start. It is for the tables of the process, which never change;
	// for streams there is config.
	Cfg       *config.Config
	Current   atomic.Pointer[config.Config] // see config
	Key       *[32]byte
	Insecure  *uint64
	Version   string
	Log       *slog.Logger
	Client    *kafka.Client
	Schemas   *connect.Schemas
	Memory    *kafka.Memory // for what tasks have fetched
	Tails     output.Partitions
	Lag       *monitor.LagReport // nil: none is wanted
	Trace     *trace.Tracer      // nil: likewise
	Plans     MechanismCache
	TaskCount atomic.Int64 // of this process
	Openings  OpenGate
	Metrics   *monitor.Metrics
	Partials  *input.SharedSummation // nil: nobody else reads merged streams
	Started   time.Time

	FetchBytes int
	Changed    chan struct{} // a task's state changed
	Observe    func()
	Chunk      int
	Truth      func(r *core.Released, value string) []float64 // of a demonstration; nil: none
	LookEvery  time.Duration                                  // how often the cluster is asked what nothing depends on
	LagEvery   time.Duration                                  // how often offsets are committed to a group
	Clock      func() time.Time
	Beat       func(context.Context) error // tests: waits for the next boundary
}

// Config returns the configuration as it is now. Streams may come, go and change while the daemon
// runs; see [Daemon.change]. What it points to does not change.
func (h *Process) Config() *config.Config { return h.Current.Load() }

// keptTasks is the number of tasks from which on each keeps less of what it has published.
const keptTasks = 32

// Kept returns how many bytes a task may keep of its published releases for readers, where
// one of a few may keep most.
func (h *Process) Kept(most int) int {
	return most * keptTasks / max(int(h.TaskCount.Load()), keptTasks)
}

// Sealer returns what encrypts a task's files.
func (h *Process) Sealer(t core.Task) *state.Sealer {
	return &state.Sealer{Master: h.Key, Task: t.String(), On: h.Cfg.State.Encrypt}
}

// StateChanged wakes watch.
func (h *Process) StateChanged() { failure.Signal(h.Changed) }

// Now is the clock. It is for pauses, ticks and times in records, never for content. Ticks and
// pauses follow its monotonic reading. Only the retention of secrets and the times in the
// ledger follow the wall clock.
func (h *Process) Now() time.Time {
	if h.Clock != nil {
		return h.Clock()
	}
	return time.Now()
}

// entropy returns an epoch's secret and nonce.
func (h *Process) entropy(t core.Task, epoch uint64) (secret [32]byte, nonce [16]byte) {
	if h.Insecure == nil {
		return dp.NewSecret(), dp.NewNonce()
	}
	label := binary.BigEndian.AppendUint64([]byte("streamdp insecure "), *h.Insecure)
	label = binary.BigEndian.AppendUint64(append(label, t.String()...), epoch)
	secret = sha256.Sum256(append(label, 's'))
	n := sha256.Sum256(append(label, 'n'))
	return secret, [16]byte(n[:])
}

// Build names the program that computed a checkpoint, to explain a difference found later.
func Build() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }

// PartialsOf returns what partials of a group need of the process.
func (h *Process) PartialsOf(group string, log input.SumLog, shard func(*config.Stream) int) input.SummationOptions {
	return input.SummationOptions{Group: group, Sums: log, Shard: shard, Master: h.Key, Config: h.Config, Now: h.Now, Log: h.Log, Failed: h.Metrics.KafkaError,
		Feed: func(s *config.Stream) *input.Feed {
			return NewFeed(h, core.Task{Stream: s.Name, Partition: core.Merged}, s, func() {})
		}}
}
