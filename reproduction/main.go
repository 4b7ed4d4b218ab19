// Command reproduction recomputes the figures of the papers. It writes RESULTS.md with plots. The file contains, for
// each figure, the paper's number, ours, and the reason for any difference. Nothing in the file is written by hand.
// docs/reproduction.md summarises it, and a test looks up the numbers of the summary in RESULTS.md. Run the command by
// make reproduction.
//
// The command is a separate module, so that the program's module does not depend on packages that only the figures
// need.
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/chart"
)

// sections lists the sections of the page, one for each paper or group of experiments, in their order. A section writes
// its text and figures to the page.
var sections = []func(*page) error{momentEstimation, momentStreams, boundsFound, privateAdam, adaptiveClipping,
	gradientDescent, onlineRegression, hessianMixing, fastMixing, windowRefits}

func main() {
	log.SetFlags(0)
	out := flag.String("out", ".", "directory of RESULTS.md and of the folder figures")
	simulated := flag.String("simulate", "",
		"run this simulation and keep what it gives, instead of writing the page: "+simulationNames())
	folder := flag.String("kept", "kept", "directory of the kept results of simulations")
	flag.Parse()
	run := func() error { return write(*out, *out) }
	if *simulated != "" {
		run = func() error { return simulate(*simulated, *folder) }
	}
	if err := run(); err != nil {
		log.Fatal("reproduction: ", err)
	}
}

// write writes the page and its figures to out. Sections that this run cannot compute are copied from the page in the
// folder kept.
func write(out, kept string) error {
	p := &page{figures: filepath.Join(out, "figures")}
	if old, err := os.ReadFile(filepath.Join(kept, "RESULTS.md")); err == nil {
		p.kept = string(old)
	}
	if err := os.MkdirAll(p.figures, 0o755); err != nil {
		return err
	}
	p.text(`# Reproduction: all results

<!-- Written by make reproduction. -->

What the papers' figures show, computed again with this library. "Paper" is what a figure shows by the paper's own description, recomputed: the figures are images without numbers. σ is the noise multiplier, deviation over sensitivity, everywhere; where a paper means something else the text says so.
Squared errors are expected values, summed over all releases. [errata.md](../docs/errata.md) has what is wrong in the papers, and the tests that show it. [reproduction.md](../docs/reproduction.md) is a summary.
`)
	for _, section := range sections {
		if err := section(p); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, "RESULTS.md"), []byte(p.b.String()), 0o644)
}

// page is the part of RESULTS.md that is already written.
type page struct {
	b       strings.Builder
	figures string
	kept    string // text of the existing page
}

// keep copies the section with the given heading, up to the next heading, from the existing page: computing it needs
// data that are not part of the project.
func (p *page) keep(heading string) error {
	_, part, found := strings.Cut(p.kept+"## ", "\n"+heading+"\n") // so that the end counts as a heading
	if !found {
		return fmt.Errorf(
			"%q is not on the page yet, and STREAMDP_DATA names no folder of data sets to compute it from", heading)
	}
	for _, next := range []string{"\n## ", "\n### "} {
		part, _, _ = strings.Cut(part, next)
	}
	p.text("%s\n%s", heading, part)
	return nil
}

func (p *page) text(format string, args ...any) {
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

// table writes a table with the given head and rows.
func (p *page) table(head []string, rows [][]string) {
	line := func(cells []string) { p.text("| %s |", strings.Join(cells, " | ")) }
	line(head)
	p.text("|%s", strings.Repeat(" --- |", len(head)))
	for _, r := range rows {
		line(r)
	}
	p.b.WriteByte('\n')
}

// line is one curve of a figure.
type line struct {
	name   string
	x, y   []float64
	dashed bool
}

// figure is one panel.
type figure struct {
	name       string // name of the file, without its extension
	title      string
	x, y       string
	logX, logY bool
	top        float64 // end of the y axis; 0 chooses it from the lines
	lines      []line
	caption    string
}

// draw writes the figure and adds a reference to the page.
func (p *page) draw(f figure) error {
	c := chart.Chart{Title: f.title, X: f.x, Y: f.y, LogX: f.logX, LogY: f.logY, Top: f.top}
	for _, l := range f.lines {
		c.Lines = append(c.Lines, chart.Line{Name: l.name, X: l.x, Y: l.y, Dashed: l.dashed})
	}
	p.text("![%s](figures/%s.svg)\n", f.caption, f.name)
	return c.Write(filepath.Join(p.figures, f.name+".svg"), 17, 9)
}

// logspace returns n numbers from lo to hi in equal ratios.
func logspace(lo, hi float64, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = lo * math.Pow(hi/lo, float64(i)/float64(n-1))
	}
	return x
}

// each applies f to each number.
func each(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

// num prints four digits.
func num(x float64) string {
	switch a := math.Abs(x); {
	case a != 0 && (a >= 1e5 || a < 1e-3):
		s := fmt.Sprintf("%.3e", x)
		mantissa, exponent, _ := strings.Cut(s, "e")
		power, err := strconv.Atoi(exponent)
		if err != nil {
			return s // an infinity
		}
		return fmt.Sprintf("%s·10^%d", mantissa, power)
	case a >= 1000:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}
