package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/sgd"
)

// TestPlanPace: a plan shows which batches, step size and settling time follow from the guarantee and an assumed
// condition number. It warns of settings that will not learn, and refuses a batch with which the steps always diverge.
func TestPlanPace(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "examples", "demand-amb.toml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "demand-amb.toml")
	write := func(old, new string) {
		t.Helper()
		changed := strings.Replace(string(text), old, new, 1)
		if changed == string(text) {
			t.Fatalf("the example has no %q", old)
		}
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("radius = 10.0", "radius = 20.0")
	holds(t, want(t, exitDone, "", "plan", "-c", file),
		"expected excess risk of theta_average", "batches of 274 slots, searches of 188, step size 0.18",
		"condition number of 1\n", "the smallest useful batch is 12, the advised one 274")
	holds(t,
		want(t, exitDone,
			"below 374 slots coefficients diverge, if the features' condition number is 1000; the default would then "+
				"be 1496",
			"plan", "-c", file, "--condition", "1000"),
		"the smallest useful batch is 374, the advised one 1496, and coefficients settle in 20")
	var plans []struct{ Pace sgd.Pace }
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file)), &plans); err != nil ||
		len(plans) != 1 {
		t.Fatalf("%d plans, %v", len(plans), err)
	}
	if p := plans[0].Pace; p.Batch != 274 || p.Search != 188 || p.Least != 12 || p.Advised != 274 ||
		!(p.StepSize > 0.18 && p.StepSize < 0.19) || p.Condition != 1 || p.Settling != 21 {
		t.Errorf("pace is %+v", p)
	}
	for _, bad := range []string{"0.5", "0", "-1", "NaN", "1e13"} {
		want(t, exitUsage, "must be 1 to 1e12", "plan", "-c", file, "--condition="+bad)
	}
	want(t, exitUsage, `with method "amb", and the configuration has none`, "plan", "-c",
		filepath.Join(cases.Root(t), "examples", "demand.toml"), "--condition", "5")

	write("curvature = 1.6 ", "#")
	want(t, exitDone, "curvature is not set: the square of the largest norm, 32, is used",
		"plan", "-c", file)
	write("curvature = 1.6 ", "batch = 11\ncurvature = 1.6 ")
	want(t, exitConfig, "must be at least 12 slots: in smaller batches the noise", "plan", "-c", file)
	want(t, exitConfig, "must be at least 12 slots: in smaller batches the noise", "audit", "-c", file)
}

// holds fails unless the text contains all parts.
func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}
