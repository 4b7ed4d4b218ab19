package chart

import (
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrite draws a chart in both forms: the SVG is well formed and holds every name
// and the ticks, the PNG has its size.
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
	for _, want := range []string{"a long name of a line", "other", "noise", "step", "deviation", ">1e-05<", ">0.1<", ">1000<"} {
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
		t.Errorf("another form: %v", err)
	}
	c.Lines[0].Y[1] = 0 // has no logarithm
	if err := c.Write(file, 17, 9); err == nil {
		t.Error("zero on a logarithmic axis is drawn")
	}
}

// TestTicks: an axis has at most 20 labels, and at least two if it doubles.
func TestTicks(t *testing.T) {
	for _, x := range []struct{ low, high float64 }{{1, 1.9}, {3, 8}, {0.18, 0.5}, {1, 10}, {2, 150}, {1e-3, 1e3}, {1e-10, 1e-2}, {1e-200, 1e100}} {
		labels := 0
		for _, tick := range (decades{}).Ticks(x.low, x.high) {
			if tick.Value < x.low*(1-1e-8) || tick.Value > x.high*(1+1e-8) {
				t.Errorf("%g to %g: a tick at %g", x.low, x.high, tick.Value)
			}
			if tick.Label != "" {
				labels++
			}
		}
		if labels > 20 || labels < 2 && x.high >= 2*x.low {
			t.Errorf("%g to %g: %d labels", x.low, x.high, labels)
		}
	}
}
