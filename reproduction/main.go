// Command reproduction recomputes the figures of the papers. It writes RESULTS.md with plots, and the numbers to CSV
// files in the folder results. The page says for each figure whether our result differs from the paper's, and why.
// Nothing in these files is written by hand. docs/reproduction.md summarises them. A test checks that each number of
// that summary appears in these files. Run the command by make reproduction.
//
// The command is a separate module, so that the program's module does not depend on packages that only the figures
// need.
package main

import (
	"bytes"
	"encoding/csv"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"regexp"
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
	p := &page{figures: filepath.Join(out, "figures"), folder: kept}
	if old, err := os.ReadFile(filepath.Join(kept, "RESULTS.md")); err == nil {
		p.kept = string(old)
	}
	for _, dir := range []string{p.figures, filepath.Join(out, "results")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	p.text(`# Reproduction: all results

<!-- Written by make reproduction. -->

The papers' figures, computed again with this library. The figures are images without numbers, so "paper" means the paper's method and settings, recomputed. σ is the noise multiplier: standard deviation over sensitivity. Squared errors are expected values, summed over all releases.
The numbers are CSV files in [results](results); [reproduction.md](../docs/reproduction.md) has the main ones, [errata.md](../docs/errata.md) the papers' errors.
`)
	for _, section := range sections {
		if err := section(p); err != nil {
			return err
		}
	}
	for name, text := range p.results {
		if err := os.WriteFile(filepath.Join(out, "results", name), text, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, "RESULTS.md"), []byte(p.b.String()), 0o644)
}

// page is the part of RESULTS.md that is already written.
type page struct {
	b       strings.Builder
	figures string
	results map[string][]byte // the files of the folder results, by name
	kept    string            // the page of an earlier run
	folder  string            // folder of that page
}

// keep copies the section with the given heading, up to the next heading, from the existing page: computing it needs
// data that are not part of the project.
func (p *page) keep(heading string) error {
	// With a heading appended, the last section has an end too.
	_, part, found := strings.Cut(p.kept+"## ", "\n"+heading+"\n")
	if !found {
		return fmt.Errorf(
			"%q is not on the page yet, and STREAMDP_DATA names no folder of data sets to compute it from", heading)
	}
	for _, next := range []string{"\n## ", "\n### "} {
		part, _, _ = strings.Cut(part, next)
	}
	p.text("%s\n%s", heading, part)
	for _, link := range resultsLink.FindAllStringSubmatch(part, -1) {
		text, err := os.ReadFile(filepath.Join(p.folder, "results", link[1]))
		if err != nil {
			return err
		}
		p.addResults(link[1], text)
	}
	return nil
}

// resultsLink is a link of the page to a file of the folder results.
var resultsLink = regexp.MustCompile(`\]\(results/([\w-]+\.csv)\)`)

func (p *page) addResults(name string, text []byte) {
	if p.results == nil {
		p.results = map[string][]byte{}
	}
	p.results[name] = text
}

// large writes a table to the file NAME.csv of the folder results. The page gets a link to it
// and, as a table, the rows for which shown is true, with the given columns or with all. If shown is nil, the page gets
// the link alone.
func (p *page) large(name string, head []string, rows [][]string, shown func(row []string) bool, columns ...int) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	var few [][]string
	for i, cells := range append([][]string{head}, rows...) {
		plain := make([]string, len(cells))
		for j, cell := range cells {
			plain[j] = plainCell.Replace(cell)
		}
		if err := w.Write(plain); err != nil {
			return err
		}
		if i > 0 && shown != nil && shown(cells) {
			few = append(few, picked(cells, columns))
		}
	}
	if w.Flush(); w.Error() != nil {
		return w.Error()
	}
	p.addResults(name+".csv", b.Bytes())
	link := "Numbers"
	if len(few) > 0 {
		p.table(picked(head, columns), few)
		link = fmt.Sprintf("All %d rows", len(rows))
	}
	p.text("%s: [%s.csv](results/%[2]s.csv).\n", link, name)
	return nil
}

// picked returns the cells in the given columns, or all cells if columns is empty.
func picked(cells []string, columns []int) []string {
	if len(columns) == 0 {
		return cells
	}
	var some []string
	for _, i := range columns {
		some = append(some, cells[i])
	}
	return some
}

// plainCell turns a cell of the page into one of a CSV file.
var plainCell = strings.NewReplacer("·10^", "e", "–", "", "**", "")

func (p *page) text(format string, args ...any) {
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

// table writes a table with the given head and rows.
func (p *page) table(head []string, rows [][]string) {
	line := func(cells []string) { p.text("| %s |", strings.Join(cells, " | ")) }
	line(head)
	p.text("|%s", strings.Repeat("---|", len(head)))
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
			return s // the number is infinite
		}
		return fmt.Sprintf("%s·10^%d", mantissa, power)
	case a >= 1000:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}
