package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/matfact"
)

//go:generate go test -run ^TestFactorizationsPage$ -update

// TestFactorizationsPage: the tables of docs/factorizations.md must equal those that the library computes. -update
// writes the tables and the plot.
func TestFactorizationsPage(t *testing.T) {
	dir := filepath.Join(cases.Root(t), "docs")
	page := filepath.Join(dir, "factorizations.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- Tables: go generate ./internal/plan -->\n", "<!-- End of tables -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatal("docs/factorizations.md has no place for its tables")
	}
	want := head + begin + pageTables() + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := compare(matfact.Workload{Kind: "sum"}, 1e5, 16,
			nil).draw(filepath.Join(dir, "factorizations.svg")); err != nil {
			t.Fatal(err)
		}
	}
	if want != string(text) && !*update {
		t.Error("docs/factorizations.md is not current: go generate ./internal/plan")
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "factorizations.svg")); err != nil ||
		!bytes.Contains(svg, []byte("phased")) {
		t.Errorf("docs/factorizations.svg: %v", err)
	}
}

// pageTables makes the tables of the page: the largest error and the root mean square by number of steps, for sums and
// for running averages, and the limits, for workloads whose error has a limit.
func pageTables() string {
	var b strings.Builder
	table := func(title string, columns []string, made []*comparison, cell func(*comparison, candidate) string) {
		fmt.Fprintf(&b, "\n%s\n\n| factorization | %s |\n|%s\n", title, strings.Join(columns, " | "),
			strings.Repeat("---|", len(columns)+1))
		if made[0].Bound > 0 && made[0].Workload == "sum" {
			b.WriteString("| lower bound, any matrix |")
			for _, c := range made {
				fmt.Fprintf(&b, " %.4g |", c.Bound)
			}
			b.WriteString("\n")
		}
		var names []string
		for _, c := range made {
			at := 0
			for _, x := range c.Candidates {
				if i := slices.Index(names, x.Name); i >= 0 {
					at = i + 1
				} else {
					names = slices.Insert(names, at, x.Name)
					at++
				}
			}
		}
		for _, name := range names {
			fmt.Fprintf(&b, "| %s |", name)
			for _, c := range made {
				i := slices.IndexFunc(c.Candidates, func(x candidate) bool { return x.Name == name })
				if i < 0 {
					b.WriteString(" |")
				} else {
					fmt.Fprintf(&b, " %s |", cell(c, c.Candidates[i]))
				}
			}
			b.WriteString("\n")
		}
	}
	lengths := []uint64{100, 10000, 1000000}
	var columns []string
	var sums, means []*comparison
	for i, n := range lengths {
		columns = append(columns, []string{"10²", "10⁴", "10⁶"}[i])
		sums = append(sums, compare(matfact.Workload{Kind: "sum"}, n, 8, nil))
		means = append(means, compare(matfact.Workload{Kind: "mean"}, n, 8, nil))
	}
	table("Sums, by number of steps: largest error / root mean square.", columns, sums,
		func(_ *comparison, x candidate) string { return fmt.Sprintf("%.4g / %.4g", x.Max, x.RMSE) })
	table("Running averages, by number of steps: root mean square. The largest error is that of the first steps.",
		columns, means,
		func(_ *comparison, x candidate) string { return fmt.Sprintf("%.3g", x.RMSE) })

	var limits []*comparison
	columns = nil
	for _, decay := range []float64{0.9, 0.99, 0.999} {
		w := matfact.Workload{Kind: "exponential", Decay: decay}
		columns = append(columns, fmt.Sprintf("decay %g (%.4g)", decay, matfact.ExpOptimum(decay)))
		limits = append(limits, compare(w, 20000, 8, nil))
	}
	for _, width := range []uint64{10, 100, 1000} {
		w := matfact.Workload{Kind: "window", Window: width}
		columns = append(columns, fmt.Sprintf("window %d (%.4g)", width, matfact.WindowOptimum(width)))
		limits = append(limits, compare(w, 20000, 8, nil))
	}
	table(
		"Exponential weights and windows, 20000 steps: largest error. In brackets the least that any matrix can have "+
			"on an endless stream.", columns, limits,
		func(_ *comparison, x candidate) string { return fmt.Sprintf("%.4g", x.Max) })
	b.WriteString("\n")
	return b.String()
}

// TestComparison: the factorization in use is marked exactly once, whether "auto" chose it or the file names it; the
// table shows the same as --json; and no candidate is below the bound.
func TestComparison(t *testing.T) {
	sum := matfact.Workload{Kind: "sum"}
	for _, c := range []matfact.Config{
		{Kind: "phased"}, {Kind: "identity"}, {Kind: "sqrt", Horizon: 50}, {Kind: "sqrt", Horizon: 70},
		{Kind: "dense", Horizon: 50},
		{Kind: "blt", Tune: 50, Buffers: 2}, {Kind: "blt", Tune: 50, Buffers: 5}, {Kind: "bisr", Bands: 4},
		{Kind: "bsr", Bands: 9},
		{Kind: "banded", Bands: 4, Tune: 50}, {Kind: "blt", Horizon: 50, Normalise: true},
		{Kind: "bisr", Horizon: 50, Normalise: true},
	} {
		used, err := matfact.New(c, sum)
		if err != nil {
			t.Fatal(err)
		}
		table := compare(sum, 50, 4, used)
		marked := 0
		for _, x := range table.Candidates {
			if x.Configured {
				marked++
				worst, rmse := matfact.Errors(used, sum, 50)
				if x.Max != worst || x.RMSE != rmse || !strings.HasPrefix(x.Name, used.Kind()) {
					t.Errorf("%+v is marked as %+v", c, x)
				}
			}
			if x.Unavailable != "" || !(x.Max >= table.Bound*(1-1e-9)) || !(x.RMSE <= x.Max*(1+1e-12)) ||
				math.IsInf(x.Max, 0) {
				t.Errorf("%+v", x)
			}
		}
		if marked != 1 {
			t.Errorf("%+v is marked %d times", c, marked)
		}
		var text bytes.Buffer
		if err := table.print(&text); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		var again comparison
		if err := json.Unmarshal(encoded, &again); err != nil || len(again.Candidates) != len(table.Candidates) {
			t.Errorf("--json: %v, %s", err, encoded)
		}
		for _, x := range again.Candidates {
			if !strings.Contains(text.String(), x.Name) || !strings.Contains(text.String(), significant(x.Max)) {
				t.Errorf("%s is not in the table\n%s", x.Name, &text)
			}
		}
	}
}
