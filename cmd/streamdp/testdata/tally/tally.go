// Package tally is a small mechanism with which a test checks DESIGN.md's instructions for adding one: it releases the
// noisy sum of the clipped rows of each step.
//
// Each record is in one step, so the releases of a whole epoch cost it one Gaussian mechanism, under either adjacency.
// The sensitivity is K of the lattice under zero-out and 2K under replacement.
package tally

import (
	"encoding/binary"
	"errors"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
)

// Version names algorithm and state.
const Version = "tally/v1"

// Config is the table [stream.NAME.tally].
type Config struct {
	// Clip bounds the norm of a row.
	Clip float64 `toml:"clip"`

	Columns       int    `toml:"-"`
	Step, Horizon uint64 `toml:"-"`
}

// Defaults fills in nothing: the configuration has no defaults.
func (c *Config) Defaults() {}

// LastStep returns the step after which an epoch ends, 0 if it does not end.
func (c *Config) LastStep() uint64 { return c.Horizon }

// Values returns the names of the released values.
func (c *Config) Values() []string { return []string{"tally"} }

// Validate returns the faults of the configuration.
func (c *Config) Validate() error {
	var l fault.List
	l.Check(c.Clip > 0 && c.Clip < 1e300, "clip", "must be positive and finite", c.Clip)
	return l.Err()
}

// Plan is the saved plan of an epoch: the lattice, and the noise in its units.
type Plan struct {
	Mu      float64    `json:"mu"`
	Lattice dp.Lattice `json:"lattice"`
	Noise   float64    `json:"noise"`
}

// Estimator is the mechanism.
type Estimator struct {
	cfg       Config
	plan      Plan
	adjacency dp.Adjacency
	step      uint64
	rows      uint64
	sum, row  []int64
}

// New plans an epoch.
func New(c Config, p dp.Params) (*Estimator, error) {
	mu, err := p.Budget()
	if err != nil {
		return nil, err
	}
	l, err := dp.NewLattice(c.Clip, c.Clip*p.Adjacency.Factor()/mu, p.Bits())
	if err != nil {
		return nil, err
	}
	return Adopt(c, p, Plan{mu, l, float64(l.K) * p.Adjacency.Factor() / mu * dp.RoundUp})
}

// Adopt continues an epoch with its saved plan.
func Adopt(c Config, p dp.Params, plan Plan) (*Estimator, error) {
	return &Estimator{cfg: c, plan: plan, adjacency: p.Adjacency, sum: make([]int64, c.Columns),
		row: make([]int64, c.Columns)}, nil
}

// Plan returns the plan.
func (e *Estimator) Plan() Plan { return e.plan }

// Columns returns the length of a row.
func (e *Estimator) Columns() int { return e.cfg.Columns }

// Range returns the range of slots of a step.
func (e *Estimator) Range(t uint64) (first, end uint64) { return (t - 1) * e.cfg.Step, t * e.cfg.Step }

// Add adds a record. A row of the wrong length counts like an absent record.
func (e *Estimator) Add(_ uint64, row []float64) {
	e.rows++
	if len(row) != len(e.row) || !e.plan.Lattice.Quantise(e.row, row) {
		return
	}
	for j, k := range e.row {
		e.sum[j] += k
	}
}

// Close releases the step's noisy sum.
func (e *Estimator) Close(n dp.Noise) (*dp.Release, error) {
	if e.cfg.Horizon > 0 && e.step >= e.cfg.Horizon {
		return nil, dp.ErrExhausted
	}
	noise := make([]int64, len(e.sum))
	dp.RoundRow(noise, n.Row("tally/sum", e.sum), []float64{e.plan.Noise}, nil, 1)
	v := dp.Value{Name: "tally", Shape: []int{len(e.sum)}, SE: []float64{e.plan.Noise * e.plan.Lattice.Step()}}
	for j, s := range e.sum {
		v.Data = append(v.Data, float64(s+noise[j])*e.plan.Lattice.Step())
	}
	e.step++
	r := &dp.Release{Step: e.step, Rows: e.rows, Values: []dp.Value{v}}
	e.rows = 0
	clear(e.sum)
	return r, nil
}

// Cost returns the cost of one Gaussian mechanism: no two steps share a record.
func (e *Estimator) Cost() dp.Cost {
	return dp.Cost{Adjacency: e.adjacency, Mu: e.plan.Mu * dp.LedgerRoom}
}

// Sizes returns the memory that the estimator needs, in bytes.
func (e *Estimator) Sizes() dp.Sizes {
	return dp.Sizes{State: 8, Release: 8 * int64(len(e.sum)+1), Peak: 32 * int64(len(e.sum))}
}

// AppendBinary appends the state after the last Close.
func (e *Estimator) AppendBinary(b []byte) ([]byte, error) {
	return binary.LittleEndian.AppendUint64(b, e.step), nil
}

// UnmarshalBinary restores a state.
func (e *Estimator) UnmarshalBinary(b []byte) error {
	if len(b) != 8 {
		return errors.New("state of another mechanism")
	}
	e.step, e.rows = binary.LittleEndian.Uint64(b), 0
	clear(e.sum)
	return nil
}
