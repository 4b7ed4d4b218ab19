package moments

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/vector"
)

// symmetric returns the matrix of an upper triangle.
func symmetric(upper []float64, d int) *mat.SymDense {
	m, n := mat.NewSymDense(d, nil), 0
	for i := range d {
		for j := i; j < d; j++ {
			m.SetSym(i, j, upper[n])
			n++
		}
	}
	return m
}

func random(source *rand.Rand, d int) []float64 {
	x := make([]float64, d*(d+1)/2)
	for i := range x {
		x[i] = source.NormFloat64()
	}
	return x
}

// TestProjections checks that a projection is in the set, that no matrix in the set is nearer, and that a matrix in the
// set does not change. p is the point of a convex set nearest to x if ⟨x−p, q−p⟩ ≤ 0 for all q in the set.
func TestProjections(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(9, 1))
	inner := func(x, p, q []float64, d int) (sum float64) {
		n := 0
		for i := range d {
			for j := i; j < d; j++ {
				e := (x[n] - p[n]) * (q[n] - p[n])
				if sum += e; j > i {
					sum += e
				}
				n++
			}
		}
		return sum
	}
	for _, d := range []int{1, 2, 3, 8, 20} {
		for range 30 {
			x := random(source, d)
			floor, limit := math.Abs(source.NormFloat64()), math.Abs(source.NormFloat64())*float64(d)
			psd, err := ProjectPSD(x, d, floor)
			if err != nil {
				t.Fatal(err)
			}
			moment, err := ProjectMoment(x, d, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []struct {
				upper        []float64
				least, trace float64
			}{{psd, floor, math.Inf(1)}, {moment, 0, limit}} {
				var e mat.EigenSym
				if !e.Factorize(symmetric(p.upper, d), true) {
					t.Fatal("no eigenvalues")
				}
				values := e.Values(nil)
				trace := sum(values)
				if values[0] < p.least-1e-12*float64(d) || trace > p.trace*(1+1e-12) {
					t.Errorf("d = %d: eigenvalues from %g, must be at least %g; trace %g, must be at most %g", d,
						values[0], p.least, trace, p.trace)
				}
				// A random member of the set.
				v := make([]float64, d)
				for i := range v {
					v[i] = math.Abs(source.NormFloat64())
				}
				if s := sum(v); !math.IsInf(p.trace, 1) && s > p.trace {
					for i := range v {
						v[i] *= p.trace / s
					}
				}
				var q mat.Dense
				e.VectorsTo(&q)
				member := make([]float64, len(x))
				n := 0
				for i := range d {
					for j := i; j < d; j++ {
						for k := range d {
							member[n] += (v[k] + p.least) * q.At(i, k) * q.At(j, k)
						}
						n++
					}
				}
				if got := inner(x, p.upper, member, d); got > 1e-9*float64(d*d) {
					t.Errorf("d = %d: another matrix is nearer, by %g", d, got)
				}
				var again []float64
				if math.IsInf(p.trace, 1) {
					again, err = ProjectPSD(p.upper, d, floor)
				} else {
					again, err = ProjectMoment(p.upper, d, limit)
				}
				if err != nil || squared(again, p.upper, d) > 1e-22*float64(d*d) {
					t.Errorf("d = %d: projecting twice changes the result by %g (%v)", d, squared(again, p.upper, d),
						err)
				}
			}
		}
	}
	for _, radius := range []float64{0, 0.5, 3} {
		x := []float64{2, -1, 0.5}
		ProjectBall(x, radius)
		norm := math.Sqrt(x[0]*x[0] + x[1]*x[1] + x[2]*x[2])
		if want := min(radius, math.Sqrt(5.25)); math.Abs(norm-want) > 1e-15 || x[0]*x[1] > 0 {
			t.Errorf("radius %g: %v has norm %g", radius, x, norm)
		}
	}
	if p, err := ProjectPSD([]float64{math.NaN(), 1, 1}, 2, 0); err == nil && vector.Finite(p) {
		t.Errorf("an invalid matrix has the projection %v", p)
	}
}

// TestDensity compares the divergence with an average of log ratios, and the log density with its formula in one
// dimension.
func TestDensity(t *testing.T) {
	t.Parallel()
	one, err := NewDensity([]float64{1}, []float64{4}, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := one.Log([]float64{3}), -0.5*(1+math.Log(4)+math.Log(2*math.Pi)); math.Abs(got-want) > 1e-14 {
		t.Errorf("log density %g, want %g", got, want)
	}
	p, err := NewDensity([]float64{1, -0.5}, []float64{2, 0.7, 1}, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewDensity([]float64{0, 0.2}, []float64{1, -0.3, 1.5}, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Divergence(p); math.Abs(got) > 1e-14 {
		t.Errorf("the divergence of a density from itself is %g", got)
	}
	source := rand.New(rand.NewPCG(1, 6))
	const n = 200000
	var m1, m2 float64
	for range n {
		z := []float64{source.NormFloat64(), source.NormFloat64()}
		x := []float64{1 + p.factor[0]*z[0], -0.5 + p.factor[2]*z[0] + p.factor[3]*z[1]}
		r := p.Log(x) - q.Log(x)
		m1 += r / n
		m2 += r * r / n
	}
	// The tolerance is seven standard errors.
	if got, most := p.Divergence(q), 7*math.Sqrt((m2-m1*m1)/n); math.Abs(got-m1) > most {
		t.Errorf("divergence %g, by simulation %g ± %g", got, m1, most)
	}
	// With a floor, an indefinite matrix gives a density.
	if g, err := NewDensity([]float64{0, 0}, []float64{1, 2, 1}, 0.01); err != nil ||
		math.Abs(g.logDet()-math.Log(3*0.01)) > 1e-12 {
		t.Errorf("eigenvalues 3 and −1 at a floor of 0.01: %v", err)
	}
	for _, floor := range []float64{0, -1, math.NaN()} {
		if _, err := NewDensity([]float64{0}, []float64{1}, floor); err == nil {
			t.Errorf("a floor of %g is accepted", floor)
		}
	}
}

// TestElliptope compares the bounds with the supremum of small problems, found by trying all signs and many angles.
func TestElliptope(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(2, 9))
	for range 20 {
		const n = 8
		b := mat.NewDense(n, n, nil)
		for i := range n {
			for j := range n {
				b.Set(i, j, source.NormFloat64())
			}
		}
		var m mat.SymDense
		m.SymOuterK(1, b)
		best := 0.0
		for signs := range 1 << n {
			var value float64
			for i := range n {
				for j := range n {
					v := m.At(i, j)
					if (signs>>i^signs>>j)&1 == 1 {
						v = -v
					}
					value += v
				}
			}
			best = max(best, value)
		}
		lower, upper := Elliptope(&m, 1)
		if !(lower <= best*(1+1e-12) && lower >= 0.8*best && best <= upper) {
			t.Errorf("signs reach %g, bracket [%g, %g]", best, lower, upper)
		}
		low, high := Elliptope(&m, 50)
		if !(low >= lower*(1-1e-4) && low <= high && high <= low*1.02) {
			t.Errorf("bracket [%g, %g] for many dimensions, [%g, %g] for one", low, high, lower, upper)
		}
	}
	diagonal := mat.NewSymDense(3, []float64{1, 0, 0, 0, 2, 0, 0, 0, 3})
	if lower, upper := Elliptope(diagonal, 2); math.Abs(lower-6) > 1e-9 || math.Abs(upper-6) > 1e-3 {
		t.Errorf("a diagonal gives [%g, %g]", lower, upper)
	}
}
