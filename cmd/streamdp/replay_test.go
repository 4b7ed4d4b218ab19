package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"streamdp/internal/cases"
)

// TestReplay runs a stream's estimator on the same records in every form that a
// file may have.
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
	note := "34 records, 3 releases; the last 4 records do not fill a step\nwhoever publishes these releases has spent (1, 1e-08), zero-out, on each record once more\nINSECURE"
	first := want(t, exitDone, note, "replay", "-c", s.config, "--stream", "orders", "--insecure-seed", "7", write("a.csv", table))
	for _, file := range []string{write("a.csv.gz", table), write("a.ndjson", documents), write("a.txt.gz", documents)} {
		if got := want(t, exitDone, note, "replay", "-c", s.config, "--insecure-seed", "7", file); got != first {
			t.Errorf("%s gives other releases than a.csv", filepath.Base(file))
		}
	}
	lines := strings.Split(strings.TrimSpace(first), "\n")
	var r struct {
		Step   uint64
		Values map[string]any
	}
	if err := json.Unmarshal([]byte(lines[2]), &r); err != nil || len(lines) != 3 || r.Step != 3 || r.Values["covariance"] == nil {
		t.Errorf("%d lines, the last is %v (%v)", len(lines), r, err)
	}
	if got := want(t, exitDone, "34 records", "replay", "-c", s.config, write("b.ndjson", documents)); got == first || strings.Contains(got, "INSECURE") {
		t.Error("a run without a seed has its keys")
	}

	bad := write("bad.ndjson", "{\"amount\":0.1,\"items\":1}\n{\"amount\":1}\n{\"amount\":\"x\",\"items\":1}\n[1]\n{\"items\":2}\n")
	want(t, exitDone, "not private: 4 records gave no row (malformed 1, missing 2, not-number 1)\nwhoever", "replay", "-c", s.config, "--insecure-diagnostics", bad)
	want(t, exitDone, "not private: every record gave a row\nwhoever", "replay", "-c", s.config, "--insecure-diagnostics", write("b.ndjson", documents))
	want(t, exitDone, "do not fill a step\nwhoever", "replay", "-c", s.config, bad)
	example, err := os.ReadFile(filepath.Join(cases.Root(t), "examples", "churn.toml"))
	if err != nil {
		t.Fatal(err)
	}
	classes := write("classes.toml", strings.Replace(string(example), `"logistic"`, `"softmax", classes = 2`, 1))
	customers := write("customers.csv", "months,calls,bill,left\n"+strings.Repeat("20,1,50,1\n20,1,50,0.5\n", 200))
	want(t, exitDone, "not private: 200 records gave no row (no-class 200)\n", "replay", "-c", classes, "--insecure-diagnostics", customers)

	want(t, exitUsage, "no stream nope, only orders", "replay", "-c", s.config, "--stream", "nope", "x")
	want(t, exitUsage, "--header is \"maybe\"", "replay", "-c", s.config, "--header", "maybe", "x")
	want(t, exitFailure, "no such file", "replay", "-c", s.config, filepath.Join(dir, "missing.ndjson"))
	want(t, exitUsage, "no column \"items\"", "replay", "-c", s.config, write("c.csv", "amount,other\n1,2\n"))

	// Packed records stand one after the other.
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(dir, "packed.toml")
	if err := os.WriteFile(packed, []byte(strings.Replace(string(text), `topic = "orders", `, `topic = "orders", codec = "float32", `, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone, "20 records, 2 releases\n", "replay", "-c", packed, write("p.bin", strings.Repeat("\x00\x00\x00\x3f", 40)))
	want(t, exitFailure, "ends in the middle of a record of 8 bytes", "replay", "-c", packed, write("q.bin", strings.Repeat("\x00\x00\x00\x3f", 41)))
}

// TestPlanMethods shows the errors of every applicable method, and warns of a
// release that a topic does not take.
func TestPlanMethods(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	columns := make([]string, 200)
	for i := range columns {
		columns[i] = fmt.Sprintf("%q", fmt.Sprint("c", i))
	}
	write := func(columns []string, moments string) {
		text := fmt.Sprintf("[kafka]\nbrokers = [\"a:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n[stream.x]\ninput = { topic = \"a\", columns = [%s] }\n"+
			"output = { topic = \"b\" }\nstep = 1\n[stream.x.privacy]\nepsilon = 20.0\ndelta = 1e-8\nadjacency = \"replace\"\nlimit_epsilon = 20.0\n"+
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
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "--steps", "1,2,9", "-c", file)), &plans); err != nil {
		t.Fatal(err)
	}
	if c := plans[0].Correlation; len(c) != 3 || len(c[2]) != 3 || math.Abs(c[2][2]-1) > 1e-12 || !(c[1][0] > 0.1) {
		t.Errorf("correlation %v", c)
	}
}
