package config

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/toml"
)

// warmup describes the warm-up of a regression: which bounds it finds in addition to centre and scale.
type warmup struct {
	// bounds returns the name of the target, and pointers to the bounds on features and on the target. A bound is NaN
	// if the warm-up must find it.
	bounds func(s *Stream) (target string, x, y *float64)
	// own replaces the stream's mechanism configuration by a copy, which may then be changed.
	own func(s *Stream)
	// needs returns the keys whose meaning depends on centre, scale or a bound. For each key, the value is true if the
	// warm-up finds the quantity on which the key depends.
	needs func(s *Stream) map[string]bool
	// unit tells the mechanism that the warm-up scales its features to deviation 1. features is their number without
	// frozen ones. nil: the mechanism does not depend on it.
	unit func(s *Stream, features int)
}

// Automatic reports whether a warm-up runs before the mechanism and passes its results to it. Moments have a warm-up of
// their own, and gradients have none.
func (s *Stream) Automatic() bool {
	m, _ := s.mechanism()
	if m == nil || m.warmup == nil || s.Gradients() {
		return false
	}
	_, x, y := m.warmup.bounds(s)
	return math.IsNaN(*x) || math.IsNaN(*y) || slices.ContainsFunc(s.Centre, math.IsNaN) ||
		slices.ContainsFunc(s.Scale, math.IsNaN)
}

// Bounds returns the configuration of the warm-up of an automatic stream.
func (s *Stream) Bounds() bounds.Config {
	m, _ := s.mechanism()
	target, x, y := m.warmup.bounds(s)
	return bounds.Config{
		Columns: len(s.Input.Row()), Centre: s.Centre, Scale: s.Scale,
		Regression: &bounds.Regression{Target: slices.Index(s.Input.Row(), target), X: math.IsNaN(*x),
			Y: math.IsNaN(*y)},
		Records: s.Warmup, Split: s.WarmupMode == "split",
	}
}

// Limits returns the bounds on features and target of a regression with a warm-up, NaN where the warm-up must find
// them.
func (s *Stream) Limits() (x, y float64) {
	m, _ := s.mechanism()
	_, px, py := m.warmup.bounds(s)
	return *px, *py
}

// warmupSteps returns the number of steps of a warm-up before the mechanism, 0 for none.
func (s *Stream) warmupSteps() uint64 {
	if !s.Automatic() {
		return 0
	}
	return s.Bounds().Parts()
}

// Bounded returns a copy of an automatic stream with these constants in place of "auto". x and y are the bounds on
// features and target. features is the number of features that are not frozen. The stream's releases are in original
// units, whatever the constants are.
func (s *Stream) Bounded(centre, scale []float64, x, y float64, features int) *Stream {
	t := *s
	m, _ := t.mechanism()
	m.warmup.own(&t)
	target, px, py := m.warmup.bounds(&t)
	if math.IsNaN(*px) {
		*px = x
	}
	if math.IsNaN(*py) {
		*py = y
	}
	t.Centre, t.Scale, t.found = centre, scale, true
	m.bind(&t, t.OnHorizon == "continue")
	if m.warmup.unit != nil && s.standard(target) {
		m.warmup.unit(&t, features)
	}
	return &t
}

// finds reports whether a warm-up finds centre or scale of a column.
func (s *Stream) finds(column string) bool {
	j := slices.Index(s.Input.Row(), column)
	return j >= 0 && j < min(len(s.Centre), len(s.Scale)) && (math.IsNaN(s.Centre[j]) || math.IsNaN(s.Scale[j]))
}

// standard reports whether a warm-up finds centre and scale of every feature (every column except target).
func (s *Stream) standard(target string) bool {
	if len(s.Centre) != len(s.Input.Row()) || len(s.Scale) != len(s.Input.Row()) {
		return false // another check reports this fault
	}
	for j, name := range s.Input.Row() {
		if name != target && !(math.IsNaN(s.Centre[j]) && math.IsNaN(s.Scale[j])) {
			return false
		}
	}
	return true
}

// Standing returns an automatic stream with centre 0 and scale 1 in place of "auto". Its mechanism has the same
// guarantee, noise and steps as the mechanism that follows the warm-up.
func (s *Stream) Standing() *Stream {
	or := func(given []float64, missing float64) []float64 {
		all := slices.Clone(given)
		for j, v := range all {
			if math.IsNaN(v) {
				all[j] = missing
			}
		}
		return all
	}
	return s.Bounded(or(s.Centre, 0), or(s.Scale, 1), 1, 1, 1)
}

// checkAuto reports "auto" for a mechanism that cannot find bounds, and keys of a warm-up if the mechanism has no
// warm-up.
func (d *document) checkAuto(s *Stream, key toml.Key) {
	m, _ := s.mechanism()
	if m == nil || m.finds || m.warmup != nil {
		return
	}
	for name, list := range map[string][]float64{"centre": s.Centre, "scale": s.Scale} {
		if here := under(key, name); d.Sound(here) && slices.ContainsFunc(list, math.IsNaN) {
			d.Add(here, -1, "must not be \"auto\" for "+m.name+", which has no warm-up", nil)
		}
	}
	d.refuse(key, "must be absent: "+m.name+" has no warm-up", "warmup", "warmup_mode")
}

// checkWarmup checks the keys of the warm-up before a regression.
func (d *document) checkWarmup(s *Stream, key toml.Key) {
	m, _ := s.mechanism()
	if m.warmup == nil {
		return
	}
	sound := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			at, _ := locate(key, m.name, name)
			return !d.Sound(at)
		})
	}
	if !sound("centre", "scale", "clip_x", "clip_y") {
		return
	}
	if !s.Automatic() {
		d.refuse(key, "is only for a centre, scale, clip_x or clip_y that is \"auto\"", "warmup", "warmup_mode")
		return
	}
	if here := under(key, "warmup"); d.Sound(here) && s.Warmup > 1<<60 {
		d.Add(here, -1, "must be less than the largest offset of a log", s.Warmup)
	}
	for name, found := range m.warmup.needs(s) {
		if here, _ := locate(key, m.name, name); found && d.Sound(here) {
			d.Add(here, -1,
				"must be absent: its unit depends on a centre, scale or bound that is \"auto\"", nil)
		}
	}
}
