package task

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
)

// TestRegressionTruth feeds a linear relation with little noise: the release must give the coefficients in original
// units.
func TestRegressionTruth(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.Regression("amb.batch = 60\namb.bootstrap = 60"), "epsilon = 1.0", "epsilon = 40",
		"limit_epsilon = 3.0", "limit_epsilon = 50")
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 30060
	var log []kafka.Record
	for i := range n {
		rec := kafka.Record{Offset: int64(i)}
		if i%10 == 3 {
			rec.Value = fixtures.BadValues[i/10%len(fixtures.BadValues)]
		} else {
			a, c := 1+rng.NormFloat64()/2, -2+1.5*rng.NormFloat64()
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, a, 2*a-c-3.5+0.4*rng.NormFloat64(), c)
		}
		log = append(log, rec)
	}
	m := newMachine(t, toml, 1).all(log, n)
	p := fixtures.Published{Key: "last", Value: string(m.releases[501].Value)}
	rel := p.Parse(t)
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

// TestNewtonTruth is TestRegressionTruth with the default method. Its only configured bound is far too large.
func TestNewtonTruth(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.OnlineNewton(""), "clip_x = 3.0", "clip_x = 30.0")
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 30060
	var log []kafka.Record
	for i := range n {
		rec := kafka.Record{Offset: int64(i)}
		if i%10 == 3 {
			rec.Value = fixtures.BadValues[i/10%len(fixtures.BadValues)]
		} else {
			a, c := 1+rng.NormFloat64()/2, -2+1.5*rng.NormFloat64()
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, a, 2*a-c-3.5+0.4*rng.NormFloat64(), c)
		}
		log = append(log, rec)
	}
	m := newMachine(t, toml, 1).all(log, n)
	var last uint64
	for step := range m.releases {
		last = max(last, step)
	}
	p := fixtures.Published{Key: "last", Value: string(m.releases[last].Value)}
	rel := p.Parse(t)
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
	if slots := rel.Values["slots"].Data[0]; slots != float64(rel.Offsets[1]) || slots < n-1000 ||
		rel.Values["restarts"].Data[0] != 0 || rel.Values["whitening"].Data[0] < 5 {
		t.Errorf("%g slots, offsets %d, epoch %g", slots, rel.Offsets, rel.Values["whitening"].Data)
	}
	if !strings.Contains(p.Value, "estimates from parts of the stream") {
		t.Errorf("the release does not say what intervals are based on: %s", p.Value)
	}
}
