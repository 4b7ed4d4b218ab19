package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const lines = `{"epoch":2,"step":3,"covers":[0,300],"columns":["a","b"],"values":{"mean":{"data":[1,2],"se":0.5},"covariance":{"data":[4,5,6],"se":[1,2,3]}}}
{"epoch":2,"step":1,"covers":[0,100],"columns":["a","b"],"values":{"mean":{"data":[3,4],"se":1}}}
{"epoch":2,"step":3,"covers":[0,300],"columns":["a","b"],"values":{"mean":{"data":[1,2],"se":0.5}}}
{"epoch":1,"step":9,"covers":[0,900],"columns":["a","b"],"values":{"mean":{"data":[7,7],"se":null}}}
`

// TestBand reads releases in both forms, out of order, twice and from an older epoch, and writes the plot.
func TestBand(t *testing.T) {
	for _, in := range []string{lines, `{"data":[` + strings.ReplaceAll(strings.TrimSpace(lines), "\n", ",") + `],"status":"success"}`} {
		all, err := read(strings.NewReader(in))
		if err != nil || len(all) != 2 || all[0].Step != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		c, err := band(all, "mean", 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if c.Y != "mean of b" || c.Lines[0].X[1] != 300 || c.Lines[0].Y[1] != 2 || c.Lines[1].Y[1] != 2+0.98 ||
			c.Lines[2].Y[0] != 4-1.96 {
			t.Errorf("%+v", c)
		}
		if c, err = band(all, "covariance", 2, 0); err != nil || math.Abs(c.Lines[1].Y[0]-6-1.96*3) > 1e-12 {
			t.Errorf("%+v, %v", c, err)
		}
	}
	file := filepath.Join(t.TempDir(), "band.svg")
	if err := run(strings.NewReader(lines), "mean", 0, 0, file); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "released") {
		t.Errorf("%.100s, %v", text, err)
	}
	for _, c := range []struct {
		in, value string
		entry     int
	}{{"", "mean", 0}, {"{", "mean", 0}, {lines, "sum", 0}, {lines, "mean", 2}, {lines, "mean", -1},
		{`{"epoch":1,"step":9,"covers":[0,9],"values":{"v":{"data":[7],"se":null}}}`, "v", 0}} {
		if err := run(strings.NewReader(c.in), c.value, c.entry, 0, file); err == nil {
			t.Errorf("%+v is drawn", c)
		}
	}
}
