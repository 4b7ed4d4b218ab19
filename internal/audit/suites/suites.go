// Package suites builds the audits of a configured stream: it builds the stream's mechanism and gives package audit a
// description of it.
//
// The noise of audits protects nothing. Only this package and the command may import package audit, and neither passes
// the noise to other code.
package suites

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
)

// Builder builds the audits of a stream's mechanism. It fails with exit.Config if the mechanism cannot be built, or
// with [audit.NoneError] if there is no audit.
type Builder func(s *config.Stream) (*audit.Suite, error)

// Of returns the audits that build makes for a stream. A nil build means that the mechanism has no audits; this is the
// error [audit.NoneError], because a mechanism that cannot be audited must not pass.
func Of(s *config.Stream, build Builder) (*audit.Suite, error) {
	if build == nil {
		return nil, audit.NoneError(s.Mechanism())
	}
	if s.Automatic() {
		// The audit covers the mechanism after the warm-up, with all bounds equal to 1. The result holds for any bounds
		// that the warm-up finds. Tests of stream/core and internal/bounds audit the warm-up itself.
		s = s.Standing()
	}
	return build(s)
}
