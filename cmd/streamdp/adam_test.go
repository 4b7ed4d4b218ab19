package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const adamConfig = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "DIR/state"
key_file = "DIR/key"
[stream.updates]
input = { topic = "gradients", codec = "float32" }
output = { topic = "updates", encoding = "base64" }
step = 64
[stream.updates.privacy]
epsilon = 4.0
delta = 1e-6
adjacency = "replace"
limit_epsilon = 4.0
[stream.updates.adam]
clip = 1.0
rate = 1e-3
dim = 200000
[stream.fit]
input = { topic = "rows", columns = ["a", "b", "y"] }
output = { topic = "fit" }
step = 32
horizon = 500
[stream.fit.privacy]
epsilon = 1.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 1.0
[stream.fit.adam]
mode = "model"
method = "jme_per_example"
factorization = "blt"
clip = 1.0
rate = 0.01
schedule = "cosine"
model = { loss = "mlp", target = "y", hidden = 5 }
`

// TestAdamCommands plans, checks and audits streams of gradients and of examples.
func TestAdamCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "streamdp.toml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(adamConfig, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	contains := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%q is missing from\n%s", w, text)
			}
		}
	}
	contains(want(t, exitDone, "", "plan", "-c", file),
		"stream updates", "method pp_debiased", "identity*",
		"release          at most 2135.3 kB, in messages of 900.0 kB", "noise of a coordinate of the second moment",
		"stream fit", "model (loss mlp, target y, hidden 5)", "blt*", "learning rate", "500")
	var plans []struct {
		Factorizations []struct {
			Errors []map[string]float64 `json:"standard_errors"`
		}
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file, "--steps", "1,100")),
		&plans); err != nil {
		t.Fatal(err)
	}
	for _, p := range plans {
		for _, f := range p.Factorizations {
			if len(f.Errors) == 2 &&
				!(f.Errors[0]["first_moment"] > f.Errors[1]["first_moment"] && f.Errors[1]["second_moment"] > 0) {
				t.Errorf("noise %v", f.Errors)
			}
		}
	}

	want(t, exitDone, "", "keygen", filepath.Join(dir, "key"))
	contains(want(t, exitDone, "", "check", "-c", file), "stream updates", "checkpoint       4800.0 kB",
		"noise of a step  first ", ", second ")

	contains(want(t, exitDone, "", "check", "-c", file), "replace: one record is replaced by any other",
		"zero-out: one record is replaced by a null record, which takes its place")

	var a auditAnswer
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "audit", "-c", file, "--quick", "--json")), &a); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Streams {
		for _, f := range s.Findings {
			if f.Audit != "A0" || !f.Passed {
				t.Errorf("%s: %+v", s.Stream, f)
			}
		}
	}
	if n := len(a.Streams[1].Findings); a.Streams[1].Stream != "updates" || n != 3 {
		t.Errorf("%d audits of %s, want 3: the worst pair among them", n, a.Streams[1].Stream)
	}

	want(t, exitUsage, "reads gradients", "feed", "-c", file, "--stream", "updates", "--csv", file)
	want(t, exitUsage, "reads gradients", "replay", "-c", file, "--stream", "updates", file)
}

// TestAdamReplay replays examples and expects each release on one line, whatever its length.
func TestAdamReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, rows := filepath.Join(dir, "streamdp.toml"), filepath.Join(dir, "rows.csv")
	text := strings.NewReplacer("DIR", dir, "hidden = 5", "hidden = 20000").Replace(adamConfig)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rows, []byte("a,b,y\n"+strings.Repeat("0.5,-0.25,1\n", 70)), 0o600); err != nil {
		t.Fatal(err)
	}
	releases := strings.Split(
		strings.TrimSpace(want(t, exitDone, "", "replay", "-c", file, "--stream", "fit", "--insecure-seed", "1", rows)),
		"\n")
	if len(releases) != 2 {
		t.Fatalf("%d releases of 70 records, want 2", len(releases))
	}
	for i, line := range releases {
		var r struct {
			Step   uint64
			Values map[string]struct{ Data []float64 }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if n := len(r.Values["parameters"].Data); r.Step != uint64(i+1) || n != 80001 || len(line) < 1_000_000 {
			t.Errorf("line %d: step %d, %d parameters in %d bytes, want step %d and 80001 parameters", i+1, r.Step, n,
				len(line), i+1)
		}
	}
}

// TestAdamAuditOfExamples: under zero-out an audit compares an example with no record. A row of zeros would be a wrong
// partner, because it has a gradient too, here the opposite one.
func TestAdamAuditOfExamples(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "streamdp.toml")
	text := strings.NewReplacer("DIR", dir,
		"jme_per_example", "pp_debiased", "clip = 1.0\nrate = 0.01", "clip = 0.1\nrate = 0.01",
		`{ loss = "mlp", target = "y", hidden = 5 }`, `{ loss = "logistic", target = "y" }`).Replace(adamConfig)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var a auditAnswer
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "audit", "-c", file, "--quick", "--json")), &a); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Streams {
		for _, f := range s.Findings {
			if !f.Passed {
				t.Errorf("%s: %+v", s.Stream, f)
			}
		}
	}
}
