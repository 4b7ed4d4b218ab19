package cluster

// This file shows the tests in package cluster_test what they look into.

import (
	"context"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/shardlog"
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
	RequestHeader = requestHeader
	RequestPrefix = requestPrefix
	TurnTime      = turnTime
)

var (
	ErrLost          = errLost
	NewRequestTopic  = newRequestTopic
	NewRequestServer = newRequestServer
	NewGroupTools    = newGroupTools
	NewImporting     = newImporting
	OneLedger        = oneLedger
)

func (x *LogShard) Left() int { return x.left() }

func (x *LogShard) Line() *int { return &x.line }

func (x *LogShard) Mu() *sync.Mutex { return &x.mu }

func (x *LogShard) Parts() *map[string][]int { return &x.parts }

func (x *LogShard) Queue() *[]*logUpdate { return &x.queue }

func (x *LogShard) Room() *int { return &x.room }

func (x *LogShard) Waiting() *map[string]*logUpdate { return &x.waiting }

func (x *Member) Acquire(a0 context.Context, a1 int, a2 time.Duration) (*shardlog.Holding, error) {
	return x.acquire(a0, a1, a2)
}

func (x *Member) Genesis() *shardlog.Genesis { return &x.genesis }

func (x *Member) Group() *group { return &x.group }

func (x *Member) Run(a0 context.Context) { x.run(a0) }
