package stream

import (
	"encoding/json"

	"streamdp/config"
	"streamdp/sgd"
)

// newSGD returns a regression on the stream.
func newSGD(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	if s.SGD.Method == "newton" {
		return newOnlineNewton(s, plan)
	}
	e, err := planned(*s.SGD, s.Params(), plan, sgd.New, sgd.Adopt)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.SGD
	m := &mechanism{
		Estimator: e, name: "sgd", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.ClipX, sens: p.Sensitivity / p.One, sample: e.Sample(), warnings: e.Warnings(),
	}
	// Gradients are counted in clip norms, searches and counts in records.
	m.lattice = []float64{1 / p.One, 1 / float64(p.Unit)}
	m.noise = map[string]float64{"gradient": p.GradientNoise / p.One}
	if p.CountNoise > 0 {
		m.noise["count"] = p.CountNoise / float64(p.Unit)
	}
	if p.SearchNoise > 0 {
		m.noise["search"] = p.SearchNoise / float64(p.Unit)
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
		Name          string  `json:"name"`
		Method        string  `json:"method"`
		Target        string  `json:"target"`
		Intercept     bool    `json:"intercept"`
		Clip          string  `json:"clip"`
		Value         string  `json:"value"`
		Quantile      float64 `json:"threshold_quantile"`
		ClipY         float64 `json:"clip_y,omitempty"`
		Factorization string  `json:"factorization"`
		Bands         int     `json:"bands,omitempty"`
		Batch         uint64  `json:"batch"`
		Search        uint64  `json:"search,omitempty"`
		Growth        string  `json:"growth"`
		Eta0          float64 `json:"eta0"`
		Curvature     float64 `json:"curvature"`
		Radius        float64 `json:"radius"`
		Average       string  `json:"average"`
		Level         float64 `json:"level,omitempty"`
		Horizon       uint64  `json:"horizon,omitempty"`
	}{
		"sgd", p.Method, c.Target, *c.Intercept, c.Clip, c.Value, c.Quantile, c.ClipY, p.Factorization.Kind, bandsOf(p.Factorization),
		p.Batch, p.Search, c.Growth, c.Eta0, p.Curvature, p.Radius, c.Average, levelOf(c), c.LastStep(),
	})
	return m, err
}

// newOnlineNewton is newSGD for method "newton".
func newOnlineNewton(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	e, err := planned(*s.SGD, s.Params(), plan, sgd.NewNewton, sgd.AdoptNewton)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.SGD
	m := &mechanism{
		Estimator: e, name: "sgd", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.ClipX, sens: p.Sensitivity / p.One, sample: e.Sample(), warnings: e.Warnings(),
	}
	// Gradients are counted in clip norms, searches, counts and histograms in records.
	unit := float64(p.Unit)
	m.lattice = []float64{1 / p.One, 1 / unit}
	m.noise = map[string]float64{
		"gradient": p.GradientNoise / p.One, "count": p.CountNoise / unit, "nulls": p.NullNoise / unit, "search": p.SearchNoise / unit,
		"histogram": p.HistogramNoise,
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
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

// levelOf returns the level of a stream's intervals, 0 where it has none.
func levelOf(c *sgd.Config) float64 {
	if !*c.Intervals {
		return 0
	}
	return c.Level
}
