package core

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/codec"
)

var adamMechanism = &descriptor{
	name:    "adam",
	has:     func(s *config.Stream) bool { return s.Adam != nil },
	version: adam.Version,
	absent:  nullRecord,
	build:   newAdam,
	persons: true,
	computes: func(s *config.Stream) string {
		a := s.Adam
		if a.Mode == "gradients" {
			return fmt.Sprintf("%d parameters of a model, trained by private Adam on gradients in the records.",
				a.Parameters())
		}
		model := map[string]string{"linear": "linear regression", "logistic": "logistic regression",
			"softmax": "softmax regression", "mlp": "small neural network"}[a.Model.Loss]
		return fmt.Sprintf("A %s of %s on %s, trained by private Adam while records come in.", model, a.Model.Target,
			features(s, a.Model.Target))
	},
	format: adamFormat,
	learns: &learning{
		begins: func(s *config.Stream) Learning { return Learning{s.Adam.Parameters(), s.Adam.InitialFile} },
		of:     adam.ParametersOf,
	},
}

// adamFormat is the format of gradients or, if the stream has columns, of examples.
func adamFormat(s *config.Stream) codec.Format {
	f := codec.Format{Name: s.Input.Codec, Columns: s.Input.Columns, Specs: s.Input.Specs()}
	if s.Adam.Mode == "gradients" {
		f.Gradient, f.StepHeader = s.Adam.Dim, s.Adam.StepHeader
	}
	return f
}

// newAdam returns private Adam. Adam begins with the parameters initial or, if initial is nil, with default ones.
func newAdam(s *config.Stream, plan json.RawMessage, initial []float64) (*Mechanism, error) {
	c := *s.Adam
	c.Initial = initial
	e, err := planned(c, s.Params(), plan, adam.New, adam.Adopt)
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	m := &Mechanism{
		Estimator: e, Method: p.Method, Factorization: p.First.Kind,
		clip: p.Clip, sensitivity: p.Sensitivity, Chunk: chunkBytes,
		Lattice: []float64{p.Lattice.Step()}, Noise: map[string]float64{"first": p.FirstNoise},
		Refused: func() (codec.Reason, uint64) { return codec.NoClass, e.Refused() },
	}
	if c.Mode == "gradients" {
		g := &gradients{Estimator: e}
		m.Estimator, m.Refused = g, func() (codec.Reason, uint64) { return codec.Stale, g.stale }
	}
	if p.Person != nil {
		m.norm, m.record = p.Person.Norm, new(e.RecordCost())
	}
	if p.Second != nil {
		m.Lattice = append(m.Lattice, math.Ldexp(1, p.SecondExp))
		m.Noise["second"] = p.SecondNoise
	}
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	buffers := len(p.First.Decay)
	if p.Second != nil {
		buffers += len(p.Second.Decay)
	}
	m.description, err = json.Marshal(struct {
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
		"adam", p.Method, c.Mode, c.Model, p.Parameters, p.Initial, p.First.Kind, buffers, s.Slots(), c.LastStep(),
		p.Nu, p.Lambda,
		c.MeanClip, c.Beta1, unless(p.Method == "momentum", c.Beta2), c.Rate, c.Schedule,
		unless(p.Method == "momentum", c.Eps), c.VFloor,
		unless(p.Method == "momentum", c.Negative), c.UpdateClip, c.WeightDecay, c.MaxStaleness,
	})
	return m, err
}

// unless returns x, or the zero value if meaningless is true.
func unless[T any](meaningless bool, x T) (nothing T) {
	if meaningless {
		return nothing
	}
	return x
}

// gradients is Adam on rows of the gradient codec: a gradient, followed by the step whose parameters produced it. That
// step decides whether the gradient is used.
type gradients struct {
	*adam.Estimator
	stale uint64
}

// Columns returns the length of a row.
func (g *gradients) Columns() int { return g.Estimator.Columns() + 1 }

// Add adds a gradient. If the gradient is stale, its slot adds nothing.
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
