package main

import (
	"bytes"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPage: docs/performance.md must be the page that results from the stored figures and page.tmpl.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	kept, err := readResults()
	if err != nil {
		t.Fatal(err)
	}
	want, err := page(kept)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/performance.md is not current: go run ./internal/performance -render")
	}
	for _, row := range []string{"\n| moments | json | ", "\n| adam | 1000000 | "} { // capacity, memory
		if !bytes.Contains(got, []byte(row)) {
			t.Errorf("docs/performance.md has no row %q", row)
		}
	}
}

// TestParse reads the output of several packages and runs, with other lines in between.
func TestParse(t *testing.T) {
	got := parse(
		[]byte(
			"goos: linux\npkg: github.com/streamdp/streamdp/dp\nBenchmarkRow/D=10-2   \t 5\t 7 ns/op\t 0.5 ratio\n" +
				"BenchmarkRow/D=10-2 5 9 ns/op 0.9 ratio\n" +
				"BenchmarkRow/D=10-2 5 8 ns/op 0.6 ratio\nPASS\nok \tgithub.com/streamdp/streamdp/dp\t1s\n" +
				"pkg: github.com/streamdp/streamdp/internal/gram\nBenchmarkRow/D=10 \t 5\t 70 ns/op\n"))
	if x := got["dp.BenchmarkRow/D=10"]; len(got) != 2 || x["ratio"] != 0.6 || x["ns/op"] != 8 {
		t.Errorf("%v", got)
	}
	if x := got["internal/gram.BenchmarkRow/D=10"]["ns/op"]; x != 70 {
		t.Errorf("%v", got)
	}
}

// TestRows: each row's benchmark is in runs or needs Kafka, and each row's goal has the direction in which its figures
// improve.
func TestRows(t *testing.T) {
	for _, r := range slices.Concat(endToEnd, people, kernels) {
		pkg, name, _ := strings.Cut(r.bench, ".")
		top, _, _ := strings.Cut(name, "/")
		made := strings.HasPrefix(top, "BenchmarkReal")
		for _, b := range runs {
			made = made || b.pkg == pkg && strings.HasPrefix(b.bench, "^"+top+"$")
		}
		if !made {
			t.Errorf("no run makes %s", r.bench)
		}
		if sign := map[string]string{"higher": "≤", "lower": "≥"}[r.better()]; strings.HasPrefix(r.goal, sign) {
			t.Errorf("%s: %s is better, and the goal is %s", r.path, r.better(), r.goal)
		}
	}
	kept := &results{Benchmarks: map[string]result{"a.B": {Figures: figures{"ratio": 0.5}}}}
	for _, c := range []struct {
		r         row
		text, met string
	}{
		{row{bench: "a.B", unit: "ratio", goal: "≤ 0.5"}, "0.50", "yes"},
		{row{bench: "a.B", unit: "ratio", goal: "≤ 0.4"}, "0.50", "no"},
		{row{bench: "a.B", unit: "ratio", goal: "≥ 2.5", inverse: true}, "2.00", "no"},
		{row{bench: "a.B", unit: "ratio", goal: "≥ 1.5", inverse: true}, "2.00", "yes"},
		{row{bench: "a.B", unit: "ratio", goal: "stated"}, "0.50", ""},
		{row{bench: "a.B", unit: "other", goal: "≤ 1"}, "not measured", ""},
		{row{bench: "a.C", unit: "ratio", goal: "≤ 1"}, "not measured", ""},
	} {
		if text, met := c.r.value(kept); text != c.text || met != c.met {
			t.Errorf("%+v: %s %q, want %s %q", c.r, text, met, c.text, c.met)
		}
	}
	if x := number(math.Pi); x != "3.14" {
		t.Error(x)
	}
}
