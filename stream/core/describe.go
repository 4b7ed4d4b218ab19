package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// Description is what can be said about a stream before it has data: its guarantee, its noise and the memory it needs.
type Description struct {
	Stream    string          `json:"stream"`
	Mechanism json.RawMessage `json:"mechanism"`
	// Factorization is the factorization in use, also if "auto" is configured.
	Factorization string `json:"-"`
	// The guarantee of one epoch, for one record.
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	// Accounting is the method that derives the noise from ε and δ, such as "exact Gaussian".
	Accounting string `json:"accounting"`
	// Neighbours says how neighbouring logs differ.
	Neighbours      string  `json:"neighbours"`
	Mu              float64 `json:"mu"`
	NoiseMultiplier float64 `json:"noise_multiplier"`
	Clip            float64 `json:"clip"`
	// Found says that a warm-up finds the clip norm. Sensitivity and noise in this Description are then in units of the
	// clip norm.
	Found bool `json:"clip_found,omitempty"`
	// WarmupOffsets is the number of an epoch's offsets in its warm-up.
	WarmupOffsets int64 `json:"warmup_offsets,omitempty"`
	// Warmup is the warm-up before a regression that finds its bounds; nil: none.
	Warmup       *WarmupPlan `json:"-"`
	Sensitivity  float64     `json:"sensitivity"`
	LimitEpsilon float64     `json:"limit_epsilon"`
	LimitDelta   float64     `json:"limit_delta"`
	// Reserved is the division of the budget limit, if a stream of the topic uses sketches. [Description.Divide] sets
	// it; Describe leaves it nil.
	Reserved *Reserved `json:"reserved,omitempty"`
	// Merged says that the stream merges partitions. Partitions is their number, or 0 for all of the topic. With 0,
	// numbers that depend on the partitions assume config.FewestMerged of them.
	Merged     bool `json:"merged,omitempty"`
	Partitions int  `json:"partitions,omitempty"`
	// Clock is the period of steps by the clock, else "". StepMax is the largest number of offsets of such a step.
	Clock   string `json:"clock,omitempty"`
	StepMax uint64 `json:"step_max,omitempty"`
	// Lattice holds the spacing of the integer lattice of each array. Noise holds the standard deviation of the
	// independent noise that one step adds to each array. Both are in scaled units.
	Lattice []float64          `json:"lattice"`
	Noise   map[string]float64 `json:"noise_stddev"`
	// The sizes in bytes of a checkpoint, of the largest release, of its largest message, and of the estimator's
	// memory.
	StateBytes   int64 `json:"state_bytes"`
	ReleaseBytes int64 `json:"release_bytes"`
	MessageBytes int64 `json:"message_bytes"`
	PeakBytes    int64 `json:"peak_bytes"`
	// Persons is the guarantee for a person with several records or, if the stream protects persons, for several
	// persons. Person then describes the protected person. Caveats are sentences about what is not promised.
	Persons []Person           `json:"persons"`
	Person  *PersonDescription `json:"person,omitempty"`
	Caveats []string           `json:"caveats"`
	// Warnings are about settings that are allowed but probably unintended.
	Warnings []string `json:"warnings,omitempty"`
}

// Describe builds the stream's mechanism and describes it. initial is as for [NewMechanism].
func Describe(s *config.Stream, initial []float64) (*Description, error) {
	m, err := NewMechanism(s, nil, initial)
	if err != nil {
		return nil, err
	}
	cost, sizes := m.Cost(), m.Sizes()
	d := &Description{
		Stream: s.Name, Mechanism: m.description, Factorization: m.Factorization,
		Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: cost.Adjacency, Neighbours: neighbours(s),
		Mu: cost.Mu, NoiseMultiplier: 1 / cost.Mu,
		Clip: m.clip, Found: m.found, WarmupOffsets: m.Warmup, Warmup: m.warmup, Sensitivity: m.sensitivity,
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta,
		Lattice: m.Lattice, Noise: m.Noise, StateBytes: sizes.State, PeakBytes: sizes.Peak,
		Persons: Persons(cost, s.Privacy.Delta, 1, 2, 5, 10), Caveats: caveats(s, m.sketched),
		Warnings: m.warnings, Accounting: "exact Gaussian",
	}
	if d.Person, err = describePerson(s, m); err != nil {
		return nil, err
	}
	parts := 0
	if d.Merged = s.Merge; s.Merge {
		parts = config.FewestMerged
		if !s.Input.All() {
			parts = len(s.Input.Partitions)
			d.Partitions = parts
		}
	}
	if d.Clock = clockOf(s); d.Clock != "" {
		d.StepMax, parts = s.StepMax, max(1, parts)
	}
	d.PeakBytes += sizes.Part * int64(parts) * int64(s.MergeAhead+1)
	if parts == 0 && m.ahead && s.User == nil {
		d.PeakBytes += sizes.Part // the next step's records
	}
	switch {
	case m.accounting != "" && m.accounting != "exact":
		d.Accounting = m.accounting
	case m.sketched:
		d.Accounting = "exact"
	}
	d.ReleaseBytes, d.MessageBytes, err = releaseSize(s, m)
	return d, err
}

// neighbours says how neighbouring logs differ.
func neighbours(s *config.Stream) string {
	if s.User != nil {
		return allRecords(s) + " are replaced by " + instead(s)
	}
	if s.Privacy.Adjacency == dp.Replace {
		return "one record is replaced by any other"
	}
	return "one record is replaced by " + mechanismOf(s).absent + ", or the reverse"
}

// firstRelease closes the first step of m, which cannot be used afterwards.
func firstRelease(m *Mechanism) (*dp.Release, error) {
	var zero [32]byte
	keys, err := dp.NewEpoch(&zero, nil, "", 1, [16]byte{}, zero)
	if err != nil {
		return nil, err
	}
	var h dp.Transcript
	return m.Close(keys.Step(1, &h))
}

// releaseSize returns upper bounds on the bytes of a release and of its largest message. It encodes a release of the
// right shape whose numbers are as long as possible. m cannot be used afterwards.
func releaseSize(s *config.Stream, m *Mechanism) (total, largest int64, err error) {
	r := m.sample
	if r == nil {
		if r, err = firstRelease(m); err != nil || r == nil {
			return 0, 0, err
		}
	}
	const longest = -2.2250738585072014e-308
	for _, v := range r.Values {
		for i := range v.Data {
			v.Data[i] = longest
		}
		for i := range v.SE {
			v.SE[i] = longest
		}
		for i := range v.SEWithClipping {
			v.SEWithClipping[i] = longest
		}
	}
	const large = 1 << 62
	r.Step, r.Rows = large, large
	about := &Manifest{Stream: s.Name, Epoch: large, Source: Source{Topic: s.Input.Topic, Partition: large},
		Base:         large,
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta,
		ChargedEpsilonAtOpen: 1.0000000000000002,
		Persons:              Persons(m.Cost(), s.Privacy.Delta, 2, 10),
		Version:              "v00.00.00-00000000000000-000000000000"}
	var parts []span
	if s.Merge {
		about.Partition = Merged
		numbers := s.Input.Partitions
		if s.Input.All() {
			numbers = make([]int, config.FewestMerged)
		}
		for _, p := range numbers {
			about.Parts, parts = append(about.Parts, Part{Partition: p, Base: large}), append(parts, span{large, large})
		}
	}
	e, err := newEncoder(s, about, m)
	if err != nil {
		return 0, 0, err
	}
	messages, err := e.encode(r, large, large, parts)
	for _, p := range messages {
		total += int64(len(p.Value))
		largest = max(largest, int64(len(p.Value)))
	}
	return total, largest, err
}
