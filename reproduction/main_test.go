package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestCurrent: RESULTS.md equals the output of the program. It takes some seconds and runs with STREAMDP_SLOW=1.
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
	if text := p.b.String(); !strings.Contains(text,
		"| JME, λ = ½: the second moment is free | 449.4 | 2010 | 1491 |") {
		t.Errorf("the page is\n%s", text)
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

// TestKeep: a section that a run cannot compute stays unchanged, up to the next heading. It is an error if the page
// does not have it.
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
	if err := (&page{kept: old}).keep("### Four"); err == nil || !strings.Contains(err.Error(), "STREAMDP_DATA") {
		t.Errorf("a part that is not there: %v", err)
	}
}
