package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
)

// Keep checks a recorded plan against its configuration, as [NewMechanism] does. It returns a function that makes
// mechanisms from the plan without checking it again. The mechanisms share no mutable state, and may be made
// concurrently. Keep returns a nil function if the mechanism has no such check or has a warm-up; then call NewMechanism
// for each one.
func Keep(s *config.Stream, plan json.RawMessage) (func() (*Mechanism, error), error) {
	d := mechanismOf(s)
	if d == nil || d.keep == nil || plan == nil || s.Automatic() {
		return nil, nil
	}
	build, err := d.keep(s, plan)
	if err != nil {
		return nil, err
	}
	return func() (*Mechanism, error) {
		m, err := build()
		if err != nil {
			return nil, err
		}
		return d.described(m, s), nil
	}, nil
}
