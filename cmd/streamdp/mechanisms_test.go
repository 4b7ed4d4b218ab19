package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// tallyFiles and tallyLines are the changes that add the mechanism of testdata/tally: new files, and lines to insert
// after a given text in existing files. DESIGN.md, "Adding a mechanism", names the same places.
var (
	tallyFiles = map[string]string{
		"tally/tally.go":                 "tally.go",
		"stream/core/mechanism_tally.go": "core.go",
		"internal/audit/suites/tally.go": "suite.go",
		"internal/plan/tally.go":         "plan.go",
	}
	tallyLines = []struct{ file, behind, line string }{
		{"config/config.go", "import (\n", "\"github.com/streamdp/streamdp/tally\"\n"},
		{"config/config.go", "type Stream struct {\n", "Tally *tally.Config `toml:\"tally\"`\n"},
		{"config/mechanisms.go", "var mechanisms = []*mechanism{\n", `{
			name: "tally",
			of:   func(s *Stream) estimator { return s.Tally },
			bind: func(s *Stream, _ bool) { s.Tally.Columns, s.Tally.Step, s.Tally.Horizon = len(s.Input.Columns), s.Slots(), s.Horizon },
		},` + "\n"},
		{"stream/core/mechanisms.go", "var mechanisms = []*descriptor{\n", "tallyMechanism,\n"},
		{"internal/plan/mechanisms.go", "var mechanisms = map[string]mechanism{\n",
			`"tally": {plan: (*Plan).ofTally, audits: suites.Tally},` + "\n"},
	}
)

// tallySchema has the mechanism's keys, which are inserted before those of the first mechanism.
const tallySchema = `	{Path: "stream.NAME.tally", Kind: toml.Table, Doc: "Mechanism: sums."},
	{Path: "stream.NAME.tally.clip", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: says("positive"), Doc: "Bound."},
`

// withTally builds the program with the mechanism of testdata/tally.
func withTally(t *testing.T) (binary string) {
	t.Helper()
	root, dir := cases.Root(t), t.TempDir()
	replaced := map[string]string{}
	for name, from := range tallyFiles {
		path, err := filepath.Abs(filepath.Join("testdata", "tally", from))
		if err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, name)] = path
	}
	texts := map[string]string{}
	read := func(name string) string {
		if texts[name] == "" {
			data, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(data)
		}
		return texts[name]
	}
	insert := func(name, at, text string) {
		if strings.Count(read(name), at) != 1 {
			t.Fatalf("%s does not have %q once", name, at)
		}
		texts[name] = strings.Replace(texts[name], at, text, 1)
	}
	for _, l := range tallyLines {
		insert(l.file, l.behind, l.behind+l.line)
	}
	const first = "\t{Path: \"stream.NAME.moments\", "
	insert("config/schema.go", first, tallySchema+first)
	for name, text := range texts {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[filepath.Join(root, name)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "streamdp")
	c := exec.Command("go", "build", "-buildvcs=false", "-overlay", file, "-o", binary, "./cmd/streamdp")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// TestAnotherMechanism adds a mechanism to the program in exactly the places that DESIGN.md names. Then it runs check,
// plan, audit and the daemon with it, restarts the daemon, changes the configuration, and reads its releases.
func TestAnotherMechanism(t *testing.T) {
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("builds the program a second time: runs with STREAMDP_SLOW=1, which the CI script sets")
	}
	t.Parallel()
	s := newSite(t)
	s.binary = withTally(t)
	data, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(clip string) {
		text := strings.Replace(string(data), "[stream.orders.moments]\nclip = 1.0",
			"[stream.orders.tally]\nclip = "+clip, 1)
		if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(code int, holds string, args ...string) {
		t.Helper()
		c := exec.Command(s.binary, append(args, "-c", s.config)...)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil || c.ProcessState.ExitCode() != code || !strings.Contains(string(out), holds) {
			t.Fatalf("%s: %v, want exit code %d and %q\n%s", args[0], err, code, holds, out)
		}
	}
	write("-1")
	ask(exitConfig, "stream.orders.tally.clip: must be positive and finite", "check")
	write("2.0")
	ask(exitDone, `"tally":{"clip":2}`, "check")
	ask(exitDone, "standard error of every sum", "plan")
	ask(exitDone, "pass", "audit", "--quick")

	rows := "amount,items\n" + strings.Repeat("0.5,1.0\n", 45)
	csv := filepath.Join(s.dir, "rows.csv")
	if err := os.WriteFile(csv, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	feed := func() { ask(exitDone, "45 records sent", "feed", "--stream", "orders", "--csv", csv) }
	feed()
	d := s.start()
	d.until("at step 4", released(4))
	if code := d.stop(syscall.SIGTERM); code != exitDone {
		t.Fatalf("exit code %d\n%s", code, d.log)
	}
	feed()
	d = s.start()
	if got := d.until("at step 9", released(9)); got.Epoch != 1 || got.Mechanism != "tally" {
		t.Errorf("status %+v", got)
	}
	d.stop(syscall.SIGTERM)

	list := kafkatest.ReadCommitted(t, s.broker.Addrs(), "orders.dp", 0, 0, 8)
	for i, m := range list {
		var r struct {
			Step, Rows uint64
			Mechanism  struct{ Name string }
			Privacy    struct{ Statements []string }
			Values     struct {
				Tally struct {
					Data []float64
					SE   float64
				}
			}
		}
		if err := json.Unmarshal(m.Value, &r); err != nil {
			t.Fatal(err)
		}
		v := r.Values.Tally
		if r.Step != uint64(i)+1 || r.Rows != 10 || r.Mechanism.Name != "tally" || len(v.Data) != 2 || !(v.SE > 0) {
			t.Fatalf("release %s", m.Value)
		}
		for j, want := range []float64{5, 10} {
			// One of 4·10¹¹ values is off by more than 7 standard errors, and there are 18 values.
			if math.Abs(v.Data[j]-want) > 7*v.SE || v.Data[j] == want {
				t.Errorf("step %d: sum %d is %g ± %g, the truth is %g", r.Step, j, v.Data[j], v.SE, want)
			}
		}
		if !strings.Contains(strings.Join(r.Privacy.Statements, " "), "replacing one record by the zero record") {
			t.Errorf("statements %q", r.Privacy.Statements)
		}
	}

	// The digest includes the mechanism's keys, so another clip norm is another guarantee.
	write("3.0")
	d = s.start()
	<-d.read
	if d.cmd.Wait(); d.cmd.ProcessState.ExitCode() == exitDone ||
		!strings.Contains(d.log.String(), "tally.clip: 2 → 3") {
		t.Errorf("exit code %d\n%s", d.cmd.ProcessState.ExitCode(), d.log)
	}
	ask(exitDone, "", "epoch", "list")
}
