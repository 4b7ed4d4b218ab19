package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fit"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// fitFile writes rows of y = 2u − v + 1 + noise in original units, some of them damaged, and returns the flags that fit
// needs for the file.
func fitFile(t *testing.T, n int) []string {
	t.Helper()
	source := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString("u,sold,v\n")
	for i := range n {
		u, v := source.NormFloat64(), source.NormFloat64()
		y := 2*u - v + 1 + source.NormFloat64()/2
		if i%50 == 7 {
			b.WriteString([]string{"?,1,2\n", "1,2\n", "1,nan,3\n", ",,\n"}[i/50%4])
			continue
		}
		fmt.Fprintf(&b, "%g,%g,%g\n", 10+2*u, 100+20*y, 5*v)
	}
	file := filepath.Join(t.TempDir(), "sales.csv")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"fit", "--csv", file, "--target", "sold", "--epsilon", "2", "--delta", "1e-6",
		"--adjacency", "zero-out",
		"--clip-x", "5", "--clip-y", "8", "--centre", "10,100,0", "--scale", "2,20,5"}
}

// TestFit runs every solver: the estimate must be as close to the relation as the solver allows, in scaled and in
// original units. A run without a seed gives another result.
func TestFit(t *testing.T) {
	t.Parallel()
	const n = 20000
	flags := fitFile(t, n)
	for name, c := range map[string]struct {
		most       float64
		accounting string
	}{
		"newton": {0.05, "exact"}, "ihm": {0.2, "exact"}, "fast-ihm": {2, "rdp"}, "linmix": {0.5, "exact"},
		"adassp": {0.2, "exact"},
		"dp-gd":  {0.05, "exact"}, "dp-gd-paper": {0.4, "exact"}, "dp-gd-residual": {2.1, "exact"},
		"dp-ssgd": {1.5, "shuffle"}, "ambssgd": {0.1, "exact"},
		"newton-online": {0.1, "exact"},
	} {
		args := append(slices.Clone(flags), "--solver", name, "--json")
		if name == "ambssgd" {
			args = append(args, "--curvature", "1.2")
		}
		seeded := append(slices.Clone(args), "--insecure-seed", "3")
		out := want(t, exitDone, "INSECURE", seeded...)
		var r fit.Result
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		far := 0.0
		for j, w := range []float64{2, -1, 1} {
			far = max(far, math.Abs(append(slices.Clone(r.Theta), r.Intercept)[j]-w))
		}
		t.Logf("%s: %.3f, %.3f", name, r.Theta, r.Intercept)
		if far > c.most || r.N != n || r.D != 2 || r.Solver != name || r.Epsilon != 2 || r.Delta != 1e-6 ||
			r.Adjacency.String() != "zero-out" || !r.Insecure || r.TrainMSE != nil {
			t.Errorf("%s: %s", name, out)
		}
		with := map[string]bool{"newton": true, "newton-online": true, "ambssgd": r.SE != nil}[name]
		if with && len(r.SE) != 3 || !with && r.SE != nil {
			t.Errorf("%s: standard errors %v", name, r.SE)
		}
		if !slices.Equal(r.Columns, []string{"u", "v"}) || r.Account != c.accounting {
			t.Errorf("%s: %s", name, out)
		}
		// In original units, y = 100 + 20(θ₁(u−10)/2 + θ₂v/5 + θ₀).
		o := []float64{10 * r.Theta[0], 4 * r.Theta[1], 100 + 20*r.Intercept - 100*r.Theta[0]}
		for j := range o {
			if math.Abs(r.Original[j]-o[j]) > 1e-9*math.Abs(o[j]) {
				t.Errorf("%s: in original units %g, want %g", name, r.Original, o)
				break
			}
		}
		if proven := !strings.Contains(r.Note,
			"finite precision: not proven"); proven != !slices.Contains([]string{"ihm", "fast-ihm", "linmix"}, name) {
			t.Errorf("%s notes %q", name, r.Note)
		}
		var again, other fit.Result
		for dst, a := range map[*fit.Result][]string{&again: seeded, &other: args} {
			if err := json.Unmarshal([]byte(want(t, exitDone, "", a...)), dst); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(again.Theta, r.Theta) || slices.Equal(other.Theta, r.Theta) || other.Insecure {
			t.Errorf("%s: a seed gives %g and %g, no seed %g", name, r.Theta, again.Theta, other.Theta)
		}
	}
}

// TestFitOutput checks text, comparison and diagnostics.
func TestFitOutput(t *testing.T) {
	t.Parallel()
	flags := fitFile(t, 3000)
	with := func(more ...string) []string { return append(slices.Clone(flags), more...) }
	out := want(t, exitDone, "", with("--solver", "dp-gd")...)
	for _, w := range []string{"dp-gd of sold on 3000 rows: (2, 1e-06)-differentially private, zero-out, accounting " +
		"exact", "original units", "intercept"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	if strings.Contains(out, "squared error") {
		t.Errorf("an error on the file is printed without being asked for:\n%s", out)
	}
	// Duration and first-line cells are functions of the file, so they must not appear.
	var r fit.Result
	if err := json.Unmarshal([]byte(want(t, exitDone, "", with("--json")...)), &r); err != nil ||
		r.Seconds != math.Floor(r.Seconds) || r.Seconds == 0 {
		t.Errorf("a fit took %g seconds, %v", r.Seconds, err)
	}
	file := filepath.Join(t.TempDir(), "x.csv")
	for line, fault := range map[string]bool{"1,a " +
		"secret,3": true, "7,,3": true, ",,": false, "u,sold,v": false, "1,2,3": false} {
		if err := os.WriteFile(file, []byte(line+strings.Repeat("\n1,2,3", 100)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"auto", "no"} {
			args := with("--csv", file, "--target", "last", "--header", n)
			if fault && n == "auto" {
				want(t, exitUsage,
					"x.csv: the first line has both numbers and other cells: use --header yes or --header "+
						"no\n",
					args...)
				continue
			}
			rows := 101
			if line != "1,2,3" && n == "auto" {
				rows = 100
			}
			if out := want(t, exitDone, "", args...); !strings.Contains(out, fmt.Sprintf(" on %d rows", rows)) {
				t.Errorf("%q, header %s:\n%s", line, n, out)
			}
		}
	}
	out = want(t, exitDone, "not private", with("--solver", "ols", "--insecure-diagnostics")...)
	if !strings.Contains(out, "accounting none") ||
		!strings.Contains(out, "squared error on the file, not private: 0.2") {
		t.Errorf("ols prints\n%s", out)
	}
	out = want(t, exitDone, "not private",
		with("--compare", "--insecure-diagnostics", "--intercept=false", "--columns", "u,sold", "--centre", "0",
			"--scale", "10")...)
	for _, name := range fit.Solvers() {
		if !strings.Contains(out, name+" ") {
			t.Errorf("%s is not compared:\n%s", name, out)
		}
	}
	var all []fit.Result
	if err := json.Unmarshal([]byte(want(t, exitDone, "", with("--compare", "--insecure-diagnostics", "--json")...)),
		&all); err != nil || len(all) != len(fit.Solvers()) || all[0].TrainMSE == nil {
		t.Errorf("the comparison as JSON: %+v, %v", all, err)
	}
	short := fitFile(t, 100)
	out = want(t, exitDone, "", append(short, "--epsilon", "0.1")...)
	if !strings.Contains(out, "newton of sold on 100 rows") ||
		!strings.Contains(out, "may have smaller errors than these results") ||
		!strings.Contains(out, "no standard errors") {
		t.Errorf("a fit on few rows prints\n%s", out)
	}
	want(t, exitFailure, "fast-ihm: ", append(short, "--solver", "fast-ihm", "--adjacency", "replace")...)
	want(t, exitFailure, "ambssgd: too few rows", append(short, "--solver", "ambssgd")...)
	want(t, exitFailure, "newton-online: too few rows", append(short, "--solver", "newton-online")...)
	some := fitFile(t, 1000)
	out = want(t, exitDone, "", append(some, "--solver", "newton-online")...)
	if !strings.Contains(out, "gradient steps, fewer than 30: ") || strings.Contains(out, "standard error") {
		t.Errorf("a fit by newton-online of few rows prints\n%s", out)
	}
}

// TestFitUsage has one line for each invalid command line.
func TestFitUsage(t *testing.T) {
	t.Parallel()
	flags := fitFile(t, 10)
	f := func(text string, more ...string) {
		t.Helper()
		want(t, exitUsage, text, append(slices.Clone(flags), more...)...)
	}
	want(t, exitUsage, "--csv is required", "fit", "--solver", "dp-gd")
	f("give either --solver or --compare", "--solver", "dp-gd", "--compare")
	f(`--solver is "sgd", must be newton, dp-gd,`, "--solver", "sgd")
	f("add --insecure-diagnostics", "--compare")
	f("solver ols is not private", "--solver", "ols")
	f("epsilon is -1", "--solver", "dp-gd", "--epsilon", "-1")
	f("delta is 2", "--solver", "dp-gd", "--delta", "2")
	f(`--adjacency is "add-remove"`, "--solver", "dp-gd", "--adjacency", "add-remove")
	f("--clip-x is 0", "--solver", "dp-gd", "--clip-x", "0")
	f(`--clip-y: "inf" is not a number`, "--solver", "dp-gd", "--clip-y", "inf")
	f("--radius must be", "--solver", "dp-gd", "--radius", "-1")
	f("--radius is for dp-gd and ambssgd, not newton-online", "--solver", "newton-online", "--radius", "3")
	f("--curvature is for ambssgd, dp-ssgd and dp-gd, not newton", "--curvature", "3")
	f("--curvature at least 0", "--solver", "dp-gd", "--curvature", "26")
	f(`--target is "x", must be one of u, sold, v, or last`, "--solver", "dp-gd", "--target", "x")
	f("--scale must be positive", "--solver", "dp-gd", "--scale", "0")
	f("--centre has 2 numbers", "--solver", "dp-gd", "--centre", "1,2")
	f("--header is \"maybe\"", "--solver", "dp-gd", "--header", "maybe")
	f("has no feature: the target is the only column", "--solver", "dp-gd", "--columns", "sold", "--centre", "0",
		"--scale", "1",
		"--intercept=false")
}

// TestPlanNewton prints the plan of the example, and audits it.
func TestPlanNewton(t *testing.T) {
	t.Parallel()
	file := filepath.Join(cases.Root(t), "examples", "demand.toml")
	out := want(t, exitDone, "", "plan", "-c", file)
	for _, w := range []string{"a null record, which takes its place", "3 searches of 188 slots each", "4 and " +
		"later", "useful after 30 gradient steps, from slot 3654 on",
		"by privacy", "amb, both", "search 188, batches [103, ", "nulls 25.5", "histogram 29.45", "median 16.13"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	var plans []plan.Plan
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "--steps", "5,50,500", "-c", file)),
		&plans); err != nil ||
		len(plans) != 1 || len(plans[0].Outlook) != 2 || plans[0].Outlook[1].Slots != 3*188+500*103 ||
		len(plans[0].Descent) != 2 || plans[0].Schedule.Useful != 3654 {
		t.Errorf("plan --json: %+v, %v", plans, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ old, new, warning string }{
		{"epsilon = 1.0 ", "epsilon = 0.02 ", "stream demand: 4 features at this budget need steps of up to"},
		{"[stream.demand.privacy]", "horizon = 20\n[stream.demand.privacy]",
			"stream demand: the horizon of 20 steps is too short"},
	} {
		other := filepath.Join(t.TempDir(), "other.toml")
		if err := os.WriteFile(other, []byte(strings.Replace(string(text), x.old, x.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, exitDone, x.warning, "plan", "-c", other)
	}
	if out := want(t, exitDone, "", "audit", "--quick", "-c", file); !strings.Contains(out,
		"sensitivity/mu, largest of") || strings.Contains(out, "FAIL") {
		t.Errorf("audit prints\n%s", out)
	}
}

// TestPlanRegression prints the plan of the example of method amb, and warnings for settings that differ from the
// example.
func TestPlanRegression(t *testing.T) {
	t.Parallel()
	file := filepath.Join(cases.Root(t), "examples", "demand-amb.toml")
	out := want(t, exitDone, "", "plan", "-c", file)
	for _, w := range []string{"a null record, which takes its place", "by privacy", "with independent " +
		"noise", "batch 274, search 188", "count and search in records"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	var plans []plan.Plan
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "--steps", "5,50", "-c", file)),
		&plans); err != nil ||
		len(plans) != 1 || len(plans[0].Outlook) != 2 || plans[0].Outlook[1].Slots != 188+50*274 ||
		len(plans[0].Independent) != 2 {
		t.Errorf("plan --json: %+v, %v", plans, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	loose := filepath.Join(t.TempDir(), "loose.toml")
	if err := os.WriteFile(loose, []byte(strings.Replace(string(text), "curvature = 1.6", "# curvature", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone, "stream demand: curvature is not set", "plan", "-c", loose)
	if out := want(t, exitDone, "", "audit", "--quick", "-c", file); !strings.Contains(out,
		"sensitivity/mu, largest of") || strings.Contains(out, "FAIL") {
		t.Errorf("audit prints\n%s", out)
	}
}
