package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/sgd"
)

// linear draws records y = ⟨x, w⟩ + z with x ~ N(0, Σ) and z ~ N(0, 1). w is uniform on the unit sphere, unless it is
// set later.
type linear struct {
	source *rand.Rand
	w      []float64
	root   [][]float64 // root of Σ; nil means Σ = I
	z      []float64
}

func newLinear(seed uint64, d int) *linear {
	l := &linear{source: rand.New(rand.NewPCG(seed, 1)), w: make([]float64, d), z: make([]float64, d)}
	for j := range l.w {
		l.w[j] = l.source.NormFloat64()
	}
	norm := length(l.w)
	for j := range l.w {
		l.w[j] /= norm
	}
	return l
}

// draw writes the features to x and returns the target.
func (l *linear) draw(x []float64) float64 {
	z := x
	if l.root != nil {
		z = l.z
	}
	for j := range z {
		z[j] = l.source.NormFloat64()
	}
	for j, row := range l.root {
		x[j] = dot(row, z)
	}
	return dot(l.w, x) + l.source.NormFloat64()
}

func (l *linear) sample(n int) *sgd.Sample {
	d := len(l.w)
	s := &sgd.Sample{D: d, X: make([]float64, n*d), Y: make([]float64, n)}
	for i := range n {
		s.Y[i] = l.draw(s.X[i*d : (i+1)*d])
	}
	return s
}

// excess returns ½‖w − w*‖², which is the excess risk if Σ = I.
func (l *linear) excess(w []float64) float64 {
	r := distance(w, l.w)
	return r * r / 2
}

// dot returns ⟨a, b⟩. It is for simulations, whose figures need not have the same bits on all machines. Estimators use
// internal/vector.
func dot(a, b []float64) (sum float64) {
	for i, v := range b {
		sum += a[i] * v
	}
	return sum
}

func distance(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += (v - b[i]) * (v - b[i])
	}
	return math.Sqrt(sum)
}

// simulated returns the keys of a simulation, which protect nothing.
func simulated(run uint64) (*dp.Epoch, error) {
	return dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "offline/reproduction", run, [16]byte{}, [32]byte{})
}

// once returns the noise of a batch solver.
func once(run uint64) (dp.Noise, error) {
	keys, err := simulated(run)
	if err != nil {
		return nil, err
	}
	h := dp.NewTranscript([32]byte{})
	h.AbsorbRecords(0)
	return keys.Step(1, &h), nil
}

// online is an online regression on a simulated stream.
type online struct {
	e    *sgd.AMB
	keys *dp.Epoch
	h    dp.Transcript
	row  []float64
	step uint64
	slot uint64
}

// features returns d names of columns.
func features(d int) []string {
	names := make([]string, d)
	for j := range names {
		names[j] = fmt.Sprint("x", j)
	}
	return names
}

// newOnline starts a regression of y on d features.
func newOnline(cfg sgd.Config, d int, p dp.Params, run uint64) (*online, error) {
	cfg.Columns, cfg.Target, cfg.Method = append(features(d), "y"), "y", "amb"
	e, err := sgd.NewAMB(cfg, p)
	if err != nil {
		return nil, err
	}
	keys, err := simulated(run)
	return &online{e: e, keys: keys, h: dp.NewTranscript([32]byte{}), row: make([]float64, d+1)}, err
}

// next feeds records from the stream to the end of the step. It returns the values of the release by name, or nil if
// the step has no release.
func (o *online) next(l *linear) (map[string][]float64, error) {
	o.step++
	first, end := o.e.Range(o.step)
	for ; o.slot < end; o.slot++ {
		d := len(o.row) - 1
		o.row[d] = l.draw(o.row[:d])
		o.e.Add(o.slot, o.row)
	}
	o.h.AbsorbRecords(end - first)
	r, err := o.e.Close(o.keys.Step(o.step, &o.h))
	if r == nil || err != nil {
		return nil, err
	}
	values := map[string][]float64{}
	for _, v := range r.Values {
		values[v.Name] = v.Data
	}
	return values, nil
}
