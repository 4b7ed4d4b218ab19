package recovery

import (
	"crypto/sha256"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// provenCharge is for an epoch without a remaining ledger line. It returns the end of the epoch's horizon for each
// partition that it reads, −1 if there is none or it is unknown. It halts if nothing proves the cost stated in the
// manifest. A manifest has no MAC, so a smaller cost in it would give back budget that is spent.
//
// The proof is the mechanism, built again from the manifest's plan and configuration, whose digest is in the manifest:
// it must not cost more than the manifest states. If this version cannot build the mechanism, the proof is the epoch's
// checkpoint, which has the manifest's hash. A checkpoint with another manifest's hash refutes the manifest in any
// case.
func provenCharge(m *core.Manifest, file []byte, cp *state.Checkpoint) (ends []int64, err error) {
	refuse := func(why string) error {
		return failure.Haltf(failure.State,
			"manifest of epoch %d: %s: it was changed or damaged; restore it, or the ledger, from a backup",
			m.Epoch, why)
	}
	named := cp != nil && cp.Epoch == m.Epoch
	if named && cp.Manifest != sha256.Sum256(file) {
		return nil, refuse("the epoch's checkpoint names another manifest")
	}
	s, err := config.StreamOf(m.Stream, m.Config)
	if err == nil &&
		(s.Merge != (m.Partition == core.Merged) || !slices.Equal(s.Input.Partitions, core.Partitions(m))) {
		return nil, refuse("its partition differs from that in its configuration")
	}
	var mech *core.Mechanism
	if err == nil {
		s = s.Over(m.Numbers())
		mech, err = core.CostOf(s, m.Plan)
	}
	switch {
	case err == nil && !m.Cost.Covers(mech.Cost()):
		return nil, refuse("its mechanism costs more than the manifest states")
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
		"manifest of epoch %d: cannot verify the cost that it states, because its mechanism cannot be built again "+
			"(%w); restore the ledger from a backup", m.Epoch, err)
}
