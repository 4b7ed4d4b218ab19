package stream

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"streamdp/internal/kafka"
)

// killRegression is killStream with a regression, whose steps have the same
// offsets; the first one is a search.
var killRegression = with(ordersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"weight\"\nclip_x = 2.0\ncurvature = 1.0\nradius = 5.0\nbatch = 20\nbootstrap = 20\n")

// TestKillRegression kills a daemon whose mechanism adapts to what it released:
// a step repeated with other noise would change all later ones.
func TestKillRegression(t *testing.T) {
	t.Parallel()
	const seed, kills = 25, 60
	r := newRig(t, killRegression)
	f := r.feed()
	killLoop(t, r, r.spec("daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	steps := r.steps(20)
	r.finish(steps)
	v := r.history("orders.dp")
	v.equals(t, r.uninterrupted(steps))
	t.Logf("%d kills, %d steps, %d releases published again", kills, v.steps, v.duplicates)
	if v.steps != steps || steps < 100 || len(v.bytes) != int(steps)-1 {
		t.Errorf("%d releases of %d steps", len(v.bytes), steps)
	}
}

// TestRegressionTruth feeds a linear relation with little noise through the
// machine: coefficients in original units come out.
func TestRegressionTruth(t *testing.T) {
	t.Parallel()
	toml := with(regression("batch = 60\nbootstrap = 60"), "epsilon = 1.0", "epsilon = 40", "limit_epsilon = 3.0", "limit_epsilon = 50")
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 30060
	var log []kafka.Record
	for i := range n {
		rec := kafka.Record{Offset: int64(i)}
		if i%10 == 3 {
			rec.Value = badValues[i/10%len(badValues)]
		} else {
			a, c := 1+rng.NormFloat64()/2, -2+1.5*rng.NormFloat64()
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, a, 2*a-c-3.5+0.4*rng.NormFloat64(), c)
		}
		log = append(log, rec)
	}
	m := newMachine(t, toml, 1).all(log, n)
	p := published{key: "last", value: string(m.releases[501].value)}
	rel := p.parse(t)
	got := rel.Values["theta_average_original"].Data
	for j, want := range []float64{2, -1, -3.5} {
		if len(got) != 3 || math.Abs(got[j]-want) > 0.06 {
			t.Fatalf("coefficients %.3g, want 2, -1, -3.5", got)
		}
	}
	low, high := rel.Values["interval_low"].Data, rel.Values["interval_high"].Data
	for j, v := range rel.Values["theta_average"].Data {
		if !(low[j] < v && v < high[j]) {
			t.Errorf("coefficient %d: %g is not inside %g to %g", j, v, low[j], high[j])
		}
	}
	if rel.Values["slots"].Data[0] != n || rel.Values["iteration"].Data[0] != 500 {
		t.Errorf("%g slots, %g steps", rel.Values["slots"].Data, rel.Values["iteration"].Data)
	}
}
