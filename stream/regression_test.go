package stream

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/sgd"
)

// killRegression is killStream with a regression, whose steps have the same
// offsets; the first one is a search.
var killRegression = with(ordersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"weight\"\nclip_x = 2.0\nradius = 5.0\namb = { curvature = 1.0, batch = 20, bootstrap = 20 }\n")

// TestKillRegression kills a daemon whose mechanism adapts to what it released:
// a step repeated with other noise would change all later ones.
func TestKillRegression(t *testing.T) {
	t.Parallel()
	const seed = 25
	kills := killsOf(10, 60)
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

// killNewton is killRegression with the default method, and a budget that leaves its
// steps short.
var killNewton = with(ordersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n", "[stream.orders.sgd]\ntarget = \"weight\"\nclip_x = 2.0\n",
	"epsilon = 1.0", "epsilon = 40.0", "limit_epsilon = 3.0", "limit_epsilon = 50.0")

// TestKillNewton is TestKillRegression with steps that differ in length, searches
// before them, and ends of epochs between.
func TestKillNewton(t *testing.T) {
	t.Parallel()
	const seed = 26
	kills := killsOf(12, 60)
	r := newRig(t, killNewton)
	f := r.feed()
	killLoop(t, r, r.spec("daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	s := r.options().Config.Stream("orders")
	e, err := sgd.NewNewton(*s.SGD, s.Params())
	if err != nil {
		t.Fatal(err)
	}
	p, end := e.Plan(), r.steps(1)
	iterations := uint64(0)
	for p.Course(iterations+1).Slots <= end {
		iterations++
	}
	steps := iterations + p.Searches()
	r.finish(steps)
	v := r.history("orders.dp")
	v.equals(t, r.uninterrupted(steps))
	t.Logf("%d kills, %d releases, to epoch %d; %d releases published again", kills, len(v.bytes), p.Course(iterations).Epoch, v.duplicates)
	if v.steps != steps || len(v.bytes) != int(iterations) || p.Course(iterations).Epoch < 2 {
		t.Errorf("%d releases of %d steps, want %d", len(v.bytes), v.steps, iterations)
	}
}

// TestRegressionTruth feeds a linear relation with little noise through the
// machine: coefficients in original units come out.
func TestRegressionTruth(t *testing.T) {
	t.Parallel()
	toml := with(regression("amb.batch = 60\namb.bootstrap = 60"), "epsilon = 1.0", "epsilon = 40", "limit_epsilon = 3.0", "limit_epsilon = 50")
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
	p := published{key: "last", value: string(m.releases[501].Value)}
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

// TestNewtonTruth is TestRegressionTruth with the default method, which is told a bound
// that is far too large and nothing else.
func TestNewtonTruth(t *testing.T) {
	t.Parallel()
	toml := with(onlineNewton(""), "clip_x = 3.0", "clip_x = 30.0")
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
	var last uint64
	for step := range m.releases {
		last = max(last, step)
	}
	p := published{key: "last", value: string(m.releases[last].Value)}
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
	if slots := rel.Values["slots"].Data[0]; slots != float64(rel.Offsets[1]) || slots < n-1000 || rel.Values["restarts"].Data[0] != 0 || rel.Values["whitening"].Data[0] < 5 {
		t.Errorf("%g slots, offsets %d, epoch %g", slots, rel.Offsets, rel.Values["whitening"].Data)
	}
	if !strings.Contains(p.value, "estimates from parts of the stream") {
		t.Errorf("the release does not say what intervals rest on: %s", p.value)
	}
}

// TestRegressionDiverges: targets without bound halt the task, for a reason that
// says what to change and nothing of the records.
func TestRegressionDiverges(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(killRegression, "batch = 20,", "batch = 200,"))
	var values [][]byte
	for range 25_000 {
		values = append(values, []byte(`{"amount": 41, "items": 5, "weight": 7.16283e99}`))
	}
	r.send(values...)
	x := r.start()
	status := x.halts(haltMechanism, "the clip norm has been near its upper bound for 64 steps", "curvature")
	if strings.Contains(fmt.Sprint(status), "7.16") {
		t.Errorf("the status tells a record: %+v", status)
	}
	x.end()
}
