package core

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// automatic returns a stream with the given table: a regression of y that finds all its bounds.
func automatic(table string, lines ...string) string {
	return "[stream.s]\ninput = { topic = \"t\", columns = [\"a\", \"y\", \"b\"] }\noutput.topic = \"o\"\n" +
		"centre = \"auto\"\nscale = \"auto\"\nwarmup = 1200\n" +
		strings.Join(lines, "\n") +
		"\n[stream.s.privacy]\nepsilon = 12\ndelta = 1e-6\nadjacency = \"replace\"\nlimit_epsilon = 40\n[stream.s." +
		table + "\ntarget = \"y\"\n"
}

// automatics holds streams with a warm-up, by name.
var automatics = map[string]string{
	"newton": automatic("sgd]\nclip_x = \"auto\""),
	"newton, split": strings.Replace(automatic("sgd]\nclip_x = \"auto\"\nclip_y = \"auto\"", `warmup_mode = "split"`),
		"warmup = 1200", "warmup = 4000", 1),
	"newton, given": strings.Replace(automatic("sgd]\nclip_x = 5.0"), `scale = "auto"`,
		`scale = [300, "auto", 0.01]`, 1),
	"amb":   automatic("sgd]\nmethod = \"amb\"\nclip_x = \"auto\"\nradius = 5.0\namb.batch = 40\namb.bootstrap = 60"),
	"refit": automatic("refit]\nclip_x = \"auto\"\nclip_y = \"auto\"\nwindow = 300"),
	"adam": strings.Replace(
		automatic("adam]\nclip = 1.0\nrate = 0.01\nmode = \"model\"\nmodel = { loss = \"linear\", target = \"y\" }\n",
			"step = 50"), "\ntarget = \"y\"\n", "\n", 1),
	"adassp": automatic(
		"refit]\nclip_x = \"auto\"\nclip_y = \"auto\"\nwindow = 300\nstride = 400\nsolver = \"adassp\""),
}

// examples returns the rows of slots first … end−1: y = 2·10⁵ + 10a − 10⁵b and noise. Every 29th row is invalid.
func examples(first, end uint64) [][]float64 {
	rows := make([][]float64, end-first)
	for i := range rows {
		slot := first + uint64(i)
		source := rand.New(rand.NewPCG(slot, 71))
		a, b := 1e6+300*source.NormFloat64(), 0.01*source.NormFloat64()
		if slot%29 != 7 {
			rows[i] = []float64{a, 2e5 + 10*(a-1e6) - 1e5*b + 200*source.NormFloat64(), b}
		}
	}
	return rows
}

// TestWarmed: an estimator after a warm-up gives the same states and releases wherever it is interrupted. Its steps
// have no slot in common. After the warm-up, its releases equal, bit for bit, those of an estimator configured with the
// found bounds.
func TestWarmed(t *testing.T) {
	t.Parallel()
	for name, text := range automatics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parsed(t, text)
			m, err := NewMechanism(s, nil, nil)
			must(t, err)
			// No slot is in two steps: a record is in the warm-up or in a later step.
			var covered uint64
			parts := m.warmup.Parts
			for step := uint64(1); step <= parts+1; step++ {
				first, end := m.Range(step)
				if first != covered || end <= first || (step <= parts) != (end <= m.warmup.Records) {
					t.Errorf("step %d has slots %d to %d, after %d, with a warm-up of %d", step, first, end, covered,
						m.warmup.Records)
				}
				covered = end
			}
			if ChargedTo(m, parts+5, 10) < 10+int64(covered) {
				t.Error("an epoch is charged for too few offsets")
			}

			var releases []*dp.Release
			contract := estimatortest.Contract[Estimator]{
				New: func(t testing.TB) Estimator {
					m, err := NewMechanism(s, m.Plan, nil)
					must(t, err)
					return m.Estimator
				},
				Steps: parts + 6,
				Rows:  func(_, first, end uint64) [][]float64 { return examples(first, end) },
				Noise: func(testing.TB) func(uint64) dp.Noise {
					return func(step uint64) dp.Noise { return dptest.Seeded(step) }
				},
				Size: func(e Estimator) int64 { return e.Sizes().State },
				After: func(_ Estimator, _ []byte, r *dp.Release) {
					if r != nil {
						releases = append(releases, r)
					}
				},
			}
			contract.Restart(t)

			var b *Bounds
			for _, r := range releases {
				warm := len(r.Values) == 0 && r.Failed == ""
				if warm != (r.Step <= parts) || warm != (noteOf[[]bounds.Stage](r, "warmup") != nil) ||
					r.Verdict != "ok" {
					t.Fatalf("step %d: verdict %q, %+v", r.Step, r.Verdict, r)
				}
				if b = noteOf[*Bounds](r, "bounds"); warm != (b == nil) {
					t.Fatalf("step %d: bounds %+v", r.Step, b)
				}
			}
			if b == nil || math.Abs(b.Centre[0]-1e6) > 300 || !(b.Scale[1] > 1000 && b.Scale[1] < 20000) ||
				(name == "adam") != (b.ClipX == 0) || name != "adam" && !(b.ClipX > 1 && b.ClipX < 100) {
				t.Fatalf("found %+v", b)
			}

			if s.Adam != nil { // each epoch has its own units, so no parameters are passed to the next
				state, err := m.AppendBinary(nil)
				must(t, err)
				if x, err := LearntBy("adam", state); x != nil || err != nil || LearningOf(s) != nil ||
					LearningOf(s.Standing()) == nil {
					t.Errorf("learnt %v, %v", x, err)
				}
			}
			given := s.Bounded(b.Centre, b.Scale, b.ClipX, b.ClipY, 2)
			other, err := NewMechanism(given, nil, nil)
			must(t, err)
			row := make([]float64, 3)
			var want []*dp.Release
			for step := uint64(1); step <= 6; step++ {
				first, end := other.Range(step)
				for i, x := range examples(m.warmup.Records+first, m.warmup.Records+end) {
					if x == nil {
						other.Add(first+uint64(i), nil)
						continue
					}
					for j, v := range x {
						row[j] = (v - b.Centre[j]) / b.Scale[j]
					}
					other.Add(first+uint64(i), row)
				}
				r, err := other.Close(dptest.Seeded(step + parts))
				must(t, err)
				if r != nil {
					want = append(want, r)
				}
			}
			got := releases[len(releases)-len(want):]
			for i := range want {
				if !reflect.DeepEqual(got[i].Values, want[i].Values) || got[i].Step != want[i].Step+parts ||
					got[i].Rows != want[i].Rows {
					t.Fatalf("release %d: %+v, want %+v", i, got[i], want[i])
				}
			}
			if len(want) == 0 || len(releases) != len(want)+int(parts) {
				t.Errorf("%d releases, %d of them of the regression", len(releases), len(want))
			}
		})
	}
}

func noteOf[T any](r *dp.Release, name string) (x T) {
	for _, n := range r.Notes {
		if n.Name == name {
			x, _ = n.Value.(T)
		}
	}
	return x
}

// TestWarmedPlans: the plan of another warm-up, or one without a warm-up, is refused. Restoring a damaged state may
// fail or succeed, but must not panic.
func TestWarmedPlans(t *testing.T) {
	t.Parallel()
	s := parsed(t, automatics["refit"])
	m, err := NewMechanism(s, nil, nil)
	must(t, err)
	plain, err := NewMechanism(s.Standing(), nil, nil)
	must(t, err)
	for _, plan := range []json.RawMessage{
		plain.Plan,
		bytes.Replace(m.Plan, []byte(`"records":1200`), []byte(`"records":1300`), 1),
		bytes.Replace(m.Plan, []byte(`"parts":1`), []byte(`"parts":2`), 1),
		bytes.Replace(m.Plan, []byte(`"solver":"newton"`), []byte(`"solver":"dp-gd"`), 1),
		bytes.Replace(m.Plan, []byte(`"norm_bound":1`), []byte(`"norm_bound":2`), 1),
	} {
		if string(plan) == string(m.Plan) {
			t.Fatal("nothing was replaced")
		}
		if _, err := NewMechanism(s, plan, nil); err == nil {
			t.Errorf("the plan %s is accepted", plan)
		}
	}
	if _, err := NewMechanism(s.Standing(), m.Plan, nil); err != nil {
		t.Errorf("the plan without its warm-up: %v", err)
	}

	// Even if all records of the warm-up were valid, they would be too few.
	few := parsed(t, strings.Replace(automatics["refit"], "warmup = 1200", "warmup = 30", 1))
	if _, err := NewMechanism(few, nil, nil); err == nil || !strings.Contains(err.Error(), "warmup") {
		t.Errorf("a warm-up of 30 records: %v", err)
	}

	first, end := m.Range(1)
	for i, x := range examples(first, end) {
		m.Add(uint64(i), x)
	}
	_, err = m.Close(dptest.Seeded(1))
	must(t, err)
	state, err := m.AppendBinary(nil)
	must(t, err)
	for n := range state {
		cut, err := NewMechanism(s, m.Plan, nil)
		must(t, err)
		if n%9 == 0 && cut.UnmarshalBinary(state[:n]) == nil {
			t.Fatalf("a state cut to %d bytes is accepted", n)
		}
	}
}

// TestWarmedVerdicts: a warm-up without enough records ends the epoch. A constant feature is frozen: its coefficient is
// 0, and the others and the constant equal those of a regression without it.
func TestWarmedVerdicts(t *testing.T) {
	t.Parallel()
	s := parsed(t, strings.Replace(automatics["newton"], `"y", "b"]`, `"y", "b", "c"]`, 1))
	m, err := NewMechanism(s, nil, nil)
	must(t, err)
	for slot := range uint64(1200) {
		m.Add(slot, nil)
	}
	r, err := m.Close(dptest.Seeded(1))
	must(t, err)
	if r.Verdict != "fail" || r.Rows != 1200 || r.Step != 1 {
		t.Errorf("%+v", r)
	}
	if why, ended := m.Estimator.(ending).Ended(); why != "warmup" || !ended {
		t.Error("the epoch continues")
	}
	if _, err := m.Close(dptest.Seeded(2)); err != dp.ErrExhausted {
		t.Errorf("a step after the end: %v", err)
	}

	if m, err = NewMechanism(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	for step := uint64(1); step <= 80; step++ {
		first, end := m.Range(step)
		for i, x := range examples(first, end) {
			if x != nil {
				x = append(x, 17)
			}
			m.Add(first+uint64(i), x)
		}
		if r, err = m.Close(dptest.Seeded(step)); err != nil {
			t.Fatal(err)
		}
	}
	b := noteOf[*Bounds](r, "bounds")
	if b == nil || b.Verdict != "partial" || !slices.Equal(b.Frozen, []string{"c"}) || b.Centre[3] != 17 {
		t.Fatalf("%+v", b)
	}
	for _, v := range r.Values {
		switch v.Name {
		case "theta", "theta_average", "interval_low", "interval_high":
			if v.Data[2] != 0 || v.SE != nil && !math.IsNaN(v.SE[2]) {
				t.Errorf("%+v", v)
			}
		case "theta_average_original":
			// The prediction is 2·10⁵ − 10⁷ + 10a − 10⁵b at the middle of the rows, with an error of 8 % of y's
			// deviation.
			at := v.Data[3] + 1e6*v.Data[0]
			if v.Data[2] != 0 || math.Abs(v.Data[0]-10) > 1 || math.Abs(v.Data[1]+1e5) > 3e4 || math.Abs(at-2e5) > 300 {
				t.Errorf("%+v, %g in the middle", v, at)
			}
		}
	}
}

// coupled runs a mechanism over its warm-up and the steps after it, once with record x and once with record y in one
// slot. All releases are held fixed: the second run hides different integers, and its noise is moved to compensate.
// coupled returns how far the noise moved in the warm-up, in units of μ,
//
//	√Σ ‖C(h − h′)/σ‖² / μ,
//
// and whether a row that a later step hides differs.
func coupled(t *testing.T, build func() Estimator, mu float64, slot uint64, x, y []float64) (moved float64,
	later bool) {
	t.Helper()
	type hidden struct {
		array string
		row   []int64
	}
	run := func(x []float64, shift func(array string, row []int64) []float64) (all []hidden, found string,
		sigma map[string]float64) {
		e := build()
		sigma = map[string]float64{}
		for step := uint64(1); step <= 8; step++ {
			first, end := e.Range(step)
			for i, row := range examples(first, end) {
				if at := first + uint64(i); at == slot {
					row = x
				}
				e.Add(first+uint64(i), row)
			}
			source := dptest.Seeded(step)
			r, err := e.Close(spy(func(array string, row []int64) dp.Row {
				all = append(all, hidden{array, slices.Clone(row)})
				z := source.Row(array, row)
				if d := shift(array, row); d != nil {
					return moveRow{z, d}
				}
				return z
			}))
			must(t, err)
			if r != nil && len(r.Values) == 0 {
				for _, s := range noteOf[[]bounds.Stage](r, "warmup") {
					if s.Verdict != "ok" {
						t.Fatalf("the warm-up failed: %+v", s)
					}
					sigma["warmup/"+s.Stage] = s.Sigma
				}
			}
			if r != nil {
				text, err := json.Marshal(noteOf[*Bounds](r, "bounds"))
				must(t, err)
				found = string(text)
			}
		}
		return all, found, sigma
	}
	a, found, sigma := run(x, func(string, []int64) []float64 { return nil })
	n := 0
	b, same, _ := run(y, func(array string, row []int64) []float64 {
		if n >= len(a) || a[n].array != array || len(a[n].row) != len(row) {
			t.Fatalf("the two runs differ in form at %s", array)
		}
		before := a[n].row
		if n++; !strings.HasPrefix(array, "warmup/") {
			return nil
		}
		bins := map[string]int{"A1": 417, "A2": 512, "A3": 833, "A4": 833, "B": 128}[array[len("warmup/"):]]
		d := shiftOf(before, row, bins, sigma[array])
		for _, v := range d {
			moved += v * v
		}
		return d
	})
	if found != same {
		t.Fatalf("the releases are not held fixed: %s and %s", found, same)
	}
	for i := range a {
		if !strings.HasPrefix(a[i].array, "warmup/") && !slices.Equal(a[i].row, b[i].row) {
			later = true
		}
	}
	return math.Sqrt(moved) / mu, later
}

// shiftOf returns C(h − h′)/σ for histograms of the given number of bins, with C from its definition. A record adds the
// greatest common divisor of the counts.
func shiftOf(before, after []int64, bins int, sigma float64) []float64 {
	var one int64
	for _, v := range before {
		for a, b := one, v; ; a, b = b, a%b {
			if b == 0 {
				one = a
				break
			}
		}
	}
	f := make([]float64, bins)
	f[0] = 1
	for k := 1; k < bins; k++ {
		f[k] = f[k-1] * (2*float64(k) - 1) / (2 * float64(k))
	}
	width := len(before) / bins
	d := make([]float64, len(before))
	for k := range before {
		if x := before[k] - after[k]; x != 0 {
			for i := k / width; i < bins; i++ {
				d[i*width+k%width] += f[i-k/width] * float64(x) / float64(one) / sigma
			}
		}
	}
	return d
}

type spy func(array string, row []int64) dp.Row

func (s spy) Row(array string, row []int64) dp.Row { return s(array, row) }

// moveRow is a row with shifted coordinates.
type moveRow struct {
	dp.Row
	by []float64
}

func (r moveRow) At(j int) float64 { return r.Row.At(j) + r.by[j] }

func (r moveRow) Fill(dst []float64) {
	for j := range dst {
		dst[j] = r.At(j)
	}
}

// twice is a faulty warm-up: one of its records is also used by the regression.
type twice struct {
	Estimator
	kept []float64
}

func (e *twice) Add(slot uint64, row []float64) {
	if slot == 40 {
		e.kept = slices.Clone(row)
	}
	if slot == 1203 {
		row = e.kept
	}
	e.Estimator.Add(slot, row)
}

// TestWarmedSensitivity changes one record and holds all releases fixed. A record of the warm-up moves its noise by at
// most μ, and the steps after the warm-up hide the same integers with and without the record. A record after the
// warm-up is in none of its histograms. A record in both is detected.
func TestWarmedSensitivity(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"newton", "refit"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parsed(t, automatics[name])
			m, err := NewMechanism(s, nil, nil)
			must(t, err)
			mu := m.Cost().Mu
			build := func() Estimator {
				m, err := NewMechanism(s, m.Plan, nil)
				must(t, err)
				return m.Estimator
			}
			behind := false
			far := []float64{-0x1p104, -0x1p104, -0x1p104}
			for _, pair := range [][2][]float64{
				{far, nil}, {{1e6 - 800, 2.1e5, 0.03}, {-1e6, 1e9, math.Inf(1)}},
				{far, {0x1p104, 0x1p104, 0x1p104}},
			} {
				moved, later := coupled(t, build, mu, 40, pair[0], pair[1])
				if !(moved > 0.3 && moved <= 1) || later {
					t.Errorf("%v and %v in the warm-up are %.6g of μ apart; later steps differ: %v", pair[0],
						pair[1], moved, later)
				}
				moved, later = coupled(t, build, mu, 1203, pair[0], pair[1])
				if behind = behind || later; moved != 0 {
					t.Errorf("%v and %v after the warm-up differ by %.6g of μ in it", pair[0], pair[1], moved)
				}
			}
			if !behind {
				t.Error("no record after the warm-up is in a hidden row")
			}
			faulty := func() Estimator { return &twice{Estimator: build()} }
			if moved, later := coupled(t, faulty, mu, 40, far, nil); !(moved > 0.3) || !later {
				t.Errorf("a record in warm-up and regression is not detected: %.6g of μ, later %v", moved, later)
			}
		})
	}
}
