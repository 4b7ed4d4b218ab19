package matfact

import (
	"math"
	"sort"
)

// buffered is a C whose columns are sums of geometric sequences with common decays. It can be the identity (no
// buffers), a BLT (one phase) or the phased scheme (many phases). Stored documents the matrix; docs/theory/matfact.md
// has the derivations.
//
// In all methods of this type, a product that is added to something is written float64(x*y). The conversion prevents
// the compiler from fusing multiplication and addition, as it would on some architectures. A fused operation has
// different last bits, so the release would differ from the same release made elsewhere.
type buffered struct {
	stored  *Stored
	colNorm float64

	modes   []*modes    // one for each phase; created when needed
	reached *[2]float64 // the results of reach; created when needed
	chains  []*chain    // by workload, most recently used first
	scratch walker
}

func newBuffered(s *Stored) (Factorization, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	b := &buffered{stored: s.Clone(), modes: make([]*modes, len(s.Phases))}
	for p := range s.Phases {
		b.colNorm = max(b.colNorm, b.colNorm2(p))
	}
	b.colNorm = math.Sqrt(b.colNorm) * roundUp
	return b, nil
}

// identity returns C = I: the noise of the rows is independent.
func identity() *Stored {
	return &Stored{Kind: "identity", Phases: []Phase{{Start: 1, Scale: 1}}}
}

// colNorm2 returns the squared norm, at infinite height, of the columns of phase p,
//
//	1/r² + Σ_ik Ω_iΩ_k / (1 − Θ_iΘ_k).
//
// All terms are positive, and 1 − Θ_iΘ_k = a_i + a_kΘ_i is computed without cancellation, so with at most 16 buffers
// the relative error is below 270·2⁻⁵³.
func (b *buffered) colNorm2(p int) float64 {
	ph, decay := b.stored.Phases[p], b.stored.Decay
	sum := 1 / float64(ph.Scale*ph.Scale)
	for i, wi := range ph.Weight {
		for k, wk := range ph.Weight {
			d := decay[i].gap() + float64(decay[k].gap()*decay[i].float())
			sum += float64(wi.float()*wk.float()) / d
		}
	}
	return sum
}

func (b *buffered) Kind() string     { return b.stored.Kind }
func (b *buffered) Horizon() uint64  { return 0 }
func (b *buffered) ColNorm() float64 { return b.colNorm }
func (b *buffered) Stored() *Stored  { return b.stored.Clone() }

// phase returns the number of the phase that holds step t ≥ 1.
func (b *buffered) phase(t uint64) int { return phaseOf(b.stored.Phases, t) }

func phaseOf(phases []Phase, t uint64) int {
	return sort.Search(len(phases), func(p int) bool { return phases[p].Start > t }) - 1
}

// mode returns the modes of phase p.
func (b *buffered) mode(p int) *modes {
	if b.modes[p] == nil {
		b.modes[p] = newModes(b.stored.Decay, b.stored.Phases[p])
	}
	return b.modes[p]
}
