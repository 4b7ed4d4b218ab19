package main

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fit"
)

// withoutBounds drops the last flags of fitFile: bounds, centre and scale.
func withoutBounds(flags []string) []string {
	return slices.Clone(flags[:slices.Index(flags, "--clip-x")])
}

// TestFitBounds: without any constants, the solvers whose budget is a μ find the relation in the file's units. They
// also do so under replace, with some constants given, and with a column that never varies. The other solvers refuse,
// and a file with too few rows is refused.
func TestFitBounds(t *testing.T) {
	t.Parallel()
	flags := withoutBounds(fitFile(t, 20000))
	// In the file, sold = 100 + 20·(2(u−10)/2 − v/5 + 1).
	relation := []float64{20, -4, -80}
	for _, c := range []struct {
		name string
		more []string
		most float64
	}{
		{"newton", nil, 0.05}, {"dp-gd", nil, 0.05}, {"newton-online", nil, 0.1}, {"ambssgd", nil, 0.1},
		{"newton", []string{"--scale", "2,auto,5", "--clip-y", "8"}, 0.05},
	} {
		args := append(append(slices.Clone(flags), "--solver", c.name, "--json", "--insecure-seed", "3"), c.more...)
		var r fit.Result
		if err := json.Unmarshal([]byte(want(t, exitDone, "INSECURE", args...)), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Original) != 3 || r.Bounds == nil || r.Bounds.Share != 0.1 || len(r.Bounds.Frozen) != 0 ||
			r.Account != "exact" {
			t.Fatalf("%s %v: %+v", c.name, c.more, r)
		}
		for i, x := range relation {
			// unit is the factor to units in which u, v and the target have deviation 1.
			unit := []float64{49 / 2., 49 / 5., 49 * math.Sqrt(1+25)}[i]
			if e := math.Abs(r.Original[i]-x) / unit; !(e <= c.most) {
				t.Errorf("%s %v: coefficient %d is %g, want %g", c.name, c.more, i, r.Original[i], x)
			}
		}
		if b := r.Bounds; b.Centre[0] < 9 || b.Centre[0] > 11 || b.Scale[2] < 4 || b.Scale[2] > 6 ||
			!(b.ClipX > 1 && b.ClipX < 20) {
			t.Errorf("%s %v: bounds %+v", c.name, c.more, b)
		}
	}
	if out := want(t, exitDone, "", flags...); !strings.Contains(out, "bounds found with 10 % of the budget: clip-x ") {
		t.Errorf("fit prints\n%s", out)
	}
	if out := want(t, exitDone, "", append(slices.Clone(flags), "--adjacency", "replace")...); !strings.Contains(out,
		"replace") {
		t.Errorf("fit prints\n%s", out)
	}
	for want2, more := range map[string][]string{
		"solver ihm cannot share its budget":     {"--solver", "ihm"},
		"--curvature needs --clip-x as a number": {"--solver", "ambssgd", "--curvature", "1"},
		`--clip-y: "wide" is not a number`:       {"--clip-y", "wide"},
		"--scale must be positive":               {"--scale", "auto,-1,auto"},
		"--clip-x is -1, must be positive":       {"--clip-x", "-1"},
		"--centre has 2 numbers, must have ":     {"--centre", "auto,1"},
	} {
		want(t, exitUsage, want2, append(slices.Clone(flags), more...)...)
	}
	few := withoutBounds(fitFile(t, 300))
	want(t, exitFailure, "too few rows: finding bounds needs at least ", few...)
}
