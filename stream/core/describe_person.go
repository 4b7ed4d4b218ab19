package core

import (
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// PersonDescription is what can be said about a stream that protects persons before it has data.
type PersonDescription struct {
	*Protected
	// Partitions is the number of epochs that one opening of the stream opens: one per partition, or one if they are
	// merged. 0: the topic decides.
	Partitions int `json:"partitions,omitempty"`
	// OnePartition says that a person is charged for one of these epochs only; see docs/theory/persons.md, §9.
	OnePartition bool `json:"one_partition"`
	// OpeningMu is a person's charge for these epochs together, and OpeningEpsilon its ε at the limit's δ. With n
	// epochs, OpeningMu is √n times the μ of one epoch. With OnePartition, or if the topic decides n, it is the μ of
	// one epoch.
	OpeningMu      float64 `json:"opening_mu"`
	OpeningEpsilon float64 `json:"opening_epsilon"`
	// Openings is the number of openings that fit the limit if no other stream charges the population. With a period,
	// it is the number per period.
	Openings uint64 `json:"openings_within_limit"`
	// MapBytes is the memory of a partition's map of persons. DiskBytes is the largest size of the map's files, not
	// counting what one commit writes.
	MapBytes  uint64 `json:"map_bytes"`
	DiskBytes uint64 `json:"disk_bytes"`
	// Crowds says that the noise is calibrated for the adjacency "replace", because the map of persons may be full; see
	// config.Stream.Crowds.
	Crowds bool `json:"may_be_full,omitempty"`
}

// describePerson returns nil if the stream protects records.
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
	// This is the rule by which the ledger charges. If a map is full, a person who moves to its partition displaces
	// somebody else from it.
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
		d.DiskBytes = 2 * 20 * rule.Users // at most this many persons contribute in the steps of a separation
	}
	return d, nil
}
