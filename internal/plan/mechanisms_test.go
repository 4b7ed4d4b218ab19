package plan

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestMechanisms: exactly the mechanisms of package core can be planned and audited.
func TestMechanisms(t *testing.T) {
	t.Parallel()
	want := slices.Sorted(slices.Values(core.MechanismNames()))
	if got := slices.Sorted(maps.Keys(mechanisms)); !slices.Equal(got, want) {
		t.Errorf("the commands know %q, core has %q", got, want)
	}
	for name, m := range mechanisms {
		if m.plan == nil || m.audits == nil {
			t.Errorf("%s has no plan or no audits", name)
		}
	}
}
