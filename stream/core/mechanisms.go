package core

import (
	"encoding/json"
	"errors"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/codec"
)

// descriptor is what package core knows of a mechanism. To add a mechanism, add a row to
// [mechanisms]; no other code here asks which mechanism a stream has.
type descriptor struct {
	// name is the name of the mechanism's table in the configuration. Several mechanisms
	// may share a table; then method tells them apart, and otherwise it is empty.
	name, method string
	// has reports whether a stream has the mechanism.
	has func(s *config.Stream) bool
	// version enters the digest, and through it the keys of the noise. It must change
	// when the same rows and noise give other releases than before.
	version string
	// absent says in words what replaces a removed record under ZeroOut.
	absent string
	// build makes the estimator and describes it; see [NewMechanism].
	build func(s *config.Stream, plan json.RawMessage, initial []float64) (*Mechanism, error)

	// The fields below may be nil.

	// keep checks a recorded plan, and returns what makes a mechanism of it without another
	// check; nil: build checks each time.
	keep func(s *config.Stream, plan json.RawMessage) (func() (*Mechanism, error), error)
	// computes says in one sentence what a stream publishes, with a full stop; nil: the
	// mechanism's name and the columns are enough.
	computes func(s *config.Stream) string
	// versionOf returns the version of a mechanism whose methods have versions of their
	// own; nil: version is that of all.
	versionOf func(s *config.Stream) string
	// statements says of a release's guarantee what only this mechanism's releases say.
	statements func(s *config.Stream) []string
	// sketches reports whether the mechanism uses sketches. Their cost is not that of a
	// Gaussian, so the ledger sets aside a part of the limit for them.
	sketches func(s *config.Stream) bool
	// format is what the records hold; nil: the stream's columns.
	format func(s *config.Stream) codec.Format
	// bounded has the plan's numbers that are in the unit of a bound which a warm-up may
	// find.
	bounded []string
	// persons: it can protect persons in place of records.
	persons bool
	// learns is what one epoch passes on to the next; nil: nothing.
	learns *learning
}

// learning is how one epoch passes its parameters on to the next one.
type learning struct {
	// begins says which parameters the first epoch begins with.
	begins func(s *config.Stream) Learning
	// of reads the parameters from a state.
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

// nullRecord is what replaces a removed record under ZeroOut. A row of zeros is a record
// of its own: in moments it adds nothing to sums, but counts among the rows that are not
// shortened; in a regression it counts as an example.
const nullRecord = "a null record, which takes its place and adds nothing"

// mechanismOf returns the stream's mechanism, nil where there is none.
func mechanismOf(s *config.Stream) *descriptor {
	for _, d := range mechanisms {
		if d.has(s) {
			return d
		}
	}
	return nil
}

// String returns the name, with the method behind it if the table has several methods.
func (d *descriptor) String() string {
	if d.method == "" {
		return d.name
	}
	return d.name + "/" + d.method
}

// MechanismName returns the name of a stream's mechanism, one of [MechanismNames], or "" if
// the stream has none.
func MechanismName(s *config.Stream) string {
	if d := mechanismOf(s); d != nil {
		return d.String()
	}
	return ""
}

// MechanismNames returns the names of all mechanisms. A name is that of the mechanism's
// table in the configuration, as "moments". If the table has several methods, it is
// "table/method", as "sgd/amb".
func MechanismNames() (names []string) {
	for _, d := range mechanisms {
		names = append(names, d.String())
	}
	return names
}

// Versions returns the versions that the digest contains besides the configuration.
func Versions(s *config.Stream) map[string]string {
	v := map[string]string{"noise": dp.NoiseFormat}
	if d := mechanismOf(s); d != nil {
		if v["mechanism"] = d.version; d.versionOf != nil {
			v["mechanism"] = d.versionOf(s)
		}
	}
	return v
}

// NewMechanism builds the stream's estimator. plan is the plan that a begun epoch recorded,
// nil for a new epoch. initial are the parameters that the epoch begins with; nil: those
// that the mechanism chooses. A mechanism without parameters ignores it.
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
		return nil, errors.New("a warm-up protects single records, and no persons")
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
		return nil, errors.New(d.String() + " has the noise of single records, not of persons")
	}
	return d.described(m, s), nil
}

// described adds to a mechanism what does not depend on how it was built.
func (d *descriptor) described(m *Mechanism, s *config.Stream) *Mechanism {
	m.Name, m.clocked, m.crowds = d.name, s.Step.Clock() > 0, s.Crowds()
	return m
}

// CostOf builds the mechanism of an epoch by its plan, for its cost and the lengths of its
// steps. These don't depend on what a learning mechanism began with, which is deleted
// when its epoch is closed. Such a mechanism must not run.
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

// MaxRecordBytes returns the size beyond which a record of the stream counts as null. The
// default is enough for a row of decimal numbers with all their digits.
func MaxRecordBytes(s *config.Stream) int {
	if n := s.Input.MaxRecordBytes; n > 0 {
		return n
	}
	return min(max(1<<20, 32*FormatOf(s).Width()), 1<<30)
}

// Learning says what the epochs of a learning mechanism begin with.
type Learning struct {
	// Parameters is the number of parameters.
	Parameters int
	// File holds the parameters of the first epoch, packed little-endian float64s. If it
	// is empty, the mechanism chooses them.
	File string
}

// LearningOf returns nil if the stream's epochs pass nothing on. Those with a warm-up don't:
// each has units of its own.
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

// Learns reports whether one epoch of a mechanism passes something on to the next. mechanism
// is the name of its table.
func Learns(mechanism string) bool { return learner(mechanism) != nil }

// LearntBy returns the parameters in a state of such a mechanism, nil for one behind a warm-up,
// which passes none on. It returns an error if another version wrote the state.
func LearntBy(mechanism string, state []byte) ([]float64, error) {
	if l := learner(mechanism); l != nil {
		if len(state) > 0 && state[0] == warmedState {
			return nil, nil
		}
		return l.of(state)
	}
	return nil, errors.New("the mechanism learns nothing")
}

// learner finds a learning mechanism by the name of its table, which is its name in the
// ledger.
func learner(mechanism string) *learning {
	for _, d := range mechanisms {
		if d.name == mechanism && d.learns != nil {
			return d.learns
		}
	}
	return nil
}
