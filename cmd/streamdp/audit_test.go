package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

const auditConfig = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "DIR/state"
key_file = "DIR/key"
[stream.orders]
input = { topic = "orders", columns = ["amount", "items"] }
output = { topic = "orders.dp" }
step = 20000
centre = [3.0, 0.0]
scale = [2.0, 5.0]
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace"
limit_epsilon = 1.0
[stream.orders.moments]
clip = 1.5
[stream.window]
input = { topic = "visits", columns = ["n"] }
output = { topic = "visits.dp" }
step = 1
horizon = 3
[stream.window.privacy]
epsilon = 8.0
delta = 1e-5
adjacency = "zero-out"
limit_epsilon = 8.0
[stream.window.moments]
clip = 100.0
workload = "window"
window = 2
factorization = "sqrt"
`

type auditAnswer struct {
	Passed  bool
	Streams []audit.Report
}

// TestAudit runs the command, with --quick and in full. The key file and the state directory in the configuration do
// not exist, and are not needed. The keys are fresh: by the audits' levels these runs fail once in 10⁸ times.
func TestAudit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "streamdp.toml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(auditConfig, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	table := want(t, exitDone, "", "audit", "-c", file, "--quick")
	for _, text := range []string{"stream orders: mu 0.1960", "stream window: mu " +
		"1.666", "AUDIT", "A0", "A1", "A2", "pass"} {
		if !strings.Contains(table, text) {
			t.Errorf("the table lacks %q:\n%s", text, table)
		}
	}
	if strings.Contains(table, "FAIL") {
		t.Errorf("audits fail:\n%s", table)
	}
	quick := answerOf(t, want(t, exitDone, "", "audit", "-c", file, "--quick", "--json"))
	full := answerOf(t, want(t, exitDone, "", "audit", "-c", file, "--json"))
	for k, a := range full.Streams {
		if len(a.Findings) != 8 {
			t.Errorf("stream %s: %d audits, want 8", a.Stream, len(a.Findings))
		}
		for i, f := range a.Findings {
			q := quick.Streams[k].Findings[i]
			if !f.Passed || !q.Passed || f.Fault != "" || f.Draws < q.Draws || f.Power < 0.999 || f.Level < 0 ||
				f.Level > 1e-9 || f.Finds == "" {
				t.Errorf("stream %s: %+v, quickly %+v", a.Stream, f, q)
			}
		}
	}
	found, err := os.ReadDir(dir)
	if err != nil || len(found) != 1 {
		t.Errorf("the audit left %v, %v", found, err)
	}
}

func answerOf(t *testing.T, out string) auditAnswer {
	t.Helper()
	var a auditAnswer
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !a.Passed || len(a.Streams) != 2 || a.Streams[0].Stream != "orders" || a.Streams[1].Adjacency != dp.ZeroOut {
		t.Errorf("the answer is %+v", a)
	}
	return a
}

// TestAuditFails: an estimator that costs three times as much as it claims fails its audits, and the command ends with
// exit code 1, in text and in JSON.
func TestAuditFails(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("test.toml", []byte(auditConfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Streams {
		for _, asJSON := range []bool{false, true} {
			suite, err := suiteOf(s)
			if err != nil {
				t.Fatal(err)
			}
			suite.Quick = true
			suite.Configured.Mu /= 3
			suite.Loud.Mu /= 3
			a, err := suite.Report(s.Name)
			if err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			code := exitCode(new(cobra.Command),
				reportAudits(&globals{stdout: &out, stderr: &errs, json: asJSON}, []*audit.Report{a}), &errs)
			if code != exitFailure || !strings.Contains(errs.String(), "3 of 8 audits failed") {
				t.Errorf("stream %s: exit code %d, %q", s.Name, code, errs.String())
			}
			if asJSON {
				var got auditAnswer
				if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Passed || got.Streams[0].Passed ||
					got.Streams[0].Findings[0].Fault == "" {
					t.Errorf("stream %s: %v\n%s", s.Name, err, out.String())
				}
			} else if !strings.Contains(out.String(), "FAIL") || !strings.Contains(out.String(), "A2 failed: ") {
				t.Errorf("stream %s:\n%s", s.Name, out.String())
			}
		}
	}
	if _, err := suiteOf(&config.Stream{Name: "none"}); err == nil {
		t.Error("a mechanism without audits passes")
	}
}

// TestRefitCommands: plan and audit support refits. A solver without an audit does not pass, and does not prevent the
// audits of other streams.
func TestRefitCommands(t *testing.T) {
	t.Parallel()
	file := filepath.Join(cases.Root(t), "examples", "refit.toml")
	out := want(t, exitDone, "", "plan", "-c", file)
	for _, w := range []string{"(0.5, 1e-08)-differential privacy", "exact Gaussian accounting",
		"errors depend on the data of " +
			"the window", "method newton", "standard error of mean"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	out = want(t, exitDone, "", "audit", "--quick", "-c", file)
	if !strings.Contains(out, "stream prices: mu 0.101384, zero-out\n") || strings.Contains(out, "FAIL") {
		t.Errorf("audit prints\n%s", out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ solver, accounting string }{{"adassp", "exact Gaussian"}, {"dp-gd", "exact " +
		"Gaussian"}, {"dp-gd-residual", "exact Gaussian"}, {"ihm", "exact"}, {"linmix", "exact"}, {"fast-ihm", "rdp"}} {
		other := filepath.Join(t.TempDir(), "refit.toml")
		if err := os.WriteFile(other,
			[]byte(strings.Replace(string(text), "window = 20000", "window = 20000\nsolver = \""+c.solver+"\"", 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		if out := want(t, exitDone, "", "plan", "-c", other); !strings.Contains(out,
			"together, "+c.accounting+" accounting") {
			t.Errorf("plan prints\n%s", out)
		}
		code, none := exitDone, ""
		if c.solver == "fast-ihm" {
			code, none = exitFailure, "stream prices: there is no audit of solver "+c.solver
		}
		if out := want(t, code, none, "audit", "--quick", "-c", other); !strings.Contains(out, "stream sales: ") ||
			strings.Contains(out, "FAIL") {
			t.Errorf("audit prints\n%s", out)
		}
	}
}

// TestAuditPersons: with protected persons, all records of a person replace a single record, and use the charged μ.
func TestAuditPersons(t *testing.T) {
	t.Parallel()
	const user = "user = { key = \"record-key\", cap = 3, separation = 2, max_users = 9000 }\n"
	text := auditConfig[:strings.Index(auditConfig, "[stream.window]")]
	text = strings.Replace(text, "step = 20000\n", "step = 500\n"+user, 1) + `[stream.window]
input = { topic = "visits", columns = ["n", "m"] }
output = { topic = "visits.dp" }
` + user + `privacy = { epsilon = 8.0, delta = 1e-5, adjacency = "zero-out", limit_epsilon = 8.0 }
sgd = { target = "m", clip_x = 1.0 }
`
	text = strings.Replace(text, "max_users = 9000 }\nprivacy", "max_users = 90000000 }\nhorizon = 30\nprivacy", 1)
	file := filepath.Join(t.TempDir(), "streamdp.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range answerOf(t, want(t, exitDone, "", "audit", "-c", file, "--quick", "--json")).Streams {
		far := 0.0
		for _, f := range s.Findings {
			if !f.Passed {
				t.Errorf("stream %s: %+v", s.Stream, f)
			}
			if strings.HasPrefix(f.What, "sensitivity/mu") {
				far = max(far, f.Statistic)
			}
		}
		if far < 0.85 { // a single record would use at most 0.6
			t.Errorf("stream %s: the worst person uses %g of mu", s.Stream, far)
		}
	}
}

// TestAuditFullMap: if the map of persons may become full, zero-out has the noise of replace, and the audit uses the
// pairs of replace.
func TestAuditFullMap(t *testing.T) {
	t.Parallel()
	const text = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "state"
key_file = "key"
[stream.s]
input = { topic = "in", columns = ["a", "b"] }
step = 50
user = { key = "record-key", cap = 2, max_users = 100 }
privacy = { epsilon = 1.0, delta = 1e-6, adjacency = "zero-out" }
[stream.s.moments]
clip = 1.0
`
	file := filepath.Join(t.TempDir(), "streamdp.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone, "", "audit", "-c", file, "--quick") // otherwise an audit failed
}
