package moments

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// audited are the combinations of factorization and workload that the audits cover, with a horizon of n steps if one is
// needed.
func audited(n uint64) []Config {
	var all []Config
	for _, kind := range []string{"identity", "sqrt", "bsr", "bisr", "blt", "phased"} {
		for _, w := range []Config{
			{Workload: "mean"}, {Workload: "sum"}, {Workload: "exponential", Decay: 0.9},
			{Workload: "window", Window: 3},
		} {
			w.Factorization, w.Horizon = kind, n
			if banded(kind) {
				w.Bands = 6
			}
			all = append(all, w)
		}
	}
	return append(all, ending(n)...)
}

// ending returns the configurations of audited whose matrix has optimised bands, is dense, or has columns normalised
// for the horizon. These configurations come last in audited.
func ending(n uint64) []Config {
	all := []Config{
		{Workload: "mean", Factorization: "banded", Bands: 3},
		{Workload: "mean", Factorization: "blt", Normalise: true},
		{Workload: "sum", Factorization: "sqrt", Normalise: true},
		{Workload: "exponential", Decay: 0.9, Factorization: "bisr", Bands: 3, Normalise: true},
		{Workload: "window", Window: 3, Factorization: "banded", Bands: 3, Normalise: true},
	}
	if n <= 100 {
		all = append(all, Config{Workload: "mean", Factorization: "dense"})
	}
	for i := range all {
		all[i].Horizon = n
	}
	return all
}

// final reports whether the factorization ends at the horizon.
func final(c Config) bool {
	return c.Normalise || c.Factorization == "sqrt" || c.Factorization == "dense"
}

func describe(c Config) string {
	return fmt.Sprintf("%s/%s/normalise=%t/d=%d/nu=%g", c.Factorization, c.Workload, c.Normalise, len(c.Columns), c.Nu)
}

// pairs returns neighbouring records of every kind, the worst ones first.
func pairs(nu, clip float64, d int, adjacency dp.Adjacency) []audit.Pair {
	return append([]audit.Pair{worstPair(nu, clip, d, adjacency)}, audit.NullPairs(clip, d, adjacency)...)
}

// worstPair returns the pair of audit.JointWorst, adapted to the count of rows that are not shortened. That count
// includes a row of zeros, but not an invalid record. In one dimension, one of the two rows must be slightly shorter
// than the clip norm.
func worstPair(nu, clip float64, d int, adjacency dp.Adjacency) audit.Pair {
	p := audit.JointWorst(nu, clip, d, adjacency)
	switch {
	case adjacency == dp.ZeroOut:
		p.Y = nil
	case d == 1 && p.Y[0] == -clip:
		p.Y[0] *= 1 - 1e-6
	}
	return p
}

// TestSensitivity is the sensitivity audit, for every factorization, workload and adjacency. No pair of neighbouring
// streams may be farther apart than μ, and the worst pair must be at least 0.999μ apart. With STREAMDP_SLOW=1 it uses
// twice as many dimensions and weights.
func TestSensitivity(t *testing.T) {
	t.Parallel()
	const steps, slots, clip, mu = 7, 3, 1.7, 4
	dims, nus := []int{1, 3}, []float64{0, 0.2, 1.3, 40}
	if os.Getenv("STREAMDP_SLOW") != "" {
		dims, nus = []int{1, 2, 3, 7}, []float64{0, 0.05, 0.2, 0.5, 1.3, 2.5, 6, 40}
	}
	for _, c := range audited(steps) {
		t.Run(c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			runs, lowest := 0, math.Inf(1)
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				for _, d := range dims {
					for _, nu := range nus {
						c := c
						c.Clip, c.Columns, c.Step, c.Nu = clip, dptest.Columns(d), slots, nu
						a := mustSubject(t, c, dp.Params{Mu: mu, Adjacency: adjacency})
						n, top := auditPairs(t, a, adjacency, steps, slots)
						runs += n
						lowest = min(lowest, top/a.plan.Mu)
						if top < 0.999*a.plan.Mu {
							t.Errorf("%s, %s: the worst pair is only %.6g of μ apart", describe(c), adjacency,
								top/a.plan.Mu)
						}
					}
				}
			}
			t.Logf("%d pairs of streams; worst pairs at least %.6f of μ apart", runs, lowest)
		})
	}
}

// auditPairs audits pairs of streams of the given shape, and returns the number of pairs and the largest distance. All
// pairs differ in the first record of the first step, some also in other records.
func auditPairs(t *testing.T, a *subject, adjacency dp.Adjacency, steps, slots int) (n int, top float64) {
	t.Helper()
	d := len(a.cfg.Columns)
	source := rand.New(rand.NewPCG(5, uint64(d)))
	base := make(audit.Stream, steps)
	for s := range base {
		base[s] = make([][]float64, slots)
		for i := range base[s] {
			if (s+i)%5 == 4 {
				continue // leaves an invalid record
			}
			base[s][i] = make([]float64, d)
			for j := range d {
				base[s][i][j] = source.NormFloat64()
			}
		}
	}
	base[2] = base[2][:1] // the other slots have no record
	fixed := keys(11)
	for k, p := range pairs(a.plan.Nu, a.plan.Clip, d, adjacency) {
		at := [][2]int{{0, 0}}
		if k < 2 {
			at = append(at, [2]int{0, slots - 1}, [2]int{1, 0}, [2]int{2, 0}, [2]int{steps / 2, slots / 2},
				[2]int{steps - 1, slots - 1})
		}
		for _, where := range at {
			distance, err := a.Sensitivity(base.Replace(where[0], where[1], p.X),
				base.Replace(where[0], where[1], p.Y), fixed)
			if err != nil {
				t.Fatal(err)
			}
			n++
			top = max(top, distance)
			if !(distance <= a.plan.Mu*(1+1e-9)) {
				t.Errorf("%s, %s: %g and %g at %v are %.9g of μ apart", describe(a.cfg), adjacency, p.X, p.Y, where,
					distance/a.plan.Mu)
			}
		}
	}
	return n, top
}

// TestCoupling couples neighbouring streams: it moves the noise by their difference, which must be at most μ. Then
// every release must be the same to the last bit, including standard errors. So releases are a function of the noisy
// integers alone. The streams differ in the first, a middle or the last step, with STREAMDP_SLOW=1 in each step in
// turn.
func TestCoupling(t *testing.T) {
	t.Parallel()
	const steps, slots = 9, 4
	for i, c := range audited(steps) {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c.Clip, c.Columns, c.Step, c.Nu = 1.3, dptest.Columns(3), slots, 0.8
			a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
			base, fixed := auditStream(steps, 3), keys(byte(i))
			for k, p := range pairs(a.plan.Nu, a.plan.Clip, 3, adjacency) {
				all := []int{0, k % steps, steps - 1}
				for n, at := range all {
					if n != (i+k)%len(all) && os.Getenv("STREAMDP_SLOW") == "" {
						continue
					}
					base := slices.Clone(base)
					base[at] = [][]float64{nil, {0.3, 1, -2}, nil, {0, 0.1, 0}}
					x, y := base.Replace(at, k%slots, p.X), base.Replace(at, k%slots, p.Y)
					coupled, err := a.Coupling(x, y, fixed)
					if err != nil {
						t.Fatalf("%s, %s: %g and %g in step %d: %v", describe(c), adjacency, p.X, p.Y, at+1, err)
					}
					distance, err := a.Sensitivity(x, y, fixed)
					if err != nil || !(math.Abs(coupled-distance) <= 1e-9*a.plan.Mu && coupled <= a.plan.Mu*(1+1e-9)) {
						t.Errorf("%s, %s: %g and %g in step %d are %.9g of μ apart by coupling, %.9g by releases: %v",
							describe(c), adjacency, p.X, p.Y, at+1, coupled/a.plan.Mu, distance/a.plan.Mu, err)
					}
				}
			}
		}
	}
}

// TestSensitivityAtBlocks puts the differing record on both sides of the borders at which squares are rounded, on a
// lattice with blocks of 13 records.
func TestSensitivityAtBlocks(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		const slots = 30
		a := mustSubject(t, Config{Clip: 1.1, Columns: dptest.Columns(3), Step: slots, Factorization: "phased"},
			dp.Params{Mu: 40, Adjacency: adjacency})
		if a.e.block != 13 {
			t.Fatalf("a block has %d records", a.e.block)
		}
		source := rand.New(rand.NewPCG(6, 7))
		base := audit.Stream{make([][]float64, slots), make([][]float64, slots), nil}
		for _, step := range base[:2] {
			for i := range step {
				step[i] = []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}
			}
		}
		p, fixed := worstPair(a.plan.Nu, a.plan.Clip, 3, adjacency), keys(12)
		for i := range slots {
			distance, err := a.Sensitivity(base.Replace(0, i, p.X), base.Replace(0, i, p.Y), fixed)
			if err != nil {
				t.Fatal(err)
			}
			if !(distance <= a.plan.Mu*(1+1e-9) && distance >= 0.999*a.plan.Mu) {
				t.Errorf("%s, record %d: %.9g of μ apart", adjacency, i, distance/a.plan.Mu)
			}
		}
	}
}

// TestNoise is the noise audit with the keyed noise of an epoch. For every factorization and workload, the whitened
// releases must be the Gaussians that were drawn, and these must be white, also between two epochs. Each case has 13
// 500 draws, which would show a deviation that is 6 % too small. With STREAMDP_SLOW=1 there are 27 000 draws, which
// show 4 %. 48 assertions have alpha 10⁻⁹ each.
func TestNoise(t *testing.T) {
	t.Parallel()
	steps := uint64(1500)
	if os.Getenv("STREAMDP_SLOW") != "" {
		steps = 3000
	}
	for i, c := range audited(steps) {
		t.Run(c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns, c.Step = 0.3, dptest.Columns(3), 4
			a := mustSubject(t, c, dp.Params{Epsilon: 2, Delta: 1e-6, Adjacency: dp.Adjacency(1 + i%2)})
			var epochs [][]float64
			for k := range 2 {
				n, err := a.Noise(auditStream(int(steps), 3), keyed(t, byte(2*i+k)))
				if err != nil {
					t.Fatal(err)
				}
				for _, err := range []error{n.Identity, n.Repeated, audit.Failed(n.Law(stattest.Alpha))} {
					if err != nil {
						t.Error(err)
					}
				}
				epochs = append(epochs, slices.Concat(slices.Concat(n.White["jme/first"], n.White["jme/second"])...))
			}
			if err := stattest.Correlation(epochs[0], epochs[1], stattest.Alpha); err != nil {
				t.Errorf("two epochs: %v", err)
			}
		})
	}
}

// auditStream returns a stream with up to four records a step, some of them invalid.
func auditStream(steps, d int) audit.Stream {
	source := rand.New(rand.NewPCG(8, 9))
	s := make(audit.Stream, steps)
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

// keyed returns the noise of an epoch with fixed keys. Its transcript absorbs the same data as in the daemon.
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

// keys returns fixed keys for runs that need arbitrary noise.
func keys(seed byte) *audit.Keys { return audit.NewKeys([32]byte{seed}) }

// TestSensitivityLate puts the differing record into the first and last steps of the phases of the phased factorization
// and, for the other factorizations, into the middle of the stream.
func TestSensitivityLate(t *testing.T) {
	t.Parallel()
	const steps = 70
	for _, c := range audited(steps) {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c.Clip, c.Columns, c.Step, c.Nu = 0.2, dptest.Columns(2), 2, 0.9
			a := mustSubject(t, c, dp.Params{Mu: 0.3, Adjacency: adjacency})
			base := auditStream(steps, 2)
			for i := range base {
				base[i] = [][]float64{{0.1, 0}, nil}
			}
			p, fixed := worstPair(a.plan.Nu, a.plan.Clip, 2, adjacency), keys(13)
			for _, at := range []int{1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, steps} {
				distance, err := a.Sensitivity(base.Replace(at-1, 0, p.X), base.Replace(at-1, 0, p.Y), fixed)
				if err != nil {
					t.Fatal(err)
				}
				// The columns of a square root end with the horizon.
				if !(distance <= a.plan.Mu*(1+1e-9)) ||
					(c.Factorization != "sqrt" || c.Normalise) && !(distance >= 0.999*a.plan.Mu) {
					t.Errorf("%s, %s, step %d: %.9g of μ apart", describe(c), adjacency, at, distance/a.plan.Mu)
				}
			}
		}
	}
}

// TestOtherAdjacency measures the guarantee of an estimator for zeroed records against replaced ones: √(r(ν)/(1+ν))·μ,
// which dp.Cost bounds by 2μ; and the reverse, √((1+ν)/r(ν))·μ, which it bounds by μ. The cost of rounding is below
// 10⁻⁴.
func TestOtherAdjacency(t *testing.T) {
	t.Parallel()
	for _, nu := range []float64{0.2, 0.5, 1, 5} {
		for own, other := range map[dp.Adjacency]dp.Adjacency{dp.ZeroOut: dp.Replace, dp.Replace: dp.ZeroOut} {
			a := mustSubject(t, Config{Clip: 3, Columns: dptest.Columns(2), Step: 1, Factorization: "phased", Nu: nu},
				dp.Params{Mu: 1, Adjacency: own})
			stated, err := a.e.Cost().In(other)
			if err != nil {
				t.Fatal(err)
			}
			a.plan.Mu = stated.Mu
			_, top := auditPairs(t, a, other, 4, 1)
			want := math.Sqrt(calibration.SquaresSensitivity(nu, 2, other) / calibration.SquaresSensitivity(nu, 2, own))
			if math.Abs(top-want) > 1e-4*want {
				t.Errorf("nu %g: %s estimator, %s pairs: %.6g, want %.6g", nu, own, other, top, want)
			}
		}
	}
}
