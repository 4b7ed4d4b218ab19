package epoch

import (
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// OpenEpoch is an epoch that is open, ready to run.
type OpenEpoch struct {
	M      *core.Manifest
	Core   *core.Core
	Cp     *state.Checkpoint    // the last commit
	Bounds *boundary.Boundaries // of steps by the clock; nil: they are not
	Users  state.Journals       // nil: records are protected
	Moved  bool                 // cp is of another output partition than the configured one
	// Unproven is why the input may be another log than the one that cp is of; nil: it is not. Then nothing runs.
	Unproven error
}
