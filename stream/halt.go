package stream

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/streamdp/streamdp/stream/core"
)

// halt stops a task, not the process. It is not stored: a restart examines its
// cause again.
type halt struct {
	reason string // a metric label
	err    error
}

// The reasons of halts.
const (
	haltConfiguration = "configuration"    // the configuration is not the epoch's
	haltKey           = "key"              // the keys are not the epoch's
	haltState         = "state"            // checkpoint or manifest is damaged
	haltGap           = "gap"              // records were deleted before they were read
	haltTruncated     = "truncated"        // the input ends before the next offset
	haltReplaced      = "replaced"         // the input is another log
	haltCompacted     = "compacted"        // the input topic is compacted
	haltOutput        = "output_ahead"     // the output holds what this state did not release
	haltOutputGone    = "output_truncated" // the output lost what would tell
	haltTooLarge      = "release_too_large"
	haltPublish       = "publish"        // the output refuses releases
	haltControl       = "control_topic"  // another state directory, or a newer copy, runs the task
	haltBoundary      = "boundary_topic" // it lost boundaries of steps
	haltBudget        = "budget"         // the limit leaves no epoch
	haltUnopened      = "unopened"       // the next epoch waits for a request
	haltMechanism     = "mechanism"
	haltKafka         = "kafka" // the cluster refuses a call for good
)

func (h *halt) Error() string { return h.err.Error() }

func (h *halt) Unwrap() error { return h.err }

// Is makes a halt of a spent budget an ErrNothing, and every other halt an ErrHalted, for
// errors.Is in a command.
func (h *halt) Is(target error) bool {
	if h.reason == haltBudget {
		return target == ErrNothing
	}
	return target == ErrHalted
}

func halted(reason, format string, args ...any) error {
	return &halt{reason, fmt.Errorf(format, args...)}
}

// ErrState is for errors of the state directory: it is locked, damaged, or of another version.
var ErrState = errors.New("state")

// ErrNothing says that there is nothing to run: every task's epoch is closed, or its budget is
// spent.
var ErrNothing = errors.New("nothing to run")

// ErrHalted says that every task halted at start.
var ErrHalted = errors.New("every task halted")

// full reports whether a write failed because the disk is full or no file descriptor is free.
// That passes. After any other failure of a sync nobody knows what is on disk, and the process
// must end.
func full(err error) bool {
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// epochArgs are the arguments that name the task in streamdp epoch open and streamdp epoch close.
func epochArgs(t core.Task) string {
	if t.Partition == core.Merged {
		return t.Stream
	}
	return fmt.Sprintf("%s --partition %d", t.Stream, t.Partition)
}

// restoreEpoch says how the operator can restore files of an epoch.
func restoreEpoch(t core.Task) string {
	return fmt.Sprintf("restore it from a backup of the state directory or with streamdp recover%s --from FILE, FILE being of streamdp epoch export; "+
		"or start anew with: streamdp epoch open %s", taskFlags(t), epochArgs(t))
}

// taskFlags are the flags that name the task in a command.
func taskFlags(t core.Task) string {
	if t.Partition == core.Merged {
		return " --stream " + t.Stream
	}
	return fmt.Sprintf(" --stream %s --partition %d", t.Stream, t.Partition)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var errStop = errors.New("enough")

// repeats reports whether something is being repeated.
func (r *repeater) repeats(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.troubles[what]
	return known
}
