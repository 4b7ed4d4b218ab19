package ledger

// This file exports internals to the tests in package ledger_test.

import (
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/signedlog"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// Unsealed returns an empty ledger in the directory /s of a disk, whose lines have no MACs.
func Unsealed(d state.Disk, now func() time.Time) *Ledger {
	return &Ledger{Disk: d, dir: "/s", Path: "/s/ledger.jsonl", Now: now}
}

const (
	NewBudgetEvents = newBudgetEvents
	MirrorHeader    = mirrorHeader
	SealEnd         = sealEnd
	SumField        = sumField
	UnitPerson      = unitPerson
)

var (
	Checksum = checksum
)

func (x *Entry) Account() Account { return x.account() }

func (x *Entry) Accounts() []Account { return x.accounts() }

func (x *Entry) AddUp() { x.addUp() }

func (x *Entry) Closing(a0 []EntryPart, a1 uint64) *Entry { return x.closing(a0, a1) }

func (x *ErrBudget) Adjacency() *dp.Adjacency { return &x.adjacency }

func (x *ErrBudget) AlreadyCharged() *float64 { return &x.alreadyCharged }

func (x *ErrBudget) Spent() *float64 { return &x.spent }

func (x *Ledger) Adopt(a0 [][]byte) error { return x.adopt(a0) }

func (x *Ledger) Charges(a0 Account, a1 *Entry, a2 *Entry) []dp.Charge { return x.charges(a0, a1, a2) }

func (x *Ledger) Heads() *map[[32]byte]bool { return &x.heads }

func (x *Ledger) Identity() ([32]byte, bool) { return x.identity() }

func (x *Ledger) Raw(a0 int) ([][]byte, error) { return x.raw(a0) }

func (x *Ledger) Spent(a0 core.Source, a1 []int) (*Spent, error) { return x.spent(a0, a1) }

func (x *Ledger) Touched(a0 []Account) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.touched(a0)
}

func (x *Ledger) BudgetOf(a0 Account, a1 int) ([]BudgetEvent, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.budgetOf(a0, a1)
}

func (x *Ledger) ChargedEpsilon(a0 Account, a1 dp.Adjacency, a2 float64) (float64, error) {
	return x.chargedEpsilon(a0, a1, a2)
}

func (x *Ledger) SetLimitLine(a0 Entry, a1 dp.Adjacency) error { return x.setLimit(a0, a1) }

// ControlTopicOf returns the control topic of a ledger, without Kafka, under a key of zeros.
func ControlTopicOf(l *Ledger) *ControlTopic {
	return newControlTopic(l, signedlog.Log{Header: mirrorHeader})
}

// Claims returns the number of claims that were read.
func (x *ControlTopic) Claims() int { return len(x.claims) }

// Newest returns the number of streams with claims that were read.
func (x *ControlTopic) Newest() int { return len(x.newest) }

func (x *ControlTopic) Forked() *uint64 { return &x.forked }

func (x *ControlTopic) Header(a0 [32]byte, a1 []byte) []byte { return x.header(a0, a1) }

func (x *ControlTopic) Lacks() *[][]byte { return &x.lacks }

func (x *ControlTopic) Line(a0 *kafka.Record) { x.line(a0) }

func (x *ControlTopic) Sent() *int { return &x.sent }

func (x *Ledger) Index() *ledgerIndex { return &x.index }

func (x *Ledger) Lines() int { return x.lines() }
