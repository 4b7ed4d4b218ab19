package recovery

import (
	"crypto/sha256"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// provenCharge returns the end of the horizon of an epoch that no ledger line is left of, for
// each partition that it reads, −1 if it has none or it is not known. It halts if nothing vouches for the cost that the
// manifest states. A manifest has no MAC; a smaller cost in it would give budget back that
// is spent.
//
// What vouches is the mechanism, built again from the manifest's configuration, whose
// digest the manifest holds, and its plan. It must not cost more than the manifest says.
// Where this version can't build it, the checkpoint of the epoch vouches, which names the
// manifest's hash; a checkpoint of another manifest speaks against it in any case.
func provenCharge(m *core.Manifest, file []byte, cp *state.Checkpoint) (ends []int64, err error) {
	refuse := func(why string) error {
		return failure.Haltf(failure.State,
			"manifest of epoch %d: %s: it was changed or damaged; restore it, or the ledger, from a backup",
			m.Epoch, why)
	}
	named := cp != nil && cp.Epoch == m.Epoch
	if named && cp.Manifest != sha256.Sum256(file) {
		return nil, refuse("it is not the one that the epoch's checkpoint names")
	}
	s, err := config.StreamOf(m.Stream, m.Config)
	if err == nil &&
		(s.Merge != (m.Partition == core.Merged) || !slices.Equal(s.Input.Partitions, core.Partitions(m))) {
		return nil, refuse("it is of another partition than its configuration")
	}
	var mech *core.Mechanism
	if err == nil {
		s = s.Over(m.Numbers())
		mech, err = core.CostOf(s, m.Plan)
	}
	switch {
	case err == nil && !m.Cost.Covers(mech.Cost()):
		return nil, refuse("its mechanism costs more than it says")
	case err == nil && m.Partition == core.Merged:
		var bases []int64
		for _, p := range m.Parts {
			bases = append(bases, p.Base)
		}
		return core.ChargedParts(mech, s.LastStep(), bases), nil
	case err == nil:
		return []int64{core.ChargedTo(mech, s.LastStep(), m.Base)}, nil
	case named:
		return slices.Repeat([]int64{-1}, max(1, len(m.Parts))), nil
	}
	return nil, failure.Haltf(failure.State,
		"manifest of epoch %d: nothing vouches for the cost that it states, because its mechanism can't be built "+
			"again (%w); restore the ledger from a backup", m.Epoch, err)
}
