package dp_test

import (
	"crypto/sha256"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/moments"
)

// drawn returns the first words of a run's noise for two arrays of a step.
func drawn(r *dp.Run, records uint64, integers ...int64) (words []uint64) {
	n := r.Step(records)
	for _, name := range []string{"first", "second"} {
		row := n.Row(name, integers)
		words = append(words, row.Word(0), row.Word(1))
	}
	return words
}

func keyed(t *testing.T, key byte, name string, number uint64, bound ...any) *dp.Run {
	t.Helper()
	r, err := dp.NewKeyedRun(&[32]byte{key}, name, number, bound...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// disjoint fails if two draws share a word.
func disjoint(t *testing.T, what string, a, b []uint64) {
	t.Helper()
	for _, w := range a {
		if slices.Contains(b, w) {
			t.Errorf("%s: the noise is the same", what)
		}
	}
}

// TestRunIsBoundToData checks that a run has the same noise for the same steps over the same integers, and independent
// noise from the first difference on.
func TestRunIsBoundToData(t *testing.T) {
	begin := func() *dp.Run { return keyed(t, 1, "orders", 1, "plan") }
	one, two := begin(), begin()
	for step := range 3 {
		if a, b := drawn(one, 10, 1, 2), drawn(two, 10, 1, 2); !slices.Equal(a, b) {
			t.Fatalf("step %d: %x and %x for equal data", step+1, a, b)
		}
	}
	disjoint(t, "another number of records", drawn(begin(), 10, 1, 2), drawn(begin(), 11, 1, 2))
	disjoint(t, "another integer", drawn(begin(), 10, 1, 2), drawn(begin(), 10, 1, 3))
	disjoint(t, "the next step", drawn(one, 10, 1, 2), drawn(two, 10, 1, 3))
	disjoint(t, "an integer of an earlier step", drawn(one, 10, 1, 2), drawn(two, 10, 1, 2))

	// A step whose Close failed counts as a step of the run.
	one, two = begin(), begin()
	one.Step(10)
	disjoint(t, "after a step without a release", drawn(one, 10, 1, 2), drawn(two, 10, 1, 2))
}

// TestRunIdentity checks that runs with fresh keys, and keyed runs that differ in key, name, number or bound, have
// independent noise over the same data.
func TestRunIdentity(t *testing.T) {
	p := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}
	runs := []*dp.Run{
		dp.NewRun(), dp.NewRun(),
		keyed(t, 1, "a", 1, p), keyed(t, 2, "a", 1, p), keyed(t, 1, "b", 1, p), keyed(t, 1, "a", 2, p),
		keyed(t, 1, "a", 1, dp.Params{Epsilon: 2, Delta: 1e-6, Adjacency: dp.Replace}),
		keyed(t, 1, "a", 1, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}),
		keyed(t, 1, "a", 1, p, p), keyed(t, 1, "a", 1, 1.5), keyed(t, 1, "a", 1, math.Nextafter(1.5, 2)),
	}
	var all [][]uint64
	for _, r := range runs {
		all = append(all, drawn(r, 10, 1, 2))
	}
	for i := range all {
		for j := range i {
			disjoint(t, "two runs", all[i], all[j])
		}
	}
}

// TestRunGolden pins the noise of a keyed run: its releases are a function of the key, so no later version may change
// it.
func TestRunGolden(t *testing.T) {
	r := keyed(t, 1, "orders", 7, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, []int{1, 2})
	got := append(drawn(r, 10, 1, 2), drawn(r, 11, -1)...)
	want := []uint64{
		0xf662bdfbeef145cf, 0xc44279e4d520c1c4, 0x2213e84fe85e38e9, 0xefb1c40ff032da10,
		0x3728b8c924bab95b, 0xfcb9762634f3e050, 0xc636ca19714e7384, 0xb7437677f7d54b71,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}

	// The same words, computed from the parts of the derivation.
	digest := sha256.Sum256([]byte("streamdp/run/v1\x00" +
		`[{"Epsilon":1,"Delta":0.000001,"Mu":0,"Adjacency":"replace","LatticeBits":0},[1,2]]`))
	keys, err := dp.NewEpoch(&[32]byte{1}, &digest, "library/keyed/orders", 7, [16]byte{}, digest)
	if err != nil {
		t.Fatal(err)
	}
	h := dp.NewTranscript(digest)
	h.AbsorbRecords(10)
	if row := keys.Step(1, &h).Row("first", []int64{1, 2}); row.Word(0) != want[0] || row.Word(1) != want[1] {
		t.Errorf("from its parts: %#x %#x", row.Word(0), row.Word(1))
	}
}

func TestRunRefuses(t *testing.T) {
	for name, err := range map[string]error{
		"key":   second(dp.NewKeyedRun(&[32]byte{}, "a", 1, 1)),
		"nil":   second(dp.NewKeyedRun(nil, "a", 1, 1)),
		"name":  second(dp.NewKeyedRun(&[32]byte{1}, "", 1, 1)),
		"bound": second(dp.NewKeyedRun(&[32]byte{1}, "a", 1)),
		"NaN":   second(dp.NewKeyedRun(&[32]byte{1}, "a", 1, math.NaN())),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	r := dp.NewRun()
	r.Destroy()
	if _, err := r.AppendState(nil, blob{}); err == nil {
		t.Error("AppendState accepted a destroyed run")
	}
	defer func() {
		if recover() == nil {
			t.Error("a destroyed run still has noise")
		}
	}()
	drawn(r, 1)
}

func second(_ *dp.Run, err error) error { return err }

// blob is an estimator that consists of its state.
type blob struct {
	bytes []byte
	err   error
}

func (b blob) AppendBinary(dst []byte) ([]byte, error) { return append(dst, b.bytes...), b.err }

func (b *blob) UnmarshalBinary(data []byte) error {
	b.bytes = slices.Clone(data)
	return b.err
}

// TestRunState checks that a run continues from its state, and that a state with one changed bit is refused.
func TestRunState(t *testing.T) {
	r := dp.NewRun()
	drawn(r, 10, 1, 2)
	state, err := r.AppendState([]byte("before"), blob{bytes: []byte("estimator")})
	if err != nil {
		t.Fatal(err)
	}
	if state = state[len("before"):]; len(state) != 73+len("estimator")+8 {
		t.Errorf("%d bytes", len(state))
	}
	var restored blob
	resumed, err := dp.ResumeRun(state, &restored)
	if err != nil || string(restored.bytes) != "estimator" {
		t.Fatalf("%q, %v", restored.bytes, err)
	}
	if a, b := drawn(r, 10, 3), drawn(resumed, 10, 3); !slices.Equal(a, b) {
		t.Errorf("%x after a restart, %x without", b, a)
	}
	for i := range 8 * len(state) {
		damaged := slices.Clone(state)
		damaged[i/8] ^= 1 << (i % 8)
		if _, err := dp.ResumeRun(damaged, &restored); err == nil {
			t.Fatalf("bit %d: accepted", i)
		}
	}
	for n := range len(state) {
		if _, err := dp.ResumeRun(state[:n], &restored); err == nil {
			t.Fatalf("%d bytes: accepted", n)
		}
	}

	failure := errors.New("the state of another configuration")
	if _, err := dp.ResumeRun(state, &blob{err: failure}); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	if b, err := r.AppendState([]byte("before"), blob{bytes: []byte("x"), err: failure}); !errors.Is(err, failure) ||
		string(b) != "before" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestRunOfEstimator stops an estimator after any step and resumes it with its run. The releases must be the same as
// without the stop. An estimator with less noise must refuse the state.
func TestRunOfEstimator(t *testing.T) {
	cfg := moments.Config{Clip: 2, Columns: dptest.Columns(2), Step: 3, Horizon: 5}
	params := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}
	e, err := moments.New(cfg, params)
	if err != nil {
		t.Fatal(err)
	}
	plan := e.Plan()
	next := func(e *moments.Estimator, r *dp.Run, step int) *dp.Release {
		for i := range 3 {
			e.Add(uint64(3*step+i), []float64{float64(i), float64(step)})
		}
		release, err := e.Close(r.Step(3))
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	run := dp.NewRun()
	var states [][]byte
	var releases []*dp.Release
	for step := range 5 {
		state, err := run.AppendState(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, state)
		releases = append(releases, next(e, run, step))
	}
	for from, state := range states {
		f, err := moments.Adopt(cfg, params, plan)
		if err != nil {
			t.Fatal(err)
		}
		run, err := dp.ResumeRun(state, f)
		if err != nil {
			t.Fatal(err)
		}
		for step := from; step < 5; step++ {
			if r := next(f, run, step); !reflect.DeepEqual(r, releases[step]) {
				t.Errorf("resumed after step %d, step %d: %v, want %v", from, step+1, r, releases[step])
			}
		}
	}
	params.Epsilon = 2
	other, err := moments.New(cfg, params)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dp.ResumeRun(states[0], other); err == nil || !strings.Contains(err.Error(), "another configuration") {
		t.Errorf("an estimator with less noise resumed the run: %v", err)
	}
}
