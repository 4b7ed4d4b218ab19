package output

// This file exports internals to the tests in package output_test.

import (
	"context"
	"sync"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

type (
	Comparison = comparison
	Gained     = newReleases
	Released   = released
	TailKey    = partitionKey
)

const (
	MaxMade = maxMade
)

var (
	NewHashes  = newHashes
	ReleasedIn = releasedIn
)

func (x *ForkGuard) CatchUp(a0 context.Context) error { return x.catchUp(a0) }

func (x *ForkGuard) Compare(a0 context.Context, a1 string, a2 int, a3 int64, a4 comparison) error {
	return x.compare(a0, a1, a2, a3, a4)
}

func (x *ForkGuard) Made() **hashes { return &x.made }

func (x *ForkGuard) Next() *int64 { return &x.next }

func (x *ForkGuard) Reset(a0 uint64) { x.reset(a0) }

func (x *Publisher) Out() **ForkGuard { return &x.out }

func (x *Publisher) Send(a0 context.Context, a1 []state.Message) error { return x.publish(a0, a1) }

func (x *Partition) Asking() int { return x.asking() }

func (x *Partition) Busy() *bool { return &x.busy }

func (x *Partition) History(a0 context.Context, a1 core.Task, a2 int64, a3 func(released) error, a4 func(error)) (int64,
	bool, error) {
	return x.readBacklog(a0, a1, a2, a3, a4)
}

func (x *Partition) Known(a0 core.Task, a1 int64, a2 int64) ([]released, int64, bool) {
	return x.known(a0, a1, a2)
}

func (x *Partition) Look() error { return x.look() }

func (x *Partition) Most() *int { return &x.most }

func (x *Partition) Mu() *sync.Mutex { return &x.mu }

func (x *Partition) Next() *int64 { return &x.next }

func (x *Partition) Past() *backlogs { return &x.past }

func (x *Partition) Queue() *[]*sending { return &x.queue }

func (x *Partition) ReadHistories() { x.readBacklogs() }

func (x *Partition) Reads() *int { return &x.reads }

func (x *Partition) Requests() *int { return &x.requests }

func (x *Partition) Send(a0 context.Context, a1 core.Task, a2 int64, a3 []kafka.Message) ([]kafka.Appended, error) {
	return x.send(a0, a1, a2, a3)
}

func (x *Partition) Sent() *map[core.Task][]*sending { return &x.sent }

func (x *Partition) Since(a0 context.Context, a1 core.Task, a2 int64) ([]released, int64, bool) {
	return x.since(a0, a1, a2)
}

func (x *Partition) Tasks() *map[core.Task]*newReleases { return &x.tasks }

func (x *Partition) Waits() *int { return &x.waits }

func (x *Partition) Work() { x.work() }

func (x *Partitions) Join(a0 config.Output, a1 core.Task) *Partition { return x.join(a0, a1) }

func (x *Partitions) Of() *map[partitionKey]*Partition { return &x.of }
