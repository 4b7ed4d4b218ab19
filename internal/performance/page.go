package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed page.tmpl
var pageText string

// page returns docs/performance.md.
func page(kept *results) ([]byte, error) {
	figure := func(bench, unit string) (float64, bool) {
		x, ok := kept.Benchmarks[bench].Figures[unit]
		return x, ok
	}
	t := template.New("page")
	t.Funcs(template.FuncMap{
		"endToEnd": func() string { return table(endToEnd, kept) },
		"kernels":  func() string { return table(kernels, kept) },
		"people":   func() string { return table(people, kept) },
		"machines": func() string {
			loads := map[string][]float64{}
			for _, m := range kept.Machines {
				load, _ := strconv.ParseFloat(m.Load, 64)
				loads[m.String()] = append(loads[m.String()], load)
			}
			var all []string
			for _, name := range slices.Sorted(maps.Keys(loads)) {
				all = append(all,
					fmt.Sprintf("* %s; load %g to %g", name, slices.Min(loads[name]), slices.Max(loads[name])))
			}
			return strings.Join(all, "\n")
		},
		"figure": func(bench, unit string, scale float64) string {
			x, ok := figure(bench, unit)
			if !ok {
				return "not measured"
			}
			return number(x * scale)
		},
		"product": func(bench, unit, by string) string {
			x, ok := figure(bench, unit)
			y, also := figure(bench, by)
			if !ok || !also {
				return "not measured"
			}
			return number(x * y)
		},
		"capacity":  func() string { return capacity(kept) },
		"footprint": func() string { return footprint(kept) },
	})
	if _, err := t.Parse(
		strings.Replace(pageText, "{{unmet}}", unmet(slices.Concat(endToEnd, people, kernels), kept), 1)); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := t.Execute(&b, nil)
	return b.Bytes(), err
}

// unmet lists why rows do not meet their goals, each reason once.
func unmet(rows []row, kept *results) string {
	var order []string
	of := map[string][]string{}
	path := ""
	for _, r := range rows {
		if r.path != "the same" { // a row with the rival of the row above it
			path = r.path
		}
		if _, met := r.value(kept); met != "no" || r.why == "" {
			continue
		}
		if of[r.why] == nil {
			order = append(order, r.why)
		}
		if !slices.Contains(of[r.why], path) {
			of[r.why] = append(of[r.why], path)
		}
	}
	var b strings.Builder
	for _, why := range order {
		name := strings.Join(of[why], "; ")
		fmt.Fprintf(&b, "**%s.** %s\n\n", strings.ToUpper(name[:1])+name[1:], why)
	}
	return b.String()
}

// capacity returns the table of throughput, in thousands of records per second and core.
func capacity(kept *results) string {
	var b strings.Builder
	b.WriteString("| mechanism | codec | d = 10 | d = 100 | d = 1000 |\n|---|---|---|---|---|\n")
	for _, mechanism := range []string{"moments", "newton", "refit", "adam"} {
		for _, codec := range []string{"float64", "json", "csv"} {
			var cells []string
			known := false
			for _, d := range []int{10, 100, 1000} {
				x, ok := kept.Benchmarks[fmt.Sprintf("stream/task.BenchmarkCapacity/%s/%s/d=%d", mechanism, codec,
					d)].Figures["cpu-ns/record"]
				if !ok {
					cells = append(cells, "–")
					continue
				}
				known = true
				cells = append(cells, thousands(1e9/x))
			}
			if known {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", mechanism, codec, strings.Join(cells, " | "))
			}
		}
	}
	return b.String()
}

// footprint returns the table of memory and checkpoint sizes.
func footprint(kept *results) string {
	var b strings.Builder
	b.WriteString("| mechanism | d | memory | checkpoint |\n|---|---|---|---|\n")
	for _, r := range []struct {
		name, d string
	}{{"moments", "10"}, {"moments", "100"}, {"moments", "1000"}, {"newton", "10"}, {"newton", "100"},
		{"adam", "1000000"}, {"adam", "10000000"}} {
		f := kept.Benchmarks[fmt.Sprintf("stream/task.BenchmarkFootprint/%s/d=%s", r.name, r.d)].Figures
		heap, ok := f["heap-bytes"]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.name, r.d, size(heap), size(f["checkpoint-bytes"]))
	}
	return b.String()
}

// thousands formats a rate in thousands, with two digits, or three from 100 000 to a million.
func thousands(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.0f", 100*math.Round(x/1e5))
	case x >= 1e4:
		return fmt.Sprintf("%.0f", x/1e3)
	}
	return fmt.Sprintf("%.1f", x/1e3)
}

func size(x float64) string {
	switch {
	case x >= 1e9:
		return fmt.Sprintf("%.1f GB", x/1e9)
	case x >= 1e6:
		return fmt.Sprintf("%.1f MB", x/1e6)
	}
	return fmt.Sprintf("%.0f kB", x/1e3)
}
