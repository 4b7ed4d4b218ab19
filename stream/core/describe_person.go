package core

import (
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// PersonDescription is what is known of a stream that protects persons before it has any data.
type PersonDescription struct {
	*Protected
	// Partitions is how many epochs one opening of the stream has: one for each partition, one
	// if they are merged; 0 where the topic decides.
	Partitions int `json:"partitions,omitempty"`
	// OnePartition says that a person pays for one of them only: see docs/theory/persons.md, §9.
	OnePartition bool `json:"one_partition"`
	// OpeningMu is what a person pays for them together, and OpeningEpsilon the ε of it at the
	// limit's δ: the root of their number times an epoch's μ, or one epoch's with OnePartition. Where
	// the topic decides it is one epoch's.
	OpeningMu      float64 `json:"opening_mu"`
	OpeningEpsilon float64 `json:"opening_epsilon"`
	// Openings is how many openings fit the limit if nobody else charges the population; with a
	// period, before the limit begins anew.
	Openings uint64 `json:"openings_within_limit"`
	// MapBytes is the memory of a partition's map of persons, and DiskBytes at most what it
	// takes on disk, without what one commit writes.
	MapBytes  uint64 `json:"map_bytes"`
	DiskBytes uint64 `json:"disk_bytes"`
	// Crowds says that the noise is that of replace because the map may be full: config.Stream.Crowds.
	Crowds bool `json:"may_be_full,omitempty"`
}

// describePerson returns nil where records are protected.
func describePerson(s *config.Stream, m *Mechanism) (*PersonDescription, error) {
	if s.User == nil {
		return nil, nil
	}
	d := &PersonDescription{Protected: ProtectedOf(s, m), Crowds: s.Crowds()}
	switch {
	case s.Merge:
		d.Partitions = 1
	case !s.Input.All():
		d.Partitions = len(s.Input.Partitions)
	}
	// As the ledger charges: in a full table who comes to another partition puts somebody out there.
	d.OnePartition = s.User.Partitioner == "murmur2" && !(s.Refuses() && s.Privacy.Adjacency == dp.Replace)
	cost := m.Cost()
	if n := d.Partitions; n > 1 && !d.OnePartition {
		costs := make([]dp.Cost, n)
		for i := range costs {
			costs[i] = m.Cost()
		}
		cost = dp.Compose(costs...)
	}
	d.OpeningMu = cost.Mu
	eps, err := cost.Epsilon(s.Privacy.LimitDelta)
	if err != nil {
		return nil, err
	}
	d.OpeningEpsilon = ToShow(eps)
	// The mechanisms that protect persons are Gaussian: n openings cost √n·μ.
	most, err := dp.Mu(s.Privacy.LimitEpsilon, s.Privacy.LimitDelta)
	if err != nil {
		return nil, err
	}
	d.Openings = uint64(min(math.Pow(most/cost.Mu, 2)*(1+1e-9), 1<<53))
	rule := s.PersonRule()
	snapshot := 24 * rule.Users
	d.MapBytes = rule.Memory()
	if d.DiskBytes = 2 * (max(64<<20, 2*snapshot) + snapshot); rule.Cap == 0 {
		d.DiskBytes = 2 * 20 * rule.Users // at most so many contribute in the steps of a separation
	}
	return d, nil
}
