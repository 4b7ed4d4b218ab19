package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/internal/statement"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestReport: the report lists the charges before and after a change of the limit, names the configuration, and loads
// no external resource.
func TestReport(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(t.TempDir(), "report.html")
	read := func(args ...string) string {
		t.Helper()
		want(t, exitDone, "", append([]string{"report", "-c", s.config, "-o", path}, args...)...)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if page := read(); !strings.Contains(page, "Nothing: the ledger of") || !strings.Contains(page, "None yet.") {
		t.Errorf("before the first epoch:\n%s", page)
	}
	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))
	d.stop(syscall.SIGTERM)
	s.write("", "2.0")
	d = s.start()
	d.until("running", func(s monitor.TaskStatus) bool { return s.State == "running" })
	want(t, exitDone, "", "epoch", "open", "orders", "-c", s.config, "--yes")
	d.until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == "running" })
	d.stop(syscall.SIGTERM)

	page := read()
	for _, text := range []string{
		"orders epoch 1 was opened, at ε = 1", "the limit was changed", "orders epoch 1 was closed",
		"orders epoch 2 was opened", "at most 13.6% of cases",
		"<h3>orders: passed</h3>", "What is not promised", "for the rounded numbers that a computer works with",
		"the operator is trusted", "signature", "Topic orders, partition 0",
	} {
		if !strings.Contains(page, text) {
			t.Errorf("the report lacks %q", text)
		}
	}
	if found := regexp.MustCompile(`(?i)<script|https?:|src=|url\(|@import`).FindAllString(page, -1); found != nil {
		t.Errorf("the report has %v: it must be self-contained", found)
	}
	// The page is well-formed: every element that is opened is also closed.
	x := xml.NewDecoder(strings.NewReader(page))
	x.Entity = xml.HTMLEntity
	for {
		if _, err := x.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the report is not well formed: %v", err)
		}
	}

	var r statement.Statement
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "report", "-c", s.config, "--json", "--quick")),
		&r); err != nil {
		t.Fatal(err)
	}
	if len(r.Epochs) != 2 || r.Epochs[0].Closed == nil || r.Epochs[1].Closed != nil ||
		r.Epochs[1].Digest != r.Streams[0].Digests["0"] || len(r.Epochs[1].Digest) != 64 {
		t.Errorf("epochs %+v, digests %v", r.Epochs, r.Streams[0].Digests)
	}
	var kinds []string
	last := 0.0
	for _, e := range r.Budgets[0].Events {
		kinds = append(kinds, e.Kind)
		last = e.ChargedEpsilon
		if e.ChargedEpsilon > e.LimitEpsilon*(1+1e-9) {
			t.Errorf("the charge exceeds the limit: %+v", e)
		}
	}
	if strings.Join(kinds, " ") != "open limit close open" || r.Budgets[0].Events[0].LimitEpsilon != 1 ||
		r.Budgets[0].Events[1].LimitEpsilon != 2 || !(last > 0.99) {
		t.Errorf("budget %+v", r.Budgets)
	}
	if a := r.Streams[0].Audit; !r.Passed || a == nil || len(a.Findings) < 3 {
		t.Errorf("audit %+v", a)
	}
	for _, f := range r.Streams[0].Audit.Findings {
		if f.Audit == "" || f.Finds == "" {
			t.Errorf("a finding without its words: %+v", f)
		}
	}
	if left, _ := filepath.Glob(path + ".*"); left != nil {
		t.Errorf("%v is left", left)
	}
}

// TestReportOfExamples: a report can be made for every example.
func TestReportOfExamples(t *testing.T) {
	for _, name := range []string{"demand.toml", "refit.toml", "auto.toml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("..", "..", "examples", name))
			if err != nil {
				t.Fatal(err)
			}
			state := t.TempDir()
			config := write(t, name,
				strings.NewReplacer("/var/lib/streamdp", state, "${HOME}/streamdp/state", state).Replace(string(text)))
			if out := want(t, exitDone, "", "report", "-c", config, "--quick"); !strings.Contains(out,
				": passed</h3>") {
				t.Error(out)
			}
		})
	}
}
