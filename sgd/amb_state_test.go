package sgd

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// ambContract returns the contract of an estimator over a log.
func ambContract(t testing.TB, c Config, p dp.Params, rows [][]float64, steps uint64) estimatortest.Contract[*AMB] {
	t.Helper()
	return estimatortest.Contract[*AMB]{
		New: estimatortest.Adopted(t, mustNew(t, c, p).Plan(), func(kept AMBPlan) (*AMB, error) {
			e, err := AdoptAMB(c, p, kept)
			if err != nil {
				return nil, err
			}
			// Short blocks, so that the state has all its parts.
			kept.DriftBlock, kept.BatchMeans = min(kept.DriftBlock, 10), min(kept.BatchMeans, 5)
			return buildAMB(e.cfg, p, kept, e.factor)
		}),
		Steps: steps,
		Rows: func(_, first, end uint64) [][]float64 {
			last := uint64(len(rows))
			return rows[min(first, last):min(end, last)]
		},
		Noise: func(t testing.TB) func(uint64) dp.Noise { return keyed(t, 5) },
		Size:  func(e *AMB) int64 { return e.Sizes().State },
	}
}

// TestRestart restores states in the middle of logs, also around restarts of the average.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := records(9, 30000)
			for i := len(rows) / 3; i < len(rows); i++ { // the coefficients change
				if rows[i] != nil {
					rows[i][1] *= -3
				}
			}
			contract := ambContract(t, c, params(dp.Replace), rows, 500)
			began, restarts := uint64(0), 0
			contract.After = func(e *AMB, _ []byte, _ *dp.Release) {
				if e.began != began {
					began, restarts = e.began, restarts+1
				}
			}
			if e, _ := contract.Restart(t); *e.cfg.Restart && c.Clip != "fixed" && restarts == 0 {
				t.Error("the average never restarted")
			}
		})
	}
}

// TestDamaged damages a state of each variant.
func TestDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			contract := ambContract(t, c, params(dp.ZeroOut), records(3, 4000), 60)
			states, _ := contract.Run(t, nil)
			contract.Damaged(t, states[len(states)-1])
		})
	}
}

// TestStateRefused checks that estimators with other configurations refuse a state, and the estimator itself refuses a
// damaged one.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	own, p := variants()["track"], params(dp.Replace)
	e := mustNew(t, own, p)
	rows, noise := records(1, 30000), keyed(t, 3)
	for step := range uint64(400) {
		closeStep(t, e, rows, noise(step+1))
	}
	state := estimatortest.State(t, e)
	no := false
	others := map[string]*AMB{}
	for name, alter := range map[string]func(*Config, *dp.Params){
		"clip_x":    func(c *Config, _ *dp.Params) { c.ClipX *= 1.01 },
		"clip_y":    func(c *Config, _ *dp.Params) { c.ClipY = 7 },
		"intercept": func(c *Config, _ *dp.Params) { c.Intercept = &no },
		"target":    func(c *Config, _ *dp.Params) { c.Target = "u" },
		"columns":   func(c *Config, _ *dp.Params) { c.Columns = []string{"v", "y", "u"} },
		"clip":      func(c *Config, _ *dp.Params) { c.Clip, c.Bootstrap, c.Stat = "bisect", 0, 16 },
		"value":     func(c *Config, _ *dp.Params) { c.Value = "residual" },
		"batch":     func(c *Config, _ *dp.Params) { c.Batch = 25 },
		"bootstrap": func(c *Config, _ *dp.Params) { c.Bootstrap = 17 },
		"quantile":  func(c *Config, _ *dp.Params) { c.ThresholdQuantile = 0.7 },
		"kappa":     func(c *Config, _ *dp.Params) { c.Kappa = 0.9 },
		"fraction":  func(c *Config, _ *dp.Params) { c.Fraction = 0.06 },
		"rungs":     func(c *Config, _ *dp.Params) { c.Rungs = 31 },
		"top":       func(c *Config, _ *dp.Params) { c.Top = 32768 },
		"bands":     func(c *Config, _ *dp.Params) { c.Bands = 5 },
		"eta0":      func(c *Config, _ *dp.Params) { c.Eta0 = 0.31 },
		"curvature": func(c *Config, _ *dp.Params) { c.Curvature = 2 },
		"growth":    func(c *Config, _ *dp.Params) { c.Growth = "double" },
		"average":   func(c *Config, _ *dp.Params) { c.Average = "smooth" },
		"tail":      func(c *Config, _ *dp.Params) { c.Tail = 0.3 },
		"restart":   func(c *Config, _ *dp.Params) { c.Restart = &no },
		"radius":    func(c *Config, _ *dp.Params) { c.Radius = 6 },
		"intervals": func(c *Config, _ *dp.Params) { c.Intervals = &no },
		"level":     func(c *Config, _ *dp.Params) { c.Level = 0.9 },
		"horizon":   func(c *Config, _ *dp.Params) { c.Horizon = 1000 },
		"centre":    func(c *Config, _ *dp.Params) { c.Centre = []float64{1, 0, 0} },
		"scale":     func(c *Config, _ *dp.Params) { c.Scale = []float64{1, 2, 1} },
		"start":     func(c *Config, _ *dp.Params) { c.Start = []float64{0, 0, 1} },
		"mu":        func(_ *Config, p *dp.Params) { p.Mu = 4.01 },
		"adjacency": func(_ *Config, p *dp.Params) { p.Adjacency = dp.ZeroOut },
		"bits":      func(_ *Config, p *dp.Params) { p.LatticeBits = 25 },
	} {
		c, q := own, p
		alter(&c, &q)
		others[name] = mustNew(t, c, q)
	}
	estimatortest.Foreign(t, state, others)
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNew(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for i := 9; i < 25; i++ { // step, iteration
		b := slices.Clone(state)
		b[i] ^= 0x10
		refuse(fmt.Sprintf("another byte %d", i), b)
	}
	patch := func(at int, v uint64) []byte {
		b := slices.Clone(state)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	const iterate = 25
	const norm = iterate + 3*8
	refuse("an iterate that is no number", patch(iterate, math.Float64bits(math.NaN())))
	refuse("an iterate outside of the radius", patch(iterate, math.Float64bits(5.1)))
	refuse("a clip norm of 0", patch(norm+8, 0))
	refuse("a clip norm above its bound", patch(norm+8, math.Float64bits(0x1p33)))
	refuse("a last clip norm below its bound", patch(norm, math.Float64bits(0x1p-33)))
	refuse("more steps at the bound than steps", patch(norm+16, 1000))
	refuse("an average that begins later", patch(norm+24, 1000))
	refuse("an average of another length", patch(norm+32, 398))
}

// FuzzState gives arbitrary bytes to UnmarshalBinary.
func FuzzState(f *testing.F) {
	var all []estimatortest.Contract[*AMB]
	for _, name := range []string{"track", "track/independent", "track/growth", "bisect", "bisect/residual", "scan",
		"fixed", "original units"} {
		all = append(all, ambContract(f, variants()[name], params(dp.ZeroOut), records(3, 4000), 130))
	}
	estimatortest.Fuzz(f, all, func(c *estimatortest.Contract[*AMB]) [][]byte {
		states, _ := c.Run(f, nil)
		return [][]byte{estimatortest.State(f, c.New(f)), states[0], states[1], states[128]}
	})
}

// TestMemory checks that the size of the state grows with the logarithm of the number of steps.
func TestMemory(t *testing.T) {
	t.Parallel()
	const d, bands, steps = 10, 16, 1 << 14
	sim := simulate(t, d, Config{ClipX: 5, Intercept: new(bool), Radius: 10, Curvature: 1, Bands: bands, Batch: 40},
		dp.Params{Epsilon: 20, Delta: 1e-6, Adjacency: dp.ZeroOut}, 1, nil)
	l := newLinear(1, d, 1)
	for n := 1; n <= steps; n++ {
		sim.next(t, l.draw)
		if n&(n-1) != 0 || n < 64 {
			continue
		}
		state, err := sim.e.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		// The bound counts the average's blocks, the ring, the means for intervals and drift, and a part that does not
		// depend on d.
		most := 8*d*(int(math.Log2(float64(n)))+2+bands+batchesMost+8) + 8*(recentMost+20)
		if len(state) > most {
			t.Errorf("after %d steps the state has %d bytes, more than %d", n, len(state), most)
		}
	}
}
