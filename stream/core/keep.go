package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
)

// Keep checks a recorded plan against its configuration, as [NewMechanism] does, and returns
// what makes any number of mechanisms of it without another check. They share nothing that
// changes, and may be made at the same time. It returns nil where each must be made by
// NewMechanism: the mechanism has no such check, or a warm-up before it.
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
