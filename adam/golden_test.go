package adam

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestGolden pins every bit of plans, releases and states of all methods and models, on every architecture and
// permanently: another version must be able to continue an epoch that one version began. The noise is keyed.
// Factorizations are given, because an optimiser finds different last bits on other processors.
func TestGolden(t *testing.T) {
	t.Parallel()
	const steps = 12
	h := sha256.New()
	source := rand.New(rand.NewPCG(14, 15))
	// NormFloat64 gives different bits on other processors; multiples of 2⁻¹⁰ do not.
	row := func(d int) []float64 {
		x := make([]float64, d)
		for j := range x {
			x[j] = float64(source.IntN(4096)-2048) / 1024
		}
		return x
	}
	buffers := func(decay, weight []matfact.Fixed) *matfact.Stored {
		return &matfact.Stored{Kind: "blt", Decay: decay, Phases: []matfact.Phase{{Start: 1, Scale: 1, Weight: weight}}}
	}
	// BLTs near the optimal ones for β = 0.9 and 0.999.
	kept := &Plan{
		First: buffers([]matfact.Fixed{7400000000000000000, 16000000000000000000},
			[]matfact.Fixed{5300000000000000000, 2900000000000000000}),
		Second: buffers([]matfact.Fixed{9100000000000000000, 17300000000000000000, 18410000000000000000},
			[]matfact.Fixed{5200000000000000000, 2700000000000000000, 400000000000000000}),
	}
	var all []Config
	for _, m := range []uint64{1, 4} {
		for i, c := range methods(m) {
			for k, kind := range []string{"identity", "blt", "sqrt"} {
				c.Factorization, c.Horizon, c.Dim, c.Step = kind, steps, 5, m
				c.Schedule = []string{"constant", "inverse-sqrt", "cosine"}[(i+k)%3]
				c.UpdateClip, c.WeightDecay = float64(k), 0.125*float64(i)
				c.Release = []string{"parameters", "update"}[k%2]
				all = append(all, c)
			}
		}
	}
	for i := range models {
		all = append(all,
			Config{Mode: "model", Model: &models[i], Columns: exampleColumns(4, 3), Clip: 2, Rate: 0.25, Step: 4})
	}
	for i, c := range all {
		p := dp.Params{Mu: 0.75, Adjacency: dp.Adjacency(1 + i%2)}
		e := mustNew(t, c, p)
		if c.Factorization == "blt" {
			f, err := e.cfg.factorize(kept)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := calibrate(&e.cfg, p, p.Mu, f)
			if err != nil {
				t.Fatal(err)
			}
			e = rebuilt(t, e, plan, f)
		}
		plan, err := json.Marshal(e.Plan())
		if err != nil {
			t.Fatal(err)
		}
		h.Write(plan)
		noise := keyed(t, byte(i))
		for step := range uint64(steps) {
			for range e.cfg.Step {
				x := row(e.Columns())
				if e.model != nil && e.cfg.Model.Classes > 0 {
					x[3] = float64(source.IntN(3))
				}
				e.Add(0, x)
			}
			r, err := e.Close(noise(step + 1))
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Values {
				h.Write([]byte(v.Name))
				for _, x := range v.Data {
					h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)))
				}
			}
		}
		state := estimatortest.State(t, e)
		copy(state[1:9], make([]byte, 8)) // clears the fingerprint, which depends on the plan
		h.Write(state)
	}
	const want = "ef3e638ab0bdba9d9ac58c57ca51eaa33b75cb50489836d9b2b45401817af34e"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}

// rebuilt returns an estimator with the configuration of e and another plan.
func rebuilt(t *testing.T, e *Estimator, plan *Plan, f factors) *Estimator {
	t.Helper()
	again, err := build(e.cfg, e.params, plan, f)
	if err != nil {
		t.Fatal(err)
	}
	return again
}
