package dp_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/moments"
)

// This file applies the audits of internal/audit to the one mechanism that uses all of this package, and to mutants of
// it with the faults that published implementations had. If an audit misses a mutant, its success for the original
// proves nothing.

// auditKeys returns fixed keys, because a test must give the same result in every run.
func auditKeys(seed byte) *audit.Keys { return audit.NewKeys([32]byte{0xa, seed}) }

func estimator(t *testing.T, c moments.Config, p dp.Params) (*moments.Estimator, moments.Plan) {
	t.Helper()
	e, err := moments.New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return e, e.Plan()
}

// joint describes a mechanism with the given plan to the audits.
func joint(t *testing.T, m audit.Mechanism, c moments.Config, p moments.Plan) *audit.Subject {
	t.Helper()
	w := matfact.Workload{Kind: c.Workload, Decay: c.Decay, Window: c.Window}
	matrix, err := audit.Stored(p.Factorization, w, c.Horizon)
	if err != nil {
		t.Fatal(err)
	}
	d := audit.Moments{
		Mechanism: m, Mu: p.Mu, Method: "jme", Workload: w, C: matrix, Clip: p.Clip, First: p.First,
		Diagonal: p.Diagonal, OffDiagonal: p.OffDiagonal,
		Exp: p.Lattice.Exp, SecondExp: p.SecondExp,
	}
	if _, original := m.(*moments.Estimator); original { // a mutant does not count rows
		d.Full, d.FullExp = p.Full, p.FullExp
	}
	return d.Subject()
}

// TestAuditOriginal runs all audits on the estimator itself, for every way to correlate its noise.
func TestAuditOriginal(t *testing.T) {
	t.Parallel()
	for i, kind := range []string{"identity", "sqrt", "blt", "phased"} {
		for k, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			t.Run(fmt.Sprintf("%s/%s", kind, adjacency), func(t *testing.T) {
				begun := time.Now()
				c := moments.Config{Clip: 1.7, Columns: dptest.Columns(3), Step: 5, Factorization: kind,
					Horizon: 64, Nu: 0.8,
					Workload: []string{"mean", "exponential", "window", "sum"}[(i+k)%4]}
				switch c.Workload {
				case "exponential":
					c.Decay = 0.9
				case "window":
					c.Window = 5
				}
				e, plan := estimator(t, c, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: adjacency})
				loud, loudPlan := estimator(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
				worst := audit.JointWorst(plan.Nu, plan.Clip, 3, adjacency)
				if adjacency == dp.ZeroOut {
					worst.Y = nil
				}
				found, err := (&audit.Suite{
					Configured: joint(t, e, c, plan), Loud: joint(t, loud, c, loudPlan), Clip: plan.Clip,
					Adjacency: adjacency,
					Worst:     []audit.Pair{worst}, Others: audit.NullPairs(plan.Clip, 3, adjacency), Horizon: 64,
					Keys: auditKeys(byte(2*i + k)), Quick: true,
				}).Run()
				if err != nil {
					t.Fatal(err)
				}
				if len(found) != 8 {
					t.Errorf("%d audits, want 8", len(found))
				}
				draws := 0
				for _, f := range found {
					draws += f.Draws
					if !f.Passed {
						t.Errorf("%s, %s: %s", f.Audit, f.What, f.Fault)
					}
				}
				t.Logf("passes %d audits: %d draws, %v", len(found), draws, time.Since(begun).Round(time.Millisecond))
			})
		}
	}
}

// mutable is an independent implementation of joint moment estimation into which faults can be planted. Without a fault
// its releases equal the estimator's, to the last bit.
type mutable struct {
	columns, steps int
	lattice        dp.Lattice
	secondExp      int
	sd             [2][]float64 // standard deviations of both arrays, in lattice units
	shaper         [2]func() matfact.Shaper
	reuse          func(array int, step uint64) (int, uint64) // the array and step whose draws are used

	step, records uint64
	open          [2][]int64 // sums of the open step
	total         [2][]float64
	shapers       [2]matfact.Shaper
	drawn         map[string][]float64
}

func newMutable(t *testing.T, columns, steps int, p moments.Plan) *mutable {
	t.Helper()
	f, err := matfact.New(matfact.Config{Kind: "sqrt", Horizon: uint64(steps)}, matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	m := &mutable{columns: columns, steps: steps, lattice: p.Lattice, secondExp: p.SecondExp}
	m.sd[0] = []float64{math.Ldexp(p.First, -p.Lattice.Exp)}
	for i := range columns {
		for j := i; j < columns; j++ {
			sd := p.OffDiagonal
			if i == j {
				sd = p.Diagonal
			}
			m.sd[1] = append(m.sd[1], math.Ldexp(sd, -p.SecondExp))
		}
	}
	for a, dim := range []int{columns, columns * (columns + 1) / 2} {
		m.shaper[a] = func() matfact.Shaper { return f.NewShaper(dim) }
	}
	m.UnmarshalBinary(nil)
	return m
}

func (m *mutable) Columns() int                          { return m.columns }
func (m *mutable) Range(t uint64) (first, end uint64)    { return t - 1, t }
func (m *mutable) AppendBinary(b []byte) ([]byte, error) { return b, nil }

// UnmarshalBinary resets the mechanism to the start, the only state that is ever restored.
func (m *mutable) UnmarshalBinary([]byte) error {
	m.step, m.records, m.drawn = 0, 0, map[string][]float64{}
	for a := range m.open {
		m.shapers[a] = m.shaper[a]()
		n := m.columns
		if a == 1 {
			n = m.columns * (m.columns + 1) / 2
		}
		m.open[a], m.total[a] = make([]int64, n), make([]float64, n)
	}
	return nil
}

func (m *mutable) Add(_ uint64, row []float64) {
	m.records++
	k := make([]int64, m.columns)
	if len(row) != m.columns || !m.lattice.Quantise(k, row) {
		return
	}
	shift := m.secondExp - 2*m.lattice.Exp
	n := 0
	for i, ki := range k {
		m.open[0][i] += ki
		for _, kj := range k[i:] {
			m.open[1][n] += (ki*kj + 1<<(shift-1)) >> shift
			n++
		}
	}
}

func (m *mutable) Close(n dp.Noise) (*dp.Release, error) {
	m.step++
	names, exps := [2]string{"jme/first", "jme/second"}, [2]int{m.lattice.Exp, m.secondExp}
	r := &dp.Release{Step: m.step, Rows: m.records}
	for a, hidden := range m.open {
		row := n.Row(names[a], hidden)
		w, s := make([]int64, len(hidden)), make([]float64, len(hidden))
		scale := m.shapers[a].Predict(s)
		if m.reuse == nil {
			dp.RoundRow(w, row, m.sd[a], s, scale)
		} else {
			z := make([]float64, len(hidden))
			row.Fill(z)
			m.drawn[fmt.Sprint(a, m.step)] = z
			other, step := m.reuse(a, m.step)
			old := m.drawn[fmt.Sprint(other, step)]
			for j := range w {
				w[j] = int64(math.Floor(scale*(m.sd[a][j%len(m.sd[a])]*old[j%len(old)]-s[j]) + 0.5))
			}
		}
		if tap, ok := m.shapers[a].(*shaperMutant); ok {
			tap.tap(row, m.sd[a])
		}
		m.shapers[a].Push(w)
		data := make([]float64, len(hidden))
		for j := range hidden {
			m.total[a][j] += float64(hidden[j] + w[j])
			data[j] = math.Ldexp(m.total[a][j], exps[a])
			hidden[j] = 0
		}
		r.Values = append(r.Values, dp.Value{Name: [2]string{"sum", "second_moment"}[a], Data: data})
	}
	m.records = 0
	return r, nil
}

// shaperMutant solves with given coefficients in float64, and can feed back the draws before they are rounded.
type shaperMutant struct {
	c         []float64
	dim       int
	unrounded bool

	past [][]float64
	z    []float64 // σZ of the open step
}

func (s *shaperMutant) tap(row dp.Row, sd []float64) {
	s.z = make([]float64, s.dim)
	row.Fill(s.z)
	for j := range s.z {
		s.z[j] *= sd[j%len(sd)]
	}
}

func (s *shaperMutant) Predict(dst []float64) float64 {
	clear(dst)
	for i, row := range s.past {
		for j := range dst {
			dst[j] += s.c[len(s.past)-i] * row[j]
		}
	}
	return 1
}

func (s *shaperMutant) Push(w []int64) {
	row := make([]float64, s.dim)
	if s.unrounded {
		s.Predict(row)
	}
	for j := range row {
		if s.unrounded {
			row[j] = s.z[j] - row[j]
		} else {
			row[j] = float64(w[j])
		}
	}
	s.past = append(s.past, row)
}

func (s *shaperMutant) AppendBinary(b []byte) ([]byte, error) { return b, nil }
func (s *shaperMutant) UnmarshalBinary([]byte) error          { return errors.New("not needed") }

// audited is the result of all audits of a mutant.
type audited struct {
	far                   float64 // the largest sensitivity, divided by μ
	finds                 float64 // the multiple of μ that A2 measures
	coupled, noise, law   error
	repeated, shift       error
	draws                 int
	sensitivity, spectrum time.Duration
}

// found lists the audits that found a fault, as text.
func (a audited) found() string {
	var all []string
	if a.far > 1+1e-9 || a.far < 0.999 {
		all = append(all, fmt.Sprintf("A0 sensitivity (%.4g μ)", a.far))
	}
	for _, f := range []struct {
		name string
		err  error
	}{{"A0 coupling", a.coupled}, {"A1 identity", a.noise}, {"A1 law", a.law}, {"A1 words", a.repeated},
		{"A2 shift", a.shift}} {
		if f.err != nil {
			all = append(all, f.name)
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// TestAuditMutants plants each fault into joint moment estimation, and the audits must find it. There are 16 steps of 3
// columns, clip norm 2, replacement, square root, μ = 4. The pairs are the suite's and, for replaced records at an
// angle, the worst pairs for too large weights of the second moment. A1 draws 18 000 Gaussians and A2 makes 700 runs
// for each of two streams: at level 10⁻⁹ they detect 5 % less noise and 1.25 times μ with probability 0.999.
func TestAuditMutants(t *testing.T) {
	t.Parallel()
	const steps, columns, clip, mu, runs = 16, 3, 2, 4, 700
	c := moments.Config{Clip: clip, Columns: dptest.Columns(columns), Step: 1, Workload: "sum", Factorization: "sqrt",
		Horizon: steps}
	e, plan := estimator(t, c, dp.Params{Mu: mu, Adjacency: dp.Replace})
	root, err := audit.KernelRoot(matfact.Workload{Kind: "sum"}, steps)
	if err != nil {
		t.Fatal(err)
	}
	inverse := make([]float64, steps) // coefficients of 1/root
	var norm float64
	for j := range inverse {
		norm = math.Hypot(norm, root[j])
		if j == 0 {
			inverse[0] = 1
		}
		for i := 1; i <= j; i++ {
			inverse[j] -= root[i] * inverse[j-i]
		}
	}
	less := func(all, second float64) func(*moments.Plan) {
		return func(p *moments.Plan) {
			p.First /= all
			p.Diagonal /= all * second
			p.OffDiagonal /= all * second
		}
	}
	shapers := func(m *mutable, c []float64, unrounded bool) {
		for a, dim := range []int{columns, columns * (columns + 1) / 2} {
			m.shaper[a] = func() matfact.Shaper { return &shaperMutant{c: c, dim: dim, unrounded: unrounded} }
		}
	}
	for i, m := range []struct {
		name  string
		plan  func(*moments.Plan) // changes the mutant's plan
		plant func(*mutable)      // changes the mutant in addition
		far   float64             // the sensitivity, divided by μ
		by    string              // the audits that must find the fault
	}{
		{"none", nil, nil, 1, ""},
		{"wrong factor 2", less(2, 1), nil, 2, "A0 A2"},
		// The noise is calibrated for zeroed records: 1 + ν instead of r(ν) = 4.
		{"zero-out noise under replacement", less(math.Sqrt(4/1.5), 1), nil, math.Sqrt(4 / 1.5), "A0 A2"},
		// The variance is used as the deviation. Here it is more than 1, so there is too much noise.
		{"σ² for σ", less(1/plan.First, 1), nil, 1 / plan.First, "A0"},
		// λ = 2/ζ² instead of 1/(2ζ²): r(2) = 6.25, but 4 is charged.
		{"λ upside down", less(1, 2), nil, 1.25, "A0 A2"},
		// λ = 1/2 instead of 1/(2ζ²) with ζ = 2: again r(2).
		{"missing ζ²", less(1, clip), nil, 1.25, "A0 A2"},
		// The last column of the square root has norm 1.
		{"last column norm instead of the largest", less(norm, 1), nil, norm, "A0 A2"},
		{"noise of a step reused for the next", nil, func(m *mutable) {
			m.reuse = func(a int, t uint64) (int, uint64) { return a, t - (t-1)%2 }
		}, 1, "coupling law identity"},
		{"noise of the rows reused for their squares", nil, func(m *mutable) {
			m.reuse = func(_ int, t uint64) (int, uint64) { return 0, t }
		}, 1, "coupling law identity"},
		{"C and C⁻¹ swapped", nil, func(m *mutable) { shapers(m, inverse, false) }, 1, "coupling law identity A2"},
		{"independent noise for a correlated budget", nil,
			func(m *mutable) { shapers(m, make([]float64, steps), false) }, 1, "coupling law identity"},
		{"unrounded feedback", nil, func(m *mutable) { shapers(m, root, true) }, 1, "identity"},
		// This fault is too small for any statistic. Only the test of equality finds it.
		{"a deviation smaller by 10⁻⁶", nil, func(m *mutable) { m.sd[0][0] *= 1 - 1e-6 }, 1, "coupling identity"},
	} {
		t.Run(m.name, func(t *testing.T) {
			p := plan
			if m.plan != nil {
				m.plan(&p)
			}
			mutant := newMutable(t, columns, steps, p)
			if m.plant != nil {
				m.plant(mutant)
			}
			s := joint(t, mutant, c, p)
			a := auditAll(t, s, plan.Clip, steps, runs, byte(i))
			if math.Abs(a.far-m.far) > 1e-3*m.far {
				t.Errorf("the sensitivity is %.6g μ, the fault costs %.6g", a.far, m.far)
			}
			for _, c := range []struct {
				name  string
				found bool
			}{
				{"A0", a.far > 1+1e-9 || a.far < 0.999}, {"coupling", a.coupled != nil}, {"identity", a.noise != nil},
				{"law", errors.Join(a.law, a.repeated) != nil}, {"A2", a.shift != nil},
			} {
				if must := strings.Contains(m.by, c.name); must && !c.found || m.by == "" && c.found {
					t.Errorf("%s: found = %v, want %v", c.name, c.found, must)
				}
			}
			if m.by == "" && a.finds > 1.25 {
				t.Errorf("A2 finds only %.4g times μ", a.finds)
			}
			t.Logf("%s: found by %s; %d draws, A0 %v, A1 and A2 %v", m.name, a.found(), a.draws,
				a.sensitivity.Round(time.Millisecond), a.spectrum.Round(time.Millisecond))
		})
	}
	// Without a fault, mutable equals the estimator.
	t.Run("the mutants' original is the estimator", func(t *testing.T) {
		same(t, joint(t, newMutable(t, columns, steps, plan), c, plan), joint(t, e, c, plan), steps)
	})
}

// auditAll runs all audits on a subject of 3 columns.
func auditAll(t *testing.T, s *audit.Subject, clip float64, steps, runs int, seed byte) (a audited) {
	t.Helper()
	keys := auditKeys(seed)
	base := auditRecords(steps)
	pairs := []audit.Pair{audit.JointWorst(0.5, clip, 3, dp.Replace), audit.JointWorst(1, clip, 3, dp.Replace),
		audit.JointWorst(2, clip, 3, dp.Replace)}
	begun := time.Now()
	var worst audit.Pair
	width := 9
	for _, p := range append(pairs, audit.Pairs(clip, 3, dp.Replace)...) {
		x, y := base.Replace(0, 0, p.X), base.Replace(0, 0, p.Y)
		distance, err := s.Sensitivity(x, y, keys)
		if err != nil {
			t.Fatal(err)
		}
		if distance /= s.Mu; distance > a.far {
			a.far, worst = distance, p
		}
		if _, err := s.Coupling(x, y, keys); a.coupled == nil {
			a.coupled = err
		}
		a.draws += 4 * steps * width
	}
	a.sensitivity = time.Since(begun)
	begun = time.Now()
	var n *audit.NoiseReport
	for n == nil || n.Draws < 18000 {
		r, err := s.NoiseUnder(base, keys)
		if err != nil {
			t.Fatal(err)
		}
		if n == nil {
			n = r
		} else {
			n.Add(r)
		}
	}
	a.draws += n.Draws
	a.noise, a.law, a.repeated = n.Identity, audit.Failed(n.Law(stattest.Alpha)), n.Repeated
	r, err := s.Shift(base.Replace(0, 0, worst.X), base.Replace(0, 0, worst.Y), keys, runs, stattest.Alpha)
	if err != nil {
		a.shift = err
	} else {
		a.shift = r.Err()
		a.finds = r.Finds
		a.draws += 2 * runs * steps * width
	}
	a.spectrum = time.Since(begun)
	return a
}

func auditRecords(steps int) audit.Stream {
	source := rand.New(rand.NewPCG(2, 2))
	x := make(audit.Stream, steps)
	for t := range x {
		x[t] = [][]float64{{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}}
	}
	return x
}

// same fails unless two mechanisms release the same numbers.
func same(t *testing.T, x, y *audit.Subject, steps int) {
	t.Helper()
	e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "same", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	var h [2]dp.Transcript
	for i, records := range auditRecords(steps) {
		var data [2][]float64
		for k, m := range []audit.Mechanism{x, y} {
			m.Add(uint64(i), records[0])
			r, err := m.Close(sums{e.Step(uint64(i)+1, &h[k])})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Values[:2] {
				data[k] = append(data[k], v.Data...)
			}
		}
		if fmt.Sprint(data[0]) != fmt.Sprint(data[1]) {
			t.Fatalf("step %d: %v and %v", i+1, data[0], data[1])
		}
	}
}

// sums is noise for rows and squares, and zero for the counts of an estimator.
type sums struct{ dp.Noise }

func (n sums) Row(array string, hidden []int64) dp.Row {
	if array == "jme/full" {
		return dptest.Zero().Row(array, hidden)
	}
	return n.Noise.Row(array, hidden)
}

// TestAuditSampler tests 2²⁰ draws of the generator itself, over streams, epochs, arrays and steps: the Kolmogorov
// distance, the numbers of draws beyond 4 and 5, the variance, correlations between all columns and lags, and that no
// word occurs twice. The correlations together have a level of 10⁻⁹, as each of the other tests has. A word occurs
// twice by chance with probability 2⁻²⁵.
func TestAuditSampler(t *testing.T) {
	t.Parallel()
	const steps, width = 64, 2048
	var all []float64
	var columns [][]float64
	words := map[uint64]bool{}
	for k := range 8 { // all combinations of stream, epoch and array
		e, err := dp.NewEpoch(&[32]byte{5}, &[32]byte{6}, fmt.Sprint("stream-", k&1), uint64(1+k>>1&1),
			[16]byte{}, [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		var h dp.Transcript
		var column []float64
		for step := range uint64(steps) {
			row := e.Step(step+1, &h).Row(fmt.Sprint("array/", k>>2), nil)
			z := make([]float64, width)
			row.Fill(z)
			for j := range z {
				w := row.Word(j)
				if words[w] {
					t.Fatalf("word %016x occurs twice", w)
				}
				words[w] = true
			}
			column = append(column, z...)
		}
		columns = append(columns, column)
		all = append(all, column...)
	}
	n := len(all)
	if n != 1<<20 {
		t.Fatalf("%d draws", n)
	}
	if err := stattest.KolmogorovSmirnov(all, stattest.Gaussian, stattest.Alpha); err != nil {
		t.Error(err)
	}
	if err := stattest.Variance(all, stattest.Alpha); err != nil {
		t.Error(err)
	}
	for _, beyond := range []float64{4, 5} {
		count := 0
		for _, z := range all {
			if math.Abs(z) > beyond {
				count++
			}
		}
		mean := float64(n) * math.Erfc(beyond/math.Sqrt2)
		low, high := poisson(mean, stattest.Alpha/2)
		t.Logf("%d beyond %g, expected %.1f, allowed %d to %d", count, beyond, mean, low, high)
		if count < low || count > high {
			t.Errorf("%d draws beyond %g, must be %d to %d", count, beyond, low, high)
		}
	}
	share := stattest.Alpha / 1e4
	for i, a := range columns {
		for _, b := range columns[:i] {
			if err := stattest.Correlation(a, b, share); err != nil {
				t.Errorf("columns of two streams, epochs or arrays: %v", err)
			}
		}
		for lag := 1; lag <= 8; lag++ {
			for _, distance := range []int{lag, lag * width} { // along coordinates, along steps
				if err := stattest.Lag(a, distance, share); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// poisson returns a range of counts that a Poisson variable leaves with probability at most alpha on either side. A
// binomial variable of small p has lighter tails.
func poisson(mean, alpha float64) (low, high int) {
	p, sum := math.Exp(-mean), 0.0
	for k := 0; ; k++ {
		if sum += p; sum <= alpha {
			low = k + 1
		}
		if 1-sum <= alpha && float64(k) > mean {
			return low, k
		}
		p *= mean / float64(k+1)
	}
}
