package refit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// centredWindow is auditWindow for a model with an intercept: rows and targets are far from 0, and some valid rows are
// all zeros.
func centredWindow(n, d int, seed uint64) [][]float64 {
	rows := auditWindow(n, d, seed)
	for i, row := range rows {
		switch {
		case row == nil:
		case i%8 == 3:
			clear(row[:d])
		default:
			row[0] = 0.4*row[0] + 0.4
			row[d] = 0.3*row[d] - 0.5
		}
	}
	return rows
}

// centredPairs returns pairs of neighbouring records: those of pairsFor, and the worst pairs for the centring, with
// full norm and target. Valid rows of zeros are not null rows.
func centredPairs(d int, a dp.Adjacency) []audit.Pair {
	all := pairsFor(d, a)
	zeros := make([]float64, d+1)
	zeros[d] = 1
	all = append(all, audit.Pair{X: zeros})
	if a == dp.ZeroOut {
		for i := range all {
			all[i].Y = nil
		}
	}
	for k := range 12 {
		angle := float64(k) * math.Pi / 6
		x := make([]float64, d+1)
		x[0], x[d-1] = math.Cos(angle), math.Sin(angle)
		x[d] = float64(1 - k%2*2)
		all = append(all, audit.Pair{X: x})
		if a == dp.Replace {
			y := slices.Clone(x)
			for j := range y {
				y[j] = -y[j]
			}
			short := slices.Clone(y)
			short[0], short[d-1] = 0.3*y[0], 0.3*y[d-1]
			all = append(all, audit.Pair{X: x, Y: y}, audit.Pair{X: x, Y: short})
		}
	}
	return all
}

// TestCentredCoupling is the replayed-transcript audit of newton with an intercept, for the whole trajectory. Windows
// hold records, only null records, or records that jump. For neighbouring windows there must be noise, at most μ apart,
// with which their releases are equal. Under zero-out the worst pair must reach μ. With STREAMDP_SLOW=1 the test audits
// windows of both sizes with both μ.
func TestCentredCoupling(t *testing.T) {
	t.Parallel()
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, mu := range []float64{0.8, 4} {
			for _, n := range []int{60, 800} {
				if os.Getenv("STREAMDP_SLOW") == "" && (mu == 4) != (n == 800) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%g/%d", a, mu, n), func(t *testing.T) {
					t.Parallel()
					const d = 2
					r := auditRefit(t, "newton", d, n, true, dp.Params{Mu: mu, Adjacency: a})
					subject, keys := describe(t, r), auditKeys(byte(a))
					jump := centredWindow(n, d, 3) // its second half has values ten times as large
					for _, row := range jump[n/2:] {
						for j := range row {
							row[j] *= 10
						}
					}
					top := 0.0
					for _, base := range []audit.Stream{{centredWindow(n, d, 1), centredWindow(n/2, d, 2)},
						{make([][]float64, n)}, {jump}} {
						for _, p := range centredPairs(d, a) {
							distance, err := subject.Coupling(base.Replace(0, 7, p.X), base.Replace(0, 7, p.Y), keys)
							if err != nil {
								t.Fatalf("%v and %v: %v", p.X, p.Y, err)
							}
							top = max(top, distance/subject.Mu)
							if !(distance <= subject.Mu*(1+1e-9)) {
								t.Errorf("%v and %v are %.9g of μ apart", p.X, p.Y, distance/subject.Mu)
							}
						}
					}
					if least := map[dp.Adjacency]float64{dp.ZeroOut: 0.999, dp.Replace: 0.9}[a]; top < least {
						t.Errorf("the worst pair is %.6f of μ apart", top)
					}
					t.Logf("the worst pair is %.6f of μ apart", top)
				})
			}
		}
	}
}

// faulty is a refit with a fault in its use of a record or of noise.
type faulty struct {
	*Refit
	add   func(r *Refit, slot uint64, row []float64)
	noise func(r *Refit, n dp.Noise) dp.Noise
}

func (f *faulty) Add(slot uint64, row []float64) {
	if f.add != nil {
		f.add(f.Refit, slot, row)
		return
	}
	f.Refit.Add(slot, row)
}

func (f *faulty) Close(n dp.Noise) (*dp.Release, error) {
	if f.noise != nil {
		n = f.noise(f.Refit, n)
	}
	return f.Refit.Close(n)
}

type noiseFunc func(array string, hidden []int64) dp.Row

func (f noiseFunc) Row(array string, hidden []int64) dp.Row { return f(array, hidden) }

// TestCentredMutants plants faults that are likely in a centring, and checks that the audit finds each of them.
func TestCentredMutants(t *testing.T) {
	t.Parallel()
	exact := func(array string) faulty {
		return faulty{noise: func(_ *Refit, n dp.Noise) dp.Noise {
			return noiseFunc(func(name string, hidden []int64) dp.Row {
				if name == array {
					return dptest.Zero().Row(name, hidden)
				}
				return n.Row(name, hidden)
			})
		}}
	}
	for name, f := range map[string]faulty{
		"none":                         {},
		"the mean read exactly":        exact("newton/mean"),
		"the target's read exactly":    exact("newton/meany"),
		"the coarse bins read exactly": exact("newton/hist0"),
		"null rows centred": {noise: func(r *Refit, n dp.Noise) dp.Noise {
			return noiseFunc(func(name string, hidden []int64) dp.Row {
				for i := range r.data.Len() {
					if x := r.data.row(i); name == "newton/hist" && zero(x) {
						for j, v := range r.solver.(*newtonSolver).trace.mean {
							x[j] = -v
						}
					}
				}
				return n.Row(name, hidden)
			})
		}},
		"null rows with a constant": {add: func(r *Refit, slot uint64, row []float64) {
			if row == nil {
				row = make([]float64, r.Columns())
			}
			r.Add(slot, row)
		}},
		"rows of the mean not shortened": {noise: func(r *Refit, n dp.Noise) dp.Noise {
			c := r.solver.(*newtonSolver).centring
			c.rows.K = min(4*c.rows.K, 1<<30)
			return n
		}},
		"errors by an exact count": {noise: func(r *Refit, n dp.Noise) dp.Noise {
			return noiseFunc(func(name string, hidden []int64) dp.Row {
				// After the last count, only the errors depend on n̂.
				if t := &r.solver.(*newtonSolver).trace; name == numbered("newton/count", t.steps-1) {
					t.valid = math.Ldexp(float64(hidden[0]), 4-r.params.Bits())
				}
				return n.Row(name, hidden)
			})
		}},
		"the constant inside the matrix": {noise: func(r *Refit, n dp.Noise) dp.Noise {
			// The constant of half the norm R adds a quarter to R²; the noise stays unchanged.
			return noiseFunc(func(name string, hidden []int64) dp.Row {
				if name == "newton/gram" {
					for k := range hidden {
						hidden[k] += hidden[k] / 4
					}
				}
				return n.Row(name, hidden)
			})
		}},
	} {
		r := auditRefit(t, "newton", 2, 200, true, dp.Params{Mu: 4, Adjacency: dp.ZeroOut})
		f.Refit = r
		w := audit.Windows{
			Mechanism: &f, Mu: r.Cost().Mu, Adjacency: dp.ZeroOut, Bits: r.params.Bits(), Features: r.plan.Features,
			Centred: true,
			Solver:  "newton", Budget: r.plan.Mu, Course: r.Course,
		}
		subject, err := w.Subject()
		if err != nil {
			t.Fatal(err)
		}
		base, worst := audit.Stream{centredWindow(200, 2, 1)}, 0.0
		var fault error
		for _, p := range centredPairs(2, dp.ZeroOut) {
			distance, err := subject.Coupling(base.Replace(0, 7, p.X), base.Replace(0, 7, p.Y), auditKeys(4))
			if err != nil && fault == nil {
				fault = err
			}
			worst = max(worst, distance/subject.Mu)
		}
		t.Logf("%s: %.4f of μ, %v", name, worst, fault)
		if found := fault != nil || worst > 1+1e-9; found != (name != "none") {
			t.Errorf("%s: %.6f of μ, %v", name, worst, fault)
		}
	}
}

// TestCentre checks that with almost no noise, the centres are the means of the valid rows; with noise only, they are
// 0. The centres are subtracted from valid rows and targets, not from null rows.
func TestCentre(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	const n, d = 3000, 3
	build := func() (w *Data, null []bool) {
		w, null = NewData(d+1, n), make([]bool, n)
		for i := range n {
			if null[i] = i%4 == 1; null[i] {
				w.AddNull()
				continue
			}
			x := []float64{0.3 + 0.01*source.NormFloat64(), -0.2 + 0.01*source.NormFloat64(),
				0.01 * source.NormFloat64(), 1}
			w.x, w.y = append(w.x, x...), append(w.y, 0.7+0.05*source.NormFloat64())
		}
		return w, null
	}
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		c, err := newCentring(50, a, 24, n)
		if err != nil {
			t.Fatal(err)
		}
		w, null := build()
		before := w.clone()
		out := c.centre(w, null, dptest.Seeded(3))
		for j, want := range []float64{0.3, -0.2, 0} {
			if math.Abs(out.mean[j]-want) > 0.01 {
				t.Errorf("%s: the centre is %v", a, out.mean)
			}
		}
		if math.Abs(out.target-0.7) > 0.01 || math.Abs(out.valid-0.75*n) > 50 || out.squared != 0.25 {
			t.Errorf("%s: target %g, %g valid, R₀² = %g", a, out.target, out.valid, out.squared)
		}
		for i := range n {
			for j, v := range before.row(i) {
				if want := v - append(out.mean[:d:d], 0)[j]; null[i] && w.row(i)[j] != 0 ||
					!null[i] && w.row(i)[j] != want {
					t.Fatalf("%s: row %d becomes %v", a, i, w.row(i))
				}
			}
			if want := before.y[i] - out.target; null[i] && w.y[i] != 0 || !null[i] && w.y[i] != want {
				t.Fatalf("%s: target %d becomes %g", a, i, w.y[i])
			}
		}
		if c, err = newCentring(1e-4, a, 24, n); err != nil {
			t.Fatal(err)
		}
		zeros := 0
		for seed := range uint64(40) {
			w, null := build()
			if out := c.centre(w, null, dptest.Seeded(seed)); zero(out.mean) && out.target == 0 {
				zeros++
			}
		}
		// Three squares of Gaussians add up to less than 4.5 with probability 0.788, and one square is less than 2.5
		// with probability 0.886; both happen in 0.698 of the runs. Fewer than 16 of 40, or more than 38, have
		// probability 3·10⁻⁵.
		if zeros < 16 || zeros > 38 {
			t.Errorf("%s: with noise only, %d of 40 centres are 0", a, zeros)
		}
	}
	if _, err := newCentring(1e-8, dp.ZeroOut, 30, n); err == nil {
		t.Error("no error for noise of 10⁹")
	}
	if _, err := newCentring(1e6, dp.ZeroOut, 24, n); err == nil {
		t.Error("no error for noise of 10⁻⁵")
	}
}
