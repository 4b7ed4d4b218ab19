// Package failure decides how a failure is handled: the call is retried, or the task halts with a reason and a remedy.
package failure

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/streamdp/streamdp/stream/core"
)

// Halt is an error that stops a task, not the process. It is not stored: a restart checks its cause again.
type Halt struct {
	Reason string // one of the reasons below; a metric label
	Err    error
}

// The reasons of halts. They are in metrics, in the status and in docs, so operators' alerts depend on them.
const (
	Configuration   = "configuration"    // the configuration is not the epoch's
	Key             = "key"              // the keys are not the epoch's
	State           = "state"            // checkpoint or manifest is damaged
	Gap             = "gap"              // records were deleted before they were read
	Truncated       = "truncated"        // the input ends before the next offset
	Replaced        = "replaced"         // the input is another log
	Compacted       = "compacted"        // the input topic is compacted
	OutputAhead     = "output_ahead"     // the output holds releases that this state did not make
	OutputTruncated = "output_truncated" // the output has lost the evidence that this state is the newest
	ReleaseTooLarge = "release_too_large"
	Publish         = "publish"        // the output refuses releases
	ControlTopic    = "control_topic"  // another state directory, or a newer copy, runs the task
	BoundaryTopic   = "boundary_topic" // the boundary topic lost boundaries
	Budget          = "budget"         // the limit leaves no room for an epoch
	Unopened        = "unopened"       // the next epoch waits for a request
	Mechanism       = "mechanism"
	Kafka           = "kafka" // the cluster refuses a call, and a retry would not help
)

// Error returns the message of the cause.
func (h *Halt) Error() string { return h.Err.Error() }

// Unwrap returns the cause.
func (h *Halt) Unwrap() error { return h.Err }

// Is reports a match, for errors.Is in commands: a halt with reason Budget matches ErrNothing, every other halt matches
// ErrHalted.
func (h *Halt) Is(target error) bool {
	if h.Reason == Budget {
		return target == ErrNothing
	}
	return target == ErrHalted
}

// Haltf returns a halt for a reason, with a formatted error.
func Haltf(reason, format string, args ...any) error {
	return &Halt{reason, fmt.Errorf(format, args...)}
}

// ErrState is wrapped by errors of the state directory: it is locked, damaged, or of another version.
var ErrState = errors.New("state")

// ErrNothing says that there is nothing to run: every task's epoch is closed, or its budget is spent.
var ErrNothing = errors.New("nothing to run")

// ErrHalted says that every task halted at start.
var ErrHalted = errors.New("every task halted")

// DiskFull reports whether a write failed because the disk is full or no file descriptor is free. Such a failure is
// temporary. After any other failed sync, the content of the disk is unknown, and the process must end.
func DiskFull(err error) bool {
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// EpochArgs returns the arguments that name the task in streamdp epoch open and streamdp epoch close.
func EpochArgs(t core.Task) string {
	if t.Partition == core.Merged {
		return t.Stream
	}
	return fmt.Sprintf("%s --partition %d", t.Stream, t.Partition)
}

// Restore returns words on how the operator can restore files of an epoch.
func Restore(t core.Task) string {
	return fmt.Sprintf(
		"restore it from a backup of the state directory, or with streamdp recover%s --from FILE, where FILE is from "+
			"streamdp epoch export; "+
			"or open a new epoch: streamdp epoch open %s", TaskFlags(t), EpochArgs(t))
}

// TaskFlags returns the flags that name the task in a command.
func TaskFlags(t core.Task) string {
	if t.Partition == core.Merged {
		return " --stream " + t.Stream
	}
	return fmt.Sprintf(" --stream %s --partition %d", t.Stream, t.Partition)
}

// Signal wakes the receiver of a channel with room for one value. If the channel is full, Signal does nothing.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ErrStop is returned by a callback to end a read early. Only that read's caller sees it.
var ErrStop = errors.New("enough")
