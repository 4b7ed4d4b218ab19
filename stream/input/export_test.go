package input

// This file exports internals to the tests in package input_test.

import (
	"context"
	"sync"

	"github.com/streamdp/streamdp/stream/codec"
)

type (
	PartitionInbox = partitionInbox
	MergeAlive     = mergeAlive
	MergeJob       = mergeJob
	MergePlace     = mergePlace
	Coordinator    = coordinator
	MergeSum       = mergeSum
	PartHeader     = partHeader
	PartSeal       = partSeal
	PartTimes      = partTimes
	Pieces         = pieces
)

const (
	KeptSums       = keptSums
	MostPartsAhead = mostPartsAhead
	PartAlive      = partAlive
	PartSum        = partSum
)

var (
	NewPartSeal     = newPartSeal
	ParseMergeSum   = parseMergeSum
	ParsePartHeader = parsePartHeader
)

func (x *Fetcher) Decode() { x.decode() }

func (x *Fetcher) Fetched() *chan *codec.Batch { return &x.fetched }

func (x *SharedSummation) Mu() *sync.Mutex { return &x.mu }

func (x *SharedSummation) Offered(a0 int, a1 *partSeal, a2 partHeader, a3 *mergeJob, a4 Team) {
	x.handleJob(a0, a1, a2, a3, a4)
}

func (x *SharedSummation) Times() *partTimes { return &x.times }

func (x *SharedSummation) Workers() *map[[16]byte]*worker { return &x.workers }

func (x *SharedSummation) Write(a0 context.Context, a1 int, a2 [][]byte, a3 func()) bool {
	return x.write(a0, a1, a2, a3)
}
