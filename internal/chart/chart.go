// Package chart draws lines into a file: the plots of the program and the figures of the
// documents. It puts names beside the axes, where they hide no line.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Line is one curve.
type Line struct {
	Name   string
	X, Y   []float64
	Dashed bool
	Bold   bool
}

// Chart is some curves over common axes.
type Chart struct {
	Title, X, Y string
	LogX, LogY  bool
	Top         float64 // end of the y axis; 0: where the lines end
	Lines       []Line
}

// ErrForm says that Write does not know the form of a file.
var ErrForm = errors.New("a chart's file must end in .svg or .png")

// Write draws the chart into a file, with the size in centimetres. The end of the file's name
// chooses the form.
func (c *Chart) Write(path string, width, height float64) error {
	w, h := vg.Length(width)*vg.Centimeter, vg.Length(height)*vg.Centimeter
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg":
		canvas = vgsvg.New(w, h)
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(150))}
	default:
		return ErrForm
	}
	p, legend, err := c.plot()
	if err != nil {
		return err
	}
	const margin = vg.Length(6)
	all := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
	// Who looks at an SVG may have a wider font.
	names := legend.Rectangle(all).Size().X*1.15 + 2*margin
	p.Draw(draw.Crop(all, 0, -names, 0, 0))
	legend.Draw(draw.Crop(all, all.Size().X-names+margin, 0, 0, -vg.Centimeter))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// palette is that of Okabe and Ito. People with other colour vision can tell its colours
// apart.
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{0, 0, 0, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255},
}

// dashes tell lines of one colour apart; the second are those of dashed lines.
var dashes = [][]vg.Length{nil, {vg.Points(5), vg.Points(3)}, {vg.Points(2), vg.Points(2)}}

func (c *Chart) plot() (*plot.Plot, plot.Legend, error) {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	for _, size := range []*font.Length{&p.Title.TextStyle.Font.Size, &p.X.Label.TextStyle.Font.Size, &p.Y.Label.TextStyle.Font.Size, &legend.TextStyle.Font.Size} {
		*size = vg.Points(10)
	}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	}
	p.Add(plotter.NewGrid())
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(3)
	for i, l := range c.Lines {
		points := make(plotter.XYs, len(l.X))
		for j, x := range l.X {
			if c.LogX && !(x > 0) || c.LogY && !(l.Y[j] > 0) {
				return nil, legend, fmt.Errorf("line %q: (%g, %g) has no logarithm", l.Name, x, l.Y[j])
			}
			points[j] = plotter.XY{X: x, Y: l.Y[j]}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, legend, fmt.Errorf("line %q: %w", l.Name, err)
		}
		line.Color, line.Width = palette[i%len(palette)], vg.Points(1.4)
		if l.Bold {
			line.Width = vg.Points(2.5)
		}
		style := i / len(palette) % len(dashes)
		if l.Dashed {
			style = 1
		}
		line.Dashes = dashes[style]
		p.Add(line)
		legend.Add(l.Name, line)
	}
	if c.Top > 0 {
		p.Y.Max = c.Top
	}
	return p, legend, nil
}

// decades puts ticks at powers of ten, and marks 2 and 5 between them where there
// are few, all where there is hardly one, and some where there are many.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	every := math.Ceil((last - first) / 10)
	for e := first; e <= last; e++ {
		for k := 1.0; k < 10; k++ {
			v := k * math.Pow(10, e)
			if v < low*(1-1e-9) || v > high*(1+1e-9) {
				continue
			}
			label := ""
			switch {
			case k == 1 && math.Mod(e-first, every) == 0, (k == 2 || k == 5) && high/low < 300, high/low < 5:
				label = fmt.Sprintf("%.6g", v)
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}
