package recovery

import (
	"crypto/sha256"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// provenCharge checks the manifest of an epoch that has lost its ledger line. It returns the end of the epoch's horizon
// for each partition that it reads, −1 if there is no horizon or its end is unknown. It returns a halt if nothing
// proves the cost stated in the manifest: a manifest has no MAC, and a forged smaller cost would give back budget that
// was spent.
//
// To prove the cost, provenCharge builds the mechanism again from the manifest's plan and the configuration, whose
// digest is in the manifest. The mechanism must not cost more than the manifest states. If this version cannot build
// the mechanism, the epoch's checkpoint is the proof, because it has the manifest's hash. A checkpoint with the hash of
// another manifest always refutes the manifest.
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
