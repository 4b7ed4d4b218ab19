package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// feed is what reading partitions for a task needs of the process. It has no key, no state and no ledger.
type feed struct {
	*repeater
	s       *config.Stream
	task    core.Task
	log     *slog.Logger
	client  *kafka.Client
	memory  *kafka.Memory
	schemas *Schemas
	metrics *metrics
	trace   *trace.Tracer
	now     func() time.Time

	fetchBytes int
	lookEvery  time.Duration
	// sameLog halts where the input is not the log of an epoch any more; nil: somebody else looks.
	sameLog     func(ctx context.Context, epoch uint64) error
	showSchemas func([]SchemaStatus) // shows what the registry said; nil: nobody looks
	expected    int                  // readers of the input that have a share of the memory

	logStart, logEnd *atomic.Int64 // the ends of the log that were seen last
}

// expect sets for how many readers the task has shares of the memory.
func (f *feed) expect(readers int) {
	f.memory.Expect(readers - f.expected)
	f.expected = readers
}

// leavesAt returns the leaves of a core in the state of a checkpoint. It halts unless the
// checkpoint's positions are those of that state.
func leavesAt(c *core.Core, m *core.Manifest, cp *checkpoint) ([]*core.Leaf, error) {
	leaves := c.Leaves()
	same := len(leaves) == len(cp.all()) && len(cp.parts) == len(m.Parts)
	for i, p := range cp.all() {
		same = same && (cp.parts == nil || p.partition == m.Parts[i].Partition) && p.position.Next == leaves[i].First()
	}
	if !same {
		return nil, halted(haltState, "checkpoint: positions and step disagree: streamdp recover%s, or start anew with: streamdp epoch open %s", taskFlags(m.Task()), epochArgs(m.Task()))
	}
	return leaves, nil
}

// openInput returns a reader of a source. It must be closed.
func (r *feed) openInput(src core.Source, bytes int, at kafka.Position) (*kafka.Reader, error) {
	o := readerOptions(r.s, src, bytes)
	o.MaxWait, o.Memory, o.RowBytes = idleWait, r.memory, codec.RowBytes(core.FormatOf(r.s))
	return r.client.NewReader(o, at)
}

// readerOptions says how a stream's input is read, in responses of so many bytes.
func readerOptions(s *config.Stream, src core.Source, bytes int) kafka.ReaderOptions {
	return kafka.ReaderOptions{
		Topic: src.Topic, Partition: int32(src.Partition), ClusterID: src.Cluster,
		SkipGaps: s.OnGap == "null", Compacted: s.Input.AllowCompacted,
		PartitionMaxBytes: bytes, MaxRecordBytes: core.MaxRecordBytes(s),
	}
}

// readSchemas reads the schemas before anything of the log is decoded, and before a charge. It
// waits for the registry as for a vanished broker. Before an epoch that opens by itself, charged,
// it also waits for a schema whose records can give rows.
func (r *feed) readSchemas(ctx context.Context, opening bool) error {
	if !r.s.Input.Looked() {
		return nil
	}
	err := r.retry(ctx, "registry", func() error {
		if err := r.schemas.Look(ctx, r.s, r.lookEvery); err != nil {
			r.schemas.reached(r.log, r.metrics.registryReachable, err)
			if errors.Is(err, registry.ErrNotThere) {
				err = fmt.Errorf("%w yet: the first producer registers it, or input.subjects names another", err)
			}
			return &notYet{err}
		}
		r.schemas.reached(r.log, r.metrics.registryReachable, nil)
		r.publishSchemas()
		if why := r.rowless(); opening && why != "" {
			return &notYet{errors.New("no epoch is opened, and nothing charged, before there is a schema whose records can give rows: " + why)}
		}
		return nil
	})
	return err
}

// rowless says why records of no version that was read give rows, "" where those of one do. What the
// registry has is public, and so is the answer.
func (r *feed) rowless() string {
	all, err := r.schemas.compare(r.s)
	if err != nil {
		return "" // the decoder says it
	}
	for _, v := range all {
		if len(v.Faults) == 0 {
			return ""
		}
	}
	if len(all) == 0 {
		return "the subjects have no version"
	}
	last := all[len(all)-1]
	return fmt.Sprintf("subject %s, version %d (id %d): %s", last.Subject, last.Version, last.ID, strings.Join(last.Faults, "; "))
}

// lookAtSchemas looks at the registry until the context ends, by the clock. A task that runs goes
// on without the registry: only records whose schemas are new wait for it.
func (r *feed) lookAtSchemas(ctx context.Context) {
	if !r.s.Input.Looked() {
		return
	}
	pause := r.lookEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		err := r.schemas.Look(ctx, r.s, r.lookEvery/2)
		if ctx.Err() != nil {
			return
		}
		r.schemas.reached(r.log, r.metrics.registryReachable, err)
		r.publishSchemas()
		if pause = r.lookEvery; err != nil {
			pause = min(pause, time.Second)
		}
	}
}

// showSchemas puts the newest schemas into the status, and warns once of each version whose
// records give no rows.
func (r *feed) publishSchemas() {
	all, err := r.schemas.compare(r.s)
	if err != nil {
		return // the decoder says it
	}
	var newest []SchemaStatus
	for _, v := range all {
		if v.latest {
			newest = append(newest, v)
		}
		if len(v.Faults) > 0 && r.schemas.first(schemaAt{r.s.Name, v.Subject, v.Version, v.ID}) {
			r.log.Warn("records of a schema in the registry give no rows", "subject", v.Subject, "version", v.Version, "id", v.ID, "newest", v.latest, "why", v.Faults)
		}
	}
	if r.showSchemas != nil {
		r.showSchemas(newest)
	}
}

const batches = 4 // one applied, one waiting, one decoded, one filled

const idleWait = 15 * time.Second // of a fetch of one among several idle tasks

// newDecoder returns a decoder of one partition's records. Where persons are protected, it sets the
// tags of the epoch's.
func newDecoder(x *Schemas, s *config.Stream, m *core.Manifest, partition int, c *core.Core) (*codec.Decoder, error) {
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
		return nil, halted(haltConfiguration, "%w", err)
	}
	return d, nil
}
