package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/sgd"
)

var ambMechanism = &descriptor{
	name:       "sgd",
	method:     "amb",
	has:        func(s *config.Stream) bool { return s.SGD != nil && s.SGD.Method == "amb" },
	version:    sgd.AMBVersion,
	absent:     nullRecord,
	build:      newAMB,
	persons:    true,
	bounded:    []string{"clip_x", "constant", "bound", "multiplier", "curvature"},
	computes:   onlineComputed,
	statements: func(s *config.Stream) []string { return approximateIntervals(s.SGD, "batches of iterates") },
}

// newAMB returns the mechanism that fits a regression by noisy gradient steps over the stream.
func newAMB(s *config.Stream, plan json.RawMessage, _ []float64) (*Mechanism, error) {
	e, err := planned(*s.SGD, s.Params(), plan, sgd.NewAMB, sgd.AdoptAMB)
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.SGD
	m := &Mechanism{
		Estimator: e, Method: p.Method, Factorization: p.Factorization.Kind,
		clip: p.ClipX, sensitivity: p.Sensitivity / p.One, sample: e.Sample(), warnings: e.Warnings(),
	}
	// Gradients are in units of the clip norm; searches and counts are in records.
	m.Lattice = []float64{1 / p.One, 1 / float64(p.Unit)}
	m.Noise = map[string]float64{"gradient": p.GradientNoise / p.One}
	if p.Person != nil {
		m.norm, m.record = p.Person.Norm, new(e.RecordCost())
	}
	if p.CountNoise > 0 {
		m.Noise["count"] = p.CountNoise / float64(p.Unit)
	}
	if p.SearchNoise > 0 {
		m.Noise["search"] = p.SearchNoise / float64(p.Unit)
	}
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.description, err = json.Marshal(struct {
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
		"sgd", p.Method, c.Target, *c.Intercept, c.Clip, c.Value, c.ThresholdQuantile, c.ClipY, p.Factorization.Kind,
		bandsOf(p.Factorization),
		p.Batch, p.Search, c.Growth, c.Eta0, p.Curvature, p.Radius, c.Average, levelOf(c), c.LastStep(),
	})
	return m, err
}

// levelOf returns the level of the confidence intervals, or 0 if the stream has none.
func levelOf(c *sgd.Config) float64 {
	if !*c.Intervals {
		return 0
	}
	return c.Level
}

// approximateIntervals returns a statement that says how a regression's confidence intervals are computed. It returns
// none if the regression has no intervals.
func approximateIntervals(c *sgd.Config, scatter string) []string {
	if !*c.Intervals {
		return nil
	}
	return []string{"Intervals are approximate: they rest on the scatter of " + scatter + "."}
}
