package plan

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/internal/chart"
	"github.com/streamdp/streamdp/matfact"
)

// Draw plots the noise of a step under each factorization into a file. Comparison must not be nil. The extension of the
// file, .svg or .png, determines the format. Any other extension is the error [chart.ErrForm].
func (p *Plan) Draw(path string) error { return p.Comparison.draw(path) }

// draw plots the standard deviation of a step against the step into a file, with one line for each candidate. The
// file's extension determines the format.
func (c *comparison) draw(path string) error {
	drawn := chart.Chart{
		Title: fmt.Sprintf("Noise of workload %q under factorizations for %d steps (sensitivity 1, noise multiplier 1)",
			c.Workload, c.Steps),
		X: "step", Y: "standard deviation", LogX: true, LogY: true,
	}
	for _, x := range c.Candidates {
		if x.Unavailable != "" {
			continue
		}
		line := x.curve(c.workload, c.Steps)
		if line.Name = x.Name; x.Configured {
			line.Bold = true
			line.Name += " *"
		}
		drawn.Lines = append(drawn.Lines, line)
	}
	return drawn.Write(path, 24, 13)
}

// curve returns the errors of x as a line with about 40 points per decade of steps.
func (x *candidate) curve(w matfact.Workload, n uint64) (line chart.Line) {
	if x.ValidSteps > 0 {
		n = min(n, x.ValidSteps)
	}
	last := uint64(0)
	for k := 0; last < n; k++ {
		t := min(n, uint64(math.Pow(10, float64(k)/40)))
		if t == last {
			continue
		}
		last = t
		e := 0.0
		if f := x.factor; f != nil {
			e = f.ColNorm() * math.Sqrt(f.RowVar(w, t))
		} else {
			e = matfact.TreeErrorAt(n, t, true)
		}
		line.X, line.Y = append(line.X, float64(t)), append(line.Y, e)
	}
	return line
}
