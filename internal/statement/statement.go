// Package statement writes a page that somebody can sign: the guarantees, charges and audits of streams.
package statement

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/audit/suites"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/preflight"
)

//go:embed statement.html
var pageHTML string

// Statement is the content of the page, as HTML or as JSON.
type Statement struct {
	Made          time.Time `json:"made"`
	Version       string    `json:"version"`
	Go            string    `json:"go"`
	Configuration string    `json:"configuration"` // name of the file or directory
	// FileSHA256 is the hash of the configuration file, in hexadecimal.
	FileSHA256 string                `json:"file_sha256"`
	State      string                `json:"state"`
	Passed     bool                  `json:"audits_passed"`
	Streams    []Stream              `json:"streams"`
	Budgets    []ledger.SourceBudget `json:"budgets"`
	Epochs     []ledger.EpochInfo    `json:"epochs"`
}

// Stream is a stream as currently configured.
type Stream struct {
	*core.Description
	Topic      string            `json:"topic"`
	Output     string            `json:"output"`
	Columns    []string          `json:"columns"`
	Computes   string            `json:"computes"`
	Promise    string            `json:"promise"`
	Unit       string            `json:"unit"`    // what the guarantee protects: see core.Unit
	User       *config.User      `json:"-"`       // nil if the unit is a record
	Digests    map[string]string `json:"digests"` // by partition; the key "merged" is for all partitions together
	Versions   map[string]string `json:"versions"`
	Audit      *audit.Report     `json:"audit,omitempty"`
	AuditError string            `json:"audit_missing,omitempty"` // reason why there is no audit
}

// Options are the inputs of a statement in addition to the configuration.
type Options struct {
	Configuration string                        // name of the file or directory that was read
	Version       string                        // version of this build
	Books         func() (*ledger.Books, error) // reads the ledgers
	Quick         bool                          // audits with fewer draws
}

// New gathers the content of a statement, and runs the audits of every stream. It fails with an [exit.Config] if the
// configuration cannot be run. An audit that fails is not an error: see Passed.
func New(cfg *config.Config, o Options) (*Statement, error) {
	text, err := config.Text(o.Configuration)
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	sum := sha256.Sum256(text)
	r := &Statement{
		Made: time.Now().UTC().Truncate(time.Second), Version: o.Version, Go: runtime.Version(),
		Configuration: o.Configuration,
		FileSHA256:    hex.EncodeToString(sum[:]), State: cfg.State.Dir, Passed: true,
	}
	all, err := preflight.Describe(cfg, true)
	if err != nil {
		return nil, err
	}
	books, err := o.Books()
	if err != nil {
		return nil, err
	}
	r.Epochs = books.Epochs()
	if r.Budgets, err = books.Budget(); err != nil {
		return nil, err
	}
	audits := map[string]*audit.Report{} // reports by pattern
	for i, s := range cfg.Streams {
		one := Stream{
			Description: all[i], Topic: s.Input.Topic, Output: s.Output.Topic, Columns: s.Input.Row(),
			Computes: core.Computes(s),
			Unit:     core.Unit(s), User: s.User,
			Promise: core.Promise(core.Unit(s), s.Privacy.Epsilon, s.Privacy.Delta),
			Digests: map[string]string{}, Versions: core.Versions(s),
		}
		for _, t := range r.tasks(s) {
			digest := t.stream.Digest(t.partition, one.Versions)
			one.Digests[core.PartitionName(t.partition)] = hex.EncodeToString(digest[:])
		}
		switch suite, err := suites.Of(s, plan.Audits(s)); {
		case audits[s.Pattern()] != nil: // the audit for another topic of the pattern applies here too
			one.Audit = audits[s.Pattern()]
		case errors.As(err, new(audit.NoneError)):
			one.AuditError = err.Error()
		case err != nil:
			return nil, fmt.Errorf("stream %s: %w", s.Name, err)
		default:
			suite.Quick = o.Quick
			if one.Audit, err = suite.Report(s.Name); err != nil {
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

// task is a task of a stream.
type task struct {
	stream    *config.Stream // the stream's configuration as the task runs it
	partition int            // partition, or core.Merged
}

// tasks returns the tasks of a stream: one for each partition of its configuration or, if that is "all", for each
// partition in the ledger. A merged stream has one task, over the partitions of its last epoch; a merged stream over
// "all" partitions has no task before its first epoch.
func (r *Statement) tasks(s *config.Stream) (all []task) {
	if s.Merge {
		numbers := s.Input.Partitions
		for _, e := range r.Epochs { // epochs are sorted, the oldest first
			if e.Stream != s.Name || e.Partition != core.Merged {
				continue
			}
			numbers = nil
			for _, p := range e.Parts {
				numbers = append(numbers, p.Partition)
			}
		}
		if s = s.Over(numbers); !s.Input.All() {
			all = append(all, task{s, core.Merged})
		}
		return all
	}
	seen := map[int]bool{core.Merged: true}
	add := func(p int) {
		if !seen[p] {
			all, seen[p] = append(all, task{s, p}), true
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

// HTML writes the page. It is self-contained and designed for printing.
func (r *Statement) HTML(w io.Writer) error { return page.Execute(w, r) }

// JSON writes the same content for programs.
func (r *Statement) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"time":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") },
	"atMost":    core.AtMost,
	"partition": core.PartitionName,
	"offset":    words.Offset,
	"short":     func(digest string) string { return digest[:min(16, len(digest))] },
	// exact reports whether a caveat is good news: that the guarantee holds in finite precision.
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
}).Parse(pageHTML))
