package moments

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/dptest"
	"streamdp/internal/stattest"
)

// audited are the combinations of factorization and workload that the audits
// cover, with a horizon of n steps where one is needed.
func audited(n uint64) []Config {
	var all []Config
	for _, kind := range []string{"identity", "sqrt", "bsr", "bisr", "blt", "phased"} {
		for _, w := range []Config{
			{Workload: "mean"}, {Workload: "sum"}, {Workload: "exponential", Decay: 0.9}, {Workload: "window", Window: 3},
		} {
			w.Factorization, w.Horizon = kind, n
			if banded(kind) {
				w.Bands = 6
			}
			all = append(all, w)
		}
	}
	return all
}

func describe(c Config) string {
	return fmt.Sprintf("%s/%s/d=%d/nu=%g", c.Factorization, c.Workload, c.Columns, c.Nu)
}

// worst returns a pair of neighbouring records at which the joint sensitivity is
// attained: a record and the zero record; opposite records while the second
// moment is free; beyond that, records at an angle of cosine −1/(2ν), or for d = 1
// records of opposite sign and unequal size.
func worst(nu, clip float64, d int, adjacency dp.Adjacency) (x, y []float64) {
	x, y = make([]float64, d), make([]float64, d)
	x[0] = clip
	switch {
	case adjacency == dp.ZeroOut:
	case nu <= free(d):
		y[0] = -clip
	case d == 1:
		y[0] = clip * (math.Sqrt(1-2/nu) - 1) / 2
	default:
		y[0], y[1] = -clip/(2*nu), clip*math.Sqrt(1-1/(4*nu*nu))
	}
	return x, y
}

// pairs returns neighbouring records of every kind: the worst ones first.
func pairs(nu, clip float64, d int, adjacency dp.Adjacency) [][2][]float64 {
	unit := func(scale float64, angle float64) []float64 {
		x := make([]float64, d)
		x[0] = scale * math.Cos(angle)
		if d > 1 {
			x[d-1] = scale * math.Sin(angle)
		}
		return x
	}
	special := [][]float64{
		nil, make([]float64, d), unit(5e-324, 0), unit(clip/2, 1), unit(1e6*clip, 2), unit(clip, 0),
		unit(math.Inf(1), 0), unit(math.NaN(), 0), unit(1e308, 4), make([]float64, d+1),
	}
	for i := range special[9] {
		special[9][i] = clip
	}
	x, y := worst(nu, clip, d, adjacency)
	all := [][2][]float64{{x, y}}
	if adjacency == dp.ZeroOut {
		for i, x := range special {
			all = append(all, [2][]float64{x, special[i%2]}) // nil and zeros
		}
		return all
	}
	for i := range 13 {
		angle := float64(i) * math.Pi / 12
		for _, size := range []float64{1, 0.6, 1e6} {
			all = append(all, [2][]float64{unit(clip, 0), unit(clip*size, angle)})
		}
		// Symmetric about an axis: the squares differ off the diagonal only.
		all = append(all, [2][]float64{unit(clip, angle/2), unit(clip, -angle/2)})
	}
	for i, x := range special {
		all = append(all, [2][]float64{x, special[(i+3)%len(special)]}, [2][]float64{x, unit(-clip, 0)})
	}
	return all
}

// TestSensitivity is the sensitivity audit, for every factorization, workload,
// adjacency, dimension and weight: no pair of neighbouring streams is farther
// apart than μ, and the worst pair is at least 0.999μ.
func TestSensitivity(t *testing.T) {
	t.Parallel()
	const steps, slots, clip, mu = 7, 3, 1.7, 4
	for _, c := range audited(steps) {
		t.Run(c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			runs, lowest := 0, math.Inf(1)
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				for _, d := range []int{1, 2, 3, 7} {
					for _, nu := range []float64{0, 0.05, 0.2, 0.5, 1.3, 2.5, 6, 40} {
						c := c
						c.Clip, c.Columns, c.Step, c.Nu = clip, d, slots, nu
						a := mustSubject(t, c, dp.Params{Mu: mu, Adjacency: adjacency})
						n, top := auditPairs(t, a, adjacency, steps, slots)
						runs += n
						lowest = min(lowest, top/a.plan.Mu)
						if top < 0.999*a.plan.Mu {
							t.Errorf("%s, %s: the worst pair is only %.6g of μ apart", describe(c), adjacency, top/a.plan.Mu)
						}
					}
				}
			}
			t.Logf("%d pairs of streams; worst pairs at least %.6f of μ apart", runs, lowest)
		})
	}
}

// auditPairs audits pairs of streams of the given shape and returns their number
// and the largest distance. All pairs differ in the first record of the first
// step; some also in others.
func auditPairs(t *testing.T, a *subject, adjacency dp.Adjacency, steps, slots int) (n int, top float64) {
	t.Helper()
	d := a.cfg.Columns
	source := rand.New(rand.NewPCG(5, uint64(d)))
	base := make(stream, steps)
	for s := range base {
		base[s] = make([][]float64, slots)
		for i := range base[s] {
			if (s+i)%5 == 4 {
				continue // invalid
			}
			base[s][i] = make([]float64, d)
			for j := range d {
				base[s][i][j] = source.NormFloat64()
			}
		}
	}
	base[2] = base[2][:1] // slots without a record
	noise := func() func(uint64) dp.Noise {
		source := dptest.Seeded(11)
		return func(uint64) dp.Noise { return source }
	}
	for k, p := range pairs(a.plan.Nu, a.plan.Clip, d, adjacency) {
		at := [][2]int{{0, 0}}
		if k < 2 {
			at = append(at, [2]int{0, slots - 1}, [2]int{1, 0}, [2]int{2, 0}, [2]int{steps / 2, slots / 2}, [2]int{steps - 1, slots - 1})
		}
		for _, where := range at {
			distance, err := a.auditSensitivity(base.replace(where[0], where[1], p[0]), base.replace(where[0], where[1], p[1]), noise)
			if err != nil {
				t.Fatal(err)
			}
			n++
			top = max(top, distance)
			if !(distance <= a.plan.Mu*(1+1e-9)) {
				t.Errorf("%s, %s: %g and %g at %v are %.9g of μ apart", describe(a.cfg), adjacency, p[0], p[1], where, distance/a.plan.Mu)
			}
		}
	}
	return n, top
}

// TestSensitivityAtBlocks puts the differing record on both sides of the borders
// at which squares are rounded, on a lattice where a block holds 13 records.
func TestSensitivityAtBlocks(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		const slots = 30
		a := mustSubject(t, Config{Clip: 1.1, Columns: 3, Step: slots, Factorization: "phased"}, dp.Params{Mu: 40, Adjacency: adjacency})
		if a.e.block != 13 {
			t.Fatalf("a block holds %d records", a.e.block)
		}
		source := rand.New(rand.NewPCG(6, 7))
		base := stream{make([][]float64, slots), make([][]float64, slots), nil}
		for _, step := range base[:2] {
			for i := range step {
				step[i] = []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}
			}
		}
		noise := func() func(uint64) dp.Noise {
			source := dptest.Seeded(12)
			return func(uint64) dp.Noise { return source }
		}
		x, y := worst(a.plan.Nu, a.plan.Clip, 3, adjacency)
		for i := range slots {
			distance, err := a.auditSensitivity(base.replace(0, i, x), base.replace(0, i, y), noise)
			if err != nil {
				t.Fatal(err)
			}
			if !(distance <= a.plan.Mu*(1+1e-9) && distance >= 0.999*a.plan.Mu) {
				t.Errorf("%s, record %d: %.9g of μ apart", adjacency, i, distance/a.plan.Mu)
			}
		}
	}
}

// TestNoise is the noise audit with the keyed noise of an epoch: for every
// factorization and workload the whitened releases are the Gaussians that were
// drawn, and these are white, also between two epochs. 27 000 draws each, of which
// a deviation 4 % too small would show; 48 assertions of alpha 10⁻⁹.
func TestNoise(t *testing.T) {
	t.Parallel()
	const steps = 3000
	for i, c := range audited(steps) {
		t.Run(c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns, c.Step = 0.3, 3, 4
			a := mustSubject(t, c, dp.Params{Epsilon: 2, Delta: 1e-6, Adjacency: dp.Adjacency(1 + i%2)})
			var epochs [][]float64
			for k := range 2 {
				n, err := a.auditNoise(auditStream(steps, 3), keyed(t, byte(2*i+k)), stattest.Alpha)
				if err != nil {
					t.Fatal(err)
				}
				if err := n.err(); err != nil {
					t.Error(err)
				}
				epochs = append(epochs, slices.Concat(n.white...))
			}
			if err := stattest.Correlation(epochs[0], epochs[1], stattest.Alpha); err != nil {
				t.Errorf("two epochs: %v", err)
			}
		})
	}
}

// auditStream returns rows of up to four records a step, some of them invalid.
func auditStream(steps, d int) stream {
	source := rand.New(rand.NewPCG(8, 9))
	s := make(stream, steps)
	for t := range s {
		for i := range source.IntN(5) {
			if i == 3 {
				s[t] = append(s[t], nil)
				continue
			}
			x := make([]float64, d)
			for j := range x {
				x[j] = source.NormFloat64()
			}
			s[t] = append(s[t], x)
		}
	}
	return s
}

// keyed returns the noise of an epoch with fixed keys. Its transcript absorbs
// what the daemon's does.
func keyed(t testing.TB, key byte) func(step uint64) dp.Noise {
	e, err := dp.NewEpoch(&[32]byte{1, key}, &[32]byte{2, key}, "audit", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	h := dp.NewTranscript([32]byte{3})
	return func(step uint64) dp.Noise {
		h.AbsorbRecords(4)
		return e.Step(step, &h)
	}
}

func mustSubject(t testing.TB, c Config, p dp.Params) *subject {
	t.Helper()
	a, err := newSubject(mustNew(t, c, p))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestSensitivityLate puts the differing record at the first and last steps of
// the ranges in which the phased factorization changes its columns, and far from
// both ends of the others.
func TestSensitivityLate(t *testing.T) {
	t.Parallel()
	const steps = 70
	for _, c := range audited(steps) {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c.Clip, c.Columns, c.Step, c.Nu = 0.2, 2, 2, 0.9
			a := mustSubject(t, c, dp.Params{Mu: 0.3, Adjacency: adjacency})
			base := auditStream(steps, 2)
			for i := range base {
				base[i] = [][]float64{{0.1, 0}, nil}
			}
			noise := func() func(uint64) dp.Noise {
				source := dptest.Seeded(13)
				return func(uint64) dp.Noise { return source }
			}
			x, y := worst(a.plan.Nu, a.plan.Clip, 2, adjacency)
			for _, at := range []int{1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, steps} {
				distance, err := a.auditSensitivity(base.replace(at-1, 0, x), base.replace(at-1, 0, y), noise)
				if err != nil {
					t.Fatal(err)
				}
				// The columns of a square root end with the horizon.
				if !(distance <= a.plan.Mu*(1+1e-9)) || c.Factorization != "sqrt" && !(distance >= 0.999*a.plan.Mu) {
					t.Errorf("%s, %s, step %d: %.9g of μ apart", describe(c), adjacency, at, distance/a.plan.Mu)
				}
			}
		}
	}
}

// TestOtherAdjacency measures what an estimator for zeroed records grants against
// replaced ones: √(r(ν)/(1+ν))·μ, which dp.Cost bounds by 2μ; and the reverse,
// √((1+ν)/r(ν))·μ, which it bounds by μ. What rounding may cost is below 10⁻⁴.
func TestOtherAdjacency(t *testing.T) {
	t.Parallel()
	for _, nu := range []float64{0.2, 0.5, 1, 5} {
		for own, other := range map[dp.Adjacency]dp.Adjacency{dp.ZeroOut: dp.Replace, dp.Replace: dp.ZeroOut} {
			a := mustSubject(t, Config{Clip: 3, Columns: 2, Step: 1, Factorization: "phased", Nu: nu}, dp.Params{Mu: 1, Adjacency: own})
			stated, err := a.e.Cost().In(other)
			if err != nil {
				t.Fatal(err)
			}
			_, top := auditPairs(t, &subject{a.e, a.cfg, withMu(a.plan, stated.Mu), a.kernel, a.start}, other, 4, 1)
			want := math.Sqrt(rd(nu, 2, other) / rd(nu, 2, own))
			if math.Abs(top-want) > 1e-4*want {
				t.Errorf("nu %g: %s estimator, %s pairs: %.6g, want %.6g", nu, own, other, top, want)
			}
		}
	}
}

func withMu(p Plan, mu float64) Plan {
	p.Mu = mu
	return p
}
