package core

import (
	"encoding/json"
	"errors"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/codec"
)

// descriptor holds everything that package core knows about a mechanism. To add a mechanism, add its descriptor to
// [mechanisms]; no other code here asks which mechanism a stream has.
type descriptor struct {
	// name is the name of the mechanism's table in the configuration. If several mechanisms share a table, method tells
	// them apart; otherwise it is empty.
	name, method string
	// has reports whether a stream has the mechanism.
	has func(s *config.Stream) bool
	// version is part of the digest, and so of the keys of the noise. It must change whenever new code makes different
	// releases from the same rows and noise.
	version string
	// absent is a phrase: what takes the place of a removed record under ZeroOut.
	absent string
	// build makes the estimator and describes it; see [NewMechanism].
	build func(s *config.Stream, plan json.RawMessage, initial []float64) (*Mechanism, error)

	// The fields below may be nil.

	// keep checks a recorded plan, and returns a function that makes mechanisms from it without another check. nil:
	// build checks each time.
	keep func(s *config.Stream, plan json.RawMessage) (func() (*Mechanism, error), error)
	// computes returns one sentence, with a full stop, about what a stream publishes. nil: the sentence names the
	// mechanism and the columns.
	computes func(s *config.Stream) string
	// versionOf returns the version of the stream's method, if methods differ in version. nil: version applies to all
	// methods.
	versionOf func(s *config.Stream) string
	// statements returns statements about the guarantee that only the releases of this mechanism contain.
	statements func(s *config.Stream) []string
	// sketches reports whether the mechanism uses sketches. Their cost is not Gaussian, so the ledger reserves a part
	// of the limit for them.
	sketches func(s *config.Stream) bool
	// format returns the format of records; nil: the stream's columns.
	format func(s *config.Stream) codec.Format
	// bounded names the numbers of the plan that are in units of a bound. A warm-up may find that bound.
	bounded []string
	// persons says that the mechanism can protect persons instead of records.
	persons bool
	// learns describes how the parameters of one epoch reach the next one. nil: each epoch begins without them.
	learns *learning
}

// learning describes how the parameters of one epoch reach the next one.
type learning struct {
	// begins returns the parameters that the first epoch begins with.
	begins func(s *config.Stream) Learning
	// of returns the parameters in a mechanism's state.
	of func(state []byte) ([]float64, error)
}

// mechanisms are all mechanisms. Each has a file of its own, mechanism_NAME.go.
var mechanisms = []*descriptor{
	momentsMechanism,
	newtonMechanism,
	ambMechanism,
	refitMechanism,
	adamMechanism,
}

// nullRecord replaces a removed record under ZeroOut. A row of zeros would be different. In moments it adds nothing to
// sums, but is counted among the rows that were not shortened. In a regression it is counted as an example.
const nullRecord = "a null record, which takes its place and adds nothing"

// mechanismOf returns the stream's mechanism, or nil if there is none.
func mechanismOf(s *config.Stream) *descriptor {
	for _, d := range mechanisms {
		if d.has(s) {
			return d
		}
	}
	return nil
}

// String returns the name, followed by the method if the table has several.
func (d *descriptor) String() string {
	if d.method == "" {
		return d.name
	}
	return d.name + "/" + d.method
}

// MechanismName returns the name of a stream's mechanism, one of [MechanismNames], or "" if it has none.
func MechanismName(s *config.Stream) string {
	if d := mechanismOf(s); d != nil {
		return d.String()
	}
	return ""
}

// MechanismNames returns the names of all mechanisms. A name is the table's in the configuration, such as "moments". If
// the table has several methods, the name is "table/method", such as "sgd/amb".
func MechanismNames() (names []string) {
	for _, d := range mechanisms {
		names = append(names, d.String())
	}
	return names
}

// Versions returns the versions that the digest contains in addition to the configuration.
func Versions(s *config.Stream) map[string]string {
	v := map[string]string{"noise": dp.NoiseFormat}
	if d := mechanismOf(s); d != nil {
		if v["mechanism"] = d.version; d.versionOf != nil {
			v["mechanism"] = d.versionOf(s)
		}
	}
	return v
}

// NewMechanism builds the stream's estimator. plan is the plan that an epoch recorded, or nil for a new epoch. initial
// holds the parameters that the epoch begins with; nil: the mechanism chooses them. Mechanisms without parameters
// ignore initial.
func NewMechanism(s *config.Stream, plan json.RawMessage, initial []float64) (*Mechanism, error) {
	d := mechanismOf(s)
	if d == nil {
		return nil, errors.New("the stream has no mechanism")
	}
	switch {
	case s.User == nil:
	case !d.persons:
		return nil, errors.New(d.String() + " does not protect persons")
	case s.Automatic():
		return nil, errors.New("a warm-up protects single records, not persons")
	}
	build := d.build
	if s.Automatic() {
		build = d.newWarmed
	}
	m, err := build(s, plan, initial)
	if err != nil {
		return nil, err
	}
	if s.User != nil && !(m.norm > 0) {
		return nil, errors.New(d.String() + " has noise that protects single records, not persons")
	}
	return d.described(m, s), nil
}

// described sets the fields of a mechanism that do not depend on how it was built.
func (d *descriptor) described(m *Mechanism, s *config.Stream) *Mechanism {
	m.Name, m.clocked, m.crowds = d.name, s.Step.Clock() > 0, s.Crowds()
	return m
}

// CostOf builds the mechanism of an epoch from its plan, to get its cost and the lengths of its steps. The mechanism
// must not run, because it lacks the initial parameters: they are deleted when the epoch is closed. Cost and step
// lengths do not depend on them.
func CostOf(s *config.Stream, plan json.RawMessage) (*Mechanism, error) {
	if d := mechanismOf(s); d == nil || d.learns == nil {
		return NewMechanism(s, plan, nil)
	}
	fresh, err := NewMechanism(s, nil, nil)
	if err != nil {
		return nil, err
	}
	var was, now map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(plan, &was), json.Unmarshal(fresh.Plan, &now)); err != nil || was == nil {
		return nil, errors.New("the epoch's plan is damaged")
	}
	was["initial"] = now["initial"]
	if plan, err = json.Marshal(was); err != nil {
		return nil, err
	}
	return NewMechanism(s, plan, nil)
}

// FormatOf returns the format of the stream's records.
func FormatOf(s *config.Stream) codec.Format {
	f := codec.Format{Name: s.Input.Codec, Columns: s.Input.Columns, Specs: s.Input.Specs()}
	if d := mechanismOf(s); d != nil && d.format != nil {
		f = d.format(s)
	}
	if s.User != nil {
		f.User = s.User.Key
	}
	return f
}

// MaxRecordBytes returns the size in bytes above which a record of the stream is treated as null. The default is enough
// for a row of decimal numbers with all their digits.
func MaxRecordBytes(s *config.Stream) int {
	if n := s.Input.MaxRecordBytes; n > 0 {
		return n
	}
	return min(max(1<<20, 32*FormatOf(s).Width()), 1<<30)
}

// Learning says how the epochs of a learning mechanism begin.
type Learning struct {
	// Parameters is the number of parameters.
	Parameters int
	// File holds the parameters of the first epoch, as packed little-endian float64s. If it is empty, the mechanism
	// chooses them.
	File string
}

// LearningOf returns nil if no epoch of the stream begins with the parameters of the epoch before. With a warm-up none
// does, because each epoch then has its own units.
func LearningOf(s *config.Stream) *Learning {
	if s.Automatic() {
		return nil
	}
	if d := mechanismOf(s); d != nil && d.learns != nil {
		l := d.learns.begins(s)
		return &l
	}
	return nil
}

// Learns reports whether an epoch of the mechanism begins with the parameters of the epoch before. mechanism is the
// name of its table.
func Learns(mechanism string) bool { return learner(mechanism) != nil }

// LearntBy returns the parameters in a learning mechanism's state. It returns nil if the state includes a warm-up,
// because then the next epoch does not use them. It fails if another version wrote the state.
func LearntBy(mechanism string, state []byte) ([]float64, error) {
	if l := learner(mechanism); l != nil {
		if len(state) > 0 && state[0] == warmedState {
			return nil, nil
		}
		return l.of(state)
	}
	return nil, errors.New("this mechanism has no parameters that the next epoch could start with")
}

// learner returns how the mechanism named by its table learns, or nil if it does not. The ledger uses the same name.
func learner(mechanism string) *learning {
	for _, d := range mechanisms {
		if d.name == mechanism && d.learns != nil {
			return d.learns
		}
	}
	return nil
}
