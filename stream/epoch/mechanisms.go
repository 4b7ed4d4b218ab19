package epoch

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// MechanismCache makes mechanisms from recorded plans. It checks a plan against its configuration only once, even if a
// thousand tasks have the plan, because the check takes longer than everything else at their start. It is safe for
// concurrent use, and its zero value is ready.
//
// It identifies streams by their pointers, so a stream must not change.
type MechanismCache struct {
	mu sync.Mutex
	of map[planKey]*keptPlan
}

type planKey struct {
	stream *config.Stream
	plan   [32]byte // SHA-256
}

type keptPlan struct {
	once sync.Once
	make func() (*core.Mechanism, error) // nil: each mechanism must be checked
	err  error
}

// newMechanism does what [core.NewMechanism] does, for a recorded plan.
func (p *MechanismCache) newMechanism(s *config.Stream, plan json.RawMessage,
	initial []float64) (*core.Mechanism, error) {
	if s.Merge { // not cached: a merged stream is one task, and its configuration differs for each set of partitions
		return core.NewMechanism(s, plan, initial)
	}
	key := planKey{s, sha256.Sum256(plan)}
	p.mu.Lock()
	k := p.of[key]
	if k == nil {
		k = new(keptPlan)
		if p.of == nil {
			p.of = map[planKey]*keptPlan{}
		}
		p.of[key] = k
	}
	p.mu.Unlock()
	k.once.Do(func() { k.make, k.err = core.Keep(s, plan) })
	switch {
	case k.err != nil:
		return nil, k.err
	case k.make == nil:
		return core.NewMechanism(s, plan, initial)
	}
	return k.make()
}

// Checked returns the number of plans that were checked.
func (p *MechanismCache) Checked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of)
}
