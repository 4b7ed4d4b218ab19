package stream

import (
	"encoding/json"
	"math"

	"streamdp/config"
	"streamdp/moments"
)

// newMoments returns moments and covariances.
func newMoments(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	e, err := planned(*s.Moments, s.Params(), plan, moments.New, moments.Adopt)
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	m := &mechanism{
		Estimator: e, name: "moments", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.Clip, sens: p.Sensitivity, lattice: []float64{p.Lattice.Step()}, noise: map[string]float64{"first": p.First},
	}
	if p.Diagonal > 0 {
		m.lattice = append(m.lattice, p.SecondStep())
		m.noise["second_diagonal"], m.noise["second_off_diagonal"] = p.Diagonal, p.OffDiagonal
	}
	if p.Count > 0 {
		m.lattice = append(m.lattice, math.Ldexp(1, p.CountExp))
		m.noise["valid_count"] = p.Count
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	split := 0.0
	if p.Method == "ime" {
		split = s.Moments.Split
	}
	m.describe, err = json.Marshal(struct {
		Name          string          `json:"name"`
		Method        string          `json:"method"`
		Workload      string          `json:"workload"`
		Decay         float64         `json:"decay,omitempty"`
		Window        uint64          `json:"window,omitempty"`
		Factorization string          `json:"factorization"`
		Buffers       int             `json:"buffers,omitempty"`
		Bands         int             `json:"bands,omitempty"`
		Normalise     bool            `json:"normalise,omitempty"`
		Step          uint64          `json:"step"`
		Horizon       uint64          `json:"horizon,omitempty"`
		Nu            float64         `json:"nu,omitempty"`
		Lambda        float64         `json:"lambda,omitempty"`
		Split         float64         `json:"split,omitempty"`
		PSDFloor      *float64        `json:"psd_floor,omitempty"`
		Choice        *moments.Choice `json:"choice,omitempty"`
	}{
		"moments", p.Method, s.Moments.Workload, s.Moments.Decay, s.Moments.Window,
		p.Factorization.Kind, len(p.Factorization.Decay), bandsOf(p.Factorization), s.Moments.Normalise, s.Step, s.Moments.LastStep(), p.Nu, p.Lambda,
		split, s.Moments.PSDFloor, p.Choice,
	})
	return m, err
}
