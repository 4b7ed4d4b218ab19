package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestCurrent checks that RESULTS.md, its figures and its CSV files are what the program writes. The test takes minutes
// and runs only with STREAMDP_SLOW=1.
func TestCurrent(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("takes long: runs with STREAMDP_SLOW=1, which make nightly-reproduction sets")
	}
	dir := t.TempDir()
	root := cases.Root(t)
	if err := write(dir, root); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		got, err1 := os.ReadFile(path)
		want, err2 := os.ReadFile(filepath.Join(root, name))
		if err1 != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not current: make reproduction (%v, %v)%s", name, err1, err2,
				difference(string(got), string(want)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// difference returns the first line in which a file differs.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf(": line %d is now\n%s\nand was\n%s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf(": %d lines, and %d before", len(g), len(w))
}

// TestFigure draws one figure and checks its numbers, which are in the paper's Figure 1: the mean is as accurate as
// without the second moment, and symmetry saves half of the second moment's noise.
func TestFigure(t *testing.T) {
	t.Parallel()
	p := &page{figures: t.TempDir()}
	if err := figure1(p); err != nil {
		t.Fatal(err)
	}
	if text := string(p.results["moments-fig1.csv"]); !strings.Contains(text, "\nJME λ = ½,449.4,2010,1491\n") {
		t.Errorf("the file is\n%s", text)
	}
	svg, err := os.ReadFile(filepath.Join(p.figures, "moments-fig1.svg"))
	if err != nil || !bytes.Contains(svg, []byte("</svg>")) ||
		!bytes.Contains(svg, []byte("RMSE of the first moment")) {
		t.Errorf("the figure is %d bytes, %v", len(svg), err)
	}
	for x, want := range map[float64]string{0: "0", 0.5: "0.5", 1234.5: "1234", 99999.4: "99999", 1e5: "1.000·10^5",
		2.5e-7: "2.500·10^-7", 0.01234: "0.01234"} {
		if got := num(x); got != want {
			t.Errorf("%g is printed as %s, want %s", x, got, want)
		}
	}
}

// TestLarge checks that a large table becomes a CSV file with all rows and columns. The page must have a link to it and
// show only the selected rows and columns.
func TestLarge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pick, page string
		columns    []int
	}{
		{"b", "| width | method |\n|---|---|\n| – | **b** |\n\nAll 2 rows: [x.csv](results/x.csv).\n\n",
			[]int{2, 0}},
		{"b",
			"| method | risk, ε = 1 | width |\n|---|---|---|\n| **b** | 2.5·10^-7 | – |\n\n" +
				"All 2 rows: [x.csv](results/x.csv).\n\n", nil},
		{"none", "Numbers: [x.csv](results/x.csv).\n\n", []int{0}},
	} {
		p := &page{}
		rows := [][]string{{"a", "1 ± 0.5", "[0, 5)"}, {"**b**", "2.5·10^-7", "–"}}
		if err := p.large("x", []string{"method", "risk, ε = 1", "width"}, rows,
			func(row []string) bool { return strings.Contains(row[0], c.pick) }, c.columns...); err != nil {
			t.Fatal(err)
		}
		if got := p.b.String(); got != c.page {
			t.Errorf("the page is %q, want %q", got, c.page)
		}
		if got, want := string(p.results["x.csv"]),
			"method,\"risk, ε = 1\",width\na,1 ± 0.5,\"[0, 5)\"\nb,2.5e-7,\n"; got != want {
			t.Errorf("the file is %q, want %q", got, want)
		}
	}
}

// TestResults checks that RESULTS.md links each CSV file of the folder results, and no other CSV file.
func TestResults(t *testing.T) {
	t.Parallel()
	root := cases.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	var linked, files []string
	for _, m := range resultsLink.FindAllStringSubmatch(string(text), -1) {
		linked = append(linked, m[1])
	}
	entries, err := os.ReadDir(filepath.Join(root, "results"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files = append(files, e.Name())
	}
	slices.Sort(linked)
	if !slices.Equal(linked, files) {
		t.Errorf("the page links %q, the files are %q", linked, files)
	}
}

// TestKeep checks that a section that a run cannot compute stays as it was, up to the next heading. If the page lacks
// the section, that is an error.
func TestKeep(t *testing.T) {
	t.Parallel()
	old := "# Page\n\n## One\n\nFirst.\n\n### Two\n\nSecond,\n\n| a |\n\n### Three\n\nThird.\n\n"
	for heading, want := range map[string]string{"## One": "## One\n\nFirst.\n\n",
		"### Two": "### Two\n\nSecond,\n\n| a |\n\n", "### Three": "### Three\n\nThird.\n\n"} {
		p := &page{kept: old}
		if err := p.keep(heading); err != nil || p.b.String() != want {
			t.Errorf("%s keeps %q, %v, want %q", heading, p.b.String(), err, want)
		}
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "results"), 0o755); err != nil {
		t.Fatal(err)
	}
	linked := &page{kept: "# Page\n\n## One\n\nAll 2 rows: [a.csv](results/a.csv).\n", folder: folder}
	if err := linked.keep("## One"); err == nil {
		t.Error("a part is kept without its CSV file")
	}
	if err := os.WriteFile(filepath.Join(folder, "results", "a.csv"), []byte("x\n1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := linked.keep("## One"); err != nil || string(linked.results["a.csv"]) != "x\n1\n" {
		t.Errorf("the CSV file of a part that is kept: %q, %v", linked.results["a.csv"], err)
	}
	if err := (&page{kept: old}).keep("### Four"); err == nil || !strings.Contains(err.Error(), "STREAMDP_DATA") {
		t.Errorf("a part that is not there: %v", err)
	}
}
