package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestReplay runs a stream's estimator on the same records, given in every form that a file may have.
func TestReplay(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, ".gz") {
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			z := gzip.NewWriter(f)
			if _, err := z.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	table, documents := "amount,other,items\n", ""
	for i := range 34 {
		table += fmt.Sprintf("0.%d,9,0.%d\n", i%10, i%7)
		documents += fmt.Sprintf("{\"amount\":0.%d,\"items\":0.%d}\n", i%10, i%7)
	}
	note := "34 records, 3 releases; the last 4 records do not fill a step\n" +
		"publishing these releases costs each record another (1, 1e-08), zero-out\nINSECURE"
	first := want(t, exitDone, note, "replay", "-c", s.config, "--stream", "orders", "--insecure-seed", "7",
		write("a.csv", table))
	for _, file := range []string{write("a.csv.gz", table), write("a.ndjson", documents),
		write("a.txt.gz", documents)} {
		if got := want(t, exitDone, note, "replay", "-c", s.config, "--insecure-seed", "7", file); got != first {
			t.Errorf("%s and a.csv give different releases", filepath.Base(file))
		}
	}
	lines := strings.Split(strings.TrimSpace(first), "\n")
	var r struct {
		Step   uint64
		Values map[string]any
	}
	if err := json.Unmarshal([]byte(lines[2]), &r); err != nil || len(lines) != 3 || r.Step != 3 ||
		r.Values["covariance"] == nil {
		t.Errorf("%d lines, the last is %v (%v)", len(lines), r, err)
	}
	if got := want(t, exitDone, "34 records", "replay", "-c", s.config, write("b.ndjson", documents)); got == first ||
		strings.Contains(got, "INSECURE") {
		t.Error("a run without a seed has its keys")
	}

	bad := write("bad.ndjson",
		"{\"amount\":0.1,\"items\":1}\n{\"amount\":1}\n{\"amount\":\"x\",\"items\":1}\n[1]\n{\"items\":2}\n")
	want(t, exitDone,
		"not private: 4 records gave no row (malformed 1, missing 2, not-number 1)\n"+
			"not private: rows shortened to the clip norm: 1\npublishing", "replay", "-c", s.config,
		"--insecure-diagnostics", bad)
	want(t, exitDone,
		"not private: every record gave a row\nnot private: rows shortened to the clip norm: 1\n"+
			"not private: the last release, step 3, ", "replay", "-c", s.config, "--insecure-diagnostics",
		write("b.ndjson", documents))
	want(t, exitDone, "do not fill a step\npublishing", "replay", "-c", s.config, bad)
	example, err := os.ReadFile(filepath.Join(cases.Root(t), "examples", "churn.toml"))
	if err != nil {
		t.Fatal(err)
	}
	classes := write("classes.toml", strings.Replace(string(example), `"logistic"`, `"softmax", classes = 2`, 1))
	customers := write("customers.csv", "months,calls,bill,left\n"+strings.Repeat("20,1,50,1\n20,1,50,0.5\n", 200))
	want(t, exitDone, "not private: 200 records gave no row (no-class 200)\n", "replay", "-c", classes,
		"--insecure-diagnostics", customers)

	want(t, exitUsage, "no stream nope, only orders", "replay", "-c", s.config, "--stream", "nope", "x")
	want(t, exitUsage, "--header is \"maybe\"", "replay", "-c", s.config, "--header", "maybe", "x")
	want(t, exitFailure, "no such file", "replay", "-c", s.config, filepath.Join(dir, "missing.ndjson"))
	want(t, exitUsage, "no column \"items\"", "replay", "-c", s.config, write("c.csv", "amount,other\n1,2\n"))

	// Packed records follow one another without separators.
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(dir, "packed.toml")
	if err := os.WriteFile(packed,
		[]byte(strings.Replace(string(text), `topic = "orders", `, `topic = "orders", codec = "float32", `, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone, "20 records, 2 releases\n", "replay", "-c", packed,
		write("p.bin", strings.Repeat("\x00\x00\x00\x3f", 40)))
	want(t, exitFailure, "ends in the middle of a record of 8 bytes", "replay", "-c", packed,
		write("q.bin", strings.Repeat("\x00\x00\x00\x3f", 41)))
}

// TestReplayTruth: for moments the diagnostics show the last release together with exact values from the unshortened
// and from the clipped rows, and the number of clipped rows. Without the flag none of this is printed.
func TestReplayTruth(t *testing.T) {
	t.Parallel()
	replay := func(tables, rows string, more ...string) string {
		config := write(t, "c.toml",
			"[kafka]\nbrokers = [\"a:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n[stream.x]\n"+
				"input = { topic = \"a\", columns = [\"u\", \"v\"] }\n"+tables)
		code, _, errs := call(t,
			append([]string{"replay", "-c", config, write(t, "rows.ndjson", rows), "--insecure-seed", "1"}, more...)...)
		if code != exitDone {
			t.Fatalf("exit code %d: %s", code, errs)
		}
		return errs
	}
	table := func(errs string) map[string][]float64 {
		found := map[string][]float64{}
		for _, line := range strings.Split(errs, "\n") {
			words := strings.Fields(line)
			if len(words) < 6 || words[0] != "mean" && words[0] != "variance" && words[0] != "sum" {
				continue
			}
			var x []float64
			for _, w := range words[2:] {
				v, err := strconv.ParseFloat(w, 64)
				if err != nil {
					v = math.NaN()
				}
				x = append(x, v)
			}
			found[words[0]+" "+words[1]] = x
		}
		return found
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 2e-5*math.Abs(want)+1e-9) {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	const privacy = "[stream.x.privacy]\nepsilon = 8.0\ndelta = 1e-6\nadjacency = \"zero-out\"\nlimit_epsilon = 8.0\n"

	// In every four records, one has norm 5 and is shortened to 2.5, one is null, and two are unchanged; all are around
	// the centre (10, 0), with scales 1 and 2. The last step covers only its window.
	var fixed strings.Builder
	for i := range 130 {
		fmt.Fprintln(&fixed, []string{`{"u":13,"v":8}`, `{"u":"x","v":8}`, `{"u":11,"v":1}`, `{"u":9,"v":0}`}[i%4])
	}
	tables := "output = { topic = \"b\", encoding = %q }\ncentre = [10, 0]\nscale = [1, 2]\nstep = 4\n" + privacy +
		"[stream.x.moments]\nclip = 2.5\n%s"
	for _, encoding := range []string{"json", "base64"} {
		for _, workload := range []string{"", "workload = \"window\"\nwindow = 3\n", "workload = " +
			"\"exponential\"\ndecay = 0.9\n"} {
			errs := replay(fmt.Sprintf(tables, encoding, workload), fixed.String(), "--insecure-diagnostics")
			for _, line := range []string{"not private: 33 records gave no row (not-number 33)\n", "not private: " +
				"rows shortened to the clip norm: 33\n", "not private: the last release, step 32, next to"} {
				if !strings.Contains(errs, line) {
					t.Errorf("%q is not in\n%s", line, errs)
				}
			}
			x := table(errs)
			near("mean", x["mean u"][0], 10+3.0/4)
			near("clipped mean", x["mean u"][1], 10+1.5/4)
			near("mean", x["mean v"][0], 9.0/4)
			near("clipped mean", x["mean v"][1], 5.0/4)
			near("variance", x["variance u"][0], 11.0/4-9.0/16)
			near("clipped variance", x["variance u"][1], (1.5*1.5+2)/4-1.5*1.5/16)
			near("variance", x["variance v"][0], 65.0/4-81.0/16)
			near("clipped variance", x["variance v"][1], 17.0/4-25.0/16)
			for name, v := range x {
				if !(math.Abs(v[2]-v[1]) < 5.5*v[3]) { // any of 48 values exceeds it once in 5·10⁵ runs
					t.Errorf("%s: released %g ± %g, the truth is %g", name, v[2], v[3], v[1])
				}
			}
		}
	}
	if errs := replay(fmt.Sprintf(tables, "json", ""), fixed.String()); strings.Contains(errs, "not private") ||
		strings.Contains(errs, "clipped") {
		t.Errorf("without diagnostics:\n%s", errs)
	}

	// If bounds are found, the truth covers the rows after the warm-up.
	source := rand.New(rand.NewPCG(5, 6))
	var found strings.Builder
	var mean, square float64
	const warmup, rows = 1500, 3540
	for i := range rows {
		u, v := 1e6+50*source.NormFloat64(), math.Exp(source.NormFloat64())
		fmt.Fprintf(&found, `{"u":%.3f,"v":%.6f}`+"\n", u, v)
		if i >= warmup && i < rows-40 {
			mean += v / 2000
			square += v * v / 2000
		}
	}
	errs := replay("output = { topic = \"b\" }\nstep = 100\ncentre = \"auto\"\nscale = \"auto\"\nwarmup = 1500\n"+
		privacy+"[stream.x.moments]\nclip = \"auto\"\n", found.String(), "--insecure-diagnostics")
	x := table(errs)
	near("mean", x["mean v"][0], mean)
	near("variance", x["variance v"][0], square-mean*mean)
	if v := x["mean v"]; len(v) != 5 || !(v[1] < v[0]) || !(math.Abs(v[2]-v[1]) < 5*v[3]) || !(v[4] > v[3]) {
		t.Errorf("mean v: %v", v)
	}
	if v := x["variance v"]; !(v[1] < v[0]) || !(math.Abs(v[2]-v[1]) < 5*v[3]) {
		t.Errorf("variance v: %v", v)
	}
	if m := regexp.MustCompile(`not private: rows shortened to the clip norm: (\d+)`).FindStringSubmatch(
		errs); m == nil || m[1] == "0" {
		t.Errorf("no row was shortened:\n%s", errs)
	}
}

// TestPlanMethods shows the errors of every applicable method, and warns of a release that is too large for a topic.
func TestPlanMethods(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	columns := make([]string, 200)
	for i := range columns {
		columns[i] = fmt.Sprintf("%q", fmt.Sprint("c", i))
	}
	write := func(columns []string, moments string) {
		text := fmt.Sprintf(
			"[kafka]\nbrokers = [\"a:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n[stream.x]\n"+
				"input = { topic = \"a\", columns = [%s] }\n"+
				"output = { topic = \"b\" }\nstep = 1\n[stream.x.privacy]\nepsilon = 20.0\ndelta = 1e-8\n"+
				"adjacency = \"replace\"\nlimit_epsilon = 20.0\n"+
				"[stream.x.moments]\nclip = 1\n%s\n", strings.Join(columns, ", "), moments)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(columns[:50], "factorization = \"identity\"")
	var plans []struct {
		Mechanism struct{ Method string }
		Methods   []struct {
			Method     string
			Configured bool
			Errors     []struct {
				Second float64 `json:"rmse_second_moment"`
			} `json:"standard_errors"`
		}
		Correlation [][]float64
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file)), &plans); err != nil {
		t.Fatal(err)
	}
	p := plans[0]
	if p.Mechanism.Method != "combined" || len(p.Methods) != 6 || p.Correlation != nil {
		t.Fatalf("method %s, %d methods, correlation %v", p.Mechanism.Method, len(p.Methods), p.Correlation)
	}
	best := ""
	least := 1e300
	for _, m := range p.Methods {
		if len(m.Errors) != 5 {
			t.Fatalf("%s has %d errors", m.Method, len(m.Errors))
		}
		if e := m.Errors[4].Second; e < least {
			best, least = m.Method, e
		}
		if m.Configured != (m.Method == "combined") {
			t.Errorf("%s: configured %t", m.Method, m.Configured)
		}
	}
	if best != "combined" {
		t.Errorf("%s is the best method", best)
	}
	write(columns, "")
	want(t, exitDone, "warning: stream x: a release takes up to", "plan", "--steps", "1", "-c", file)
	write(columns[:2], "window = 3\nworkload = \"window\"")
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "--steps", "1,2,9", "-c", file)),
		&plans); err != nil {
		t.Fatal(err)
	}
	if c := plans[0].Correlation; len(c) != 3 || len(c[2]) != 3 || math.Abs(c[2][2]-1) > 1e-12 || !(c[1][0] > 0.1) {
		t.Errorf("correlation %v", c)
	}
}

// TestSample runs check --sample. It prints, for each column, how many records of a file give a value, and that this
// output is not private.
func TestSample(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(t.TempDir(), "records.ndjson")
	var text strings.Builder
	for i := range 10 {
		switch i {
		case 3:
			text.WriteString("\n")
		case 4, 5:
			fmt.Fprintf(&text, `{"amount": "x", "items": 1}`+"\n")
		default:
			fmt.Fprintf(&text, `{"amount": %d, "items": 1, "wait": 2}`+"\n", i)
		}
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out := want(t, exitDone, "not private: ", "check", "-c", s.config, "--sample", path)
	for _, line := range []string{"stream orders: 10 records, 7 rows, 3 null (malformed 1, not-number 2)\n", "  " +
		"column amount is a number in 7 records (malformed 1, not-number 2)\n",
		"  column items is a number in 9 records (malformed 1)\n"} {
		if !strings.Contains(out, line) {
			t.Errorf("%q is not in\n%s", line, out)
		}
	}
	out = want(t, exitDone, "not private: ", "check", "-c", s.config, "--sample", path, "--stream", "orders", "--json")
	var x struct {
		Records, Rows int64
		Columns       []struct {
			Name    string
			Numbers int64
		}
	}
	if err := json.Unmarshal([]byte(out), &x); err != nil || x.Records != 10 || x.Rows != 7 || len(x.Columns) != 2 ||
		x.Columns[1].Numbers != 9 {
		t.Errorf("%v: %s", err, out)
	}
	want(t, exitUsage, "no stream nope, only orders", "check", "-c", s.config, "--sample", path, "--stream", "nope")
	want(t, exitUsage, "--header is \"maybe\"", "check", "-c", s.config, "--sample", path, "--header", "maybe")
	rows := filepath.Join(t.TempDir(), "rows.ndjson")
	if err := os.WriteFile(rows, []byte("{\"amount\":1}\n{\"amount\":2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := want(t, exitDone, "not private: ", "check", "-c", s.config, "--sample", rows); !strings.Contains(out,
		"  column items is a number in no record (missing 2)\n") {
		t.Errorf("%s", out)
	}
}
