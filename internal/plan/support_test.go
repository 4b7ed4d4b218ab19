package plan

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit/suites"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

var update = flag.Bool("update", false, "write the generated documents")

//go:generate go test -run ^TestSupportPage$ -update

// supported is a row of the page's table: configurations of mechanisms that support the same features.
type supported struct {
	name   string
	input  string
	tables []string
	step   string   // the step, if the mechanism needs one
	auto   []string // keys that are removed if a warm-up finds bounds
}

const inputRows = `columns = ["x", "y"]`

var (
	clipFound  = []string{`clip = 1.0 → clip = "auto"`}
	clipXFound = []string{`clip_x = 1.0 → clip_x = "auto"`}
)

// each returns one table for each word, with the word inserted.
func each(table string, words ...string) (all []string) {
	for _, w := range words {
		all = append(all, strings.Replace(table, "WORD", w, 1))
	}
	return all
}

const (
	supportedRefit = `refit = { solver = "WORD", target = "y", clip_x = 1.0, clip_y = 1.0, window = 1000 }`
	supportedSGD   = `sgd = { target = "y", clip_x = 1.0, clip_y = 1.0 }`
	supportedAMB   = `sgd = { method = "amb", target = "y", clip_x = 1.0, clip_y = 1.0, radius = 1.0, amb = { curvature = 0.5 } }`
	supportedModel = `adam = { mode = "model", clip = 1.0, rate = 0.1, model = { loss = "logistic", target = "y" } }`
)

var supportedMechanisms = []supported{
	{"moments", inputRows, each(`moments = { clip = 1.0, method = "WORD" }`, "auto", "jme", "ime"), "", clipFound},
	{"moments, methods `pp`, `pp_debiased`, `combined`", inputRows,
		each(`moments = { clip = 1.0, method = "WORD" }`, "pp", "pp_debiased", "combined"), "1", clipFound},
	{"sgd, method `newton`", inputRows, []string{supportedSGD}, "", clipXFound},
	{"sgd, method `amb`", inputRows, []string{supportedAMB}, "",
		[]string{"centre = 0.0\n → ", clipXFound[0], "amb = { curvature = 0.5 } → "}},
	{"refit, solvers `newton`, `adassp`, `dp-gd-residual`", inputRows,
		each(supportedRefit, "newton", "adassp", "dp-gd-residual"), "", clipXFound},
	{"refit, solver `dp-gd`", inputRows, each(supportedRefit, "dp-gd"), "", clipXFound},
	{"refit, solvers `ihm`, `linmix`", inputRows, each(supportedRefit, "ihm", "linmix"), "", clipXFound},
	{"refit, solver `fast-ihm`", inputRows, each(supportedRefit, "fast-ihm"), "", clipXFound},
	{"adam, examples of a model", inputRows, []string{supportedModel}, "64",
		[]string{`centre = 0.0 → centre = ["auto", 0.0]`}},
	{"adam, gradients", `codec = "float32"`, []string{`adam = { clip = 1.0, rate = 0.1, dim = 5 }`}, "64",
		[]string{`# centre = 0.0 → centre = "auto"`}},
}

// features are the columns of the table, as replacements in the configuration.
var features = []struct {
	name string
	of   func(s supported) []string
}{
	{"bounds found", func(s supported) []string { return s.auto }},
	{"partitions merged", func(supported) []string {
		return []string{"merge = false → merge = true", "input = { → input = { partition = \"all\", "}
	}},
	{"steps by the clock", func(s supported) []string {
		return []string{"# step = → step =", "step = → step = \"1m\"\nstep_max = 1000 #", ", window = 1000 → "}
	}},
	{"persons protected", func(supported) []string {
		return []string{
			"privacy = { → user = { key = \"record-key\", partitioner = \"murmur2\", cap = 2, period = 3, max_users " +
				"= 100000 }\nprivacy = {", "adjacency = \"zero-out\" → adjacency = \"replace\""}
	}},
	{"dead letters",
		func(supported) []string { return []string{"mode = \"off\" → mode = \"reference\", topic = \"dead\""} }},
}

// configured returns the configuration of one of the row's mechanisms with these features.
func (s supported) configured(table string, with ...int) (*config.Config, error) {
	text := `[kafka]
brokers = ["localhost:9092"]
boundary_topic = "bounds"
[state]
dir = "state"
key_file = "key"
[stream.s]
input = { topic = "in", INPUT }
centre = 0.0
merge = false
step = STEP
dead_letter = { mode = "off" }
privacy = { epsilon = 1.0, delta = 1e-6, adjacency = "zero-out" }
`
	text = strings.NewReplacer("INPUT", s.input, "STEP", s.step).Replace(text) + table + "\n"
	if s.step == "" {
		text = strings.Replace(text, "step =", "# step =", 1)
	}
	if s.input != inputRows {
		text = strings.Replace(text, "centre =", "# centre =", 1)
	}
	for _, i := range with {
		for _, change := range features[i].of(s) {
			old, replacement, _ := strings.Cut(change, " → ")
			text = strings.Replace(text, old, replacement, 1)
		}
	}
	return config.Parse("s.toml", []byte(text))
}

// audited describes what the audits of a stream examine.
func audited(s *config.Stream) string {
	switch suite, err := suites.Of(s, Audits(s)); {
	case err != nil:
		return "–"
	case suite.Loud != nil:
		return "sensitivity, noise, neighbours"
	}
	return "sensitivity"
}

// TestSupportPage: docs/mechanisms.md shows which mechanism supports which feature, which the test finds out by parsing
// configurations and building audits. The page quotes the refusals.
func TestSupportPage(t *testing.T) {
	var page bytes.Buffer
	var reasons []string
	because := func(err error) string {
		all, ok := errors.AsType[config.Faults](err)
		if !ok {
			t.Fatal(err)
		}
		key := strings.TrimPrefix(all[0].Key, "stream.s.")
		reason := fmt.Sprintf("`%s` %s", key, all[0].Rule)
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
		return fmt.Sprintf("– (%d)", 1+slices.Index(reasons, reason))
	}
	header := func(first string, last ...string) {
		names := []string{first}
		for _, f := range features {
			names = append(names, f.name)
		}
		names = append(names, last...)
		fmt.Fprintf(&page, "| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat(" --- |", len(names)))
	}
	cell := func(s supported, with ...int) {
		word := "yes"
		for i, table := range s.tables {
			_, err := s.configured(table, with...)
			if i == 0 && err != nil {
				word = because(err)
			}
			if (word == "yes") != (err == nil) {
				t.Errorf("%s differs from the others of %s: %v", table, s.name, err)
			}
		}
		fmt.Fprintf(&page, " %s |", word)
	}
	page.WriteString(
		"# Mechanisms and the features they support\n\n" +
			"Generated by `go generate ./internal/plan` from a test that tries each combination.\n\n")
	header("mechanism", "`streamdp audit`")
	for _, s := range supportedMechanisms {
		fmt.Fprintf(&page, "| %s |", s.name)
		for i := range features {
			cell(s, i)
		}
		var words []string
		for _, table := range s.tables {
			c, err := s.configured(table)
			if err != nil {
				t.Fatalf("%s: %v", table, err)
			}
			words = append(words, audited(c.Streams[0]))
		}
		if words = slices.Compact(words); len(words) > 1 {
			t.Errorf("%s are audited differently: %s", s.name, words)
		}
		fmt.Fprintf(&page, " %s |\n", words[0])
	}
	page.WriteString("\nCombinations of two features, for moments:\n\n")
	header("")
	for i, f := range features {
		fmt.Fprintf(&page, "| %s |", f.name)
		for j := range features {
			if i == j {
				page.WriteString(" |")
			} else {
				cell(supportedMechanisms[0], i, j)
			}
		}
		page.WriteString("\n")
	}
	page.WriteString("\nThe numbers refer to the message of `streamdp check`:\n\n")
	for i, reason := range reasons {
		fmt.Fprintf(&page, "%d. %s\n", i+1, reason)
	}
	page.WriteString(`
* Bounds found: ` + "`\"auto\"`" + `, [the warm-up](howto/choose-constants.md).
* Partitions merged: [one answer for a topic](howto/merge-partitions.md).
* Persons protected: [all records of a person](howto/persons.md); with merged partitions this needs ` + "`partitioner = \"murmur2\"`" + `.
* Steps by the clock: [a release every minute](howto/steps-by-the-clock.md).
* Dead letters: the records that gave no row, [operations.md](operations.md).
* ` + "`streamdp audit`" + `: "sensitivity" compares the releases of neighbouring streams under the same noise; "noise" checks that the drawn noise is in the releases and is white; "neighbours" tries to distinguish neighbouring streams with new keys.
`)
	path := filepath.Join(cases.Root(t), "docs", "mechanisms.md")
	if *update {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if was, err := os.ReadFile(path); err != nil || !bytes.Equal(was, page.Bytes()) {
		t.Errorf("docs/mechanisms.md is out of date, or missing: go generate ./internal/plan (%v)", err)
	}
}

// TestAuditPersonsOfAll: with protected persons, no audit of any mechanism finds a fault.
func TestAuditPersonsOfAll(t *testing.T) {
	t.Parallel()
	protected, audits := 0, 0
	for features[protected].name != "persons protected" {
		protected++
	}
	for _, s := range supportedMechanisms {
		for _, table := range s.tables {
			c, err := s.configured(table, protected)
			if err != nil {
				continue // refused, as docs/mechanisms.md says
			}
			suite, err := suites.Of(c.Streams[0], Audits(c.Streams[0]))
			if err != nil {
				t.Fatal(table, err)
			}
			suite.Quick = true
			all, err := suite.Run()
			if err != nil {
				t.Error(table, err)
			}
			for _, f := range all {
				if !f.Passed {
					t.Errorf("%s: %s %s: %s", table, f.Audit, f.What, f.Fault)
				}
			}
			audits++
		}
	}
	if audits < 14 {
		t.Errorf("%d audits", audits)
	}
}
