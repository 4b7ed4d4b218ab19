package shardlog

import (
	"context"
	"errors"
	"time"
)

// Record is a record of one of a shard's two logs. Records of the ledger have no key.
type Record struct {
	Key   []byte
	Value []byte // nil: removes the key's earlier record
}

// Reader reads a shard's two logs. Both methods call `each` with the records, in the order of the log; `each` may keep
// their bytes. If `each` returns an error, the method stops and returns it. Only committed records are read.
type Reader interface {
	// ReadState reads from the first record to the end that the log had when the call began, or further. If this Reader
	// has also written records, ReadState reads at least to the last of them. A record may be missing if a later record
	// with the same key replaces it.
	ReadState(ctx context.Context, each func(Record) error) error
	// ReadLedger reads from offset 0, which must still be the log's first, to the end that the log had when the call
	// began.
	ReadLedger(ctx context.Context, each func(Record) error) error
}

// Log is what the protocol needs from Kafka for one shard. It serves one holding, until its first error.
type Log interface {
	Reader
	// Confirm asks the group whether this instance still owns the shard. It returns [ErrMoved] if not.
	Confirm(ctx context.Context) error
	// Fence makes this Log the only one whose Commit can succeed, and ends the transaction that the former owner left
	// open. The broker aborts a transaction that stays open for longer than timeout.
	Fence(ctx context.Context, timeout time.Duration) error
	// Commit writes records to both logs in one transaction. It returns nil only if the transaction is known to be
	// committed. After an error, the transaction may be committed, or may still be committed later.
	Commit(ctx context.Context, state, ledger []Record) error
	// Close ends all pending calls and closes the connections.
	Close()
}

var (
	// ErrMoved says that the group has given the shard to another instance.
	ErrMoved = errors.New("the group has given the shard to another instance")
	// ErrLost says that another instance may own the shard. Nothing more may be published for the shard.
	ErrLost = errors.New("the shard may have another owner")
	// ErrTooLarge is the error of an update that was refused before anything was sent, because it, or the shard with
	// it, would exceed a limit.
	ErrTooLarge = errors.New("too large for a shard")
)

// RefusedError names a record that a broker refused because of the record itself, for example because of its size. The
// broker would refuse the same record again.
type RefusedError struct {
	Key string // key of the value; empty for a ledger line
	Err error
}

// Error returns the key and the reason.
func (e *RefusedError) Error() string {
	if e.Key == "" {
		return "the broker refused a ledger line: " + e.Err.Error()
	}
	return "the broker refused value " + e.Key + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Halt is the reason of a [HaltError], for metrics and messages.
type Halt string

// The reasons of a halt.
const (
	HaltGenesis Halt = "genesis" // the ledger has no genesis, or the genesis of another shard
	HaltKey     Halt = "key"     // the shard was created with another master key
	HaltFormat  Halt = "format"  // the content was written by a newer version
	HaltState   Halt = "state"   // a value is damaged, incomplete, forged, or too large
	HaltLedger  Halt = "ledger"  // the ledger is shorter than recorded in the state, or is another one
	HaltWitness Halt = "witness" // the ledger does not have lines that this instance knows to be committed
	HaltOld     Halt = "old"     // brokers repeatedly return an old copy of a log
)

// HaltError says that a shard's logs differ from the data that instances wrote. Acquiring the shard again does not
// help.
type HaltError struct {
	Halt Halt
	Err  error
}

// HaltPrefix begins the text of a HaltError.
const HaltPrefix = "shard halted, "

// Error returns the reason and the details, which contain no value.
func (e *HaltError) Error() string { return HaltPrefix + string(e.Halt) + ": " + e.Err.Error() }

// Unwrap returns the details.
func (e *HaltError) Unwrap() error { return e.Err }
