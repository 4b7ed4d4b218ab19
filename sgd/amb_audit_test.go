package sgd

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// The audits of internal/audit see an estimator only from outside: they feed rows and read releases. The functions in
// this file tell the audits an estimator's public numbers, and how to compute the noisy sums from the releases.

// auditSubject describes the estimator, in its present state, to the audits. A mutant, if given, takes the estimator's
// place.
func auditSubject(t testing.TB, e *AMB, mutant ...audit.Mechanism) *audit.Subject {
	t.Helper()
	c, err := audit.Stored(e.plan.Factorization, matfact.Workload{Kind: "sum"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, m := &e.plan, audit.Mechanism(e)
	if len(mutant) > 0 {
		m = mutant[0]
	}
	s := audit.Descent{
		Mechanism: m, Closed: e.step, Mu: p.Mu, C: c, Search: p.SearchNoise, Count: p.CountNoise,
		Gradient: p.GradientNoise,
		Scan:     e.cfg.Clip == "scan", Rungs: e.cfg.Rungs, Threshold: p.Threshold, Unit: p.Unit, Null: p.Null,
		Released: e.AppendReleased,
	}.Subject()
	first, start, zeta := e.iteration, e.coefficients(e.w), e.zeta
	s.Recover = func(releases []*dp.Release) (map[string][][]float64, error) {
		return recoverRows(p, &e.cfg, first, start, zeta, releases)
	}
	return s
}

// recoverRows computes the noisy sums and counts of the gradient steps from iterates and clip norms alone. first is the
// number of gradient steps before the first release; theta and zeta are the iterate and clip norm after them.
func recoverRows(p *AMBPlan, c *Config, first uint64, theta []float64, zeta float64,
	releases []*dp.Release) (map[string][][]float64, error) {
	all := map[string][][]float64{}
	for i, r := range releases {
		if r == nil {
			return nil, fmt.Errorf("step %d has no release", i+1)
		}
		if got := value(r, "zeta")[0]; got != zeta {
			return nil, fmt.Errorf("step %d: the clip norm is %g, want %g", i+1, got, zeta)
		}
		b := p.Batch
		for n := uint64(32); n <= first+uint64(i)+1 && c.Growth == "double"; n *= 2 {
			b *= 2
		}
		eta := c.Eta0 * float64(b) / (p.Bound*p.Bound + float64(b-1)*p.Curvature)
		unit := eta * zeta / float64(b) / p.One // the unit of w
		next := value(r, "theta")
		row := make([]float64, len(next))
		for j := range row {
			scale := unit
			if p.Constant > 0 && j == len(row)-1 {
				scale *= p.Constant
			}
			x := (theta[j] - next[j]) / scale
			if row[j] = math.Round(x); math.Abs(x-row[j]) > 1./16 {
				return nil, fmt.Errorf("step %d: coordinate %d is %g away from the lattice", i+1, j, x-row[j])
			}
		}
		all["ambssgd/grad"] = append(all["ambssgd/grad"], row)
		theta = next
		if c.Clip != "track" {
			continue
		}
		if i+1 == len(releases) {
			// The count of the last step follows only from the next release.
			all["ambssgd/clip"] = append(all["ambssgd/clip"], nil)
			continue
		}
		zeta = value(releases[i+1], "zeta")[0]
		count := (c.ThresholdQuantile - math.Log(zeta/value(r, "zeta")[0])/c.Kappa) * float64(b) * float64(p.Unit)
		all["ambssgd/clip"] = append(all["ambssgd/clip"], []float64{math.Round(count)})
	}
	return all, nil
}

// extremes returns valid and invalid records. The features of the valid ones have norm clip_x and lie along an axis;
// the gradients have all sizes and both signs.
func extremes(c *Config) [][]float64 {
	all := [][]float64{nil, {0, 0, 0}, {c.ClipX, math.NaN(), 0}, {math.Inf(1), 0, 0}, {5e-324, 1e308, 0}}
	for _, size := range []float64{1e-9, 0.3, 3, 1e9} {
		for _, sign := range []float64{1, -1} {
			all = append(all, []float64{c.ClipX, sign * size, 0}, []float64{1e6 * c.ClipX, sign * size, 1e6 * c.ClipX})
		}
	}
	return all
}

// TestCoupling is the sensitivity audit. For every pair of neighbouring streams it finds the noise under which the
// second stream releases the same values as the first, to the last bit. That noise must be at most μ away from the
// first stream's noise, and for some pair the distance must reach μ. Under zero-out a count moves by q or 1−q of a
// record, but pays for a whole record.
func TestCoupling(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				e := mustNew(t, c, params(adjacency))
				s := auditSubject(t, e)
				const steps = 7
				base := make(audit.Stream, steps)
				rows := records(11, 1000)
				for i := range base {
					first, end := e.Range(uint64(i) + 1)
					base[i] = rows[first:end]
				}
				base[4] = base[4][:10] // slots without a record
				keys := audit.NewKeys([32]byte{7})
				worst := map[bool]float64{}
				pairs := 0
				try := func(step, slot int, x, y []float64) {
					search, _ := e.kind(uint64(step) + 1)
					distance, err := s.Coupling(base.Replace(step, slot, x), base.Replace(step, slot, y), keys)
					if err != nil {
						t.Fatalf("%s, step %d, slot %d, %v and %v: %v", adjacency, step+1, slot, x, y, err)
					}
					worst[search] = max(worst[search], distance/s.Mu)
					pairs++
				}
				all := extremes(&c)
				for i, x := range all {
					for k, y := range all {
						if adjacency == dp.ZeroOut && k > 0 || i == k {
							continue
						}
						try(0, 0, x, y)
						try(1, 0, x, y)
						if k < 5 && i >= 5 || i == 6 && k == 7 {
							for step := range steps {
								try(step, len(base[step])-1, x, y)
								try(step, len(base[step])/2, x, y)
							}
						}
					}
				}
				// A binary search may ask one question fewer than it pays for.
				least := map[bool]float64{true: 1, false: 1}
				if c.Clip == "bisect" || c.Clip == "track" {
					least[true] = math.Sqrt(
						math.Floor(math.Log2(float64(e.cfg.Rungs+1))) / float64(e.ladder.Searches()))
					if adjacency == dp.ZeroOut {
						least[true] *= max(e.cfg.ThresholdQuantile, 1-e.cfg.ThresholdQuantile)
					}
				}
				if c.Clip == "scan" {
					least[false] = 0 // targets are cut, so no gradient reaches the norm that was found
				}
				if c.Clip == "track" {
					least[false] = math.Sqrt(1 - e.cfg.Fraction)
					if adjacency == dp.ZeroOut {
						least[false] = math.Sqrt(1 - e.cfg.Fraction +
							e.cfg.Fraction*e.cfg.ThresholdQuantile*e.cfg.ThresholdQuantile)
					}
				}
				t.Logf("%s: %d pairs; worst %.6f of μ in a search, %.6f in a gradient step", adjacency, pairs,
					worst[true], worst[false])
				for search, w := range worst {
					if w > 1+1e-9 || w < least[search]*0.999 {
						t.Errorf("%s: the worst pair is %.9f of μ apart, want %.6f to 1", adjacency, w, least[search])
					}
				}
			}
		})
	}
}

// TestCouplingBounds puts the neighbours into one gradient step. One gradient is just not clipped; the other is clipped
// and points the other way, so gradient and count together cost all of μ. In the steps that follow, the clip norm falls
// by a factor of 10⁷ or jumps. This tests that noise is correlated in units of the clip norm.
func TestCouplingBounds(t *testing.T) {
	t.Parallel()
	for _, bands := range []int{1, 16} {
		for _, kappa := range []float64{1, 20} {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				c := variants()["track"]
				c.Bands, c.Kappa, c.Radius, c.Batch = bands, kappa, 1e12, 120
				c.Intercept = new(bool)
				e := mustNew(t, c, params(adjacency))
				closeStep(t, e, records(3, 100), dptest.Zero())
				zeta := e.zeta
				s := auditSubject(t, e)
				// w = 0: the gradient is −yx, of norm 3|y|.
				inside, outside := []float64{3, zeta / 3 * (1 - 1e-9), 0}, []float64{-3, 10 * zeta, 0}
				if adjacency == dp.ZeroOut {
					inside = nil
				}
				var quiet [][]float64 // residual 0 for all iterates except the first ones
				for range 120 {
					quiet = append(quiet, []float64{0, 0, 0})
				}
				x := audit.Stream{{inside}, quiet, quiet, quiet, nil, nil}
				y := x.Replace(0, 0, outside)
				distance, err := s.Coupling(x, y, audit.NewKeys([32]byte{1}))
				if err != nil {
					t.Errorf("%d bands, kappa %g, %s: %v", bands, kappa, adjacency, err)
				}
				fall := zeta / e.zeta
				least := 1.0
				if adjacency == dp.ZeroOut {
					least = math.Sqrt(1 - e.cfg.Fraction +
						e.cfg.Fraction*e.cfg.ThresholdQuantile*e.cfg.ThresholdQuantile)
				}
				t.Logf("%d bands, kappa %g, %s: %.6f of μ; the clip norm falls by %.3g", bands, kappa, adjacency,
					distance/s.Mu, fall)
				if distance > s.Mu*(1+1e-9) || distance < s.Mu*least*0.999 {
					t.Errorf("%d bands, %s: the pair is %.9f of μ apart, want %.6f", bands, adjacency,
						distance/s.Mu, least)
				}
				if kappa == 20 && fall < 100 {
					t.Errorf("the clip norm falls only by %g", fall)
				}
			}
		}
	}
}

// noiseSubject returns an estimator after its bootstrap, with a stream.
func noiseSubject(t testing.TB, bands int, adjacency dp.Adjacency, steps int) (*AMB, *audit.Subject, audit.Stream) {
	t.Helper()
	c := variants()["track"]
	c.Bands, c.Radius, c.Batch = bands, 1e6, 60
	e := mustNew(t, c, params(adjacency))
	closeStep(t, e, records(4, 100), dptest.Zero())
	rows := records(4, 60*steps)
	x := make(audit.Stream, steps)
	for i := range x {
		x[i] = rows[60*i : 60*(i+1)]
	}
	return e, auditSubject(t, e), x
}

// TestNoise is the noise audit of the gradients. It computes the noisy sums from the iterates and undoes the
// correlation. The result must be the drawn noise, rounded once, and must be white. The clip norm is fixed, because the
// last count of a stream is not released.
func TestNoise(t *testing.T) {
	t.Parallel()
	for _, bands := range []int{1, 4, 16} {
		c := variants()["fixed"]
		c.Bands, c.Radius = bands, 1e6
		e := mustNew(t, c, params(dp.Replace))
		s := auditSubject(t, e)
		const steps = 700
		rows := records(5, 24*steps)
		x := make(audit.Stream, steps)
		for i := range x {
			x[i] = rows[24*i : 24*(i+1)]
		}
		keys := audit.NewKeys([32]byte{9, byte(bands)})
		n, err := s.NoiseUnder(x, keys)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(n.Identity, n.Repeated, audit.Failed(n.Law(stattest.Alpha))); err != nil {
			t.Errorf("%d bands: %v", bands, err)
		}
	}
}

// TestShift runs neighbours under fresh keys and tells them apart by the best test on gradients and count.
func TestShift(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		e, s, _ := noiseSubject(t, 8, adjacency, 1)
		zeta, constant := e.zeta, e.plan.Constant
		norm := math.Sqrt(9 + constant*constant)
		inside, outside := []float64{3, zeta / norm * (1 - 1e-9), 0}, []float64{3, -10 * zeta, 0}
		if adjacency == dp.ZeroOut {
			inside = nil
		}
		// Later steps hold null records, so their releases do not depend on earlier releases.
		x := audit.Stream{{inside}, nil, nil}
		r, err := s.Shift(x, x.Replace(0, 0, outside), audit.NewKeys([32]byte{3}), 400, stattest.Alpha)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.4g standard errors apart, allowed %.4g to %.4g; finds %.3g times μ", adjacency, r.T, r.Low,
			r.High, r.Finds)
		if err := r.Err(); err != nil {
			t.Errorf("%s: %v", adjacency, err)
		}
	}
}

// TestSearchLaw compares searches of the production path under fresh keys with their exact distribution. It also
// compares the distributions of neighbours with the curve of the guarantee: no event may tell them apart better than a
// Gaussian mechanism of μ does.
func TestSearchLaw(t *testing.T) {
	t.Parallel()
	for _, clip := range []string{"bisect", "scan"} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c := variants()["bisect"]
			c.Clip, c.Rungs, c.Top, c.Stat = clip, 7, 8, 24
			p := dp.Params{Mu: 1.5, Adjacency: adjacency}
			c.Batch = 400
			e := mustNew(t, c, p)
			// Features of norm 1 and w = 0: the gradient's norm is |y|.
			values := []float64{}
			for i := range 23 {
				values = append(values, 0.2+0.15*float64(i))
			}
			law := func(v float64) []float64 {
				unit := float64(e.plan.Unit)
				l, err := statLaw(clip, append(values[:len(values):len(values)], v), 7, 8, e.plan.Threshold,
					float64(e.plan.Null)/unit, e.plan.SearchNoise/unit)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			// These pairs move every count.
			pairs := [][2]float64{{0.01, 100}}
			if adjacency == dp.ZeroOut {
				pairs = [][2]float64{{0.01, math.NaN()}, {100, math.NaN()}}
			}
			largest := 0.0
			for _, pair := range pairs {
				for epsilon := 0.0; epsilon < 12; epsilon += 0.05 {
					allowed := math.Exp(dp.LogDelta(epsilon, e.plan.Mu))
					x, y := law(pair[0]), law(pair[1])
					var there, back float64
					for i := range x {
						there += max(0, x[i]-math.Exp(epsilon)*y[i])
						back += max(0, y[i]-math.Exp(epsilon)*x[i])
					}
					largest = max(largest, there/allowed, back/allowed)
				}
			}
			t.Logf("%s, %s: δ at most %.3g of the guarantee's", clip, adjacency, largest)
			if largest > 1 || largest < 0.1 {
				t.Errorf("%s, %s: δ is %g of the guarantee's", clip, adjacency, largest)
			}

			const runs = 2000
			counts, high := make([]float64, 8), law(100)
			fresh := estimatortest.State(t, e)
			for run := range runs {
				if err := e.UnmarshalBinary(fresh); err != nil {
					t.Fatal(err)
				}
				for i, v := range append(values[:len(values):len(values)], 100) {
					e.Add(uint64(i), []float64{1, v, 0})
				}
				master, secret := [32]byte{byte(run), byte(run >> 8)}, [32]byte{4}
				k, err := dp.NewEpoch(&master, &secret, "audit", 1, [16]byte{}, [32]byte{})
				if err != nil {
					t.Fatal(err)
				}
				h := dp.NewTranscript([32]byte{})
				if _, err := e.Close(k.Step(1, &h)); err != nil {
					t.Fatal(err)
				}
				counts[7-int(math.Round(math.Log2(8/e.zeta)))]++
			}
			var chi float64
			freedom := -1
			for i, n := range counts {
				if want := runs * high[i]; want > 5 {
					chi += (n - want) * (n - want) / want
					freedom++
				} else if n > 60 {
					t.Errorf("%s: rung %d is found %g times, expected %g", clip, i, n, want)
				}
			}
			if _, most := stattest.ChiSquared(freedom, stattest.Alpha); chi > most {
				t.Errorf("%s: the searches are %g from their law, must be within %g: %v, law %v", clip, chi, most,
					counts, high)
			}
		}
	}
}
