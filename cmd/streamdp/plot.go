package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"streamdp/matfact"
)

// draw writes the plot of c into a file, in the form that its name ends in.
func (c *comparison) draw(path string) error {
	const width, height, legendWidth = 24 * vg.Centimeter, 13 * vg.Centimeter, 6 * vg.Centimeter
	p, legend, err := c.plot()
	if err != nil {
		return err
	}
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg":
		canvas = vgsvg.New(width, height)
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(150))}
	default:
		return usagef("--plot is %q, must end in .svg or .png", path)
	}
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(all, width-legendWidth, 0, 0, -vg.Centimeter))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// plot draws the standard deviation of a step against the step, both on a
// logarithmic scale, one line for each candidate.
func (c *comparison) plot() (*plot.Plot, plot.Legend, error) {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text = fmt.Sprintf("Noise of workload %q under factorizations for %d steps (sensitivity 1, noise multiplier 1)", c.Workload, c.Steps)
	p.X.Label.Text = "step"
	p.Y.Label.Text = "standard deviation"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{}, decades{}
	p.Add(plotter.NewGrid())
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size, legend.Padding = vg.Points(10), vg.Points(3)
	for i, x := range c.Candidates {
		if x.Unavailable != "" {
			continue
		}
		line, err := plotter.NewLine(x.curve(c.workload, c.Steps))
		if err != nil {
			return nil, legend, err
		}
		line.Color = palette[i%len(palette)]
		line.Width = vg.Points(1.2)
		line.Dashes = [][]vg.Length{nil, {vg.Points(6), vg.Points(3)}, {vg.Points(2), vg.Points(2)}}[i/len(palette)%3]
		name := x.Name
		if x.Configured {
			line.Width = vg.Points(2.5)
			name += " *"
		}
		p.Add(line)
		legend.Add(name, line)
	}
	return p, legend, nil
}

// curve samples the error of x, 40 times a decade.
func (x *candidate) curve(w matfact.Workload, n uint64) plotter.XYs {
	if x.ValidSteps > 0 {
		n = min(n, x.ValidSteps)
	}
	var points plotter.XYs
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
		points = append(points, plotter.XY{X: float64(t), Y: e})
	}
	return points
}

// decades puts ticks at powers of ten, and marks 2 and 5 between them where there
// are few.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	few := high/low < 300
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for k := 1.0; k < 10; k++ {
			v := k * math.Pow(10, e)
			if v < low*(1-1e-9) || v > high*(1+1e-9) {
				continue
			}
			label := ""
			if k == 1 || few && (k == 2 || k == 5) {
				label = fmt.Sprintf("%g", v)
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}

// palette is that of Okabe and Ito, which people with other colour vision can
// tell apart.
var palette = []color.Color{
	color.RGBA{0, 0, 0, 255}, color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255},
}
