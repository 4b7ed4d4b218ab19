// Package chart draws lines into an SVG or PNG file: the program's plots and the figures of the documents. The name of
// each line is written outside the axes, where it covers no line.
package chart

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"
)

// Line is one curve.
type Line struct {
	Name   string
	X, Y   []float64
	Dashed bool
	Bold   bool
}

// Chart is a set of curves over common axes.
type Chart struct {
	Title, X, Y string
	LogX, LogY  bool
	Top         float64 // end of the y axis, for example that of a paper's figure; 0: at the lines' end
	Lines       []Line
}

// ErrForm says that Write does not support the file's extension.
var ErrForm = errors.New("a chart's file must end in .svg or .png")

// Write draws the chart into a file. width and height are in centimetres. The file's extension determines the format.
func (c *Chart) Write(path string, width, height float64) error {
	const centimetre = 72 / 2.54
	width, height = width*centimetre, height*centimetre
	var page canvas
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg":
		page = newSVG(width, height)
	case ".png":
		page = newBitmap(width, height)
	default:
		return ErrForm
	}
	if err := c.draw(page, width, height); err != nil {
		return err
	}
	b, err := page.encode()
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// point is a place on a page, in typographic points (1/72 inch) from its upper left corner.
type point struct{ x, y float64 }

// stroke is the style of a line. Lengths are in typographic points.
type stroke struct {
	colour color.RGBA
	width  float64
	dashes []float64 // lengths of dash and gap; nil: none
}

// canvas is a page in one file format.
type canvas interface {
	// line draws straight lines from each point to the next.
	line(points []point, s stroke)
	// text writes a text in size fontSize. The point is on the text's baseline: at its beginning if share is 0, in its
	// middle if share is ½, at its end if share is 1. If up is true, the text runs upwards.
	text(at point, share float64, up bool, text string)
	encode() ([]byte, error)
}

// These are the lengths of the layout, in typographic points.
const (
	fontSize = 10
	margin   = 6
	spacing  = 14 // distance between lines of text
	tickLong = 5
	tickFine = 2 // length of a tick without a label
	swatch   = 22
)

var (
	ink      = color.RGBA{34, 34, 34, 255}
	axisLine = stroke{colour: color.RGBA{85, 85, 85, 255}, width: 0.7}
	gridLine = stroke{colour: color.RGBA{221, 221, 221, 255}, width: 0.5}
)

// palette is the palette of Okabe and Ito, whose colours people with any kind of colour vision can distinguish.
var palette = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {0, 0, 0, 255},
	{204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
}

// dashes are styles that distinguish lines of the same colour. dashes[1] is also the style of dashed lines.
var dashes = [][]float64{nil, {5, 3}, {2, 2}}

// style returns the style of line i.
func (c *Chart) style(i int) stroke {
	s := stroke{colour: palette[i%len(palette)], width: 1.4, dashes: dashes[i/len(palette)%len(dashes)]}
	if c.Lines[i].Bold {
		s.width = 2.5
	}
	if c.Lines[i].Dashed {
		s.dashes = dashes[1]
	}
	return s
}

// draw lays the chart out on a page.
func (c *Chart) draw(page canvas, width, height float64) error {
	x, y, err := c.axes()
	if err != nil {
		return err
	}
	var names, labels float64
	for _, l := range c.Lines {
		names = max(names, textWidth(l.Name))
	}
	for _, t := range y.ticks {
		labels = max(labels, textWidth(t.label))
	}
	names *= 1.15 // whoever opens the SVG may have a wider font
	labels *= 1.15
	left, right := margin+spacing+labels+tickLong+3, width-2*margin-swatch-4-names-margin
	top, bottom := 2.0*margin, height-margin-2*spacing-tickLong
	if c.Title != "" {
		half := textWidth(c.Title) / 2
		middle := max(margin+half, min((left+right)/2, width-margin-half))
		page.text(point{middle, margin + fontSize}, 0.5, false, c.Title)
		top += spacing
	}
	x.from, x.to, y.from, y.to = left, right, bottom, top

	for _, t := range x.ticks {
		at, long := x.place(t.value), float64(tickFine)
		if t.label != "" {
			page.line([]point{{at, bottom}, {at, top}}, gridLine)
			page.text(point{at, bottom + tickLong + fontSize + 1}, 0.5, false, t.label)
			long = tickLong
		}
		page.line([]point{{at, bottom}, {at, bottom + long}}, axisLine)
	}
	for _, t := range y.ticks {
		at, long := y.place(t.value), float64(tickFine)
		if t.label != "" {
			page.line([]point{{left, at}, {right, at}}, gridLine)
			page.text(point{left - tickLong - 3, at + 0.35*fontSize}, 1, false, t.label)
			long = tickLong
		}
		page.line([]point{{left, at}, {left - long, at}}, axisLine)
	}
	page.line([]point{{left, top}, {left, bottom}, {right, bottom}}, axisLine)
	page.text(point{(left + right) / 2, height - margin - 3}, 0.5, false, c.X)
	page.text(point{margin + fontSize, (top + bottom) / 2}, 0.5, true, c.Y)

	for i, l := range c.Lines {
		points := make([]point, len(l.X))
		for j := range points {
			points[j] = point{x.place(l.X[j]), y.place(l.Y[j])}
		}
		for _, part := range below(points, top) {
			page.line(part, c.style(i))
		}
		at := point{right + 2*margin, top + fontSize + float64(i)*spacing}
		page.line([]point{{at.x, at.y - 0.35*fontSize}, {at.x + swatch, at.y - 0.35*fontSize}}, c.style(i))
		page.text(point{at.x + swatch + 4, at.y}, 0, false, l.Name)
	}
	return nil
}

// below returns the parts of a line that are not above the height top. On the page, y grows downwards.
func below(points []point, top float64) [][]point {
	var parts [][]point
	inside := false
	for i := range points {
		p := points[i]
		if i > 0 && (p.y < top) == inside { // the line crosses the height top
			q := points[i-1]
			edge := point{q.x + (p.x-q.x)*(top-q.y)/(p.y-q.y), top}
			if inside {
				parts[len(parts)-1] = append(parts[len(parts)-1], edge)
			} else {
				parts = append(parts, []point{edge})
			}
		} else if i == 0 && p.y >= top {
			parts = append(parts, nil)
		}
		if inside = p.y >= top; inside {
			parts[len(parts)-1] = append(parts[len(parts)-1], p)
		}
	}
	return parts
}

// axes returns axes that contain every line. Their positions on the page are not set yet.
func (c *Chart) axes() (x, y *axis, err error) {
	x, y = newAxis(c.LogX), newAxis(c.LogY)
	for _, l := range c.Lines {
		if len(l.X) == 0 {
			return nil, nil, fmt.Errorf("line %q has no points", l.Name)
		}
		for j, v := range l.X {
			if err := errors.Join(x.include(v), y.include(l.Y[j])); err != nil {
				return nil, nil, fmt.Errorf("line %q: (%g, %g): %w", l.Name, v, l.Y[j], err)
			}
		}
	}
	if c.Top > 0 {
		y.high = c.Top
	}
	x.mark()
	y.mark()
	return x, y, nil
}
