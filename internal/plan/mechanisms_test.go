package plan

import (
	"maps"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestMechanisms: what core has can be planned and audited, and nothing else can.
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
