// Package suites builds the audits of a configured stream: it makes the stream's mechanism and
// describes it to package audit.
//
// Audits have noise that protects nothing. Only this package and the command may import package
// audit, and neither hands the noise on.
package suites

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
)

// Builder builds the audits of a stream's mechanism. Among its errors are exit.Config, of a
// configuration whose mechanism cannot be built, and [audit.NoneError].
type Builder func(s *config.Stream) (*audit.Suite, error)

// Of returns the audits of a stream, from the builder of its mechanism. nil, a mechanism without
// audits, is an [audit.NoneError]: what cannot be audited must not pass.
func Of(s *config.Stream, build Builder) (*audit.Suite, error) {
	if build == nil {
		return nil, audit.NoneError(s.Mechanism())
	}
	if s.Automatic() {
		// What follows the warm-up, for the bound 1, whatever is found. The warm-up is
		// audited in the tests of stream/core and internal/bounds.
		s = s.Standing()
	}
	return build(s)
}
