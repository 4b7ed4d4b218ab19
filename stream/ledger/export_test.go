package ledger

// This file shows the tests in package ledger_test what they look into.

import (
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/signedlog"
	"github.com/streamdp/streamdp/stream/core"
)

const (
	MirrorHeader = mirrorHeader
	SealEnd      = sealEnd
	SumField     = sumField
	UnitPerson   = unitPerson
)

var (
	Checksum = checksum
)

func (x *Entry) Account() Account { return x.account() }

func (x *ErrBudget) Adjacency() *dp.Adjacency { return &x.adjacency }

func (x *ErrBudget) AlreadyCharged() *float64 { return &x.alreadyCharged }

func (x *ErrBudget) Spent() *float64 { return &x.spent }

func (x *Ledger) Adopt(a0 [][]byte) error { return x.adopt(a0) }

func (x *Ledger) Charges(a0 Account, a1 *Entry, a2 *Entry) []dp.Charge { return x.charges(a0, a1, a2) }

func (x *Ledger) Heads() *map[[32]byte]bool { return &x.heads }

func (x *Ledger) Identity() ([32]byte, bool) { return x.identity() }

func (x *Ledger) Raw(a0 int) ([][]byte, error) { return x.raw(a0) }

func (x *Ledger) Spent(a0 core.Source, a1 []int) (*Spent, error) { return x.spent(a0, a1) }

// ControlTopicOf returns the control topic of a ledger, without Kafka, under a key of zeros.
func ControlTopicOf(l *Ledger) *ControlTopic {
	return newControlTopic(l, signedlog.Log{Header: mirrorHeader})
}

// Claims returns how many claims to an epoch were read.
func (x *ControlTopic) Claims() int { return len(x.claims) }

// Newest returns of how many streams a claim was read.
func (x *ControlTopic) Newest() int { return len(x.newest) }

func (x *ControlTopic) Forked() *uint64 { return &x.forked }

func (x *ControlTopic) Header(a0 [32]byte, a1 []byte) []byte { return x.header(a0, a1) }

func (x *ControlTopic) Lacks() *[][]byte { return &x.lacks }

func (x *ControlTopic) Line(a0 *kafka.Record) { x.line(a0) }

func (x *ControlTopic) Sent() *int { return &x.sent }
