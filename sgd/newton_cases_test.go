package sgd

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
)

// newtonCase is a stream, its noise by array and opening, and the expected results.
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
		Locate    [][]float64 `json:"noise_locate"`
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
		Constant float64
		Centre   []float64
		At       []struct {
			Phase    string
			Slots    uint64
			Zeta     *float64
			Epoch    *int
			W        []float64
			Constant float64
			Centre   []float64
			Estimate []float64
			T        uint64
		}
	}
}

// caseNewtonReplay runs the whole estimator with given noise, row by row of each array. It compares iterates,
// estimates, clip norms, restarts and the last W, and with an intercept also centres and constants. The cases lack some
// rules: those for streams with almost no records, modes, and gains. So each case is compared twice: with an estimator
// without these rules, and with the full estimator until one of these rules acts (except for estimates with gains).
func caseNewtonReplay(t *testing.T, c cases.Case) {
	var n newtonCase
	c.Read(t, &n.in, &n.want)
	if n.in.Intercept = c.Kind == "stream_newton_intercept_replay"; n.in.Intercept != (n.in.Locate != nil) {
		t.Fatal("noise of a median without an intercept, or none with one")
	}
	tol := onLattice(t, c)
	n.replay(t, tol, true)
	n.replay(t, tol, false)
}

// replay compares a stream. If plain is set, the estimator runs without the rules that the cases lack. Otherwise it has
// these rules, and the comparison ends when one acts.
func (c *newtonCase) replay(t *testing.T, tol float64, plain bool) {
	in, want := &c.in, &c.want
	d := len(in.X[0])
	// A horizon makes the charge for rounding the noise negligible.
	cfg := Config{Target: "y", ClipX: in.ClipX, Intercept: &in.Intercept, Horizon: want.Steps + 1}
	cfg.Columns = append(names(d), "y")
	params := dp.Params{Mu: in.Mu, Adjacency: adjacencyOf(t, in.Adjacency), LatticeBits: 30}
	e, err := NewNewton(cfg, params)
	if err != nil {
		t.Fatal(err)
	}
	noise := dptest.Arrays(map[string][][]float64{
		"newton/boot": in.Boot, "newton/locate": in.Locate, "newton/count": in.Count, "newton/grad": in.Grad,
		"newton/hist": in.Hist, "newton/gram": in.Gram,
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
			e.asPublished = true
		}
		norms, done := len(e.jump.recent), e.done
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		early := e.restarts > hard && norms+1 < recentLeast
		idle := phase == descent && e.epoch == epoch && e.done == done && e.restarts == hard
		if !plain && (phase != searchNorm && !e.believed || e.repeats > 0 || e.seen.share() < few || early || idle) {
			t.Logf("a rule for few records acts in step %d", step)
			return
		}
		if e.mode {
			t.Logf("the median of step %d is a mode", step)
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
		phases := []string{"boot1", "", "boot2", "step"}
		if in.Intercept {
			phases = []string{"norm", "median", "residual", "step"}
		}
		if name := phases[phase]; name != what.Phase || end-first != what.Slots {
			t.Fatalf("step %d is a %s of %d slots, want %s, %d", step, name, end-first, what.Phase, what.Slots)
		}
		if !in.Intercept {
			for j, v := range e.coefficients(e.w) {
				near(t, sprint("w after step ", step), v, what.W[j], tol)
			}
		} else if e.phase != searchNorm { // a restart forgets the values compared here
			near(t, sprint("constant after step ", step), e.constant, what.Constant, tol)
			for j, v := range e.centre {
				near(t, sprint("centre after step ", step), v, what.Centre[j], tol)
			}
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
		if e.weight == 0 || plain { // there are no gains
			for j, v := range value(r, "theta_average") {
				near(t, sprint("estimate after step ", step), v, what.Estimate[j], tol)
			}
		}
	}
	if len(at) > 0 {
		t.Errorf("step %d was not compared", at[0].T)
	}
	if !slices.Equal(restarts, want.Restarts) {
		t.Errorf("restarts %v, want %v", restarts, want.Restarts)
	}
	if e.squared != want.R2 {
		t.Errorf("R² = %g, want %g", e.squared, want.R2)
	}
	if in.Intercept {
		near(t, "constant", e.constant, want.Constant, tol)
		for j, v := range e.centre {
			near(t, "centre", v, want.Centre[j], tol)
		}
		return
	}
	for i := range d {
		for j := range d {
			near(t, "W", e.white.Root[i*d+j], want.W[i][j], tol)
		}
	}
}

// caseNewtonMSE runs the estimator once over a published data set in random order, as often as the case did, and
// compares the logarithm of the error of its last estimate. Without modes and gains, which the cases lack, the result
// must equal that of the case. With modes and gains it must not be larger.
func caseNewtonMSE(t *testing.T, c cases.Case) {
	var in struct {
		Dataset   string
		Split     int
		Epsilon   float64
		Delta     float64
		Adjacency dp.Adjacency
		ClipX     float64 `json:"clip_x"`
		ShiftX    float64 `json:"shift_x"`
		ShiftY    float64 `json:"shift_y"`
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
	no, intercept := false, c.Kind == "stream_newton_intercept_mse"
	var x [][]float64
	var y []float64
	if intercept {
		x, y = cases.Shifted(t, in.Dataset, in.Split, in.ShiftX, in.ShiftY, in.Loose)
	} else {
		x, y = cases.Published(t, in.Dataset, in.Split, in.Loose)
	}
	cfg := Config{Target: "y", ClipX: in.ClipX, Intercept: &intercept, Intervals: &no,
		Columns: append(names(len(x[0])), "y")}
	params := dp.Params{Epsilon: in.Epsilon, Delta: in.Delta, Adjacency: in.Adjacency}
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	source := rand.New(rand.NewPCG(h.Sum64(), 0))
	var sum, square float64
	var gain, gainSquare, pairs float64 // gain of every third trial
	trial := func(asPublished bool, seed uint64, order []int) float64 {
		e, err := NewNewton(cfg, params)
		if err != nil {
			t.Fatal(err)
		}
		e.asPublished = asPublished
		noise := dptest.Seeded(seed)
		theta := make([]float64, len(e.w)) // until there is a release
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
			r := y[i] - vector.Dot4(theta[:len(x[i])], x[i])
			if intercept {
				r -= theta[len(x[i])]
			}
			mse += r * r / float64(len(x))
		}
		return math.Log(mse)
	}
	for i := range in.Trials {
		seed, order := source.Uint64(), source.Perm(len(x))
		v := trial(true, seed, order)
		sum += v
		square += v * v
		if i%3 == 0 {
			less := v - trial(false, seed, order)
			gain += less
			gainSquare += less * less
			pairs++
		}
	}
	n := float64(in.Trials)
	mean := sum / n
	gain /= pairs
	spread := math.Sqrt((gainSquare/pairs - gain*gain) / (pairs - 1))
	half := 1.96 * math.Sqrt((square/n-mean*mean)/(n-1))
	if most := 3*math.Hypot(want.CI95, half)/1.96 + 0.01; !(math.Abs(mean-want.Mean) <= most) {
		t.Errorf("mean log error %.6g ± %.2g, want %.6g ± %.2g", mean, half, want.Mean, want.CI95)
	} else {
		t.Logf("mean log error %.6g ± %.2g, want %.6g ± %.2g; with modes and gains less by %.2g ± %.2g", mean, half,
			want.Mean, want.CI95, gain, 1.96*spread)
	}
	if !(gain > -3*spread-0.01) {
		t.Errorf("with modes and gains the mean log error is larger by %.3g", -gain)
	}
}
