package stream

import (
	"encoding/json"
	"math"

	"streamdp/adam"
	"streamdp/config"
)

// newAdam returns private Adam that begins with initial, nil for its own.
func newAdam(s *config.Stream, plan json.RawMessage, initial []float64) (*mechanism, error) {
	c := *s.Adam
	c.Initial = initial
	e, err := planned(c, s.Params(), plan, adam.New, adam.Adopt)
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	m := &mechanism{
		Estimator: e, name: "adam", method: p.Method, factorization: p.First.Kind,
		clip: p.Clip, sens: p.Sensitivity, chunked: true,
		lattice: []float64{p.Lattice.Step()}, noise: map[string]float64{"first": p.FirstNoise},
		refused: func() (Reason, uint64) { return NoClass, e.Refused() },
	}
	if c.Mode == "gradients" {
		g := &gradients{Estimator: e}
		m.Estimator, m.refused = g, func() (Reason, uint64) { return Stale, g.stale }
	}
	if p.Second != nil {
		m.lattice = append(m.lattice, math.Ldexp(1, p.SecondExp))
		m.noise["second"] = p.SecondNoise
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	buffers := len(p.First.Decay)
	if p.Second != nil {
		buffers += len(p.Second.Decay)
	}
	m.describe, err = json.Marshal(struct {
		Name          string      `json:"name"`
		Method        string      `json:"method"`
		Mode          string      `json:"mode"`
		Model         *adam.Model `json:"model,omitempty"`
		Parameters    int         `json:"parameters"`
		Initial       string      `json:"initial,omitempty"`
		Factorization string      `json:"factorization"`
		Buffers       int         `json:"buffers,omitempty"`
		Step          uint64      `json:"step"`
		Horizon       uint64      `json:"horizon,omitempty"`
		Nu            float64     `json:"nu,omitempty"`
		Lambda        float64     `json:"lambda,omitempty"`
		MeanClip      float64     `json:"mean_clip,omitempty"`
		Beta1         float64     `json:"beta1"`
		Beta2         float64     `json:"beta2,omitempty"`
		Rate          float64     `json:"rate"`
		Schedule      string      `json:"schedule"`
		Eps           float64     `json:"eps,omitempty"`
		VFloor        float64     `json:"v_floor,omitempty"`
		Negative      string      `json:"negative,omitempty"`
		UpdateClip    float64     `json:"update_clip,omitempty"`
		WeightDecay   float64     `json:"weight_decay,omitempty"`
		MaxStaleness  uint64      `json:"max_staleness,omitempty"`
	}{
		"adam", p.Method, c.Mode, c.Model, p.Parameters, p.Initial, p.First.Kind, buffers, s.Step, c.LastStep(), p.Nu, p.Lambda,
		c.MeanClip, c.Beta1, unless(p.Method == "momentum", c.Beta2), c.Rate, c.Schedule, unless(p.Method == "momentum", c.Eps), c.VFloor,
		unless(p.Method == "momentum", c.Negative), c.UpdateClip, c.WeightDecay, c.MaxStaleness,
	})
	return m, err
}

// unless returns x, or nothing where it has no meaning.
func unless[T any](meaningless bool, x T) (nothing T) {
	if meaningless {
		return nothing
	}
	return x
}

// gradients takes rows of the gradient codec: a gradient, and behind it the step
// of the parameters that it was taken at, which decides whether it counts.
type gradients struct {
	*adam.Estimator
	stale uint64
}

// Columns returns the length of a row.
func (g *gradients) Columns() int { return g.Estimator.Columns() + 1 }

// Add adds a gradient, or in its slot nothing where it is stale.
func (g *gradients) Add(slot uint64, row []float64) {
	if len(row) == g.Columns() {
		last := len(row) - 1
		if !g.Stale(uint64(row[last])) {
			g.Estimator.Add(slot, row[:last])
			return
		}
		g.stale++
	}
	g.Estimator.Add(slot, nil)
}
