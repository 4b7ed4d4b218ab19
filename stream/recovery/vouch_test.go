package recovery_test

import (
	"path/filepath"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/core"
)

// TestCostOf: every mechanism that is built only from a manifest's configuration and plan has the cost and the horizon
// that were charged.
func TestCostOf(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(fixtures.Root(), "examples", "*.toml"))
	fixtures.Must(t, err)
	seen := map[string]bool{}
	for _, f := range files {
		c, err := config.Load(f)
		fixtures.Must(t, err)
		for _, s := range c.Streams {
			if s.Merge { // an epoch reads the partitions that existed when it opened
				s = s.Over([]int{0, 2, 5})
			}
			mech, err := core.NewMechanism(s, nil, nil)
			fixtures.Must(t, err)
			again, err := config.StreamOf(s.Name, s.Canonical(0))
			if err != nil {
				t.Fatalf("%s: %s: %v", f, s.Name, err)
			}
			got, err := core.CostOf(again, mech.Plan)
			if err != nil {
				t.Errorf("%s: %s: %v", f, s.Name, err)
				continue
			}
			if !got.Cost().Equal(mech.Cost()) ||
				core.ChargedTo(got, again.LastStep(), 7) != core.ChargedTo(mech, s.LastStep(), 7) {
				t.Errorf("%s: %s: %v, was %v", f, s.Name, got.Cost(), mech.Cost())
			}
			seen[core.MechanismName(s)] = true
		}
	}
	for _, name := range core.MechanismNames() {
		if !seen[name] {
			t.Errorf("no example of %s", name)
		}
	}
}
