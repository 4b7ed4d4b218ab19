package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// host holds what all tasks of a process share.
type host struct {
	// cfg is the configuration at start. It is for the tables of the process, which never change;
	// for streams there is config.
	cfg       *config.Config
	current   atomic.Pointer[config.Config] // see config
	key       *[32]byte
	insecure  *uint64
	version   string
	log       *slog.Logger
	client    *kafka.Client
	schemas   *Schemas
	memory    *kafka.Memory // for what tasks have fetched
	tails     tails
	lag       *lagReport    // nil: none is wanted
	trace     *trace.Tracer // nil: likewise
	plans     plans
	taskCount atomic.Int64 // of this process
	openings  openings
	metrics   *metrics
	partials  *partials // nil: nobody else reads merged streams
	started   time.Time

	fetchBytes int
	changed    chan struct{} // a task's state changed
	observe    func()
	chunk      int
	truth      func(r *core.Released, value string) []float64 // of a demonstration; nil: none
	lookEvery  time.Duration                                  // how often the cluster is asked what nothing depends on
	lagEvery   time.Duration                                  // how often offsets are committed to a group
	clock      func() time.Time
	beat       func(context.Context) error // tests: waits for the next boundary
}

// config returns the configuration as it is now. Streams may come, go and change while the daemon
// runs; see [Daemon.change]. What it points to does not change.
func (h *host) config() *config.Config { return h.current.Load() }

// keptTasks is the number of tasks from which on each keeps less of what it has published.
const keptTasks = 32

// kept returns how many bytes a task may keep of its published releases for readers, where
// one of a few may keep most.
func (h *host) kept(most int) int {
	return most * keptTasks / max(int(h.taskCount.Load()), keptTasks)
}

// sealer returns what encrypts a task's files.
func (h *host) sealer(t core.Task) *sealer {
	return &sealer{master: h.key, task: t.String(), on: h.cfg.State.Encrypt}
}

// stateChanged wakes watch.
func (h *host) stateChanged() { signal(h.changed) }

// now is the clock. It is for pauses, ticks and times in records, never for content. Ticks and
// pauses follow its monotonic reading. Only the retention of secrets and the times in the
// ledger follow the wall clock.
func (h *host) now() time.Time {
	if h.clock != nil {
		return h.clock()
	}
	return time.Now()
}

// entropy returns an epoch's secret and nonce.
func (h *host) entropy(t core.Task, epoch uint64) (secret [32]byte, nonce [16]byte) {
	if h.insecure == nil {
		return dp.NewSecret(), dp.NewNonce()
	}
	label := binary.BigEndian.AppendUint64([]byte("streamdp insecure "), *h.insecure)
	label = binary.BigEndian.AppendUint64(append(label, t.String()...), epoch)
	secret = sha256.Sum256(append(label, 's'))
	n := sha256.Sum256(append(label, 'n'))
	return secret, [16]byte(n[:])
}

// build names the program that computed a checkpoint, to explain a difference found later.
func build() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }

// partialsOf returns what partials of a group need of the process.
func (h *host) partialsOf(group string, log sumLog, shard func(*config.Stream) int) partialsOptions {
	return partialsOptions{group: group, log: log, shard: shard, master: h.key, config: h.config, now: h.now, says: h.log, failed: h.metrics.kafkaError,
		feed: func(s *config.Stream) *feed {
			return newFeed(h, core.Task{Stream: s.Name, Partition: core.Merged}, s, func() {})
		}}
}
