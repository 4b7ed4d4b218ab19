package cluster

// This file exports internals to the tests in package cluster_test.

import (
	"context"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/epoch"
)

type (
	RequestTopic = requestTopic
	AskedRecord  = askedRecord
	GroupTools   = groupTools
	Importing    = importing
	TakenRecord  = takenRecord
	Within       = within
)

const (
	LogTasks      = logTasks
	PartAnswered  = partAnswered
	PartAsked     = partAsked
	PartTaken     = partTaken
	PostAcquiring = postAcquiring
	PostHalted    = postHalted
	PostRunning   = postRunning
	RequestPrefix = requestPrefix
	TurnTime      = turnTime
)

var (
	ErrLost          = errLost
	NewRequestTopic  = newRequestTopic
	GenesisOf        = genesisOf
	NewRequestServer = newRequestServer
	NewGroupTools    = newGroupTools
	NewImporting     = newImporting
	OneLedger        = oneLedger
)

// Await waits for an answer.
func (a *RequestTopic) Await(ctx context.Context, id string, from int64, life, patience time.Duration) error {
	return a.await(ctx, id, from, life, patience)
}

// Headers returns the headers of a record.
func (a *RequestTopic) Headers(key, value []byte) []kafka.Header {
	return a.log.Headers(a.log.Sign(nil, a.signed(key, value)...))
}

// SetTopic makes the request topic use another topic.
func (a *RequestTopic) SetTopic(topic string) { a.log.Topic = topic }

// Write appends a part of a request.
func (a *RequestTopic) Write(ctx context.Context, id, part string, v any) error {
	return a.write(ctx, id, part, v)
}

func (x *Shard) Left() int { return x.left() }

func (x *Shard) Line() *int { return &x.line }

func (x *Shard) Mu() *sync.Mutex { return &x.mu }

func (x *Shard) Parts() *map[string][]int { return &x.parts }

func (x *Shard) Queue() *[]*logUpdate { return &x.queue }

func (x *Shard) Room() *int { return &x.room }

func (x *Shard) Waiting() *map[string]*logUpdate { return &x.waiting }

func (x *Member) Acquire(a0 context.Context, a1 int, a2 time.Duration) (*shardlog.Holding, error) {
	return x.acquire(a0, a1, a2)
}

func (x *Member) Process() *epoch.Process { return x.process }

func (x *Member) Witnesses() string { return x.witnesses }

func (x *Member) Turns() *chan struct{} { return &x.turns }

func (x *Member) Genesis() *shardlog.Genesis { return &x.genesis }

func (x *Member) Group() *group { return &x.group }

func (x *Member) Run(a0 context.Context) { x.run(a0) }
