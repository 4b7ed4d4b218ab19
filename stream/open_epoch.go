package stream

import (
	"github.com/streamdp/streamdp/stream/core"
)

// openEpoch is an epoch that is open, ready to run.
type openEpoch struct {
	m      *core.Manifest
	core   *core.Core
	cp     *checkpoint // the last commit
	bounds *boundaries // of steps by the clock; nil: they are not
	users  journals    // nil: records are protected
	moved  bool        // cp is of another output partition than the configured one
	// unproven is why the input may be another log than the one that cp is of; nil: it is not. Then nothing runs.
	unproven error
}
