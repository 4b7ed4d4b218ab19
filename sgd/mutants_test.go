package sgd

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// Each test in this file audits an estimator with a planted fault, of a kind that published algorithms had. If an audit
// passes such a mutant, it proves nothing about the estimator itself.

// recalibrated returns an estimator after its bootstrap, with noise from the altered plan, which still claims the
// original μ.
func recalibrated(t *testing.T, c Config, p dp.Params, alter func(*AMBPlan)) *AMB {
	t.Helper()
	c.Defaults()
	plan, factor, err := resolveAMB(&c, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	alter(plan)
	e, err := buildAMB(c, p, *plan, factor)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestMutantCalibrations checks that the sensitivity audit finds every wrong calibration, measures how wrong it is, and
// passes the right one.
func TestMutantCalibrations(t *testing.T) {
	t.Parallel()
	c := variants()["track"]
	c.Intercept, c.Bands = new(bool), 16
	c.Defaults()
	norm := mustNew(t, c, params(dp.Replace)).factor.ColNorm()
	for _, m := range []struct {
		name      string
		search    bool // the fault shows in the bootstrap
		adjacency dp.Adjacency
		alter     func(*AMBPlan)
		factor    float64 // distance of the pair in units of μ
	}{
		{"none", false, dp.Replace, func(*AMBPlan) {}, 1},
		{"none, search", true, dp.Replace, func(*AMBPlan) {}, 1},
		{"sensitivity without its factor 2", false, dp.Replace, func(p *AMBPlan) { p.GradientNoise /= 2 },
			math.Sqrt(4*0.95 + 0.05)},
		{"column norm left out", false, dp.Replace, func(p *AMBPlan) { p.GradientNoise /= norm },
			math.Sqrt(norm*norm*0.95 + 0.05)},
		{"count not paid for", false, dp.Replace, func(p *AMBPlan) { p.GradientNoise *= math.Sqrt(0.95) },
			math.Sqrt(1.05)},
		{"count as if it were the whole budget", false, dp.Replace,
			func(p *AMBPlan) { p.CountNoise *= math.Sqrt(0.05) }, math.Sqrt(0.95 + 1)},
		{"questions of a search not added up", true, dp.Replace, func(p *AMBPlan) { p.SearchNoise /= math.Sqrt(6) },
			math.Sqrt(6)},
	} {
		e := recalibrated(t, c, params(m.adjacency), m.alter)
		x := audit.Stream{{{3, 1e-9, 0}}}
		y := x.Replace(0, 0, []float64{3, 1e9, 0})
		if !m.search {
			closeStep(t, e, records(3, 100), dptest.Zero())
			x = audit.Stream{{{3, e.zeta / 3 * (1 - 1e-9), 0}}, nil, nil}
			y = x.Replace(0, 0, []float64{-3, 10 * e.zeta, 0})
		}
		s := auditSubject(t, e)
		distance, err := s.Coupling(x, y, audit.NewKeys([32]byte{1}))
		if err != nil {
			t.Fatal(err)
		}
		if got := distance / s.Mu; math.Abs(got-m.factor) > 1e-3*m.factor || (got <= 1+1e-9) != (m.factor <= 1) {
			t.Errorf("%s: the audit measures %.6g of μ, want %.6g", m.name, got, m.factor)
		}
	}
}

// overlapping is the paper's algorithm: the search uses the s+1 samples τ … τ+s, and the batch also begins with sample
// τ+s.
type overlapping struct {
	*AMB
	last []float64
}

func (o *overlapping) Range(t uint64) (first, end uint64) {
	first, end = o.AMB.Range(t)
	if t%2 == 0 {
		end-- // the first record of the batch is in the search too
	}
	return first - (t-1)/2, end - (t-1)/2
}

func (o *overlapping) Add(slot uint64, row []float64) {
	o.last = append([]float64(nil), row...)
	o.AMB.Add(slot, row)
}

func (o *overlapping) Close(n dp.Noise) (*dp.Release, error) {
	searched := o.searching
	r, err := o.AMB.Close(n)
	if searched {
		o.AMB.Add(0, o.last)
	}
	return r, err
}

// TestMutantOverlap checks that the audit finds the record that the paper's index ranges use twice: it pays μ² twice.
// The records next to it pay once.
func TestMutantOverlap(t *testing.T) {
	t.Parallel()
	c := variants()["bisect"]
	c.Value, c.Stat, c.Rungs = "gradnorm", 17, 31 // one more than s = 16; always 5 questions
	for _, slot := range []int{15, 16} {
		e := mustNew(t, c, params(dp.Replace))
		s := auditSubject(t, e, &overlapping{AMB: e})
		base := make(audit.Stream, 4)
		for i := range base {
			first, end := s.Range(uint64(i) + 1)
			for range end - first {
				base[i] = append(base[i], []float64{1, 0, 0})
			}
		}
		// All gradients are 0, so every answer leads down to the lowest rung. A record exactly at that rung moves every
		// count, and moves the gradient by twice the norm that the search found.
		zeta := e.ladder.Rung(0)
		x := base.Replace(0, slot, []float64{3, zeta / 3 * (1 - 1e-9), 0})
		y := base.Replace(0, slot, []float64{-3, 1e9, 0})
		distance, err := s.Coupling(x, y, audit.NewKeys([32]byte{5}))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("record %d: %.6f of μ", slot, distance/s.Mu)
		want := map[int]float64{15: 1, 16: math.Sqrt2}[slot]
		if math.Abs(distance/s.Mu-want) > 1e-3 {
			t.Errorf("record %d is %.6f of μ from its neighbour, want %.6f", slot, distance/s.Mu, want)
		}
	}
}

// scaledRing stores the noise of past steps in units of the gradient instead of the clip norm. The calibration does not
// cover this mechanism.
type scaledRing struct {
	bands []matfact.Fixed
	used  *float64 // clip norm of the step
	q     [][]float64
	zeta  []float64
}

func (s *scaledRing) Predict(dst []float64) float64 {
	for j := range dst {
		dst[j] = 0
		for k, m := range s.bands {
			if i := len(s.q) - 1 - k; i >= 0 {
				dst[j] += float64(m) * 0x1p-64 * s.q[i][j] * s.zeta[i] / *s.used
			}
		}
	}
	return 1
}

func (s *scaledRing) Push(w []int64) {
	row := make([]float64, len(w))
	s.Predict(row)
	for j, v := range w {
		row[j] += float64(v)
	}
	s.q, s.zeta = append(s.q, row), append(s.zeta, *s.used)
}

// The state of a mutant is only restored at its start.
func (s *scaledRing) AppendBinary(b []byte) ([]byte, error) {
	return append(b, make([]byte, 33)...), nil
}

func (s *scaledRing) UnmarshalBinary([]byte) error {
	s.q, s.zeta = nil, nil
	return nil
}

// TestMutantRing checks that the audit finds scaledRing. While the clip norm is constant, the ring equals the original.
// As soon as the clip norm moves, the noise with which neighbours release the same values is farther away than the
// calibration allows.
func TestMutantRing(t *testing.T) {
	t.Parallel()
	for _, kappa := range []float64{1e-12, 1} {
		c := variants()["track"]
		c.Bands, c.Kappa, c.Intercept = 16, kappa, new(bool)
		e := recalibrated(t, c, params(dp.Replace), func(*AMBPlan) {})
		e.shaper = &scaledRing{bands: e.plan.Factorization.Bands, used: &e.used}
		// The bootstrap is run by hand, because the mutant has no state.
		closeStep(t, e, records(3, 100), dptest.Zero())
		e.step, e.iteration = 1, 0
		s := auditSubject(t, e)
		x := audit.Stream{{{3, e.zeta / 4, 0}}, nil, nil, nil}
		_, err := s.Coupling(x, x.Replace(0, 0, []float64{-3, 10 * e.zeta, 0}), audit.NewKeys([32]byte{2}))
		if (err == nil) != (kappa < 1) {
			t.Errorf("kappa %g: the audit says %v", kappa, err)
		}
	}
}
