package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

func TestPlan(t *testing.T) {
	file := filepath.Join(cases.Root(t), "examples", "orders.toml")
	got := want(t, exitDone, "", "plan", "-c", file)
	golden := filepath.Join("testdata", "plan.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(text) {
		t.Errorf("plan prints\n%s\nwant\n%s", got, text)
	}
	var plans []struct {
		Mu             float64
		Steps          []uint64
		Factorizations []struct {
			Factorization string
			Errors        []map[string]float64 `json:"standard_errors"`
		}
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file)), &plans); err != nil {
		t.Fatal(err)
	}
	if len(plans) != 1 || len(plans[0].Factorizations) != 4 || len(plans[0].Steps) != 5 {
		t.Errorf("plan --json: %+v", plans)
	}
}

// TestPlanWithHorizon: the plan shows the last step of the horizon, and no steps after it.
func TestPlanWithHorizon(t *testing.T) {
	s := newSite(t)
	s.write("horizon = 50", "1.0")
	var plans []struct{ Steps []uint64 }
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", s.config)), &plans); err != nil {
		t.Fatal(err)
	}
	if len(plans) != 1 || !slices.Equal(plans[0].Steps, []uint64{1, 10, 50}) {
		t.Errorf("plan shows %+v", plans)
	}
	want(t, exitUsage, "--steps has only steps after the end of stream orders, which is step 50", "plan",
		"-c", s.config,
		"--steps", "100")
}

// TestPlanWarmup: if the bounds of a regression are found, the plan shows the offsets of the warm-up and the steps
// after it. The audit covers the mechanism after the warm-up.
func TestPlanWarmup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, file := filepath.Join(dir, "key"), filepath.Join(dir, "s.toml")
	want(t, exitDone, "", "keygen", key)
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "examples", "demand-auto.toml"))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer("/etc/streamdp/key", key, "/var/lib/streamdp",
		filepath.Join(dir, "state")).Replace(string(text))
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	out := want(t, exitDone, "", "plan", "-c", file)
	for _, part := range []string{"found by the warm-up", "warm-up: the first 5000 offsets, 1 step; at least ", "the " +
		"estimate is useful after"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
	var plans []struct {
		Warmup struct{ Records, Needed, Parts uint64 }
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file)), &plans); err != nil {
		t.Fatal(err)
	}
	if w := plans[0].Warmup; w.Records != 5000 || w.Parts != 1 || w.Needed < 500 || w.Needed > 5000 {
		t.Errorf("warm-up %+v", w)
	}
	want(t, exitDone, "", "audit", "--quick", "-c", file)
}

// TestPlanInWords: a plan shows a mechanism's numbers with six digits, and gives a reason for a missing comparison.
func TestPlanInWords(t *testing.T) {
	t.Parallel()
	out := want(t, exitDone, "", "plan", "-c", filepath.Join(cases.Root(t), "examples", "auto.toml"))
	for _, part := range []string{"step 100, nu 1.41421, lambda 1.41421, ",
		"\n  - cs: tau needs a clip that is not \"auto\", because it is in units of the rows\n"} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s", part, out)
		}
	}
}

// TestPlanSaysWhy: the plan says what "auto" chose. Its sentence about tune agrees with the plan of a stream with that
// tune.
func TestPlanSaysWhy(t *testing.T) {
	example, err := os.ReadFile(filepath.Join(cases.Root(t), "examples", "orders.toml"))
	if err != nil {
		t.Fatal(err)
	}
	type shown struct {
		Why            []string
		Factorizations []struct {
			Configured bool
			Errors     []struct{ Mean float64 } `json:"standard_errors"`
		}
	}
	planned := func(old, replacement string) shown {
		t.Helper()
		text := strings.Replace(string(example), old, replacement, 1)
		if text == string(example) && old != replacement {
			t.Fatalf("no %q in the example", old)
		}
		var plans []shown
		if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", write(t, "plan.toml", text))),
			&plans); err != nil {
			t.Fatal(err)
		}
		return plans[0]
	}
	noise := func(s shown, step int) float64 {
		for _, f := range s.Factorizations {
			if f.Configured {
				return f.Errors[step].Mean
			}
		}
		t.Fatal("no configured factorization")
		return 0
	}
	says := func(s shown, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(strings.Join(s.Why, "\n"), part) {
				t.Errorf("the plan says\n%s\nand not %q", strings.Join(s.Why, "\n"), part)
			}
		}
	}
	mean := `workload = "mean"`
	own, tuned := planned(mean, mean), planned(mean, mean+"\ntune = 10000")
	gain, loss := 1-noise(tuned, 4)/noise(own, 4), noise(tuned, 0)/noise(own, 0)-1
	says(own, "auto chose jme, because its alternatives, pp_debiased and combined, square single rows",
		"auto chose phased, because neither horizon nor tune is set",
		fmt.Sprintf("with tune = 10000 the noise would be %.0f %% less at step 10000, and %.0f %% more at step 1",
			100*gain, 100*loss))
	if !(gain > 0.2 && loss > 0.5) {
		t.Errorf("tune gains %g and costs %g", gain, loss)
	}
	says(tuned, "auto chose blt, because its error is least at 10000 steps")
	says(planned(mean, "workload = \"window\"\nwindow = 20"), "auto chose blt, because for workload \"window\"")
	one := planned("step   = 100 ", "step = 1 ")
	says(one,
		"auto chose jme, because its alternatives, pp_debiased and combined, square noisy rows, which needs another "+
			"factorization")
	says(planned(mean, mean+"\nfactorization = \"identity\""), "auto chose jme")
	if named := planned(mean, mean+"\nmethod = \"jme\"\nfactorization = \"phased\""); len(named.Why) > 0 {
		t.Errorf("nothing is auto, but the plan says %q", named.Why)
	}
	says(planned("step   = 100 ", "horizon = 50\nstep = 1 "),
		"weighted sum of the squared errors of mean and second moment is least (jme ", "pp_debiased ", "step 50",
		"auto chose blt, because its error is least at 50 steps")
}

// TestPlot draws a plan as SVG and as PNG, and refuses to draw more than one stream.
func TestPlot(t *testing.T) {
	file := filepath.Join(cases.Root(t), "examples", "orders.toml")
	dir := t.TempDir()
	svg, bitmap := filepath.Join(dir, "noise.svg"), filepath.Join(dir, "noise.png")
	want(t, exitDone, "", "plan", "-c", file, "--steps", "10", "--plot", svg)
	want(t, exitDone, "", "plan", "-c", file, "--steps", "10", "--factorizations=false", "--plot", bitmap)
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"<svg", "dense", "sqrt", "blt, 2 buffers", "phased *", "bisr, 16 " +
		"bands", "identity", "standard deviation"} {
		if !strings.Contains(string(text), name) {
			t.Errorf("the plot does not have %q", name)
		}
	}
	f, err := os.Open(bitmap)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := png.DecodeConfig(f); err != nil || c.Width < 1000 {
		t.Errorf("the plot is %+v, %v", c, err)
	}
	want(t, exitUsage, ".svg or .png", "plan", "-c", file, "--plot", filepath.Join(dir, "noise.jpg"))
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(dir, "two.toml")
	second := strings.ReplaceAll(string(source[bytes.Index(source, []byte("[stream.orders")):]), "stream.orders",
		"stream.again")
	if err := os.WriteFile(two, []byte(string(source)+strings.ReplaceAll(second, "orders.dp", "again.dp")),
		0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitUsage, "--stream", "plan", "-c", two, "--plot", svg)
	want(t, exitUsage, "noise of moments", "plan", "-c", filepath.Join(cases.Root(t), "examples", "demand.toml"),
		"--plot", svg)
	want(t, exitDone, "", "plan", "-c", two, "--stream", "again", "--steps", "10", "--plot", svg)
}
