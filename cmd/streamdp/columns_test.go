package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestColumnsPage follows docs/howto/columns.md, and compares the results with the page.
func TestColumnsPage(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, example := read("../../docs/howto/columns.md"), read("../../examples/columns.toml")
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("columns.toml", example)
	const scale = "scale  = [1.0, "
	if !strings.Contains(example, scale) {
		t.Fatal("the example has another scale")
	}
	write("short.toml", strings.Replace(example, scale, "scale  = [", 1))
	seen := map[string]int{}
	for _, m := range regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		switch kind, text := m[1], m[2]; kind {
		case "json":
			write("orders.ndjson", text)
		case "toml", "": // a block without kind is only part of a configuration
			if !strings.Contains(example, text) {
				t.Errorf("not in examples/columns.toml:\n%s", text)
			}
		case "console":
			command, shown, _ := strings.Cut(text, "\n")
			code, first := exitDone, "not private: every number here is an exact function of the records\n"
			if strings.Contains(command, "short.toml") {
				code, first = exitConfig, shown
			}
			out := want(t, code, first, strings.Fields(strings.TrimPrefix(command, "$ streamdp "))...)
			if code == exitDone && first+out != shown {
				t.Errorf("%s\n%s%s\nbut the page shows\n%s", command, first, out, shown)
			}
		default:
			t.Errorf("an unexpected block of %s", kind)
		}
		seen[m[1]]++
	}
	if seen["json"] != 1 || seen["toml"]+seen[""] != 2 || seen["console"] != 2 {
		t.Errorf("blocks %v", seen)
	}

	// The row of each record is computed by hand. The means cover enough records to make the noise small.
	section := example[strings.Index(example, "[stream.totals.input]"):strings.Index(example,
		"[stream.totals.privacy]")]
	write("moments.toml", `kafka.brokers = ["localhost:9092"]
state = { dir = "`+filepath.ToSlash(dir)+`", key_file = "key" }
[stream.totals]
step = 5000
output.topic = "x"
privacy = { epsilon = 10, delta = 1e-8, adjacency = "zero-out" }
moments = { clip = 6, covariance = false }
`+section)
	write("many.ndjson", strings.Repeat(read("orders.ndjson"), 1000))
	out := want(t, exitDone, "", "replay", "-c", "moments.toml", "--insecure-seed", "1", "many.ndjson")
	var r struct {
		Columns []string
		Values  map[string]struct{ Data []float64 }
	}
	if err := json.Unmarshal([]byte(strings.SplitN(out, "\n", 2)[0]), &r); err != nil {
		t.Fatal(err)
	}
	if names := []string{"total", "hour-sin", "hour-cos", "weekend=6", "weekend=7", "country=FR", "country=IT",
		"country=other", "express", "items"}; !slices.Equal(r.Columns, names) {
		t.Errorf("columns %q, want %q", r.Columns, names)
	}
	turn := func(h, m, s float64) (float64, float64) { return math.Sincos(2 * math.Pi * (h + m/60 + s/3600) / 24) }
	sum := make([]float64, 10)
	for _, x := range []struct {
		total, h, m, s, items float64
		flags                 [6]float64
	}{
		{129.90, 20, 4, 5, 2, [6]float64{5: 1}}, {18, 23, 30, 0, 1, [6]float64{1: 1, 2: 1}},
		{0, 9, 15, 0, 3, [6]float64{0: 1, 4: 1}},
	} {
		sin, cos := turn(x.h, x.m, x.s)
		for j, v := range append(append([]float64{math.Log(x.total + 1), sin, cos}, x.flags[:]...),
			math.Log1p(x.items)) {
			sum[j] += v / 5
		}
	}
	mean := r.Values["mean"].Data
	for j := range sum {
		if len(mean) != len(sum) || math.Abs(mean[j]-sum[j]) > 0.01 {
			t.Fatalf("mean %v, want %v", mean, sum)
		}
	}
}
