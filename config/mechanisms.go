package config

import (
	"fmt"
	"math"
	"reflect"

	"github.com/streamdp/streamdp/sgd"
)

// estimator is the interface that all mechanisms' configurations implement.
type estimator interface {
	Defaults()
	Validate() error
	// LastStep returns the step after which an epoch ends, 0 if it does not end.
	LastStep() uint64
	// Values returns the names of the values that a release may hold.
	Values() []string
}

// mechanism is a table [stream.NAME.…] that describes a mechanism; each stream has exactly one. To add a mechanism, add
// a row to [mechanisms], rows for its keys to [schema], and a field to [Stream]; no other code of this package depends
// on which mechanism a stream has.
type mechanism struct {
	name string
	// of returns the mechanism's configuration in a stream, nil if the stream has another one.
	of func(s *Stream) estimator
	// bind copies the stream's columns, steps, horizon, centre and scale into the mechanism's configuration. endless is
	// true if epochs continue after their horizon.
	bind func(s *Stream, endless bool)
	// steps is the reason why a stream must not set the number of offsets of a step; empty: it may. step is the default
	// of that number; 0: there is none, and the stream must set it.
	steps string
	step  Step

	// The fields below may be nil.

	// clock is the reason why steps cannot be by the clock; empty: they can.
	clock string
	// bounded is the reason why steps by the clock need step_max; empty: step_max has a default.
	bounded string
	// merge changes the mechanism's configuration so that a step covers the given number of partitions; nil: the
	// mechanism cannot merge.
	merge func(s *Stream, partitions int)
	// finds is true if the mechanism finds "auto" values in a warm-up of its own.
	finds bool
	// warmup describes the warm-up that runs before a mechanism without its own; nil: nothing may be "auto".
	warmup *warmup
	// check reports faults that depend on the guarantee.
	check func(s *Stream) error
	// ends returns the reason why an epoch cannot continue after its horizon; empty: it can.
	ends func(s *Stream) string
	// persons is true if the mechanism can protect persons.
	persons bool
	// slots returns an upper bound on the offsets of the given number of consecutive steps, none of which comes after
	// the last step of an epoch. The second result is false if no bound is known. nil: each step has s.longest offsets.
	slots func(s *Stream, steps uint64) (uint64, bool)
	// gradients reports whether records are gradients.
	gradients func(s *Stream) bool
}

// mechanisms are all mechanisms, in the order of the reference.
var mechanisms = []*mechanism{
	{
		name: "moments",
		of:   func(s *Stream) estimator { return s.Moments },
		bind: func(s *Stream, endless bool) {
			m := s.Moments
			m.Columns, m.Step, m.Horizon, m.Centre, m.Scale, m.Endless = s.Input.Row(), s.Slots(), s.Horizon, s.Centre,
				s.Scale, endless
			m.Warmup, m.WarmupMode = s.Warmup, s.WarmupMode
			m.Person = s.Participation()
		},
		merge: func(s *Stream, partitions int) {
			if s.Step.Clock() > 0 {
				return // a step covers all partitions
			}
			m := *s.Moments
			if m.Step = s.Slots() * uint64(partitions); s.Slots() > math.MaxInt64/uint64(partitions) {
				m.Step = math.MaxInt64
			}
			s.Moments = &m
		},
		step:    100,
		finds:   true,
		persons: true,
		check:   func(s *Stream) error { return s.Moments.ValidateFor(s.Params().Adjacency) },
		ends: func(s *Stream) string {
			switch m := s.Moments; {
			case m.Factorization == "sqrt" || m.Factorization == "dense":
				return fmt.Sprintf("factorization %q ends at the horizon", m.Factorization)
			case m.Normalise:
				return "normalised noise ends at the horizon"
			}
			return ""
		},
	},
	{
		name:    "sgd",
		clock:   "the sizes of its steps must be known in advance",
		of:      func(s *Stream) estimator { return s.SGD },
		bind:    bindSGD,
		persons: true,
		slots: func(s *Stream, steps uint64) (uint64, bool) {
			t := *s // the mechanism may not be bound yet
			own := *s.SGD
			if t.SGD = &own; t.last() == 0 {
				return 0, false
			}
			if own.Defaults(); own.Method == "newton" { // clears amb's defaults, which may still be set
				own = sgd.Config{
					Target: own.Target, ClipX: own.ClipX, ClipY: own.ClipY, Intercept: own.Intercept,
					Method: own.Method,
					Radius: own.Radius, Intervals: own.Intervals, Level: own.Level,
				}
			}
			bindSGD(&t, s.OnHorizon == "continue")
			if own.Method == "newton" {
				e, err := sgd.NewNewton(own, t.Params())
				if err != nil {
					return 0, false
				}
				return min(1<<62, e.Longest(min(steps, t.last()))), true
			}
			e, err := sgd.NewAMB(own, t.Params())
			if err != nil {
				return 0, false
			}
			return e.MostSlots(steps, t.last()), true
		},
		warmup: &warmup{
			bounds: func(s *Stream) (string, *float64, *float64) { return s.SGD.Target, &s.SGD.ClipX, &s.SGD.ClipY },
			own:    func(s *Stream) { c := *s.SGD; s.SGD = &c },
			needs: func(s *Stream) map[string]bool {
				return map[string]bool{"curvature": s.SGD.Curvature > 0 && math.IsNaN(s.SGD.ClipX)}
			},
			// With every column scaled to deviation 1, the trace of the second moment is `features`, and no eigenvalue
			// exceeds the trace.
			unit: func(s *Stream, features int) {
				if m := s.SGD; m.Method == "amb" && m.Curvature == 0 {
					m.Curvature = min(float64(features), m.ClipX*m.ClipX)
				}
			},
		},
		steps: "sgd chooses the length of its steps",
	},
	{
		name: "refit",
		of:   func(s *Stream) estimator { return s.Refit },
		bind: func(s *Stream, endless bool) {
			m := s.Refit
			m.Columns, m.Horizon, m.Centre, m.Scale, m.Endless, m.Found = s.Input.Row(), s.Horizon, s.Centre, s.Scale,
				endless, s.found
			if s.Step.Clock() > 0 {
				m.Most = s.StepMax
			}
			m.Person = s.Participation()
		},
		persons: true,
		merge: func(s *Stream, partitions int) {
			c := *s.Refit
			c.Partitions = uint64(partitions)
			s.Refit = &c
		},
		warmup: &warmup{
			bounds: func(s *Stream) (string, *float64, *float64) {
				return s.Refit.Target, &s.Refit.ClipX, &s.Refit.ClipY
			},
			own: func(s *Stream) { c := *s.Refit; s.Refit = &c },
			needs: func(s *Stream) map[string]bool {
				return map[string]bool{"residual_clip": s.Refit.ResidualClip > 0 && math.IsNaN(s.Refit.ClipY)}
			},
		},
		steps: "for refit a step is a window: set refit.window to its number of offsets, or step to a period of " +
			"the clock",
		bounded: "it bounds the records of a window, and so its memory",
	},
	{
		name:  "adam",
		clock: "the sizes of its steps must be known in advance",
		of:    func(s *Stream) estimator { return s.Adam },
		bind: func(s *Stream, endless bool) {
			m := s.Adam
			m.Step, m.Horizon, m.Endless = s.Slots(), s.Horizon, endless
			m.Person = s.Participation()
			if m.Model != nil && m.Mode == "model" {
				m.Columns = s.Input.Row()
			}
		},
		warmup: &warmup{
			// Here only centre and scale can be "auto": the mechanism has no bounds on features and target, and clip
			// bounds the gradients.
			bounds: func(s *Stream) (string, *float64, *float64) {
				if s.Adam.Model == nil {
					return "", new(float64), new(float64)
				}
				return s.Adam.Model.Target, new(float64), new(float64)
			},
			own: func(s *Stream) { c := *s.Adam; s.Adam = &c },
			needs: func(s *Stream) map[string]bool {
				return map[string]bool{"initial_file": s.Adam.InitialFile != "",
					"model.target": s.Adam.Model.Classifies() && s.finds(s.Adam.Model.Target)}
			},
		},
		gradients: func(s *Stream) bool { return s.Adam.Mode == "gradients" },
		persons:   true,
	},
}

func bindSGD(s *Stream, endless bool) {
	m := s.SGD
	m.Columns, m.Horizon, m.Centre, m.Scale, m.Endless, m.Found = s.Input.Row(), s.Horizon, s.Centre, s.Scale,
		endless, s.found
	m.Person = s.Participation()
}

// mechanism returns the first mechanism that the stream has and its configuration. Both are nil if the stream has none.
func (s *Stream) mechanism() (*mechanism, estimator) {
	for _, m := range mechanisms {
		if e := m.of(s); !reflect.ValueOf(e).IsNil() {
			return m, e
		}
	}
	return nil, nil
}

// Mechanism returns the name of the stream's mechanism table.
func (s *Stream) Mechanism() string {
	if m, _ := s.mechanism(); m != nil {
		return m.name
	}
	return ""
}

// LastStep returns the step after which an epoch ends, 0 if it does not end.
func (s *Stream) LastStep() uint64 {
	_, e := s.mechanism()
	if e == nil {
		return 0
	}
	last := e.LastStep()
	if last > 0 {
		last += s.warmupSteps()
	}
	return last
}

// Over returns a copy of a merged stream whose mechanism is bound to these partitions: a step holds the offsets of all
// of them. It returns any other stream unchanged.
func (s *Stream) Over(partitions []int) *Stream {
	if !s.Merge {
		return s
	}
	c := *s
	c.Input.Partitions = partitions
	if m, _ := c.mechanism(); m != nil && m.merge != nil {
		m.merge(&c, len(partitions))
	}
	return &c
}

// Gradients reports whether the records are gradients. A gradient has no columns.
func (s *Stream) Gradients() bool {
	m, _ := s.mechanism()
	return m != nil && m.gradients != nil && m.gradients(s)
}
