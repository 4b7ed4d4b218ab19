package sgd

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

func mustNewton(t testing.TB, c Config, p dp.Params) *Newton {
	t.Helper()
	e, err := NewNewton(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// online runs a Newton on records that a test draws.
type online struct {
	e     *Newton
	noise dp.Noise
	row   []float64
}

// newOnline returns an online for d features without a constant, of norm at most clip.
func newOnline(t testing.TB, d int, clip float64, p dp.Params, seed uint64) *online {
	t.Helper()
	e := mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: clip, Intercept: new(bool)}, p)
	return &online{e: e, noise: dptest.Seeded(seed), row: make([]float64, d+1)}
}

// next takes records from draw until a release is due. A target of NaN is a null record.
func (s *online) next(t testing.TB, draw func(x []float64) float64) *dp.Release {
	t.Helper()
	for {
		r, err := s.close(draw)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			return r
		}
	}
}

// close takes the records of one step from draw.
func (s *online) close(draw func(x []float64) float64) (*dp.Release, error) {
	first, end := s.e.Range(s.e.step + 1)
	for slot := first; slot < end; slot++ {
		d := len(s.row) - 1
		s.row[d] = draw(s.row[:d])
		s.e.Add(slot, s.row)
	}
	return s.e.Close(s.noise)
}

// until returns the last release of a stream of the given number of records.
func (s *online) until(t testing.TB, records uint64, draw func(x []float64) float64) (r *dp.Release) {
	t.Helper()
	for {
		_, end := s.e.Range(s.e.step + 1)
		if end > records {
			return r
		}
		r = s.next(t, draw)
	}
}

// conditioned returns records whose features have variances from 1 down to 1/condition.
func conditioned(seed uint64, d int, condition float64) *linear {
	l := newLinear(seed, d, 1)
	for j := range l.deviation {
		l.deviation[j] = math.Pow(condition, -float64(j)/float64(d-1)/2)
	}
	return l
}

// TestNewtonPlan checks the schedule, and the numbers on which the guarantee depends.
func TestNewtonPlan(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 10, 100} {
			e := mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: 3, Intercept: new(bool)},
				dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: adjacency})
			p, s := e.Plan(), adjacency.Factor()
			near := func(what string, got, want float64) { // lattices may add a little to the numbers
				t.Helper()
				if !(got >= want*(1-1e-15) && got <= want*(1+1e-3)) {
					t.Errorf("%s, d = %d: %s is %.12g, want %.12g or slightly more", adjacency, d, what, got, want)
				}
			}
			if math.Abs(1/p.Mu-4.2247) > 1e-4 {
				t.Errorf("μ is %g", p.Mu)
			}
			unit := float64(p.Unit)
			near("noise of a search", p.SearchNoise/unit, math.Sqrt(6)/p.Mu)
			c := 0.27
			weight := math.Sqrt(1 - c*c)
			if adjacency == dp.Replace {
				weight = math.Sqrt(4 - (1+c)*(1+c))
			}
			near("noise of the count", p.CountNoise/unit, s/(weight*0.9*p.Mu))
			// In addition to a record, the rounding of predicted noise may move gradients. In units of the clip norm,
			// compute by how much: for a record that is counted and for one that is not.
			exact := float64(p.Lattice.K) * e.factor.ColNorm()
			for count, moved := range []float64{s, s - 1 + c} {
				gradient := (moved*exact + p.Sensitivity - s*exact) / p.GradientNoise
				counts := float64(count) * unit / p.CountNoise
				if got := math.Hypot(gradient, counts) / (0.9 * p.Mu); !(got <= 1) {
					t.Errorf("%s, d = %d: a record moves gradient and count by %.9f of the charge",
						adjacency, d, got)
				}
			}
			near("noise of the count of null records", p.NullNoise/unit, 1/(0.2*p.Mu))
			near("noise of a gradient", p.GradientNoise/float64(p.Lattice.K), s*1.60135/(0.9*p.Mu))
			near("noise of the histogram", p.HistogramNoise, math.Sqrt(s/0.03)/p.Mu)
			g, err := p.gram(0.25, 0)
			if err != nil {
				t.Fatal(err)
			}
			near("noise of the matrix", g.SD, 0.25*math.Sqrt(s/0.12)/p.Mu)
			if p.Search != 156 {
				t.Errorf("a search takes %d slots", p.Search)
			}
			at := 2 * p.Search
			for k, growth := range []float64{1, math.Sqrt2, 2, 2 * math.Sqrt2, 4, 4, 4} {
				b := uint64(math.Ceil(max(50, 20/p.Mu, 1.25*s*float64(d)/p.Mu*growth)))
				if got := p.batch(k); got != b || p.steps(k) != 4<<k {
					t.Errorf("%s, d = %d: epoch %d has %d steps of %d slots, want %d of %d", adjacency, d, k,
						p.steps(k), got, 4<<k, b)
				}
				if got, want := p.rate(k), max(0.3, 0.7*math.Pow(0.85, float64(k))); math.Abs(got-want) > 1e-15 {
					t.Errorf("the step size of epoch %d is %g, want %g", k, got, want)
				}
				at += b * p.steps(k)
				steps := uint64(4<<(k+1) - 4)
				if c := p.Course(steps); c.Slots != at || c.Epoch != k || c.Batch != b || p.within(at) != steps ||
					p.within(at-1) != steps-1 {
					t.Errorf("after epoch %d the course is %+v, and %d slots are enough for %d steps", k, c, at,
						p.within(at))
				}
			}
			if n := e.Longest(3); n < p.Course(1).Slots || e.Longest(1000) < p.Course(998).Slots ||
				e.Longest(1<<62) != math.MaxUint64 {
				t.Errorf("three steps have at most %d slots", n)
			}
		}
	}
}

// TestNewtonLongest checks that successive steps never have more slots than Longest says, wherever they are. An epoch
// that saw no record at first searches again later, in up to sixteen times as many slots.
func TestNewtonLongest(t *testing.T) {
	t.Parallel()
	s := newOnline(t, 2, 3, dp.Params{Mu: newtonMu, Adjacency: dp.ZeroOut}, 3)
	l := newLinear(3, 2, 0.1)
	var ends []uint64 // last slots of the steps
	for n := 0; len(ends) < 600; {
		_, err := s.close(func(row []float64) float64 {
			if n++; n < 20000 || n%20 > 0 {
				return math.NaN()
			}
			return l.draw(row)
		})
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, s.e.slots)
	}
	for _, steps := range []int{1, 2, 3, 10, 100} {
		first, most := ends[steps-1], uint64(0)
		for i := steps; i < len(ends); i++ {
			most = max(most, ends[i]-ends[i-steps])
		}
		if bound := s.e.Longest(uint64(steps)); bound < most || steps < 4 && most < 2*first {
			t.Errorf("%d steps in a row have %d slots, the first ones %d, at most %d", steps, most, first, bound)
		}
		if steps == 1 && s.e.Longest(1) != most {
			t.Errorf("the longest step has %d slots, Longest says %d", most, s.e.Longest(1))
		}
	}
}

// TestNewtonAdopt encodes and decodes a plan, and checks that a plan with any changed number is refused.
func TestNewtonAdopt(t *testing.T) {
	t.Parallel()
	e := eventfulNewton(t, dp.ZeroOut, true)
	estimatortest.Plans(t, e.Plan(), 1e-9,
		func(kept NewtonPlan) (*Newton, error) { return AdoptNewton(e.cfg, e.params, kept) })
}

// TestNewtonNulls checks that streams of null records alone never move the coefficients. Streams that begin with null
// records, have them in between, or hold few other records must be learned.
func TestNewtonNulls(t *testing.T) {
	t.Parallel()
	const records = 60000
	runs := uint64(2)
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 50
	}
	for _, x := range []struct {
		name     string
		null     func(n uint64, source *rand.Rand) bool
		reach    float64 // largest coefficient at any time; the true norm is 1
		excess   float64 // excess risk at the end, in nine of ten runs
		records  uint64
		features int
	}{
		{"none", func(n uint64, _ *rand.Rand) bool { return true }, 0, 1, 150000, 10},
		{"none, two features", func(n uint64, _ *rand.Rand) bool { return true }, 0, 1, 150000, 2},
		{"none at first", func(n uint64, _ *rand.Rand) bool { return n < 20000 }, 2, 1e-3, records, 10},
		{"none in the first search", func(n uint64, _ *rand.Rand) bool { return n < 150 }, 2, 1e-3, records, 10},
		{"none in the second search", func(n uint64, _ *rand.Rand) bool { return n >= 156 && n < 312 }, 2, 1e-3,
			records, 10},
		{"none for a while", func(n uint64, _ *rand.Rand) bool { return n > 30000 && n < 50000 }, 2, 1e-2, records, 10},
		{"none since", func(n uint64, _ *rand.Rand) bool { return n > 30000 }, 2, 1e-2, 150000, 10},
		{"now and then", func(n uint64, _ *rand.Rand) bool { return n/2000%2 == 0 }, 5, 1e-2, records, 10},
		{"half", func(_ uint64, s *rand.Rand) bool { return s.IntN(2) == 0 }, 5, 1e-2, records, 10},
		{"four of five", func(_ uint64, s *rand.Rand) bool { return s.IntN(5) > 0 }, 10, 2e-2, records, 10},
		{"nine of ten", func(_ uint64, s *rand.Rand) bool { return s.IntN(10) > 0 }, 10, 5e-2, 100000, 10},
	} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			var all []float64
			top := 0.0
			for run := range runs {
				s := newOnline(t, x.features, 5*math.Sqrt(float64(x.features)/10),
					dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: adjacency}, run)
				l := conditioned(run, x.features, 16)
				source := rand.New(rand.NewPCG(run, 77))
				n := uint64(0)
				var r *dp.Release
				for s.e.slots < x.records {
					r = s.next(t, func(row []float64) float64 {
						n++
						if x.null(n-1, source) {
							return math.NaN()
						}
						return l.draw(row)
					})
					for _, name := range []string{"theta", "theta_average"} {
						for _, v := range value(r, name) {
							if top = max(top, math.Abs(v)); v-v != 0 {
								t.Fatalf("%s, %s: %s is %g", x.name, adjacency, name, v)
							}
						}
					}
				}
				all = append(all, l.excess(value(r, "theta_average")))
			}
			slices.Sort(all)
			most := all[max(0, (len(all)*9-1)/10-1)]
			t.Logf("%s, %s: coefficients up to %.3g; excess %.2g, in nine of ten runs up to %.2g", x.name, adjacency,
				top, all[len(all)/2], most)
			if top > x.reach || most > x.excess {
				t.Errorf("%s, %s: coefficients up to %.3g, want at most %g; excess %.2g, want at most %g", x.name,
					adjacency, top, x.reach, most, x.excess)
			}
		}
	}
}

// TestNewtonLearns compares with the outlook, for several condition numbers. The estimate must not depend on them.
func TestNewtonLearns(t *testing.T) {
	t.Parallel()
	const records, runs = 60000, 3
	for _, loose := range []float64{1, 5} {
		for _, condition := range []float64{1, 64, 256} {
			var sum float64
			var outlook Outlook
			for run := range uint64(runs) {
				l := conditioned(run, 10, condition)
				s := newOnline(t, 10, loose*5, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}, run)
				outlook = s.e.Expect(records)
				r := s.until(t, records, l.draw)
				sum += l.excess(value(r, "theta_average")) / runs
				if it := value(r, "iteration")[0]; it != float64(outlook.Iteration) && s.e.restarts == 0 {
					t.Errorf("%g steps after %d records, expected %d", it, records, outlook.Iteration)
				}
			}
			want := outlook.Sampling + outlook.Privacy
			t.Logf("bounds %g times too large, condition %g: excess %.3g, outlook %.3g", loose, condition, sum, want)
			if !(sum > want/3 && sum < 3*want) {
				t.Errorf("bounds %g times too large, condition %g: excess %.3g, outlook %.3g", loose,
					condition, sum, want)
			}
		}
	}
}

// TestNewtonDrift flips the coefficients, and makes a feature ten times larger, in the middle of a stream. The estimate
// must follow.
func TestNewtonDrift(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *linear){
		"coefficients flip": func(l *linear) {
			for j := range l.w {
				l.w[j] = -l.w[j]
			}
		},
		"a feature grows": func(l *linear) { l.deviation[3] *= 10 },
	} {
		for run := range uint64(2) {
			l := newLinear(run, 10, 1)
			s := newOnline(t, 10, 20, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}, run)
			s.until(t, 50000, l.draw)
			change(l)
			r := s.until(t, 80000, l.draw)
			excess := l.excess(value(r, "theta_average"))
			t.Logf("%s: excess %.3g, %d and %d restarts", name, excess, s.e.restarts, s.e.drifts)
			if !(excess < 0.02) {
				t.Errorf("%s: excess %g after 30000 records", name, excess)
			}
		}
	}
}

// TestNewtonUnits fits records with a constant, in other units. The release also has the coefficients in original
// units.
func TestNewtonUnits(t *testing.T) {
	t.Parallel()
	c := Config{Columns: []string{"u", "y", "v"}, Target: "y", ClipX: 5, Centre: []float64{2, 10, 0},
		Scale: []float64{3, 5, 0.5}, Start: []float64{0.3, 0, 0}}
	e := mustNewton(t, c, dp.Params{Mu: 2, Adjacency: dp.ZeroOut})
	source, noise := rand.New(rand.NewPCG(1, 2)), dptest.Seeded(3)
	var r *dp.Release
	for e.slots < 100000 {
		first, end := e.Range(e.step + 1)
		for slot := first; slot < end; slot++ {
			u, v := 2+3*source.NormFloat64(), source.NormFloat64()/2
			y := 4 + 0.5*u - 3*v + source.NormFloat64()
			e.Add(slot, []float64{(u - 2) / 3, (y - 10) / 5, v / 0.5})
		}
		var err error
		if r, err = e.Close(noise); err != nil {
			t.Fatal(err)
		}
		if r != nil && value(r, "iteration")[0] == 1 {
			if w := value(r, "theta")[0]; math.Abs(w-0.3) > 0.7 {
				t.Errorf("the first coefficient is %g after the first step, began at 0.3", w)
			}
		}
	}
	for j, want := range []float64{0.5, -3, 4} {
		if got := value(r, "theta_average_original")[j]; math.Abs(got-want) > 0.02 {
			t.Errorf("coefficient %d is %g, want %g", j, got, want)
		}
	}
}

// TestNewtonHorizon checks that after the last step there is no release and no change. A step refuses more records than
// slots.
func TestNewtonHorizon(t *testing.T) {
	t.Parallel()
	e := mustNewton(t, Config{Columns: []string{"u", "y"}, Target: "y", ClipX: 5, Horizon: 5},
		dp.Params{Mu: 2, Adjacency: dp.ZeroOut})
	for range 5 {
		if _, err := e.Close(dptest.Zero()); err != nil {
			t.Fatal(err)
		}
	}
	state := estimatortest.State(t, e)
	if r, err := e.Close(dptest.Zero()); r != nil || !errors.Is(err, dp.ErrExhausted) {
		t.Errorf("after the horizon Close returns %v, %v", r, err)
	}
	if !slices.Equal(estimatortest.State(t, e), state) {
		t.Error("Close after the horizon changes the state")
	}
	e = eventfulNewton(t, dp.ZeroOut, false)
	for range e.plan.Search + 1 {
		e.Add(0, nil)
	}
	if _, err := e.Close(dptest.Zero()); err == nil {
		t.Error("no error for a step with more records than slots")
	}
}

// TestNewtonAddAllocates checks that Add allocates nothing in searches, in steps, and where blocks of the matrix end.
func TestNewtonAddAllocates(t *testing.T) {
	e := eventfulNewton(t, dp.Replace, false)
	log := eventful(false)
	for range 4 {
		slot, _ := e.Range(e.step + 1)
		estimatortest.Allocates(t, e, slot, []float64{0.3, 0.2, 40}, nil)
		if err := e.UnmarshalBinary(estimatortest.State(t, e)); err != nil {
			t.Fatal(err)
		}
		e.feed(t, log, dptest.Zero())
	}
}

// TestNewtonEarlyIntervals checks that there are no intervals in the first 30 steps of the stream or after a hard
// restart, because parts then scatter less than their errors. Later there must be intervals.
func TestNewtonEarlyIntervals(t *testing.T) {
	t.Parallel()
	const d = 4
	l := newLinear(3, d, 1)
	s := newOnline(t, d, 8, dp.Params{Epsilon: 4, Delta: 1e-6, Adjacency: dp.ZeroOut}, 3)
	since, restarts, scale := 0, 0.0, 1.0
	for range 250 {
		r := s.next(t, func(x []float64) float64 { return scale * l.draw(x) })
		since++
		if now := value(r, "restarts")[0]; now > restarts {
			since, restarts = 0, now
		}
		if got, want := value(r, "interval_low") != nil, since >= UsefulSteps; got != want {
			t.Fatalf("step %v, %d steps since a restart: intervals %v, want %v", value(r, "iteration"),
				since, got, want)
		}
		if value(r, "iteration")[0] == 130 {
			scale = 1000
		}
	}
	if restarts == 0 {
		t.Error("no restart")
	}
}

// TestNewtonCoverage counts how often intervals contain the true coefficients, under two conditions. Noise that cancels
// between parts makes intervals wider than necessary. The bound is 4.5 deviations, estimated from the runs, below 95 %.
func TestNewtonCoverage(t *testing.T) {
	t.Parallel()
	runs := uint64(8)
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 150
	}
	const d, records = 10, 50000
	for _, c := range []struct {
		condition float64
		intercept bool // features and target are far from 0
	}{{1, false}, {64, false}, {64, true}} {
		var covered, squares, width float64
		for run := range runs {
			l := conditioned(run, d, c.condition)
			s := newOnline(t, d, 8, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}, run)
			draw, want, deviations := l.draw, slices.Clone(l.w), slices.Clone(l.deviation)
			if c.intercept {
				s.e = mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: 12},
					dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
				constant := 5.0
				for j := range d {
					constant -= l.w[j] * 1.5
				}
				want, deviations = append(want, constant), append(deviations, 1)
				draw = func(x []float64) float64 {
					y := l.draw(x) + 5
					for j := range x {
						x[j] += 1.5
					}
					return y
				}
			}
			r := s.until(t, records, draw)
			low, high := value(r, "interval_low"), value(r, "interval_high")
			if low == nil {
				t.Fatalf("run %d has no intervals", run)
			}
			here, n := 0.0, float64(len(want))
			for j, w := range want {
				if w >= low[j] && w <= high[j] {
					here += 1 / n
				}
				width += (high[j] - low[j]) * deviations[j] / n / float64(runs)
			}
			covered += here / float64(runs)
			squares += here * here / float64(runs)
		}
		deviation := math.Sqrt(max(squares-covered*covered, 0) / float64(runs))
		t.Logf("%+v, %d runs: intervals of level 0.95 cover %.3f ± %.3f, width %.4f", c, runs, covered,
			deviation, width)
		if covered < 0.95-4.5*deviation {
			t.Errorf("%+v: intervals of level 0.95 cover %.3f", c, covered)
		}
	}
}
