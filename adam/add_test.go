package adam

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// methods returns a configuration of every method, with the keys that it needs.
func methods(m uint64) []Config {
	all := []Config{{Method: "pp"}, {Method: "pp_debiased"}, {Method: "jme_per_example"}, {Method: "jme_batch"},
		{Method: "joint_clip", Tau: 0.7}, {Method: "momentum"}}
	if m == 1 {
		all = append(all, Config{Method: "jme"})
	} else {
		all = append(all, Config{Method: "jme_batch", MeanClip: 0.4})
	}
	for i := range all {
		all[i].Step, all[i].Clip, all[i].Rate = m, 1.7, 0.05
	}
	return all
}

// means returns the means x and q of one step's gradients in float64, as the method defines them.
func means(c Config, gradients [][]float64, d int) (x, q []float64) {
	x, q = make([]float64, d), make([]float64, d)
	m := float64(c.Step)
	for _, g := range gradients {
		norm, bad := 0.0, len(g) != d
		for _, v := range g {
			norm = math.Hypot(norm, v)
			bad = bad || v-v != 0
			if c.Method == "joint_clip" {
				norm = math.Hypot(norm, math.Sqrt(c.Tau)*v*v)
			}
		}
		if bad {
			continue
		}
		scale := min(1, c.Clip/norm)
		for i, v := range g {
			x[i] += scale * v / m
			if c.Method == "joint_clip" {
				q[i] += scale * v * v / m
			} else {
				q[i] += scale * v * scale * v / m
			}
		}
	}
	if c.Method == "jme_batch" {
		norm := 0.0
		for _, v := range x {
			norm = math.Hypot(norm, v)
		}
		for i, v := range x {
			if c.MeanClip > 0 && norm > c.MeanClip {
				x[i] = v * c.MeanClip / norm
			}
			q[i] = x[i] * x[i]
		}
	}
	return x, q
}

// TestMeans compares the integers that noise hides with the means of the method, for clipped gradients, short steps,
// and rows that are not gradients.
func TestMeans(t *testing.T) {
	t.Parallel()
	const d = 3
	source := rand.New(rand.NewPCG(3, 1))
	for _, m := range []uint64{1, 4} {
		for _, c := range methods(m) {
			c.Dim = d
			e := mustNew(t, c, dp.Params{Mu: 0.6, Adjacency: dp.Replace, LatticeBits: 28})
			first, second := e.plan.units(m)
			for step := range 40 {
				var batch [][]float64
				for k := range min(uint64(step%6), m) {
					g := inBall(source, d, 5*source.Float64())
					switch (uint64(step) + 3*k) % 9 {
					case 4:
						g = nil
					case 5:
						g = append(g, 1)
					case 6:
						g[1] = math.NaN()
					case 7:
						g[2] = math.Inf(-1)
					case 8:
						g[0] *= 1e9
					}
					batch = append(batch, g)
					before := slices.Clone(g)
					e.Add(k, g)
					for i := range g { // covers NaN
						if math.Float64bits(g[i]) != math.Float64bits(before[i]) {
							t.Fatal("Add changes its row")
						}
					}
				}
				noise := dptest.Zero()
				r, err := e.Close(noise)
				if err != nil {
					t.Fatal(err)
				}
				if r.Rows != uint64(len(batch)) {
					t.Fatalf("%d rows for %d records", r.Rows, len(batch))
				}
				x, q := means(c, batch, d)
				for i := range d {
					if got := float64(noise.Hidden("adam/first")[i]) * first; math.Abs(got-x[i]) > 1e-6 {
						t.Errorf("%s, m=%d, step %d: mean %d is %g, want %g", c.Method, m, step, i, got, x[i])
					}
					if !e.cfg.joint() {
						continue
					}
					if got := float64(noise.Hidden("adam/second")[i]) * second; math.Abs(got-q[i]) > 1e-6 {
						t.Errorf("%s, m=%d, step %d: mean square %d is %g, want %g", c.Method, m, step, i, got, q[i])
					}
				}
				if !e.cfg.joint() && noise.Hidden("adam/second") != nil {
					t.Errorf("%s opens a second array", c.Method)
				}
			}
		}
	}
}

// TestTooManyRecords refuses a step with more records than slots before it draws noise.
func TestTooManyRecords(t *testing.T) {
	t.Parallel()
	e := mustNew(t, Config{Clip: 1, Rate: 1, Dim: 2, Step: 2}, dp.Params{Mu: 1, Adjacency: dp.Replace})
	for range 3 {
		e.Add(0, nil)
	}
	if _, err := e.Close(nil); err == nil {
		t.Error("no error for three records in two slots")
	}
}

// TestBlocks sums squares over several blocks of exact integers. The borders of blocks count all records, valid or not.
func TestBlocks(t *testing.T) {
	t.Parallel()
	const m, d = 90, 2
	e := mustNew(t, Config{Method: "jme_per_example", Clip: 1.1, Rate: 1, Dim: d, Step: m},
		dp.Params{Mu: 40, Adjacency: dp.Replace})
	if e.block < 2 || e.block > 30 {
		t.Fatalf("a block holds %d records", e.block)
	}
	source := rand.New(rand.NewPCG(4, 4))
	shift, half := e.shift()
	var want, block [d]int64
	k := make([]int64, d)
	for i := range uint64(m - 3) {
		g := inBall(source, d, 1.1)
		if i%7 == 3 {
			g = nil
		}
		e.Add(i, g)
		if g != nil {
			e.plan.Lattice.Quantise(k, g)
			for j, v := range k {
				block[j] += v * v
			}
		}
		if (i+1)%e.block == 0 || i == m-4 {
			for j := range block {
				want[j] += (block[j] + half) >> shift
				block[j] = 0
			}
		}
	}
	noise := dptest.Zero()
	if _, err := e.Close(noise); err != nil {
		t.Fatal(err)
	}
	if got := noise.Hidden("adam/second"); !slices.Equal(got, want[:]) {
		t.Errorf("squares are %d, want %d", got, want)
	}
}

// TestSquareSums compares squares of sums, up to the largest sums, with math/big.
func TestSquareSums(t *testing.T) {
	t.Parallel()
	e := mustNew(t, Config{Method: "jme_batch", Clip: 1, Rate: 1, Dim: 6, Step: 1 << 20},
		dp.Params{Mu: 1, Adjacency: dp.Replace})
	largest := int64(e.cfg.Step) * e.plan.Lattice.K
	copy(e.first, []int64{0, 1, -1, largest, -largest, -(1 << 33)})
	e.squareSums(0, 6)
	for i, x := range e.first {
		want := math.Floor(math.Ldexp(float64(x)*float64(x), 2*e.plan.Lattice.Exp-e.plan.SecondExp) + 0.5)
		if got := float64(e.second[i]); math.Abs(got-want) > 1e-15*want {
			t.Errorf("the square of %d is %g, want %g", x, got, want)
		}
	}
}

// TestClipSum clips sums to a norm. Clipping increases their distance by at most the charged amount, and leaves shorter
// sums unchanged.
func TestClipSum(t *testing.T) {
	t.Parallel()
	const d, m = 3, 8
	e := mustNew(t, Config{Method: "jme_batch", Clip: 1, MeanClip: 0.3, Rate: 1, Dim: d, Step: m},
		dp.Params{Mu: 1, Adjacency: dp.Replace})
	most := m * 0.3 / e.plan.Lattice.Step()
	source := rand.New(rand.NewPCG(5, 5))
	norm := func(x []float64) (n float64) {
		for _, v := range x {
			n = math.Hypot(n, v)
		}
		return n
	}
	clipped := func(x []float64) []float64 {
		for i, v := range x {
			e.first[i] = int64(v)
		}
		e.clipSum(e.plan.SumClip)
		y := make([]float64, d)
		for i, k := range e.first {
			y[i] = float64(k)
		}
		return y
	}
	for range 20000 {
		x := inBall(source, d, 2*most)
		y := moved(source, x, math.Pow(10, -9*source.Float64()), 2*most)
		for i := range x {
			x[i], y[i] = math.Trunc(x[i]), math.Trunc(y[i])
		}
		u, v := clipped(x), clipped(y)
		if norm(u) > most || norm(v) > most {
			t.Fatalf("a sum of norm %g, above %g", max(norm(u), norm(v)), most)
		}
		if norm(x) <= e.plan.SumClip && !slices.Equal(u, x) {
			t.Fatal("a short sum was changed")
		}
		for i := range x {
			x[i], u[i] = x[i]-y[i], u[i]-v[i]
		}
		if norm(u) > norm(x)+math.Sqrt(d) {
			t.Fatalf("sums %g apart are %g apart when clipped", norm(x), norm(u))
		}
	}
}

// inJointBall checks, by separate arithmetic, the bound for which joint clipping is calibrated.
func inJointBall(e *Estimator, first, second []int64) bool {
	var sum float64
	for i := range first {
		x := math.Ldexp(float64(first[i]), e.plan.Lattice.Exp)
		q := math.Ldexp(float64(second[i]), e.plan.SecondExp)
		sum += x*x + e.cfg.Tau*q*q
	}
	return math.Sqrt(sum) <= e.plan.Clip*(1+1e-15)
}

// TestJointClip quantises gradients of all sizes with several weights. The result must be in the ball of the pair, and
// near the exact pair.
func TestJointClip(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(6, 6))
	for _, tau := range []float64{1e-6, 0.5, 3, 1e4} {
		for _, d := range []int{1, 2, 5, 40} {
			c := Config{Method: "joint_clip", Tau: tau, Clip: 1.3, Rate: 1, Dim: d, Step: 1}
			e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
			first, second := make([]int64, d), make([]int64, d)
			for range 3000 {
				g := inBall(source, d, math.Pow(10, 12*source.Float64()-6))
				if !e.joint.quantise(first, second, g) {
					t.Fatalf("tau %g: %g is refused", tau, g)
				}
				if !inJointBall(e, first, second) {
					t.Fatalf("tau %g: %g leaves the ball", tau, g)
				}
				x, q := means(c, [][]float64{g}, d)
				for i := range g {
					if off := math.Abs(math.Ldexp(float64(first[i]), e.plan.Lattice.Exp) - x[i]); off > 1.01*
						e.plan.Lattice.Step()+1e-7*math.Abs(x[i]) {
						t.Fatalf("tau %g: %g is off by %g", tau, x[i], off)
					}
					if off := math.Abs(math.Ldexp(float64(second[i]), e.plan.SecondExp) - q[i]); off > 1.01*
						math.Ldexp(1, e.plan.SecondExp)+1e-7*q[i] {
						t.Fatalf("tau %g: the square %g is off by %g", tau, q[i], off)
					}
				}
			}
			for _, v := range []float64{0, 5e-324, 1e-200, 1e-60, 1e60, 1e155, 1e200, math.MaxFloat64,
				-math.MaxFloat64} {
				g := make([]float64, d)
				g[d-1] = v
				if !e.joint.quantise(first, second, g) || !inJointBall(e, first, second) {
					t.Errorf("tau %g: %g is refused or outside of the ball", tau, v)
				}
				if v > 1e20 && second[d-1] == 0 {
					t.Errorf("tau %g: %g has no square", tau, v)
				}
			}
			for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				g := make([]float64, d)
				g[0], first[0], second[0] = v, 7, 7
				if e.joint.quantise(first, second, g) || first[0] != 0 || second[0] != 0 {
					t.Errorf("%g is taken", v)
				}
			}
		}
	}
}

// FuzzJointClip gives arbitrary gradients to the joint quantiser.
func FuzzJointClip(f *testing.F) {
	e := mustNew(f, Config{Method: "joint_clip", Tau: 0.5, Clip: 1.3, Rate: 1, Dim: 3, Step: 1},
		dp.Params{Mu: 1, Adjacency: dp.Replace})
	f.Add(0.1, -2.0, 1e300)
	f.Add(5e-324, math.Inf(1), math.NaN())
	f.Fuzz(func(t *testing.T, a, b, c float64) {
		first, second := make([]int64, 3), make([]int64, 3)
		ok := e.joint.quantise(first, second, []float64{a, b, c})
		finite := a-a == 0 && b-b == 0 && c-c == 0
		if ok != finite || !inJointBall(e, first, second) {
			t.Fatalf("%g, %g, %g: %t, %d, %d", a, b, c, ok, first, second)
		}
	})
}
