package sgd

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/cases"
	"streamdp/internal/dptest"
)

// newtonCase is a stream, its noise by array and opening, and what comes of it.
type newtonCase struct {
	in struct {
		X         [][]float64
		Y         []float64
		Nulls     []int `json:"null_records"`
		Mu        float64
		Adjacency string
		ClipX     float64 `json:"clip_x"`
		Intercept bool
		Boot      [][]float64 `json:"noise_boot"`
		Count     [][]float64 `json:"noise_count"`
		Grad      [][]float64 `json:"noise_grad"`
		Hist      [][]float64 `json:"noise_hist"`
		Gram      [][]float64 `json:"noise_gram"`
	}
	want struct {
		Steps    uint64
		Restarts []int
		R2       float64
		W        [][]float64
		At       []struct {
			Phase    string
			Slots    uint64
			Zeta     *float64
			Epoch    *int
			W        []float64
			Estimate []float64
			T        uint64
		}
	}
}

// caseNewtonReplay runs the whole estimator with the noise given, row by row of each
// array, and compares iterates, estimates, clip norms, restarts and the last W. The
// cases do not know the rules for streams with hardly a record: they are compared
// without them, and with them as long as none has acted.
func caseNewtonReplay(t *testing.T, c cases.Case) {
	var n newtonCase
	c.Read(t, &n.in, &n.want)
	if n.in.Intercept {
		t.Fatal("the constant feature of a case is another one than ours")
	}
	tol := onLattice(t, c)
	n.replay(t, tol, true)
	n.replay(t, tol, false)
}

// replay compares a stream: plain without the rules for few records, else with them,
// until one acts.
func (c *newtonCase) replay(t *testing.T, tol float64, plain bool) {
	in, want := &c.in, &c.want
	d := len(in.X[0])
	// A horizon bounds what rounding of the noise is paid for to next to nothing.
	cfg := Config{Target: "y", ClipX: in.ClipX, Intercept: &in.Intercept, Horizon: want.Steps + 1}
	cfg.Columns = append(names(d), "y")
	params := dp.Params{Mu: in.Mu, Adjacency: adjacencyOf(t, in.Adjacency), LatticeBits: 30}
	e, err := NewNewton(cfg, params)
	if err != nil {
		t.Fatal(err)
	}
	noise := dptest.Arrays(map[string][][]float64{
		"newton/boot": in.Boot, "newton/count": in.Count, "newton/grad": in.Grad, "newton/hist": in.Hist, "newton/gram": in.Gram,
	})
	slot, at := uint64(0), want.At
	var restarts []int
	for step := uint64(1); step <= want.Steps; step++ {
		first, end := e.Range(step)
		if first != slot {
			t.Fatalf("step %d begins with slot %d, want %d", step, first, slot)
		}
		phase, epoch, hard, drifts := e.phase, e.epoch, e.restarts, e.drifts
		for ; slot < end; slot++ {
			row := append(slices.Clone(in.X[slot]), in.Y[slot])
			if slices.Contains(in.Nulls, int(slot)) {
				row = nil
			}
			e.Add(slot, row)
		}
		if plain {
			e.tries, e.before, e.seen = triesMost, 0, full(0x1p60)
		}
		norms, done := len(e.jump.recent), e.done
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		early := e.restarts > hard && norms+1 < recentLeast
		idle := phase == descent && e.epoch == epoch && e.done == done && e.restarts == hard
		if !plain && (phase != searchNorm && !e.sure || e.repeats > 0 || e.seen.share() < few || early || idle) {
			t.Logf("a rule for few records acts in step %d", step)
			return
		}
		if e.restarts > hard {
			restarts = append(restarts, int(e.iteration))
		}
		if e.drifts > drifts {
			restarts = append(restarts, -int(e.iteration))
		}
		if len(at) == 0 || at[0].T != step {
			continue
		}
		what := at[0]
		at = at[1:]
		if name := []string{"boot1", "boot2", "step"}[phase]; name != what.Phase || end-first != what.Slots {
			t.Fatalf("step %d is a %s of %d slots, want %s, %d", step, name, end-first, what.Phase, what.Slots)
		}
		for j, v := range e.coefficients(e.w) {
			near(t, sprint("w after step ", step), v, what.W[j], tol)
		}
		if phase != descent {
			if r != nil {
				t.Errorf("step %d has a release", step)
			}
			continue
		}
		near(t, sprint("zeta of step ", step), value(r, "zeta")[0], *what.Zeta, tol)
		if epoch != *what.Epoch {
			t.Errorf("step %d is of epoch %d, want %d", step, epoch, *what.Epoch)
		}
		for j, v := range value(r, "theta_average") {
			near(t, sprint("estimate after step ", step), v, what.Estimate[j], tol)
		}
	}
	if !slices.Equal(restarts, want.Restarts) {
		t.Errorf("restarts %v, want %v", restarts, want.Restarts)
	}
	if e.squared != want.R2 {
		t.Errorf("R² = %g, want %g", e.squared, want.R2)
	}
	for i := range d {
		for j := range d {
			near(t, "W", e.white.Root[i*d+j], want.W[i][j], tol)
		}
	}
}

// caseNewtonMSE runs the estimator once over a published data set in random order, as
// often as the case did, and compares the logarithm of the error of its last estimate.
func caseNewtonMSE(t *testing.T, c cases.Case) {
	var in struct {
		Dataset   string
		Split     int
		Epsilon   float64
		Delta     float64
		Adjacency dp.Adjacency
		ClipX     float64 `json:"clip_x"`
		Loose     float64
		Order     string
		Trials    int
	}
	var want struct {
		Mean float64 `json:"mean_log_mse"`
		CI95 float64
	}
	c.Read(t, &in, &want)
	if in.Order != "random, one pass" {
		t.Fatalf("order %q", in.Order)
	}
	x, y := cases.Published(t, in.Dataset, in.Split, in.Loose)
	no := false
	cfg := Config{Target: "y", ClipX: in.ClipX, Intercept: &no, Intervals: &no, Columns: append(names(len(x[0])), "y")}
	params := dp.Params{Epsilon: in.Epsilon, Delta: in.Delta, Adjacency: in.Adjacency}
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	source := rand.New(rand.NewPCG(h.Sum64(), 0))
	var sum, square float64
	for range in.Trials {
		e, err := NewNewton(cfg, params)
		if err != nil {
			t.Fatal(err)
		}
		noise := dptest.Seeded(source.Uint64())
		order := source.Perm(len(x))
		theta := make([]float64, len(x[0])) // until there is a release
		for slot := uint64(0); ; {
			_, end := e.Range(e.step + 1)
			if end > uint64(len(x)) {
				break
			}
			for ; slot < end; slot++ {
				i := order[slot]
				e.Add(slot, append(x[i][:len(x[i]):len(x[i])], y[i]))
			}
			r, err := e.Close(noise)
			if err != nil {
				t.Fatal(err)
			}
			if r != nil {
				theta = value(r, "theta_average")
			}
		}
		var mse float64
		for i := range x {
			r := y[i] - dot(theta, x[i])
			mse += r * r / float64(len(x))
		}
		v := math.Log(mse)
		sum += v
		square += v * v
	}
	n := float64(in.Trials)
	mean := sum / n
	half := 1.96 * math.Sqrt((square/n-mean*mean)/(n-1))
	if most := 3*math.Hypot(want.CI95, half)/1.96 + 0.01; !(math.Abs(mean-want.Mean) <= most) {
		t.Errorf("mean log error %.6g ± %.2g, want %.6g ± %.2g", mean, half, want.Mean, want.CI95)
	} else {
		t.Logf("mean log error %.6g ± %.2g, want %.6g ± %.2g", mean, half, want.Mean, want.CI95)
	}
}
