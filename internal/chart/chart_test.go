package chart

import (
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestWrite draws a chart as SVG and as PNG. The SVG is well formed and contains every name and the ticks; the PNG has
// the right size.
func TestWrite(t *testing.T) {
	c := Chart{Title: "noise", X: "step", Y: "deviation", LogX: true, LogY: true, Lines: []Line{
		{Name: "a long name of a line", X: []float64{1, 10, 1000}, Y: []float64{1e-5, 2e-3, 1e-6}},
		{Name: "other", X: []float64{1, 1000}, Y: []float64{1, 2}, Dashed: true, Bold: true},
	}}
	dir := t.TempDir()
	file := filepath.Join(dir, "chart.svg")
	if err := c.Write(file, 17, 9); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a long name of a " +
		"line", "other", "noise", "step", "deviation", ">1e-05<", ">0.1<", ">1000<"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the chart has no %q", want)
		}
	}
	if err := c.Write(filepath.Join(dir, "chart.png"), 17, 9); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "chart.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if image, err := png.Decode(f); err != nil || image.Bounds().Dx() < 1000 {
		t.Errorf("the bitmap: %v", err)
	}
	if err := c.Write(filepath.Join(dir, "chart.pdf"), 17, 9); !errors.Is(err, ErrForm) {
		t.Errorf("an unsupported form: %v", err)
	}
	c.Lines[0].Y[1] = 0 // 0 has no logarithm
	if err := c.Write(file, 17, 9); err == nil {
		t.Error("zero on a logarithmic axis is drawn")
	}
}

// TestUnusual draws three charts: lines for which an axis has length 0, no lines, and lines that are cut at the top.
// Lines without points, or with numbers that are not finite, are errors.
func TestUnusual(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chart.svg")
	level := Line{Name: "level", X: []float64{3, 3}, Y: []float64{5, 5}}
	for _, c := range []Chart{{}, {Lines: []Line{level}}, {LogX: true, LogY: true, Lines: []Line{level}}} {
		if err := c.Write(file, 17, 9); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%+v is drawn as %s, %v", c, text, err)
		}
	}
	nan, infinite := []float64{math.NaN()}, []float64{math.Inf(1)}
	for _, l := range []Line{{}, {X: nan, Y: []float64{1}}, {X: []float64{1}, Y: infinite}} {
		c := Chart{Lines: []Line{l}}
		if err := c.Write(file, 17, 9); err == nil {
			t.Errorf("%+v is drawn", l)
		}
	}
	parts := below([]point{{0, 4}, {1, 8}, {2, 4}, {3, 4}, {4, 6}, {5, 7}}, 6)
	if want := [][]point{{{0.5, 6}, {1, 8}, {1.5, 6}}, {{4, 6}, {4, 6}, {5, 7}}}; !reflect.DeepEqual(parts, want) {
		t.Errorf("the parts below are %v, want %v", parts, want)
	}
	parts = dashed([]point{{0, 0}, {4, 0}, {4, 7}}, []float64{5, 3})
	if want := [][]point{{{0, 0}, {4, 0}, {4, 1}}, {{4, 4}, {4, 7}}}; !reflect.DeepEqual(parts, want) {
		t.Errorf("the dashes are %v, want %v", parts, want)
	}
}

// TestTicks: a logarithmic axis has at least two labels and at most 20.
func TestTicks(t *testing.T) {
	for _, x := range []struct{ low, high float64 }{{1, 1.9}, {3, 8}, {0.18, 0.5}, {1, 10}, {2, 150}, {1e-3, 1e3},
		{1e-10, 1e-2}, {1e-200, 1e100}} {
		labels := 0
		for _, tick := range decades(x.low, x.high) {
			if tick.value < x.low*(1-1e-8) || tick.value > x.high*(1+1e-8) {
				t.Errorf("%g to %g: a tick at %g", x.low, x.high, tick.value)
			}
			if tick.label != "" {
				labels++
			}
		}
		if labels > 20 || labels < 2 {
			t.Errorf("%g to %g: %d labels", x.low, x.high, labels)
		}
	}
	for want, x := range map[string][2]float64{
		"-0.2 0.0 0.2 0.4":          {-0.27, 0.5},
		"600 800 1000 1200":         {449, 1310},
		"0.18 0.19 0.20 0.21":       {0.18, 0.218},
		"20000 40000 60000":         {1000, 77000},
		"5e+07 1e+08 1.5e+08 2e+08": {3e7, 2e8},
		"1e-09 2e-09 3e-09":         {1e-9, 3.9e-9},
	} {
		var labels []string
		for _, tick := range linear(x[0], x[1]) {
			labels = append(labels, tick.label)
		}
		if got := strings.Join(labels, " "); got != want {
			t.Errorf("%v: ticks %s, want %s", x, got, want)
		}
	}
}
