package refit

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/vector"
)

// auditKeys returns the keys of an audit, which are the same in every run of the tests.
func auditKeys(b byte) *audit.Keys { return audit.NewKeys([32]byte{0x5e, b}) }

// describe returns the public numbers about the noise of a refit.
func describe(t testing.TB, r *Refit) *audit.Subject {
	t.Helper()
	s, err := describedWindows(r).Subject()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func describedWindows(r *Refit) audit.Windows {
	noise := r.plan.Multiplier
	switch r.plan.Solver {
	case "dp-gd-residual", "ihm", "linmix":
		noise = r.plan.Sigma
	}
	return audit.Windows{
		Mechanism: r, Mu: r.Cost().Mu, Adjacency: r.params.Adjacency, Bits: r.params.Bits(), Features: r.plan.Features,
		Centred: *r.cfg.Intercept,
		Solver:  r.plan.Solver, Budget: r.plan.Mu, Noise: noise, Test: r.plan.Test, Rows: r.plan.Rows,
		Gamma: r.plan.Gamma, Radius: r.plan.Radius, Course: r.Course,
	}
}

// extremesOf returns the pairs of records whose cost is known.
func extremesOf(r *Refit, w audit.Windows) []audit.Extreme {
	c, p := &r.cfg, &r.plan
	return w.Extremes(audit.Target{
		Columns: len(c.Columns), Target: len(c.Columns) - 1, ClipX: c.ClipX, ClipY: c.ClipY, Residual: p.ResidualClip,
		Iterations: p.Iterations, Tau: p.Tau, Debias: c.Debias, Pool: c.Pool, Slots: int(c.Window),
	})
}

// pairsFor returns neighbouring records (x, y) of d features and the target for an audit: every kind of row, with
// targets inside the bound, at it, and beyond it.
func pairsFor(d int, a dp.Adjacency) []audit.Pair {
	var all []audit.Pair
	with := func(x []float64, y float64) []float64 {
		if len(x) != d {
			return x // an invalid record, or one of another length
		}
		return append(append([]float64(nil), x...), y)
	}
	for i, p := range audit.Pairs(1, d, a) {
		for k, y := range []float64{1, -1, 0.02, 30} {
			if (i+k)%2 == 0 {
				other := []float64{-y, y, 0.4}[(i+k)%3]
				if a == dp.ZeroOut {
					other = 0
				}
				all = append(all, audit.Pair{X: with(p.X, y), Y: with(p.Y, other)})
			}
		}
	}
	if a == dp.Replace && d == 2 {
		// Add pairs of rows: orthogonal ones for the Gram matrix, opposite ones where the second feature matters most,
		// and rows in different bins.
		for _, y := range []float64{1, -1} {
			all = append(all, audit.Pair{X: []float64{0.7, 0.7, y}, Y: []float64{0.45, -0.45, y}})
		}
	}
	return all
}

// auditWindow returns a window's records for audits: some are null, some are clipped.
func auditWindow(n, d int, seed uint64) [][]float64 {
	source := rand.New(rand.NewPCG(seed, 9))
	rows := make([][]float64, n)
	for i := range rows {
		if i%9 == 4 {
			continue
		}
		row := make([]float64, d+1)
		for j := range d {
			row[j] = 0.5 * source.NormFloat64() / math.Sqrt(float64(d))
			if j == 1 {
				row[j] /= 30
			}
			row[d] += row[j] * float64(1-j)
		}
		row[d] += 0.1 * source.NormFloat64()
		rows[i] = row
	}
	return rows
}

func auditRefit(t *testing.T, solver string, d, window int, intercept bool, p dp.Params) *Refit {
	t.Helper()
	c := Config{Solver: solver, Target: "y", ClipX: 1, ClipY: 1, Window: uint64(window), Intercept: &intercept}
	for j := range d {
		c.Columns = append(c.Columns, fmt.Sprint("x", j))
	}
	c.Columns = append(c.Columns, "y")
	return mustRefit(t, c, p)
}

// TestCoupling is the replayed-transcript audit of the solvers whose noise is all additive. For every pair of
// neighbouring windows there must be noise, at most μ away, with which the neighbour releases the same bits. Under
// zero-out the worst pair, a row that is clipped everywhere, must reach μ. Under replace different releases have
// different worst pairs.
func TestCoupling(t *testing.T) {
	t.Parallel()
	for _, solver := range []string{"newton", "adassp", "dp-gd-residual", "dp-gd"} {
		for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, mu := range []float64{0.8, 4} {
				t.Run(fmt.Sprintf("%s/%s/%g", solver, a, mu), func(t *testing.T) {
					t.Parallel()
					const d = 2
					n := 60
					if mu > 1 && solver == "newton" {
						n = 800 // so that directions are whitened differently
					}
					r := auditRefit(t, solver, d, n, false, dp.Params{Mu: mu, Adjacency: a})
					subject, keys := describe(t, r), auditKeys(byte(a))
					base := audit.Stream{auditWindow(n, d, 1), auditWindow(n/2, d, 2)}
					top := 0.0
					for _, p := range pairsFor(d, a) {
						distance, err := subject.Coupling(base.Replace(0, 7, p.X), base.Replace(0, 7, p.Y), keys)
						if err != nil {
							t.Fatalf("%v and %v: %v", p.X, p.Y, err)
						}
						top = max(top, distance/subject.Mu)
						if !(distance <= subject.Mu*(1+1e-9)) {
							t.Errorf("%v and %v are %.9g of μ apart", p.X, p.Y, distance/subject.Mu)
						}
					}
					least := 0.999
					if solver == "dp-gd" { // curvature, gradients and counts of dp-gd have different worst pairs
						least = 0.92
					}
					if a == dp.Replace {
						least = map[string]float64{"newton": 0.93, "adassp": 0.87, "dp-gd-residual": 0.99,
							"dp-gd": 0.92}[solver]
					}
					if a == dp.Replace && n == 800 {
						least = 0.95
					}
					if top < least {
						t.Errorf("the worst pair is %.6f of μ apart", top)
					}
					t.Logf("the worst pair is %.6f of μ apart", top)
				})
			}
		}
	}
}

// exactCount is a newton with a fault: the noise of its histogram adds up to 0. So n̂ reveals the exact number of
// records.
type exactCount struct{ *Refit }

func (m exactCount) Close(n dp.Noise) (*dp.Release, error) {
	return m.Refit.Close(noiseFunc(func(array string, hidden []int64) dp.Row {
		row := n.Row(array, hidden)
		if array != "newton/hist" {
			return row
		}
		z := make([]float64, len(hidden))
		last := len(z) - 1
		for j := range last {
			z[j] = row.At(j)
			z[last] -= z[j]
		}
		return fixedRow{z: z}
	}))
}

// TestExactCountMutant checks that the audit finds exactCount, with and without an intercept. A record and its absence
// reveal the fault. Two different records do not, because both are counted.
func TestExactCountMutant(t *testing.T) {
	t.Parallel()
	const d, n = 2, 400
	for _, intercept := range []bool{false, true} {
		for _, name := range []string{"none", "n̂ from the exact count"} {
			r := auditRefit(t, "newton", d, n, intercept, dp.Params{Mu: 4, Adjacency: dp.Replace})
			w := describedWindows(r)
			if name != "none" {
				w.Mechanism = exactCount{r}
			}
			s, err := w.Subject()
			if err != nil {
				t.Fatal(err)
			}
			base, keys := audit.Stream{auditWindow(n, d, 1)}, auditKeys(5)
			record := []float64{0.3, 0.2, 1}
			_, apart := s.Coupling(base.Replace(0, 7, record), base.Replace(0, 7, nil), keys)
			_, alike := s.Coupling(base.Replace(0, 7, record), base.Replace(0, 7, []float64{-0.3, 0.2, -1}), keys)
			t.Logf("intercept %t, %s: a record and none: %v; two records: %v", intercept, name, apart, alike)
			if (apart == nil) != (name == "none") || alike != nil {
				t.Errorf("intercept %t, %s: a record and none: %v; two records: %v", intercept, name, apart, alike)
			}
		}
	}
}

// TestSketchCoupling is the replayed-transcript audit of ihm and linmix. The neighbour gets moved additive noise, and
// draws that give it the same squares of sketches. Then both releases must be equal. The additive noise must be at most
// μ away. If the noise of a row comes only from η² = γ, a sketch reveals 1/γ, which is the maximum.
func TestSketchCoupling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"ihm":              {Solver: "ihm"},
		"ihm, test":        {Solver: "ihm", EigenTest: true, Debias: true},
		"ihm, pooled":      {Solver: "ihm", Debias: true, Pool: true, Accounting: RDP},
		"ihm, radius":      {Solver: "ihm", Radius: 2},
		"linmix":           {Solver: "linmix"},
		"linmix, paper":    {Solver: "linmix", Accounting: Paper},
		"ihm, constant":    {Solver: "ihm", Intercept: new(bool)},
		"linmix, constant": {Solver: "linmix", Intercept: new(bool)},
	} {
		for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			if a == dp.Replace && c.accounting() == Paper {
				continue
			}
			const d, n = 2, 60
			intercept := c.Intercept != nil
			c := c
			c.Intercept = &intercept
			c.Target, c.ClipX, c.ClipY, c.Window, c.Columns = "y", 1, 1, n, []string{"x0", "x1", "y"}
			r := mustRefit(t, c, dp.Params{Epsilon: 6, Delta: 1e-6, Adjacency: a})
			subject, keys := describe(t, r), auditKeys(byte(a))
			suite := audit.Suite{
				Configured: subject, Clip: 1, Adjacency: a, Keys: keys, SketchRows: r.Cost().Rows, Quick: true,
				Others: pairsFor(d, a), Steps: []int{1}, Extremes: extremesOf(r, describedWindows(r)),
			}
			found, err := suite.Run()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				if !f.Passed {
					t.Errorf("%s, %s: %s: %s", name, a, f.What, f.Fault)
				}
				t.Logf("%s, %s: %s: %.6f", name, a, f.What, f.Statistic)
			}
		}
	}
}

// TestShift is the audit of newton under fresh keys. Two windows differ in one record. Given earlier releases, the log
// likelihood ratio of a release equals that of two Gaussians m apart: N(m²/2, m²) for one window and N(−m²/2, m²) for
// the other. Over all releases Σm² is at most μ². So no test of the releases tells the windows apart better than two
// Gaussians μ apart. If the record is clipped in every release of one window and absent in the other, the windows are μ
// apart in every run. There are 200 runs for each window, or 400 with STREAMDP_SLOW=1.
func TestShift(t *testing.T) {
	t.Parallel()
	const d, n, mu = 2, 40, 4
	runs := 200
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 400
	}
	for a, pair := range map[dp.Adjacency][2][]float64{
		dp.ZeroOut: {{1, 0, -1}, nil},
		dp.Replace: {{1, 0, -1}, {0.45, -0.45, 1}},
	} {
		r := auditRefit(t, "newton", d, n, false, dp.Params{Mu: mu, Adjacency: a})
		subject := describe(t, r)
		var windows [2][][]float64
		for side := range windows { // each window has small rows with y = x₀, and the record that differs
			windows[side] = auditWindow(n, d, 3)
			for _, row := range windows[side] {
				for j := range row {
					row[j] *= 0.3
				}
			}
			windows[side][7] = pair[side]
		}
		for side := range windows {
			var releases, totals []float64
			for run := range runs {
				epoch, err := dp.NewEpoch(&[32]byte{7}, &[32]byte{byte(side + 1), byte(a - dp.ZeroOut)}, "audit",
					uint64(run+1), [16]byte{}, [32]byte{})
				if err != nil {
					t.Fatal(err)
				}
				h := dp.NewTranscript([32]byte{1})
				first := &witness{noise: epoch.Step(1, &h), subject: subject}
				mine := closeWindow(t, r, windows[side], first)
				second := &replay{first: first.rows, subject: subject}
				other := closeWindow(t, r, windows[1-side], second)
				if second.fault != nil || !equalValues(mine, other) {
					t.Fatalf("%s, run %d: the transcript can't be replayed: %v", a, run, second.fault)
				}
				if d := math.Sqrt(second.square) / mu; d > 1+1e-9 || a == dp.ZeroOut && d < 0.98 {
					t.Fatalf("%s, run %d: the windows are %.6f of μ apart", a, run, d)
				}
				releases, totals = append(releases, second.z...),
					append(totals, second.product/math.Sqrt(second.square))
			}
			if a == dp.Replace {
				totals = nil // not comparable, because the distances differ
			}
			for what, z := range map[string][]float64{"a release": releases, "all releases": totals} {
				if z == nil {
					continue
				}
				if err := errors.Join(stattest.Variance(z, stattest.Alpha/2),
					stattest.Mean(z, 0, 1, stattest.Alpha/2)); err != nil {
					t.Errorf("%s, side %d: log likelihood ratio of %s: %v", a, side, what, err)
				}
			}
			t.Logf("%s, side %d: %d runs, %d releases that differ", a, side, runs, len(releases))
		}
	}
}

func equalValues(a, b *dp.Release) bool {
	for i, v := range a.Values {
		for j, x := range v.Data {
			if x != b.Values[i].Data[j] {
				return false
			}
		}
	}
	return len(a.Values) > 0 && len(a.Values) == len(b.Values)
}

// witness returns the noise of another source, moved to the middle of the interval that rounds to the same integers. It
// records that noise and the integers that the noise hides.
type witness struct {
	noise   dp.Noise
	subject *audit.Subject
	rows    []witnessed
}

type witnessed struct {
	array  string
	hidden []int64
	z      []float64
}

func (w *witness) Row(array string, hidden []int64) dp.Row {
	z := make([]float64, len(hidden))
	w.noise.Row(array, hidden).Fill(z)
	desc, _ := w.subject.Array(array, 1)
	for j := range z {
		sd := desc.Deviations[min(j, len(desc.Deviations)-1)]
		z[j] = math.Floor(sd*z[j]+0.5) / sd
	}
	w.rows = append(w.rows, witnessed{array, append([]int64(nil), hidden...), z})
	return fixedRow{z: z}
}

// replay is the noise under which a neighbour releases the same as the first window: the integers of the first noise,
// moved by the difference of the rows.
type replay struct {
	first           []witnessed
	subject         *audit.Subject
	square, product float64   // sums of squared moves, and of products of moves and draws, in standard deviations
	z               []float64 // for each release that moved: product divided by the root of square
	fault           error
}

func (r *replay) Row(array string, hidden []int64) dp.Row {
	if len(r.first) == 0 || r.first[0].array != array {
		r.fault = fmt.Errorf("array %s is opened out of turn", array)
		return zeroNoise{}
	}
	before := r.first[0]
	r.first = r.first[1:]
	desc, _ := r.subject.Array(array, 1)
	z := make([]float64, len(hidden))
	var square, product float64
	for j, k := range hidden {
		sd := desc.Deviations[min(j, len(desc.Deviations)-1)]
		moved := float64(before.hidden[j]-k) / sd
		square += moved * moved
		product += moved * before.z[j]
		z[j] = before.z[j] + moved
	}
	if square > 0 {
		r.z = append(r.z, product/math.Sqrt(square))
	}
	r.square += square
	r.product += product
	return fixedRow{z: z}
}

// fixedRow is a noise row of given numbers.
type fixedRow struct {
	zeroNoise
	z []float64
}

func (f fixedRow) At(j int) float64   { return f.z[j] }
func (f fixedRow) Fill(dst []float64) { copy(dst, f.z) }

// sketchUnder is a sketch of a window under audit. Its rows are N(0, Σ) with the claimed Σ; along draws them.
type sketchUnder struct {
	covariance *mat.SymDense
	along      func(v []float64, row dp.Row) (sum float64, rows int)
}

func (s sketchUnder) Covariance() *mat.SymDense { return s.covariance }

func (s sketchUnder) Along(v []float64, run uint64) (float64, int, error) {
	e, err := dp.NewEpoch(&[32]byte{9}, &[32]byte{8}, "audit", run+1, [16]byte{}, [32]byte{})
	if err != nil {
		return 0, 0, err
	}
	h := dp.NewTranscript([32]byte{2})
	sum, rows := s.along(v, e.Step(1, &h).Row("sketch", nil))
	return sum, rows, nil
}

// lonely returns a window in which a single record has a direction in which the others barely vary. A sketch reveals
// this record most.
func lonely() *Data {
	w := window(50, 3, 11)
	for i := range w.Len() {
		w.row(i)[2] /= 40
	}
	copy(w.row(4), []float64{0, 0, 1})
	return w
}

// auditSketches returns the report on sketches of a window with and without the record that they reveal most. build
// makes the sketches of each window.
func auditSketches(t *testing.T, w *Data, gamma, eta2 float64, build func(w *Data) sketchUnder) *audit.SketchReport {
	t.Helper()
	record, _, err := audit.Leverage(mat.NewDense(w.Len(), w.dim, append([]float64(nil), w.x...)), eta2)
	if err != nil {
		t.Fatal(err)
	}
	neighbour := w.clone()
	clear(neighbour.row(record))
	r, err := audit.Sketches(build(w), build(neighbour), gamma, 20, stattest.Alpha)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const auditGamma, auditRows = 5, 200

// dense is Gaussian mixing at η². With drawn, its square is drawn as a Wishart matrix.
func dense(eta2 float64, drawn bool) func(w *Data) sketchUnder {
	return func(w *Data) sketchUnder {
		d := w.dim
		upper := sumsOf(w).gram()
		s := sketchUnder{covariance: mat.NewSymDense(d, full(upper, d, eta2))}
		s.along = func(v []float64, row dp.Row) (sum float64, rows int) {
			if drawn {
				l := full(upper, d, eta2)
				cholesky(l, d)
				total := make([]float64, d*d)
				drawWishart(l, d, auditRows, row).add(total, d)
				for i := range v {
					sum += v[i] * vector.Dot2(total[i*d:][:d], v)
				}
				return sum, auditRows
			}
			mixed := gaussianMix(w, auditRows, math.Sqrt(eta2), row)
			for i := range auditRows {
				p := vector.Dot2(mixed[i*d:][:d], v)
				sum += p * p
			}
			return sum, auditRows
		}
		return s
	}
}

// fast is FastMix at η̃², with fixed released levels.
func fast(transform *srht, eta2 float64) func(w *Data) sketchUnder {
	return func(w *Data) sketchUnder {
		z, _ := transform.apply(w.x, w.dim)
		return dense(eta2, true)(&Data{dim: w.dim, x: z, y: make([]float64, len(transform.rows))})
	}
}

// fastBound is the γ of a dense row that is as private as a FastMix row at γ. It follows from the larger of the two
// eigenvalues by which the covariance may shrink.
func fastBound(gamma float64) float64 { return 2 * gamma / (1 + math.Sqrt2) }

// TestSketches audits Gaussian mixing, the square of IHM's sketch, and FastMix at γ = 5.
func TestSketches(t *testing.T) {
	t.Parallel()
	w := lonely()
	eta2 := auditGamma - leastEigenvalue(sumsOf(w).gram(), 3)
	for _, drawn := range []bool{false, true} {
		r := auditSketches(t, w, auditGamma, eta2, dense(eta2, drawn))
		if err := r.Err(); err != nil {
			t.Errorf("drawn %t: %v", drawn, err)
		}
		if math.Abs(r.Claimed-(1-1./auditGamma)) > 0.01 || r.Finds > 2.05 {
			t.Errorf("the claim for the record is %.4f, but the audit finds only %.3f/γ", r.Claimed, r.Finds)
		}
	}
	x, transform, levels := distorted(t)
	r := auditSketches(t, x, fastBound(auditGamma), levels.square, fast(transform, levels.square))
	if err := r.Err(); err != nil {
		t.Errorf("FastMix: %v", err)
	}
}

// distorted returns a window of one feature and a transform of it to few rows, with the noise that the transform
// requires. Out of a thousand transforms, it is the one in which a record matters most compared with its effect on XᵀX.
func distorted(t *testing.T) (w *Data, transform *srht, levels fastLevels) {
	t.Helper()
	w = NewData(1, 50)
	for i := range 50 {
		w.Add([]float64{0.3 * math.Cos(float64(i))}, 0)
	}
	w.row(4)[0] = 1
	least := 1.0
	for seed := range uint64(1000) {
		s := drawSRHT(50, 3, newQuick(seed))
		z, m := s.apply(w.x, 1)
		square := gramOf(z, 1)[0]
		neighbour := w.clone()
		clear(neighbour.row(4))
		z, _ = s.apply(neighbour.x, 1)
		if ratio := (gramOf(z, 1)[0] + max(0, auditGamma-square)) / max(auditGamma, square); ratio < least {
			n := fastNoise{Gamma: auditGamma}
			l, err := n.levels(m, s.coherence(), square,
				func(_ string, x, _ float64) (float64, error) { return x, nil })
			if err != nil {
				t.Fatal(err)
			}
			least, transform, levels = ratio, s, l
		}
	}
	return w, transform, levels
}

// TestSketchMutants checks that the audit of sketches finds four faults: noise calibrated below γ, wrong units where a
// sketch has no noise, η² scaled by a norm bound twice, and a missing coherence.
func TestSketchMutants(t *testing.T) {
	t.Parallel()
	w := lonely()
	lambda := leastEigenvalue(sumsOf(w).gram(), 3)
	eta2 := auditGamma - lambda
	x, transform, levels := distorted(t)
	z, m := transform.apply(x.x, 1)
	without := max(0, auditGamma-gramOf(z, 1)[0]) // C² = 1 + 2m̂, mistaken for 1
	// The fault compares λ̃ with γ without C² = 2. So a sketch has no noise already at half of γ; this window has
	// exactly that.
	half := auditGamma/2. - lambda
	for name, r := range map[string]*audit.SketchReport{
		"γ below what is required": auditSketches(t, w, auditGamma, eta2-auditGamma/2.,
			dense(eta2-auditGamma/2., true)),
		"dynamic k without the norm bound": auditSketches(t, w, auditGamma, half, dense(half, true)),
		// For a bound of ½ on rows this is η̃·½, although η̃ contains the bound already.
		"η² scaled twice":    auditSketches(t, w, auditGamma, eta2/4, dense(eta2/4, false)),
		"coherence left out": auditSketches(t, x, fastBound(auditGamma), without, fast(transform, without)),
	} {
		if r.Ratio <= r.High {
			t.Errorf("%s: ratio %.4f, must be above %.4f to be found; the rows' claim is %.4f", name, r.Ratio, r.High,
				1/r.Claimed)
		}
		t.Logf("%s: ratio %.4f of at most %.4f", name, r.Ratio, r.High)
	}
	t.Logf("coherence left out: m̂ = %.3f, η² = %.3f for %.3f", m, without, levels.square)
}

// TestSketchCouplingMutants checks that the replayed-transcript audit finds these faults: sketches below γ, a row that
// is not charged, gradients with less noise, and a test without a margin. The audit knows only the plan, so it must
// also find noise, γ or a test that is a tenth below what the plan states.
func TestSketchCouplingMutants(t *testing.T) {
	t.Parallel()
	understated := func(mutate func(w *audit.Windows)) func(r *Refit, w *audit.Windows) {
		return func(r *Refit, w *audit.Windows) {
			mutate(w)
			switch s := r.solver.(type) {
			case *ihmSolver:
				s.noise.Sigma, s.noise.Test = w.Noise, w.Test
			case *mixingSolver:
				s.noise.Test = w.Test
			case *descentSolver:
				s.sigma = w.Noise
			}
		}
	}
	ihm := func(mutate func(s *ihmSolver)) func(r *Refit, w *audit.Windows) {
		return func(r *Refit, _ *audit.Windows) { mutate(r.solver.(*ihmSolver)) }
	}
	for _, m := range []struct {
		name   string
		config Config
		mutate func(r *Refit, w *audit.Windows)
		sound  bool
	}{
		{name: "γ below what is required", mutate: ihm(func(s *ihmSolver) { s.noise.Gamma *= 0.9 })},
		{name: "a row more", mutate: ihm(func(s *ihmSolver) { s.rows++ })},
		{name: "an iteration more", mutate: ihm(func(s *ihmSolver) { s.iterations++ })},
		{name: "less noise of gradients", mutate: ihm(func(s *ihmSolver) { s.noise.Sigma *= 0.99 })},
		{name: "no margin of the test", config: Config{EigenTest: true},
			mutate: ihm(func(s *ihmSolver) { s.noise.Tau = -20 })},

		{name: "none, ihm", mutate: understated(func(*audit.Windows) {}), sound: true},
		{name: "noise of ihm", mutate: understated(func(w *audit.Windows) { w.Noise /= 1.1 })},
		{name: "more noise of ihm than is charged", mutate: understated(func(w *audit.Windows) { w.Noise *= 1.1 })},
		{name: "none, ihm with a radius", config: Config{Radius: 2}, mutate: understated(func(*audit.Windows) {}),
			sound: true},
		{name: "noise of ihm with a radius", config: Config{Radius: 2},
			mutate: understated(func(w *audit.Windows) { w.Noise /= 1.1 })},
		{name: "none, ihm with a test", config: Config{EigenTest: true}, mutate: understated(func(*audit.Windows) {}),
			sound: true},
		{name: "noise of ihm with a test", config: Config{EigenTest: true},
			mutate: understated(func(w *audit.Windows) { w.Noise /= 1.1 })},
		{name: "none, linmix", config: Config{Solver: "linmix"}, mutate: understated(func(*audit.Windows) {}),
			sound: true},
		{name: "test of linmix", config: Config{Solver: "linmix"},
			mutate: understated(func(w *audit.Windows) { w.Test /= 1.1 })},
		{name: "γ of linmix", config: Config{Solver: "linmix"},
			mutate: func(r *Refit, _ *audit.Windows) { r.solver.(*mixingSolver).noise.Gamma /= 1.1 }},
		{name: "none, gradients", config: Config{Solver: "dp-gd-residual"},
			mutate: understated(func(*audit.Windows) {}), sound: true},
		{name: "noise of gradients", config: Config{Solver: "dp-gd-residual"},
			mutate: understated(func(w *audit.Windows) { w.Noise /= 1.1 })},
	} {
		for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, intercept := range []bool{false, true} {
				c := m.config
				if c.Solver == "" {
					c.Solver = "ihm"
				}
				c.Target, c.ClipX, c.ClipY, c.Window, c.Columns, c.Intercept = "y", 1, 1, 60,
					[]string{"x0", "x1", "y"}, &intercept
				r := mustRefit(t, c, dp.Params{Epsilon: 6, Delta: 1e-6, Adjacency: a})
				w := describedWindows(r)
				m.mutate(r, &w)
				subject, err := w.Subject()
				if err != nil {
					t.Fatal(err)
				}
				suite := audit.Suite{
					Configured: subject, Clip: 1, Adjacency: a, Keys: auditKeys(3), SketchRows: r.Cost().Rows,
					Quick:  true,
					Others: pairsFor(2, a)[:3], Extremes: extremesOf(r, w),
				}
				found, err := suite.Run()
				if err != nil {
					t.Fatal(err)
				}
				var faults []string
				for _, f := range found {
					if !f.Passed {
						faults = append(faults, f.Audit+": "+f.Fault)
					}
				}
				if m.sound != (len(faults) == 0) || len(suite.Extremes) == 0 {
					t.Errorf("%s, %s, intercept %t: %v", m.name, a, intercept, faults)
				}
				t.Logf("%s, %s, intercept %t: %s", m.name, a, intercept, strings.Join(faults, "; "))
			}
		}
	}
}
