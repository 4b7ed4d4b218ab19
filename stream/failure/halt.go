package failure

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/streamdp/streamdp/stream/core"
)

// Halt stops a task, not the process. It is not stored: a restart examines its
// cause again.
type Halt struct {
	Reason string // a metric label
	Err    error
}

// The reasons of halts.
const (
	Configuration   = "configuration"    // the configuration is not the epoch's
	Key             = "key"              // the keys are not the epoch's
	State           = "state"            // checkpoint or manifest is damaged
	Gap             = "gap"              // records were deleted before they were read
	Truncated       = "truncated"        // the input ends before the next offset
	Replaced        = "replaced"         // the input is another log
	Compacted       = "compacted"        // the input topic is compacted
	OutputAhead     = "output_ahead"     // the output holds what this state did not release
	OutputTruncated = "output_truncated" // the output lost what would tell
	ReleaseTooLarge = "release_too_large"
	Publish         = "publish"        // the output refuses releases
	ControlTopic    = "control_topic"  // another state directory, or a newer copy, runs the task
	BoundaryTopic   = "boundary_topic" // it lost boundaries of steps
	Budget          = "budget"         // the limit leaves no epoch
	Unopened        = "unopened"       // the next epoch waits for a request
	Mechanism       = "mechanism"
	Kafka           = "kafka" // the cluster refuses a call for good
)

func (h *Halt) Error() string { return h.Err.Error() }

func (h *Halt) Unwrap() error { return h.Err }

// Is makes a halt of a spent budget an ErrNothing, and every other halt an ErrHalted, for
// errors.Is in a command.
func (h *Halt) Is(target error) bool {
	if h.Reason == Budget {
		return target == ErrNothing
	}
	return target == ErrHalted
}

func Haltf(reason, format string, args ...any) error {
	return &Halt{reason, fmt.Errorf(format, args...)}
}

// ErrState is for errors of the state directory: it is locked, damaged, or of another version.
var ErrState = errors.New("state")

// ErrNothing says that there is nothing to run: every task's epoch is closed, or its budget is
// spent.
var ErrNothing = errors.New("nothing to run")

// ErrHalted says that every task halted at start.
var ErrHalted = errors.New("every task halted")

// DiskFull reports whether a write failed because the disk is full or no file descriptor is free.
// That passes. After any other failure of a sync nobody knows what is on disk, and the process
// Must end.
func DiskFull(err error) bool {
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// EpochArgs are the arguments that name the task in streamdp epoch open and streamdp epoch close.
func EpochArgs(t core.Task) string {
	if t.Partition == core.Merged {
		return t.Stream
	}
	return fmt.Sprintf("%s --partition %d", t.Stream, t.Partition)
}

// Restore says how the operator can restore files of an epoch.
func Restore(t core.Task) string {
	return fmt.Sprintf("restore it from a backup of the state directory or with streamdp recover%s --from FILE, FILE being of streamdp epoch export; "+
		"or start anew with: streamdp epoch open %s", TaskFlags(t), EpochArgs(t))
}

// TaskFlags are the flags that name the task in a command.
func TaskFlags(t core.Task) string {
	if t.Partition == core.Merged {
		return " --stream " + t.Stream
	}
	return fmt.Sprintf(" --stream %s --partition %d", t.Stream, t.Partition)
}

func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var ErrStop = errors.New("enough")

// IsFailing reports whether something is being repeated.
func (r *Retrier) IsFailing(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.troubles[what]
	return known
}
