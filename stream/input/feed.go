// Package input delivers to an epoch its records, or the sums of its steps. This instance or other instances compute
// the sums. The package decodes records to rows, adds them to the leaves of a merged stream, and stops if the log is
// not the one that was read before. It has no access to the master key.
package input

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/registry"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// Feed holds the parts of the process that are needed to read a task's partitions. It has no key, state or ledger.
type Feed struct {
	*failure.Retrier
	S       *config.Stream
	Task    core.Task
	Log     *slog.Logger
	Client  *kafka.Client
	Memory  *kafka.Memory
	Schemas *connect.Schemas
	Metrics *monitor.Metrics
	Trace   *trace.Tracer
	Now     func() time.Time

	FetchBytes int
	LookEvery  time.Duration
	// SameLog halts if the input is not the log of an epoch. nil: another instance checks that.
	SameLog     func(ctx context.Context, epoch uint64) error
	ShowSchemas func([]connect.SchemaStatus) // shows the registry's schemas in the status; nil: not shown
	Expected    int                          // number of the input's readers that have a share of the memory

	LogStart, LogEnd *atomic.Int64 // the ends of the log, as of the last response
}

// Expect sets how many readers of the task have a share of the memory.
func (f *Feed) Expect(readers int) {
	f.Memory.Expect(readers - f.Expected)
	f.Expected = readers
}

// LeavesAt returns the leaves of a core in the state of a checkpoint. It halts if the checkpoint's positions do not
// match that state.
func LeavesAt(c *core.Core, m *core.Manifest, cp *state.Checkpoint) ([]*core.Leaf, error) {
	leaves := c.Leaves()
	same := len(leaves) == len(cp.All()) && len(cp.Parts) == len(m.Parts)
	for i, p := range cp.All() {
		same = same && (cp.Parts == nil || p.Partition == m.Parts[i].Partition) && p.Position.Next == leaves[i].First()
	}
	if !same {
		return nil, failure.Haltf(failure.State,
			"checkpoint: its positions do not belong to its step: run streamdp recover%s, or open a new epoch: "+
				"streamdp epoch open %s",
			failure.TaskFlags(m.Task()), failure.EpochArgs(m.Task()))
	}
	return leaves, nil
}

// OpenInput returns a reader of a source. The caller must close it.
func (r *Feed) OpenInput(src core.Source, bytes int, at kafka.Position) (*kafka.Reader, error) {
	o := ReaderOptions(r.S, src, bytes)
	o.MaxWait, o.Memory, o.RowBytes = idleWait, r.Memory, codec.RowBytes(core.FormatOf(r.S))
	return r.Client.NewReader(o, at)
}

// ReaderOptions returns the options for reading a stream's input, in responses of the given number of bytes.
func ReaderOptions(s *config.Stream, src core.Source, bytes int) kafka.ReaderOptions {
	return kafka.ReaderOptions{
		Topic: src.Topic, Partition: int32(src.Partition), ClusterID: src.Cluster,
		SkipGaps: s.OnGap == "null", Compacted: s.Input.AllowCompacted,
		PartitionMaxBytes: bytes, MaxRecordBytes: core.MaxRecordBytes(s),
	}
}

// ReadSchemas reads the schemas before any record of the log is decoded, and before an epoch is charged. If the
// registry does not answer, it waits, as for a missing broker. If opening is true, an epoch is about to open by itself;
// ReadSchemas then also waits for a schema whose records can give rows.
func (r *Feed) ReadSchemas(ctx context.Context, opening bool) error {
	if !r.S.Input.Looked() {
		return nil
	}
	err := r.Do(ctx, "registry", func() error {
		if err := r.Schemas.Look(ctx, r.S, r.LookEvery); err != nil {
			r.Schemas.Reached(r.Log, r.Metrics.RegistryReachable, err)
			if errors.Is(err, registry.ErrNotThere) {
				err = fmt.Errorf("%w yet: wait until a producer registers it, or correct input.subjects", err)
			}
			return &failure.Later{Err: err}
		}
		r.Schemas.Reached(r.Log, r.Metrics.RegistryReachable, nil)
		r.publishSchemas()
		if why := r.rowless(); opening && why != "" {
			return &failure.Later{
				Err: errors.New("waiting to open an epoch until the registry has a schema whose records give rows; " +
					"nothing is charged: " + why)}
		}
		return nil
	})
	return err
}

// rowless returns "" if the records of some schema version give rows; otherwise it returns why none do. The registry's
// content is public, so this answer is public too.
func (r *Feed) rowless() string {
	all, err := r.Schemas.Compare(r.S)
	if err != nil {
		return "" // the decoder reports it
	}
	for _, v := range all {
		if len(v.Faults) == 0 {
			return ""
		}
	}
	if len(all) == 0 {
		return "no subject of the stream has a schema"
	}
	last := all[len(all)-1]
	return fmt.Sprintf("subject %s, version %d (id %d): %s", last.Subject, last.Version, last.ID,
		strings.Join(last.Faults, "; "))
}

// LookAtSchemas queries the registry periodically until the context ends. A running task continues without the
// registry; only records with new schemas wait for it.
func (r *Feed) LookAtSchemas(ctx context.Context) {
	if !r.S.Input.Looked() {
		return
	}
	pause := r.LookEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := r.Schemas.Look(ctx, r.S, r.LookEvery/2)
		if ctx.Err() != nil {
			return
		}
		r.Schemas.Reached(r.Log, r.Metrics.RegistryReachable, err)
		r.publishSchemas()
		if pause = r.LookEvery; err != nil {
			pause = min(pause, time.Second)
		}
	}
}

// publishSchemas puts the newest schemas into the status, and warns once of each version whose records give no rows.
func (r *Feed) publishSchemas() {
	all, err := r.Schemas.Compare(r.S)
	if err != nil {
		return // the decoder reports it
	}
	var newest []connect.SchemaStatus
	for _, v := range all {
		if v.Latest {
			newest = append(newest, v)
		}
		if len(v.Faults) > 0 &&
			r.Schemas.First(connect.SchemaAt{Stream: r.S.Name, Subject: v.Subject, Version: v.Version, ID: v.ID}) {
			r.Log.Warn("records with this schema of the registry give no rows: correct columns or schema", "subject",
				v.Subject, "version", v.Version, "id", v.ID, "newest", v.Latest, "why", v.Faults)
		}
	}
	if r.ShowSchemas != nil {
		r.ShowSchemas(newest)
	}
}

const batches = 4 // one being applied, one waiting, one being decoded, one being filled

const idleWait = 15 * time.Second // longest wait of a fetch, if several tasks are idle

// NewDecoder returns a decoder of one partition's records. If the stream protects persons, the decoder tags records
// with the epoch's user key.
func NewDecoder(x *connect.Schemas, s *config.Stream, m *core.Manifest, partition int,
	c *core.Core) (*codec.Decoder, error) {
	var d *codec.Decoder
	f, err := x.Format(s)
	if err == nil {
		d, err = codec.NewDecoder(f, runtime.GOMAXPROCS(0))
	}
	if err == nil && s.User != nil {
		key := c.UserKey()
		if err = d.TagUsers(&key); err == nil && s.User.Partitioner == "murmur2" {
			d.OnlyAtHome(partition, m.Partitions)
		}
	}
	if err != nil {
		return nil, failure.Haltf(failure.Configuration, "%w", err)
	}
	return d, nil
}
