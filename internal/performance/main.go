// Command performance measures the figures of docs/performance.md and writes that page.
//
//	go run ./internal/performance              measures every row that needs no Kafka
//	go run ./internal/performance -only IHM    measures rows whose benchmark matches
//	go run ./internal/performance -from FILE   takes rows from the output of go test -bench
//	go run ./internal/performance -render      writes the page from the stored figures
//	go run ./internal/performance -guard       compares instruction counts and the daemon's time
//	                                           with the stored ones; with -keep, stores the new ones
//	go run ./internal/performance -flame FILE.svg [-title TEXT] PROFILE...
//	                                           draws CPU profiles as a flame graph
//
// Each benchmark alternates between the code that it measures and a rival whose name it gives. The page shows ratios,
// because times on a shared machine mean little.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	pageFile    = "docs/performance.md"
	resultsFile = "internal/performance/results.json"
)

func main() {
	only := flag.String("only", "", "measure only benchmarks that match this regular expression")
	from := flag.String("from", "", "take figures from the output of go test -bench in this file")
	render := flag.Bool("render", false, "write the page without measuring")
	guarding := flag.Bool("guard", false, "compare instruction counts and the daemon's ratio with the stored ones")
	keep := flag.Bool("keep", false, "with -guard: store them instead")
	graph := flag.String("flame", "", "draw the CPU profiles named after the flags into this file")
	title := flag.String("title", "The daemon at full speed", "with -flame: title of the graph")
	flag.Parse()
	if *graph != "" {
		if err := flame(*title, *graph, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "performance:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*only, *from, *render, *guarding, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		if err, ok := err.(*exitError); ok {
			os.Exit(err.code)
		}
		os.Exit(1)
	}
}

// exitError is an error with an exit code for the program.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func run(only, from string, render, guarding, keep bool) error {
	if guarding {
		return guard(keep)
	}
	kept, err := readResults()
	if err != nil {
		return err
	}
	switch {
	case from != "":
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		found := parse(data)
		if len(found) == 0 {
			return fmt.Errorf("%s: no figures", from)
		}
		kept.add(found, thisMachine())
	case !render:
		if err := measure(kept, only); err != nil {
			return err
		}
	}
	if err := kept.write(); err != nil {
		return err
	}
	text, err := page(kept)
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, text, 0o644)
}

// measure runs the benchmarks that match only and adds their figures to kept.
func measure(kept *results, only string) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	on, done := thisMachine(), map[string]bool{}
	for _, r := range runs {
		name := r.pkg + " " + r.bench
		if done[name] || !wanted.MatchString(name) {
			continue
		}
		done[name] = true
		begun := time.Now()
		output, err := benchmark(r)
		if err != nil {
			return err
		}
		found := parse(output)
		if len(found) == 0 {
			return fmt.Errorf("%s: no figures in\n%s", name, output)
		}
		kept.add(found, on)
		fmt.Printf("%-55s %d rows, %.0f s\n", name, len(found), time.Since(begun).Seconds())
	}
	return nil
}

// benchmark runs a benchmark, built like a released binary, and returns its output.
func benchmark(r bench) ([]byte, error) {
	args := []string{"test", "-run=^$", "-bench=" + r.bench, "-benchtime=" + r.time, "-count=" + strconv.Itoa(r.count),
		"-timeout=10m", "./" + r.pkg}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOAMD64=v1")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return output, nil
}

// figures are a benchmark's metrics by unit, each of which is the median of several runs.
type figures map[string]float64

var line = regexp.MustCompile(`(?m)^(?:pkg: ` + regexp.QuoteMeta(module) +
	`(\S+)|(Benchmark\S+?)(?:-\d+)?\s+\d+\s+(.*))$`)

// parse reads the output of go test -bench. It returns figures by name, which is PACKAGE.BENCHMARK.
func parse(output []byte) map[string]figures {
	all := map[string]map[string][]float64{}
	pkg := ""
	for _, m := range line.FindAllSubmatch(output, -1) {
		if len(m[1]) > 0 {
			pkg = string(m[1])
			continue
		}
		name, fields := pkg+"."+string(m[2]), strings.Fields(string(m[3]))
		if all[name] == nil {
			all[name] = map[string][]float64{}
		}
		for i := 0; i+1 < len(fields); i += 2 {
			if x, err := strconv.ParseFloat(fields[i], 64); err == nil {
				all[name][fields[i+1]] = append(all[name][fields[i+1]], x)
			}
		}
	}
	medians := map[string]figures{}
	for name, units := range all {
		medians[name] = figures{}
		for unit, x := range units {
			slices.Sort(x)
			medians[name][unit] = x[len(x)/2]
		}
	}
	return medians
}

// results are the figures for the page, each with the machine on which it was measured.
type results struct {
	Machines   []machine
	Benchmarks map[string]result
}

type result struct {
	Machine int // index in Machines
	Figures figures
}

// machine describes where and how a figure was measured.
type machine struct {
	Day, Processor, Go, GOAMD64 string
	Cores                       int
	Load                        string // runnable processes when the measurement began
}

func (m machine) String() string {
	return fmt.Sprintf("%s: %s, %d cores, %s, GOAMD64=%s", m.Day, m.Processor, m.Cores, m.Go, m.GOAMD64)
}

func thisMachine() machine {
	m := machine{Day: time.Now().UTC().Format(time.DateOnly), Processor: runtime.GOARCH, Go: runtime.Version(),
		GOAMD64: "v1", Cores: runtime.NumCPU(), Load: "unknown"}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name := regexp.MustCompile(`(?m)^model name\s*:\s*(.*)$`).FindSubmatch(data); name != nil {
			m.Processor = string(name[1])
		}
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(data), " ")
	}
	return m
}

func (r *results) add(found map[string]figures, on machine) {
	i := slices.Index(r.Machines, on)
	if i < 0 {
		i = len(r.Machines)
		r.Machines = append(r.Machines, on)
	}
	for name, f := range found {
		r.Benchmarks[name] = result{i, f}
	}
}

func readResults() (*results, error) {
	r := &results{Benchmarks: map[string]result{}}
	data, err := os.ReadFile(resultsFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the stored figures; run this in the repository's root: %w", err)
	}
	return r, json.Unmarshal(data, r)
}

// write stores the results. It leaves out machines to which no figure refers.
func (r *results) write() error {
	var used []machine
	for _, x := range r.Benchmarks {
		m := r.Machines[x.Machine]
		if !slices.Contains(used, m) {
			used = append(used, m)
		}
	}
	slices.SortFunc(used, func(a, b machine) int { return strings.Compare(a.String()+a.Load, b.String()+b.Load) })
	for name, x := range r.Benchmarks {
		x.Machine = slices.Index(used, r.Machines[x.Machine])
		r.Benchmarks[name] = x
	}
	r.Machines = used
	return writeJSON(resultsFile, r)
}

func writeJSON(name string, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "\t")
	if err := e.Encode(v); err != nil {
		return err
	}
	return os.WriteFile(filepath.FromSlash(name), b.Bytes(), 0o644)
}
