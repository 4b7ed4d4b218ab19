package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/sgd"
)

var newtonMechanism = &descriptor{
	name:     "sgd",
	method:   "newton",
	has:      func(s *config.Stream) bool { return s.SGD != nil && s.SGD.Method == "newton" },
	version:  sgd.NewtonVersion,
	absent:   nullRecord,
	build:    newNewton,
	persons:  true,
	bounded:  []string{"clip_x"},
	computes: onlineComputed,
	statements: func(s *config.Stream) []string {
		return approximateIntervals(s.SGD, "estimates from parts of the stream")
	},
}

// newNewton returns the mechanism that fits a regression by noisy Newton steps over the stream.
func newNewton(s *config.Stream, plan json.RawMessage, _ []float64) (*Mechanism, error) {
	e, err := planned(*s.SGD, s.Params(), plan, sgd.NewNewton, sgd.AdoptNewton)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.SGD
	m := &Mechanism{
		Estimator: e, Method: p.Method, Factorization: p.Factorization.Kind,
		clip: p.ClipX, sensitivity: p.Sensitivity / p.One, sample: e.Sample(), warnings: e.Warnings(),
	}
	// Gradients are in units of the clip norm; searches, counts and histograms are in records.
	unit := float64(p.Unit)
	m.Lattice = []float64{1 / p.One, 1 / unit}
	m.Noise = map[string]float64{
		"gradient": p.GradientNoise / p.One, "count": p.CountNoise / unit, "nulls": p.NullNoise / unit,
		"search":    p.SearchNoise / unit,
		"histogram": p.HistogramNoise,
	}
	if p.Person != nil {
		m.norm, m.record = p.Person.Norm, new(e.RecordCost())
	}
	if p.LocateNoise > 0 {
		m.Noise["median"] = p.LocateNoise / unit
	}
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.description, err = json.Marshal(struct {
		Name          string   `json:"name"`
		Method        string   `json:"method"`
		Target        string   `json:"target"`
		Intercept     bool     `json:"intercept"`
		ClipY         float64  `json:"clip_y,omitempty"`
		Factorization string   `json:"factorization"`
		Bands         int      `json:"bands,omitempty"`
		Search        uint64   `json:"search"`
		Batches       []uint64 `json:"batches"`
		Radius        float64  `json:"radius,omitempty"`
		Level         float64  `json:"level,omitempty"`
		Horizon       uint64   `json:"horizon,omitempty"`
	}{
		"sgd", p.Method, c.Target, *c.Intercept, c.ClipY, p.Factorization.Kind, bandsOf(p.Factorization),
		p.Search, p.Batch, p.Radius, levelOf(c), c.LastStep(),
	})
	return m, err
}
