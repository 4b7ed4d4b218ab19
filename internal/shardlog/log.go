package shardlog

import (
	"context"
	"errors"
	"time"
)

// Record is a record of one of a shard's two logs. Records of the ledger have no key.
type Record struct {
	Key   []byte
	Value []byte // nil removes the key's record
}

// Reader reads a shard's two logs. Both methods give the records in the order of the log to each,
// which may keep their bytes; an error of each ends the read and is returned. They see committed
// records only.
type Reader interface {
	// ReadState reads from the first record past the last one that this Reader wrote, or, where it
	// wrote none, to the end that the log had when the call began. Records that a later one of the
	// same key replaces may be missing.
	ReadState(ctx context.Context, each func(Record) error) error
	// ReadLedger reads from offset 0, which must still be the log's first, to the end that the log
	// had when the call began.
	ReadLedger(ctx context.Context, each func(Record) error) error
}

// Log is what the protocol asks of Kafka for one shard. It serves one holding, to its first error.
type Log interface {
	Reader
	// Confirm asks the group whether the shard is still this instance's. [ErrMoved]: it is not.
	Confirm(ctx context.Context) error
	// Fence makes this Log the only one whose Commit can succeed, and ends what the former owner
	// left open. The broker aborts a transaction that stays open for longer than timeout.
	Fence(ctx context.Context, timeout time.Duration) error
	// Commit writes records to both logs in one transaction. It returns nil only where the
	// transaction is known to be committed. After any error it may be, or may be later.
	Commit(ctx context.Context, state, ledger []Record) error
	// Close ends all that is under way and frees the connections.
	Close()
}

var (
	// ErrMoved says that the group has given the shard to another instance.
	ErrMoved = errors.New("the group has given the shard to another instance")
	// ErrLost says that another instance may own the shard: nothing more may be published for it.
	ErrLost = errors.New("the shard may have another owner")
	// ErrTooLarge says that an update was refused before anything of it was sent, because it, or
	// what the shard would hold with it, is above a limit.
	ErrTooLarge = errors.New("too large for a shard")
)

// RefusedError says which record a broker refused for what it is, for example for its size. The
// same record would be refused again.
type RefusedError struct {
	Key string // of the value; empty for a ledger line
	Err error
}

// Error returns the key and the reason.
func (e *RefusedError) Error() string {
	if e.Key == "" {
		return "a ledger line was refused: " + e.Err.Error()
	}
	return "value " + e.Key + " was refused: " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Halt is the reason of a [HaltError], for metrics and messages.
type Halt string

// The reasons of a halt.
const (
	HaltGenesis Halt = "genesis" // the ledger has no genesis, or that of another shard
	HaltKey     Halt = "key"     // the shard was made with another master key
	HaltFormat  Halt = "format"  // a newer version has written this
	HaltState   Halt = "state"   // a value is damaged, incomplete, forged, or too large
	HaltLedger  Halt = "ledger"  // the ledger is shorter than the state says, or another one
	HaltWitness Halt = "witness" // the ledger lacks what this instance knows to be committed
	HaltOld     Halt = "old"     // brokers go on to serve an old log
)

// HaltError says that a shard's logs are not what was written. Acquiring it again does not help.
type HaltError struct {
	Halt Halt
	Err  error
}

// HaltPrefix begins the text of a HaltError.
const HaltPrefix = "shard halted, "

// Error returns the reason and the details, which hold no value.
func (e *HaltError) Error() string { return HaltPrefix + string(e.Halt) + ": " + e.Err.Error() }

// Unwrap returns the details.
func (e *HaltError) Unwrap() error { return e.Err }
