package bounds

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

func TestCases(t *testing.T) {
	cases.Run(t, "bounds", map[string]func(*testing.T, cases.Case){"bounds_warmup": caseWarmup})
}

// replayBits makes the lattice so fine that rounding stays below a case's tolerance.
const replayBits = 41

// replayed is the noise of the case with that name: sums of twelve uniform numbers of a linear congruential generator,
// histogram by histogram.
type replayed string

// Row implements dp.Noise.
func (name replayed) Row(array string, hidden []int64) dp.Row {
	stage := strings.TrimPrefix(array, "warmup/")
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s", string(name), stage)
	state, bins := h.Sum32(), binsOf(stage)
	width := len(hidden) / bins
	z := make([]float64, len(hidden))
	for i := range z {
		var sum float64
		for range 12 {
			state = 1664525*state + 1013904223
			sum += float64(state) / (1 << 32)
		}
		z[i%bins*width+i/bins] = sum - 6
	}
	return dptest.Arrays(map[string][][]float64{array: {z}}).Row(array, hidden)
}

func binsOf(stage string) int {
	return map[string]int{"A1": octaveBins, "A2": circleBins, "A3": deviationBins, "A4": deviationBins,
		"B": normBins}[stage]
}

type caseStage struct {
	Sigma     float64
	PrefixAt  []int       `json:"prefix_at"`
	Prefix    [][]float64 `json:"prefix"`
	PrefixSum []float64   `json:"prefix_sum"`
	Valid     float64
	NoiseSD   float64 `json:"noise_sd"`
	Range     [][2]float64
	Levels    []int
	Centre    []float64
	Dead      []float64
	Width     []float64
	Origin    []float64
	Cols      []int
	Scale     []float64
	Frozen    []bool
	Cap       []float64
	Unseen    float64
	Active    int
	ShareSum  float64 `json:"share_sum"`
	First     int
	Tail      float64
	B1, B2    float64
	Clip      float64
	Clipping
}

func caseWarmup(t *testing.T, c cases.Case) {
	var in struct {
		Mu           float64
		Adjacency    dp.Adjacency
		Mode         string
		Gain1, Gain2 float64
		NRef         float64 `json:"n_ref"`
		Rows         []json.RawMessage
		NoiseFirst   map[string]float64 `json:"noise_first"`
	}
	var want struct {
		Stages map[string]caseStage
		Report struct {
			Verdict       string
			Stage, Reason string
			Found, Needed float64
			Centre, Scale []float64
			Clip          float64
			Frozen        []int
			Clipping
		}
	}
	c.Read(t, &in, &want)
	rows := make([][]float64, len(in.Rows))
	d := 0
	for i, raw := range in.Rows {
		var row []*float64
		if err := json.Unmarshal(raw, &row); err != nil {
			t.Fatal(err)
		}
		for _, x := range row {
			if x == nil {
				rows[i] = append(rows[i], math.NaN())
			} else {
				rows[i] = append(rows[i], *x)
			}
		}
		d = max(d, len(row))
	}
	// Not New: a case may have fewer records than New accepts.
	w := newWarmup(Config{
		Columns: d, Clip: true, Records: uint64(len(rows)), Split: in.Mode == "split",
		Gains: Gains{in.Gain1, in.Gain2, in.NRef},
	}, in.Mu, in.Adjacency, replayBits)
	w.begin()
	_, name, _ := strings.Cut(c.Name, "/")
	noise := replayed(name)
	for stage, z := range in.NoiseFirst {
		if got := noise.Row("warmup/"+stage, make([]int64, binsOf(stage))).At(0); math.Abs(got-z) > 1e-12 {
			t.Errorf("noise of %s begins with %g, want %g", stage, got, z)
		}
	}
	ran := map[string]bool{}
	for part := uint64(1); !w.Done(); part++ {
		first, end := w.Range(part)
		for _, row := range rows[first:end] {
			w.Add(row)
		}
		taken := w.taken[w.next:]
		all, err := w.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range all {
			name := names[taken[i]]
			ran[name] = true
			stage, ok := want.Stages[name]
			if !ok {
				t.Errorf("stage %s is not in the case", name)
				continue
			}
			compareStage(t, c, w, name, &x, w.released[i], &stage)
		}
		last := all[len(all)-1]
		if r := &want.Report; w.Failed() {
			if r.Verdict != "fail" || last.Stage != r.Stage || last.Reason != r.Reason {
				t.Errorf("failed in %s, %q; want %s in %s, %q", last.Stage, last.Reason, r.Verdict, r.Stage, r.Reason)
			}
			if r.Needed != 0 {
				c.Near(t, "found", last.Records, r.Found)
				c.Near(t, "needed", last.Needed, r.Needed)
			}
		}
	}
	for name := range want.Stages {
		if !ran[name] {
			t.Errorf("stage %s did not run", name)
		}
	}
	if r := &want.Report; !w.Failed() {
		f := w.Found()
		if r.Verdict != "ok" {
			t.Errorf("the warm-up did not fail; want %s in %s", r.Verdict, r.Stage)
		}
		same(t, "report: centre", f.Centre, r.Centre)
		same(t, "report: scale", f.Scale, r.Scale)
		if !slices.Equal(f.FrozenColumns(), r.Frozen) {
			t.Errorf("report: columns %v are frozen, want %v", f.FrozenColumns(), r.Frozen)
		}
		compareClipping(t, c, f.Clip, &f.Clipping, r.Clip, &r.Clipping)
	}
}

func same(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func compareStage(t *testing.T, c cases.Case, w *Warmup, name string, x *Stage, p *sums, want *caseStage) {
	t.Helper()
	if p != nil {
		c.Near(t, name+": sigma", p.sigma, want.Sigma)
		c.Near(t, name+": valid", p.records, want.Valid)
		c.Near(t, name+": noise_sd", p.noise(), want.NoiseSD)
		if len(p.prefix) != len(want.Prefix) {
			t.Fatalf("%s: %d histograms, want %d", name, len(p.prefix), len(want.Prefix))
		}
		for h, prefix := range p.prefix {
			var sum float64
			for _, v := range prefix {
				sum += v
			}
			c.Near(t, name+": prefix_sum", sum, want.PrefixSum[h])
			for i, b := range want.PrefixAt {
				c.Near(t, fmt.Sprintf("%s: prefix %d of histogram %d", name, b, h), prefix[b], want.Prefix[h][i])
			}
		}
	} else if want.Sigma != 0 {
		t.Errorf("%s has no histograms", name)
	}
	if x.Reason == "not enough records" {
		return
	}
	switch name {
	case "A1":
		if !slices.Equal(x.Ranges, want.Range) || !slices.Equal(x.Circles, want.Levels) {
			t.Errorf("A1: ranges %v with %v circles, want %v with %v", x.Ranges, x.Circles, want.Range, want.Levels)
		}
	case "A2":
		same(t, "A2: centre", x.Centre, want.Centre)
		same(t, "A2: dead", x.Dead, want.Dead)
		var width, origin []float64
		for _, r := range w.ranges {
			width, origin = append(width, r.width), append(origin, r.origin)
		}
		same(t, "A2: width", width, want.Width)
		same(t, "A2: origin", origin, want.Origin)
	case "A3", "A4":
		var frozen []bool
		var largest []float64
		for j := range x.Scale {
			frozen, largest = append(frozen, slices.Contains(x.Frozen, j)), append(largest, *x.Cap[j])
		}
		same(t, name+": centre", x.Centre, want.Centre)
		same(t, name+": scale", x.Scale, want.Scale)
		same(t, name+": cap", largest, want.Cap)
		if !slices.Equal(frozen, want.Frozen) {
			t.Errorf("%s: frozen %v, want %v", name, frozen, want.Frozen)
		}
		c.Near(t, name+": unseen", x.Unseen, want.Unseen)
		if len(p.prefix) != len(want.Cols) {
			t.Errorf("%s: counted %d columns, want %v", name, len(p.prefix), want.Cols)
		}
	case "B":
		if w.active() != want.Active || w.choice.first != want.First {
			t.Errorf("B: %d columns, first level %d; want %d, %d", w.active(), w.choice.first, want.Active, want.First)
		}
		c.Near(t, "B: share_sum", w.choice.shareSum, want.ShareSum)
		c.Near(t, "B: tail", w.choice.exponent, want.Tail)
		c.Near(t, "B: b1", w.choice.choose.mean[w.choice.edge], want.B1)
		c.Near(t, "B: b2", w.choice.choose.other[w.choice.edge], want.B2)
		// A stage of the case does not say whether it is biased.
		got := *x.Clipping
		got.BiasedMean, got.BiasedSecond = false, false
		compareClipping(t, c, x.Clip, &got, want.Clip, &want.Clipping)
	}
}

func compareClipping(t *testing.T, c cases.Case, clip float64, got *Clipping, wantClip float64, want *Clipping) {
	t.Helper()
	if clip != wantClip {
		t.Errorf("clip is %g, want %g", clip, wantClip)
	}
	c.Near(t, "clipped", got.Clipped, want.Clipped)
	c.Near(t, "clipped_se", got.ClippedSE, want.ClippedSE)
	c.Near(t, "bias_mean", got.BiasMean, want.BiasMean)
	c.Near(t, "bias_second", got.BiasSecond, want.BiasSecond)
	if got.BiasedMean != want.BiasedMean || got.BiasedSecond != want.BiasedSecond {
		t.Errorf("biased: %v, %v; want %v, %v", got.BiasedMean, got.BiasedSecond, want.BiasedMean, want.BiasedSecond)
	}
}
