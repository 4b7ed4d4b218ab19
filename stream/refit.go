package stream

import (
	"encoding/json"
	"math"

	"streamdp/config"
	"streamdp/sketch"
)

// newRefit returns regressions over windows.
func newRefit(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	e, err := planned(*s.Refit, s.Params(), plan, sketch.New, sketch.Adopt)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.Refit
	m := &mechanism{
		Estimator: e, name: "refit", method: p.Solver, clip: p.NormBound, sens: s.Privacy.Adjacency.Factor(),
		lattice: []float64{math.Ldexp(1, -s.Params().Bits())}, noise: map[string]float64{},
		sample: e.Sample(), warnings: e.Warnings(), accounting: string(p.Accounting), sketched: !p.FinitePrecision(), window: int64(c.Window),
	}
	// In units of the clipped window.
	for name, sd := range map[string]float64{"gradient": p.Sigma, "eigenvalue": p.Test, "statistics": p.Multiplier} {
		if sd > 0 {
			m.noise[name] = sd
		}
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
		Name         string  `json:"name"`
		Method       string  `json:"method"`
		Target       string  `json:"target"`
		Intercept    bool    `json:"intercept"`
		ClipY        float64 `json:"clip_y"`
		Window       uint64  `json:"window"`
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
		"refit", p.Solver, c.Target, *c.Intercept, c.ClipY, c.Window, p.Rows, p.Gamma, p.Iterations, p.Sampled, p.Transforms,
		p.ResidualClip * c.ClipY, p.Radius, c.EigenTest, c.LastStep(),
	})
	return m, err
}
