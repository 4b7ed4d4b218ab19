package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

//go:embed report.html
var reportHTML string

func reportCommand(g *globals) *cobra.Command {
	var output string
	var quick bool
	c := &cobra.Command{
		Use:   "report -c FILE",
		Short: "Write what a stream promises, has charged and was audited for, to be signed",
		Long: "Write one HTML page, complete in itself and made to be printed: the promise in\n" +
			"plain words with an example, who is protected with how many records, every\n" +
			"charge and every change of a limit with its time, all epochs, the audits with\n" +
			"level and power, the configuration's digest, what is not promised, a glossary,\n" +
			"and a line to sign.\n\n" +
			"It reads the configuration and the ledger, and runs the audits, which takes\n" +
			"some seconds. It reads no record and no key. If an audit fails the report says\n" +
			"so, and the exit code is 1.",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := g.report(c.Context(), quick)
			if err != nil {
				return err
			}
			if err := g.writeReport(r, output); err != nil {
				return err
			}
			if output != "" {
				fmt.Fprintf(g.stderr, "the report is in %s\n", output)
			}
			if !r.Passed {
				return errors.New("an audit failed: do not run this build, and sign nothing")
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().BoolVar(&quick, "quick", false, "audits with fewer draws")
	return c
}

// report is what the page shows, and what --json prints.
type report struct {
	Made          time.Time `json:"made"`
	Version       string    `json:"version"`
	Go            string    `json:"go"`
	Configuration string    `json:"configuration"` // its name
	// FileSHA256 is the hash of the configuration file, in hexadecimal.
	FileSHA256 string                `json:"file_sha256"`
	State      string                `json:"state"`
	Passed     bool                  `json:"audits_passed"`
	Streams    []reportStream        `json:"streams"`
	Budgets    []ledger.SourceBudget `json:"budgets"`
	Epochs     []ledger.EpochInfo    `json:"epochs"`
}

// reportStream is a stream as it is configured now.
type reportStream struct {
	*core.Description
	Topic      string            `json:"topic"`
	Output     string            `json:"output"`
	Columns    []string          `json:"columns"`
	Computes   string            `json:"computes"`
	Promise    string            `json:"promise"`
	Unit       string            `json:"unit"`    // of the promise: see core.Unit
	User       *config.User      `json:"-"`       // nil where that is a record
	Digests    map[string]string `json:"digests"` // by partition, "merged" of all together
	Versions   map[string]string `json:"versions"`
	Audit      *streamAudit      `json:"audit,omitempty"`
	AuditError string            `json:"audit_missing,omitempty"` // why there is none
}

// report gathers everything.
func (g *globals) report(ctx context.Context, quick bool) (*report, error) {
	cfg, err := g.load()
	if err != nil {
		return nil, err
	}
	text, err := config.Text(g.config)
	if err != nil {
		return nil, configError{err}
	}
	sum := sha256.Sum256(text)
	r := &report{
		Made: time.Now().UTC().Truncate(time.Second), Version: version(), Go: runtime.Version(), Configuration: g.config,
		FileSHA256: hex.EncodeToString(sum[:]), State: cfg.State.Dir, Passed: true,
	}
	all, err := describeAll(cfg, true)
	if err != nil {
		return nil, configError{err}
	}
	books, err := g.books(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r.Epochs = books.Epochs()
	if r.Budgets, err = books.Budget(); err != nil {
		return nil, err
	}
	audits := map[string]*streamAudit{} // of patterns
	for i, s := range cfg.Streams {
		one := reportStream{
			Description: all[i], Topic: s.Input.Topic, Output: s.Output.Topic, Columns: s.Input.Row(), Computes: core.Computes(s),
			Unit: core.Unit(s), User: s.User, Promise: core.Promise(core.Unit(s), s.Privacy.Epsilon, s.Privacy.Delta), Digests: map[string]string{}, Versions: core.Versions(s),
		}
		for _, t := range r.tasks(s) {
			digest := t.stream.Digest(t.partition, one.Versions)
			one.Digests[core.PartitionName(t.partition)] = hex.EncodeToString(digest[:])
		}
		switch suite, err := suiteOf(s); {
		case audits[s.Pattern()] != nil: // that of another topic, which has the same
			one.Audit = audits[s.Pattern()]
		case errors.As(err, new(audit.NoneError)):
			one.AuditError = err.Error()
		case err != nil:
			return nil, fmt.Errorf("stream %s: %w", s.Name, err)
		default:
			suite.Quick = quick
			if one.Audit, err = runSuite(s.Name, suite); err != nil {
				return nil, fmt.Errorf("stream %s: %w", s.Name, err)
			}
			r.Passed = r.Passed && one.Audit.Passed
			if s.Pattern() != "" {
				audits[s.Pattern()] = one.Audit
			}
		}
		r.Streams = append(r.Streams, one)
	}
	return r, nil
}

// reportTask is a task of a stream.
type reportTask struct {
	stream    *config.Stream // as the task has it
	partition int            // or core.Merged
}

// tasks returns the tasks of a stream: of the partitions of its configuration, or where that
// has all, of those of which the ledger knows. A merged stream has one, over the partitions
// of its last epoch; none before that where the configuration has all.
func (r *report) tasks(s *config.Stream) (all []reportTask) {
	if s.Merge {
		numbers := s.Input.Partitions
		for _, e := range r.Epochs { // in their order
			if e.Stream != s.Name || e.Partition != core.Merged {
				continue
			}
			numbers = nil
			for _, p := range e.Parts {
				numbers = append(numbers, p.Partition)
			}
		}
		if s = s.Over(numbers); !s.Input.All() {
			all = append(all, reportTask{s, core.Merged})
		}
		return all
	}
	seen := map[int]bool{core.Merged: true}
	add := func(p int) {
		if !seen[p] {
			all, seen[p] = append(all, reportTask{s, p}), true
		}
	}
	if !s.Input.All() {
		for _, p := range s.Input.Partitions {
			add(p)
		}
	}
	for _, e := range r.Epochs {
		if e.Stream == s.Name {
			add(e.Partition)
		}
	}
	return all
}

// writeReport writes the page, or JSON, to a file or to standard output. A file appears whole
// or not at all.
func (g *globals) writeReport(r *report, path string) (err error) {
	if path == "" {
		return g.printReport(g.stdout, r)
	}
	f, err := os.Create(path + ".part")
	if err != nil {
		return err
	}
	if err = errors.Join(g.printReport(f, r), f.Close()); err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

func (g *globals) printReport(w io.Writer, r *report) error {
	if g.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return reportTemplate.Execute(w, r)
}

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"time":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") },
	"atMost":    core.AtMost,
	"partition": core.PartitionName,
	"offset":    offset,
	"short":     func(digest string) string { return digest[:min(16, len(digest))] },
	// exact says that a caveat is none: the guarantee holds in finite precision.
	"exact": func(caveat string) bool { return strings.HasPrefix(caveat, "Finite precision: exact") },
	"percent": func(epsilon *float64, delta float64) string {
		if epsilon == nil {
			return "–"
		}
		return fmt.Sprintf("%.3g %%", core.PercentFound(*epsilon, delta))
	},
	"event": func(e ledger.BudgetEvent) string {
		switch e.Kind {
		case "open":
			return fmt.Sprintf("%s epoch %d was opened, at ε = %g", e.Stream, e.Epoch, e.Epsilon)
		case "close":
			return fmt.Sprintf("%s epoch %d was closed", e.Stream, e.Epoch)
		case "void":
			return fmt.Sprintf("%s epoch %d never began", e.Stream, e.Epoch)
		}
		return "the limit was changed"
	},
	"verdict": func(passed bool) string {
		if passed {
			return "passed"
		}
		return "FAILED"
	},
}).Parse(reportHTML))
