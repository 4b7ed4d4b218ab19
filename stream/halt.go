package stream

import (
	"errors"
	"fmt"
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
