package core

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/refit"
)

var refitMechanism = &descriptor{
	name:    "refit",
	has:     func(s *config.Stream) bool { return s.Refit != nil },
	absent:  nullRecord,
	build:   newRefit,
	persons: true,
	bounded: []string{"norm_bound"},
	computes: func(s *config.Stream) string {
		window := fmt.Sprintf("%d offsets", s.Refit.Window)
		if clock := clockOf(s); clock != "" {
			window = Brief(clock) + " by the clock"
		} else if s.Merge {
			window += " of each partition"
		}
		return fmt.Sprintf("Linear regression of %s on %s, solved separately for each window of %s.", s.Refit.Target,
			features(s, s.Refit.Target), window)
	},
	sketches: func(s *config.Stream) bool { return s.Refit.Sketches() },
	statements: func(s *config.Stream) []string {
		if s.Refit.Solver != "newton" {
			return nil
		}
		return []string{
			"Standard errors are approximate: of noise, of sampling and of what clipping takes by estimate. They do " +
				"not hold for columns that nearly depend on each other."}
	},
	versionOf: func(s *config.Stream) string { return s.Refit.Version() },
}

// newRefit returns the mechanism that fits a regression to each window.
func newRefit(s *config.Stream, plan json.RawMessage, _ []float64) (*Mechanism, error) {
	e, err := planned(*s.Refit, s.Params(), plan, refit.New, refit.Adopt)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.Refit
	m := &Mechanism{
		Estimator: e, Method: p.Solver, clip: p.NormBound, sensitivity: s.Params().Adjacency.Factor(),
		Lattice: []float64{math.Ldexp(1, -s.Params().Bits())}, Noise: map[string]float64{},
		sample: e.Sample(), warnings: e.Warnings(), accounting: string(p.Accounting), sketched: !p.FinitePrecision(),
		window: int64(c.Slots()),
		ahead:  true,
	}
	if p.Person != nil {
		m.norm, m.record = p.Person.Norm, new(e.RecordCost())
		m.sensitivity *= m.norm
	}
	if s.Step.Clock() > 0 {
		m.window = 0 // all offsets of a step are in its window
	}
	// In the plan, the noise is in units of the clipped window.
	for name, sd := range map[string]float64{"gradient": p.Sigma, "eigenvalue": p.Test, "statistics": p.Multiplier} {
		if sd > 0 {
			m.Noise[name] = sd
		}
	}
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.description, err = json.Marshal(struct {
		Name         string  `json:"name"`
		Method       string  `json:"method"`
		Target       string  `json:"target"`
		Intercept    bool    `json:"intercept"`
		ClipY        float64 `json:"clip_y"`
		Window       uint64  `json:"window"` // length of a window; if steps are by the clock, the largest one
		Clock        string  `json:"clock,omitempty"`
		Rows         int     `json:"rows,omitempty"`
		Gamma        float64 `json:"gamma,omitempty"`
		Iterations   int     `json:"iterations,omitempty"`
		Sampled      int     `json:"sampled,omitempty"`
		Transforms   int     `json:"transforms,omitempty"`
		ResidualClip float64 `json:"residual_clip,omitempty"`
		Radius       float64 `json:"radius,omitempty"`
		EigenTest    bool    `json:"eigen_test,omitempty"`
		Horizon      uint64  `json:"horizon,omitempty"`
	}{
		"refit", p.Solver, c.Target, *c.Intercept, c.ClipY, c.Slots(), clockOf(s), p.Rows, p.Gamma, p.Iterations,
		p.Sampled, p.Transforms,
		p.ResidualClip * c.ClipY, p.Radius, c.EigenTest, c.LastStep(),
	})
	return m, err
}
