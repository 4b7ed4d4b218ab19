package stream

import (
	"encoding/json"

	"streamdp/config"
	"streamdp/dp"
)

// Description is what is known of a stream before any data: its guarantee and
// what it takes.
type Description struct {
	Stream    string          `json:"stream"`
	Mechanism json.RawMessage `json:"mechanism"`
	// Factorization is what the configured one resolved to.
	Factorization string `json:"-"`
	// The guarantee of one epoch, for one record.
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	// Accounting is how noise follows from ε and δ: "exact Gaussian", …
	Accounting string `json:"accounting"`
	// Neighbours says what neighbouring logs differ in.
	Neighbours      string  `json:"neighbours"`
	Mu              float64 `json:"mu"`
	NoiseMultiplier float64 `json:"noise_multiplier"`
	Clip            float64 `json:"clip"`
	Sensitivity     float64 `json:"sensitivity"`
	LimitEpsilon    float64 `json:"limit_epsilon"`
	LimitDelta      float64 `json:"limit_delta"`
	// Reserved is how the limit is divided where a stream of the topic has sketches, by
	// [Reserve]; Describe leaves it out.
	Reserved *Reserved `json:"reserved,omitempty"`
	// Lattice are the steps of the integer lattices, Noise the standard
	// deviations of one step's independent noise; in scaled units.
	Lattice []float64          `json:"lattice"`
	Noise   map[string]float64 `json:"noise_stddev"`
	// Bytes of a checkpoint, of a published release at most, of the largest
	// message that it is published in, and of memory for the estimator.
	StateBytes   int64 `json:"state_bytes"`
	ReleaseBytes int64 `json:"release_bytes"`
	MessageBytes int64 `json:"message_bytes"`
	PeakBytes    int64 `json:"peak_bytes"`
	// Warnings are about what is allowed and probably not meant.
	Warnings []string `json:"warnings,omitempty"`
}

// Describe builds the stream's mechanism and says what it promises and takes.
func Describe(s *config.Stream) (*Description, error) {
	initial, err := initialFile(s)
	if err != nil {
		return nil, err
	}
	m, err := newMechanism(s, nil, initial)
	if err != nil {
		return nil, err
	}
	cost, sizes := m.Cost(), m.Sizes()
	d := &Description{
		Stream: s.Name, Mechanism: m.describe, Factorization: m.factorization,
		Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: cost.Adjacency, Neighbours: neighbours(s), Mu: cost.Mu, NoiseMultiplier: 1 / cost.Mu,
		Clip: m.clip, Sensitivity: m.sens, LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta,
		Lattice: m.lattice, Noise: m.noise, StateBytes: sizes.State, PeakBytes: sizes.Peak,
		Warnings: m.warnings, Accounting: "exact Gaussian",
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

// neighbours says what neighbouring logs differ in.
func neighbours(s *config.Stream) string {
	if s.Privacy.Adjacency == dp.Replace {
		return "one record is replaced by any other"
	}
	return "one record is replaced by " + absent(s) + ", or the reverse"
}

// absent says what stands under ZeroOut in the place of a record that is not there.
// Only of moments does a row of zeros add nothing.
func absent(s *config.Stream) string {
	if s.Moments != nil {
		return "the zero record"
	}
	return "a null record, which takes its place and adds nothing"
}

// releaseSize bounds the bytes of a release, and of its largest message: one of
// the right shape with the longest numbers. It uses the mechanism up.
func releaseSize(s *config.Stream, m *mechanism) (total, largest int64, err error) {
	r := m.sample
	if r == nil {
		var zero [32]byte
		keys, err := dp.NewEpoch(&zero, nil, "", 1, [16]byte{}, zero)
		if err != nil {
			return 0, 0, err
		}
		var h dp.Transcript
		if r, err = m.Close(keys.Step(1, &h)); err != nil || r == nil {
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
	}
	const large = 1 << 62
	r.Step, r.Rows = large, large
	e, err := newEncoder(s, &manifest{Stream: s.Name, Epoch: large, Source: Source{Topic: s.Input.Topic, Partition: large}, Base: large,
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, ChargedEpsilonAtOpen: 1.0000000000000002,
		Persons: persons(m.Cost(), s.Privacy.Delta, 2, 10), Version: "v00.00.00-00000000000000-000000000000"}, m)
	if err != nil {
		return 0, 0, err
	}
	messages, err := e.encode(r, large, large)
	for _, p := range messages {
		total += int64(len(p.value))
		largest = max(largest, int64(len(p.value)))
	}
	return total, largest, err
}
