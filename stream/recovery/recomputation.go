package recovery

import (
	"context"
	"fmt"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/state"
)

// recomputation reads an epoch's log again and recomputes its steps. It publishes and writes nothing: it fills the maps
// of persons in memory, but writes no journal.
type recomputation struct {
	core   *core.Core
	one    *rereading   // set if the epoch is not merged
	parts  []*rereading // set if the epoch is merged
	leaves []*core.Leaf
	sums   []*core.Sum
	// bounds returns the end of a step by the clock. nil: steps are not by the clock.
	bounds func(ctx context.Context, step uint64) (boundary.Boundary, error)
	last   boundary.Boundary
}

// rereading reads the log of one partition again.
type rereading struct {
	*failure.Retrier
	partition int
	into      input.Adder
	reader    *kafka.Reader
	decoder   *codec.Decoder
	batch     codec.Batch
	next      int            // index of the next record in the batch
	filled    bool           // the batch has records left
	position  kafka.Position // position of the last boundary, if it is before the batch
}

// newRecomputation returns a recomputation that continues at a checkpoint's position. The core must be in the state of
// that position. bounds returns where steps by the clock end. fetchBytes is the size limit of a broker's response; if
// there are many partitions, they share it.
func newRecomputation(r *failure.Retrier, client *kafka.Client, x *connect.Schemas, s *config.Stream, m *core.Manifest,
	c *core.Core, cp *state.Checkpoint,
	bounds func(context.Context, uint64) (boundary.Boundary, error), fetchBytes int) (*recomputation, error) {
	open := func(src core.Source, into input.Adder, at kafka.Position) (*rereading, error) {
		reader, err := client.NewReader(input.ReaderOptions(s, src, input.MergedBytes(fetchBytes, len(cp.All()))), at)
		if err != nil {
			return nil, err
		}
		decoder, err := input.NewDecoder(x, s, m, src.Partition, c)
		if err != nil {
			return nil, err
		}
		return &rereading{Retrier: r, partition: src.Partition, into: into, reader: reader, decoder: decoder,
			position: at}, nil
	}
	p := &recomputation{core: c, bounds: bounds, last: boundary.Boundary{At: cp.Boundary}}
	var err error
	if m.Partition != core.Merged && bounds == nil {
		p.one, err = open(m.Source, c, cp.Position)
		return p, err
	}
	if p.leaves, err = input.LeavesAt(c, m, cp); err != nil {
		return nil, err
	}
	for i, leaf := range p.leaves {
		src := m.Source
		src.Partition = core.Partitions(m)[i]
		part, err := open(src, leaf, cp.All()[i].Position)
		if err != nil {
			return nil, err
		}
		sum, err := c.NewSum()
		if err != nil {
			return nil, err
		}
		p.parts, p.sums = append(p.parts, part), append(p.sums, sum)
	}
	return p, nil
}

// logEnded is the error of a log that ends before the end of a published step.
type logEnded struct {
	next int64
	step uint64
}

// Error returns a message with the log's end offset and the step.
func (e *logEnded) Error() string {
	return fmt.Sprintf("the log ends at offset %d, before the end of step %d", e.next, e.step)
}

// close reads to the end of the next step, closes the step, and returns the messages of its release.
//
// Errors: *logEnded if a log ends before the step does; the errors of kafka.Reader.Fetch and core.Core.Close.
func (p *recomputation) close(ctx context.Context) ([]core.Message, error) {
	for _, m := range p.core.Persons() {
		defer m.Forget()
	}
	step := p.core.Step() + 1
	if p.one != nil {
		if err := p.one.fill(ctx, step); err != nil {
			return nil, err
		}
		return p.core.Close()
	}
	if p.bounds != nil {
		at, err := p.bounds(ctx, step)
		if err != nil {
			return nil, err
		}
		if len(at.Ends) != len(p.leaves) {
			return nil, failure.Haltf(failure.OutputAhead, "step %d ends in %d partitions, but the epoch reads %d",
				step, len(at.Ends), len(p.leaves))
		}
		for i, leaf := range p.leaves {
			if err := leaf.Until(at.Ends[i]); err != nil {
				return nil, failure.Haltf(failure.OutputAhead, "step %d: %w", step, err)
			}
		}
		p.last = at
	}
	for i, part := range p.parts {
		p.leaves[i].Into(p.sums[i])
		if err := part.fill(ctx, step); err != nil {
			return nil, err
		}
		p.leaves[i].Close()
	}
	return p.core.Merge(p.sums, nil)
}

// fill reads records up to the end of the open step.
func (p *rereading) fill(ctx context.Context, step uint64) error {
	c, b := p.into, &p.batch
	for c.First() < c.End() { // a step by the clock may be empty
		if p.filled {
			var ended bool
			if p.next, ended = input.AddRecords(c, b, p.next, nil, nil); ended {
				return nil
			}
		}
		if p.filled && c.First() >= b.First {
			p.position = b.Position(c.First())
		}
		if p.filled && b.Next == b.First && b.LastStable >= 0 && b.Next >= b.LastStable {
			return &logEnded{b.Next, step}
		}
		p.filled = false
		if err := p.Do(ctx, "fetch", func() error { return p.reader.Fetch(ctx, &b.Chunk) }); err != nil {
			return err
		}
		p.decoder.Decode(b)
		p.filled, p.next = true, 0
	}
	return nil
}

// at returns the position of the last boundary.
func (p *rereading) at() kafka.Position {
	if p.filled && p.into.First() >= p.batch.First {
		return p.batch.Position(p.into.First())
	}
	return p.position
}

// at sets a checkpoint's positions to the last boundary.
func (p *recomputation) at(cp *state.Checkpoint) {
	if p.one != nil {
		cp.Position = p.one.at()
		return
	}
	cp.Boundary = p.last.At
	if cp.Parts == nil {
		cp.Position = p.parts[0].at()
		return
	}
	cp.Position = kafka.Position{Next: p.core.First(), LeaderEpoch: -1}
	for i, part := range p.parts {
		cp.Parts[i].Position = part.at()
	}
}
