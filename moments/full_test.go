package moments

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// withCountOf returns the squared distance of x and y, including the count of rows that are not shortened: ‖x−y‖² +
// ν‖xxᵀ−yyᵀ‖² + κ(h(x)−h(y))², for rows in the unit ball; nil is an invalid row.
func withCountOf(f *fullCount, nu float64, x, y []float64) float64 {
	dot := func(a, b []float64) (s float64) {
		for i := range a {
			if b != nil {
				s += a[i] * b[i]
			}
		}
		return s
	}
	count := func(a []float64) float64 {
		if a == nil {
			return 0
		}
		return f.norm(math.Sqrt(dot(a, a)))
	}
	u, v, b := dot(x, x), dot(y, y), dot(x, y)
	h := count(x) - count(y)
	return u + v - 2*b + nu*(u*u+v*v-2*b*b) + f.weight*h*h
}

// TestFullCountIsFree tries random pairs of neighbours, and pairs of all norms and angles. No squared distance may
// exceed r(ν), and some must attain it. For one column under replace the limit is r(ν) + κ.
func TestFullCountIsFree(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(31, 32))
	grid := 24
	if os.Getenv("STREAMDP_SLOW") != "" {
		grid = 80
	}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 3, 8} {
			for _, nu := range []float64{0.01, 0.25, 0.5, 0.500001, 0.7, 1, 2.5, 2.8, 10.5, 60} {
				c := Config{Method: "jme", Columns: dptest.Columns(d), Clip: 1}
				f := c.fullCount("jme", nu, adjacency)
				limit := calibration.SquaresSensitivity(nu, d, adjacency)
				if f.plain {
					limit += f.weight
				}
				top := 0.0
				try := func(x, y []float64) {
					m := withCountOf(&f, nu, x, y)
					if m > limit*(1+1e-12) {
						t.Fatalf("%s, d %d, nu %g: %.12g for %v and %v, the limit is %.12g", adjacency, d, nu, m,
							x, y, limit)
					}
					top = max(top, m)
				}
				unit := func(norm, angle float64) []float64 {
					x := make([]float64, d)
					x[0] = norm * math.Cos(angle)
					if d > 1 {
						x[1] = norm * math.Sin(angle)
					}
					return x
				}
				norms := []float64{0, 1 - 1e-9, 1}
				for i := range grid {
					norms = append(norms, float64(i)/float64(grid), source.Float64())
				}
				for _, a := range norms {
					try(unit(a, 0), nil)
					if adjacency == dp.ZeroOut {
						continue
					}
					for _, b := range norms {
						for angle := range 49 {
							try(unit(a, 0), unit(b, float64(angle)*math.Pi/48))
						}
						if nu > 0.5 {
							try(unit(a, 0), unit(b, math.Acos(-1/(2*nu)))) // the worst pair of equal norms
						}
					}
				}
				if adjacency == dp.Replace {
					p := worstPair(nu, 1, d, adjacency)
					try(p.X, p.Y)
				}
				if top < limit*(1-1e-5) {
					t.Errorf("%s, d %d, nu %g: at most %.9g, want %.9g", adjacency, d, nu, top, limit)
				}
			}
		}
	}
}

// TestFullCountFalls checks h on the lattice. h must fall as the norm grows, from 1 for short rows to 0 for rows at the
// clip norm, and must never exceed the bound in its definition. The norms up to which h = 1 must agree with
// docs/theory/moments.md, §10.
func TestFullCountFalls(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		adjacency dp.Adjacency
		lo, hi    float64
	}{{dp.ZeroOut, 0.956, 0.974}, {dp.Replace, 0.888, 0.944}} {
		for _, nu := range []float64{0.25, 0.5, 1, 3, 10.5} {
			e, err := newEstimator(Config{Method: "jme", Nu: nu, Columns: dptest.Columns(3), Clip: 1, Step: 1},
				dp.Params{Mu: 1, Adjacency: x.adjacency})
			if err != nil {
				t.Fatal(err)
			}
			f, k := e.unshortened, uint64(e.plan.Lattice.K)
			last, full := int64(f.one), 0.0
			for i := uint64(0); i <= 4000; i++ {
				// Choose points that are closer to each other near the clip norm.
				n := k - uint64(float64(k)*math.Pow(1-float64(i)/4000, 3))
				h := f.of(n * n)
				if h > last || h < 0 {
					t.Fatalf("%s, nu %g: %d of %g after %d", x.adjacency, nu, h, f.one, last)
				}
				if last = h; h == int64(f.one) {
					full = float64(n) / float64(k)
				}
				if b := float64(n) / float64(k); float64(h)/f.one > f.norm(b)+1e-9 {
					t.Errorf("%s, nu %g: %g at %g, must be at most %g", x.adjacency, nu, float64(h)/f.one, b, f.norm(b))
				}
			}
			if last != 0 {
				t.Errorf("%s, nu %g: a row with the clip norm counts", x.adjacency, nu)
			}
			if full < x.lo || full > x.hi {
				t.Errorf("%s, nu %g: rows up to %.4f of the clip norm have h = 1, want %g to %g", x.adjacency, nu,
					full, x.lo, x.hi)
			}
		}
	}
}

// TestFullCountWhole checks that the rows below f.whole, for which h is not computed, have h = 1. Almost all rows with
// h = 1 must be below f.whole.
func TestFullCountWhole(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 3} {
			for _, nu := range []float64{0.25, 0.5, 1, 10.5} {
				e, err := newEstimator(Config{Method: "jme", Nu: nu, Columns: dptest.Columns(d), Clip: 1, Step: 1},
					dp.Params{Mu: 1, Adjacency: adjacency})
				if err != nil {
					t.Fatal(err)
				}
				f := e.unshortened
				long := f
				long.whole = 0
				whole := f.whole
				if f.plain {
					whole = 0
				}
				for i := range uint64(20_000) {
					square := source.Uint64N(f.border)
					if i < 10_000 && whole > 0 { // rows near f.whole
						square = whole - 1 - i
					}
					if got, want := f.of(square), long.of(square); got != want {
						t.Fatalf("%s, %d columns, nu %g: %d of %d, want %d", adjacency, d, nu, got, square, want)
					}
				}
				if next := whole + f.top>>19; whole > 0 && (long.of(next) == int64(f.one) || whole < f.top/2) {
					t.Errorf("%s, nu %g: rows of %d of %d are not below whole, although h is %d of %g", adjacency, nu,
						next, f.top, long.of(next), f.one)
				}
			}
		}
	}
}

// TestFullShare checks the released share. Without noise it must be the share of the records that are not shortened;
// null records count as not shortened. With noise its standard deviation must be the stated error, in units of
// √10·α√u/μ records.
func TestFullShare(t *testing.T) {
	t.Parallel()
	for _, workload := range []string{"mean", "sum", "window", "exponential"} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, method := range []string{"jme", "ime", "pp", "combined", "cs"} {
				c := Config{Method: method, Workload: workload, Columns: dptest.Columns(2), Clip: 2, Step: 1,
					Factorization: "identity"}
				step := 1
				switch workload {
				case "window":
					c.Window = 3
				case "exponential":
					c.Decay = 0.5
				}
				if method == "cs" {
					c.Tau = 0.3
				}
				if method == "jme" || method == "ime" || method == "cs" {
					step = 10
				}
				c.Step = uint64(step)
				e := mustNew(t, c, dp.Params{Mu: 0.5, Adjacency: adjacency})
				var full, all float64
				for k := range 12 {
					if workload == "exponential" {
						full, all = full/2, all/2
					}
					for i := range step {
						switch (k + i) % 4 {
						case 0:
							e.Add(0, []float64{1, -0.4})
							full++
						case 1:
							e.Add(0, []float64{3, 1})
						case 2:
							e.Add(0, nil)
						default:
							e.Add(0, []float64{0, 0})
							full++
						}
						all++
					}
					if workload == "window" && k >= 3 {
						full, all = full-count(k-3, step), all-float64(step)
					}
					r, err := e.Close(dptest.Zero())
					if err != nil {
						t.Fatal(err)
					}
					v := r.Values[len(r.Values)-1]
					if v.Name != "full_share" || math.Abs(v.Data[0]-full/all) > 1e-6 {
						t.Fatalf("%s, %s, step %d: %s is %g, want %g", method, workload, k+1, v.Name,
							v.Data[0], full/all)
					}
					u := e.shapes.first.variance(uint64(k + 1))
					factor := math.Sqrt(10)
					switch method {
					case "ime": // the first moment's share of the budget
						factor /= math.Sqrt(c.Split + boolean(c.Split == 0)*0.5)
					case "cs":
						factor = e.plan.First / e.plan.Clip * 0.5 / math.Sqrt(e.unshortened.weight)
					}
					if want := factor / 0.5 * math.Sqrt(u) / all; math.Abs(v.SE[0]/want-1) > 1e-4 {
						t.Fatalf("%s, %s, %s: standard error %g, want %g", method, workload, adjacency, v.SE[0], want)
					}
				}
			}
		}
	}
}

// count returns the number of rows in a step of TestFullShare that are not shortened.
func count(k, step int) (n float64) {
	for i := range step {
		n += boolean((k+i)%4 == 0 || (k+i)%4 == 3)
	}
	return n
}

func boolean(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// TestMutantFullCount counts rows that are not shortened without charging the weight of the count. The sensitivity
// audit must find this fault.
func TestMutantFullCount(t *testing.T) {
	t.Parallel()
	const clip, steps = 1.5, 5
	for _, m := range []struct {
		name      string
		adjacency dp.Adjacency
		d         int
		plant     func(e *Estimator)
		x, y      []float64
		want      float64 // the distance in units of μ
	}{
		// This fault uses an indicator instead of h. Then rows just inside the ball add 1 to r(ν).
		{"indicator", dp.ZeroOut, 3, func(e *Estimator) { e.unshortened.plain = true },
			[]float64{clip * (1 - 1e-5), 0, 0}, nil, math.Sqrt(1.1)},
		{"indicator under replace", dp.Replace, 3, func(e *Estimator) { e.unshortened.plain = true },
			[]float64{clip * (1 - 1e-5), 0, 0}, []float64{-2 * clip, 0, 0}, math.Sqrt(1.1)},
		{"weight that is not charged", dp.Replace, 1, func(e *Estimator) {
			for _, s := range e.arrays {
				for i := range s.sd {
					s.sd[i] /= math.Sqrt(1 + plainWeight)
				}
			}
		}, []float64{clip * (1 - 1e-5)}, []float64{-2 * clip}, math.Sqrt(1 + plainWeight)},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := Config{Clip: clip, Columns: dptest.Columns(m.d), Step: 1, Workload: "mean",
				Factorization: "identity", Nu: 0.5}
			e, err := newEstimator(c, dp.Params{Mu: 2, Adjacency: m.adjacency})
			if err != nil {
				t.Fatal(err)
			}
			a, err := newSubject(e)
			if err != nil {
				t.Fatal(err)
			}
			m.plant(e)
			described := a.Array
			a.Array = func(name string, step uint64) (audit.Array, bool) {
				x, ok := described(name, step)
				for _, s := range e.arrays {
					if s.name == name {
						x.Deviations = s.sd
					}
				}
				return x, ok
			}
			base := make(audit.Stream, steps)
			base[0] = [][]float64{nil}
			got, err := a.Sensitivity(base.Replace(0, 0, m.x), base.Replace(0, 0, m.y), keys(4))
			if err != nil {
				t.Fatal(err)
			}
			if got /= a.plan.Mu; math.Abs(got-m.want) > 2e-4 {
				t.Errorf("the audit measures %s of μ, the fault is worth %.6g", fmt.Sprintf("%.6g", got), m.want)
			}
		})
	}
}
