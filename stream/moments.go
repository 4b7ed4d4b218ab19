package stream

import (
	"encoding/json"
	"errors"

	"streamdp/config"
	"streamdp/moments"
)

func newMoments(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	var e *moments.Estimator
	var err error
	if plan == nil {
		e, err = moments.New(*s.Moments, s.Params())
	} else {
		var p moments.Plan
		if err := json.Unmarshal(plan, &p); err != nil {
			return nil, errors.New("the epoch's plan is damaged")
		}
		e, err = moments.Adopt(*s.Moments, s.Params(), p)
	}
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	m := &mechanism{
		Estimator: e, name: "moments", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.Clip, sens: p.Sensitivity,
	}
	m.lattice = []float64{p.Lattice.Step(), p.SecondStep()}
	m.noise = map[string]float64{"first": p.First, "second_diagonal": p.Diagonal, "second_off_diagonal": p.OffDiagonal}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
		Name          string  `json:"name"`
		Method        string  `json:"method"`
		Workload      string  `json:"workload"`
		Decay         float64 `json:"decay,omitempty"`
		Window        uint64  `json:"window,omitempty"`
		Factorization string  `json:"factorization"`
		Buffers       int     `json:"buffers,omitempty"`
		Bands         int     `json:"bands,omitempty"`
		Step          uint64  `json:"step"`
		Horizon       uint64  `json:"horizon,omitempty"`
		Nu            float64 `json:"nu"`
		Lambda        float64 `json:"lambda"`
	}{
		"moments", p.Method, s.Moments.Workload, s.Moments.Decay, s.Moments.Window,
		p.Factorization.Kind, len(p.Factorization.Decay), bandsOf(p.Factorization), s.Step, s.Moments.LastStep(), p.Nu, p.Lambda,
	})
	return m, err
}
