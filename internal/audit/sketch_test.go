package audit_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
)

// gaussian is a minimal Gaussian sketch: k rows of SX + ηξ, where S and ξ are standard Gaussian. claimed is the stated
// η² of the noise, drawn is the real one.
type gaussian struct {
	x              *mat.Dense
	rows           int
	claimed, drawn float64
	gram           bool // releases the Gram matrix of the rows
	once           bool // draws the same sketch in all runs
	seed           uint64
}

func (g gaussian) Covariance() *mat.SymDense { return audit.Gram(g.x, g.claimed) }

func (g gaussian) Along(v []float64, run uint64) (sum float64, rows int, err error) {
	if g.once {
		run = 0
	}
	source := rand.New(rand.NewPCG(g.seed, run))
	n, d := g.x.Dims()
	y := mat.NewDense(g.rows, d, nil)
	s := make([]float64, n)
	for i := range g.rows {
		for k := range s {
			s[k] = source.NormFloat64()
		}
		var row mat.VecDense
		row.MulVec(g.x.T(), mat.NewVecDense(n, s))
		for j := range d {
			y.Set(i, j, row.AtVec(j)+math.Sqrt(g.drawn)*source.NormFloat64())
		}
	}
	along := mat.NewVecDense(d, v)
	if g.gram {
		var w mat.Dense
		w.Mul(y.T(), y)
		return mat.Inner(along, &w, along), g.rows, nil
	}
	var p mat.VecDense
	p.MulVec(y, along)
	return mat.Dot(&p, &p), g.rows, nil
}

// neighbours returns records x of norm at most 1; y, which lacks the record that a sketch with noise eta2 reveals most;
// and λ_min of x.
func neighbours(t *testing.T, eta2 float64) (x, y *mat.Dense, least float64) {
	t.Helper()
	const n, d = 60, 3
	source := rand.New(rand.NewPCG(5, 5))
	x = mat.NewDense(n, d, nil)
	for i := range n {
		row := []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64() / 30}
		norm := math.Sqrt(row[0]*row[0] + row[1]*row[1] + row[2]*row[2])
		for j := range row {
			x.Set(i, j, row[j]/norm)
		}
	}
	x.SetRow(7, []float64{0, 0, 1})
	record, _, err := audit.Leverage(x, eta2)
	if err != nil || record != 7 {
		t.Fatalf("record %d has the largest leverage: %v", record, err)
	}
	y = mat.DenseCopyOf(x)
	y.SetRow(record, make([]float64, d))
	var e mat.EigenSym
	e.Factorize(audit.Gram(x, 0), false)
	return x, y, e.Values(nil)[0]
}

// TestAuditSketch audits the reference sketch at γ = 5 and detects every mutant of it. With 20 runs of 200 rows, it
// detects a factor of 2 in 1/γ with probability 0.999.
func TestAuditSketch(t *testing.T) {
	const gamma, rows, runs = 5, 200, 20
	_, _, least := neighbours(t, 0)
	eta2 := gamma - least
	x, y, _ := neighbours(t, eta2)
	good := func(x *mat.Dense, seed uint64) gaussian {
		return gaussian{x: x, rows: rows, claimed: eta2, drawn: eta2, seed: seed}
	}
	both := func(f func(*gaussian)) (a, b gaussian) {
		a, b = good(x, 1), good(y, 2)
		f(&a)
		f(&b)
		return a, b
	}
	for _, m := range []struct {
		name     string
		far, law bool // which checks must detect it
		f        func(g *gaussian)
	}{
		{"none", false, false, func(*gaussian) {}},
		{"none, as Gram matrices", false, false, func(g *gaussian) { g.gram = true }},
		{"noise calibrated to half of γ", true, false,
			func(g *gaussian) { g.claimed -= gamma / 2.; g.drawn = g.claimed }},
		{"no noise", true, true, func(g *gaussian) { g.drawn = 0 }},
		{"a third of the noise's variance", false, true, func(g *gaussian) { g.drawn /= 3 }},
		{"η² for η", false, true, func(g *gaussian) { g.drawn *= g.drawn }},
		{"one sketch for all runs", false, true, func(g *gaussian) { g.once = true }},
	} {
		t.Run(m.name, func(t *testing.T) {
			a, b := both(m.f)
			r, err := audit.Sketches(a, b, gamma, runs, stattest.Alpha)
			if err != nil {
				t.Fatal(err)
			}
			far, law := !(r.Ratio <= r.High), r.X.Err() != nil || r.Y.Err() != nil || r.Repeated != nil
			if m.far && !far || m.law && !law || !m.far && !m.law && r.Err() != nil {
				t.Errorf("the audit found: %v", r.Err())
			}
			t.Logf("%d rows a side, ratio %.4f of at most %.4f, claimed %.4f, finds %.2f/γ: %v", r.Rows, r.Ratio,
				r.High, 1/r.Claimed, r.Finds, r.Err())
		})
	}
	// If a record is added instead of removed, the variance along v is larger, not smaller.
	r, err := audit.Sketches(good(y, 3), good(x, 4), gamma, runs, stattest.Alpha)
	if err != nil {
		t.Fatal(err)
	}
	if r.Claimed < 1 {
		t.Errorf("an added record has λ = %g", r.Claimed)
	}
}

// TestSketchPower: the numbers of rows at which the ratio detects that 1/γ is 1.1, 1.4 or 2 times too large agree with
// an independent computation.
func TestSketchPower(t *testing.T) {
	for _, c := range []struct {
		gamma float64
		rows  int
		finds float64
	}{
		{5, 515410, 1.1}, {5, 29766, 1.4}, {5, 3997, 2},
		{1 / 0.3, 172192, 1.1}, {1 / 0.3, 9348, 1.4}, {1 / 0.3, 1060, 2},
		{20, 730000, 1.4}, {20, 113000, 2},
	} {
		x := fixedSum{1, c.rows}
		y := fixedSum{1 - 1/c.gamma, c.rows}
		r, err := audit.Sketches(x, y, c.gamma, 1, 3e-9)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(r.Finds-c.finds) > 2e-3 {
			t.Errorf("%d rows at γ = %g find %.4f/γ, want %g/γ", c.rows, c.gamma, r.Finds, c.finds)
		}
	}
}

// fixedSum is a sketch of one column whose rows have exactly the given variance.
type fixedSum struct {
	variance float64
	rows     int
}

func (f fixedSum) Covariance() *mat.SymDense { return mat.NewSymDense(1, []float64{f.variance}) }
func (f fixedSum) Along(v []float64, _ uint64) (float64, int, error) {
	return v[0] * v[0] * f.variance * float64(f.rows), f.rows, nil
}
