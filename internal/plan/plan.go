// Package plan computes, before any data, the guarantee of a stream and the noise of each released value. It knows, for
// each mechanism, what the commands show and which audits there are. Three tables in the program list the mechanisms;
// the one in this package is one of them.
package plan

import (
	"fmt"
	"io"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/sgd"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
)

// Plan is a stream's plan as `plan --json` prints it. The mechanism determines which fields are set.
type Plan struct {
	*core.Description
	Steps          []uint64 `json:"steps"`
	Factorizations []form   `json:"factorizations,omitempty"`
	Methods        []form   `json:"methods,omitempty"`
	// Correlation is the correlation of the means' noise between these steps. It holds for the second moments too. It
	// is absent if it depends on records.
	Correlation [][]float64 `json:"correlation,omitempty"`
	// Comparison has the errors of all factorizations of the workload. It is nil if the stream has no
	// moments, or Options asks for neither Factorizations nor Figure.
	Comparison *comparison `json:"comparison,omitempty"`
	// Outlook is the expected error of a regression after given numbers of gradient steps. Independent is the same
	// error if the noise is independent instead of correlated.
	Outlook     []sgd.Outlook `json:"outlook,omitempty"`
	Independent []sgd.Outlook `json:"outlook_independent,omitempty"`
	Pace        *sgd.Pace     `json:"pace,omitempty"`
	// Schedule says when the steps of method newton end. Descent is the expected error of method amb, after about the
	// same number of slots as in each entry of Outlook.
	Schedule *schedule     `json:"schedule,omitempty"`
	Descent  []sgd.Outlook `json:"outlook_amb,omitempty"`

	// Warmup is the plan of the warm-up that finds bounds before the mechanism starts: a *moments.WarmupPlan or a
	// *core.WarmupPlan.
	Warmup any `json:"warmup,omitempty"`

	// OfPersons is the cost of protecting persons, nil if records are protected.
	OfPersons *rulesNoise `json:"persons_cost,omitempty"`

	// Why says in sentences what "auto" chose, and why.
	Why []string `json:"why,omitempty"`

	// StepRecords is the number of records assumed in a step by the clock, 0 for other steps.
	StepRecords uint64 `json:"step_records,omitempty"`

	tables   func(w io.Writer) error // prints the part after the guarantee
	original bool                    // true if values in original units are released too
	found    bool                    // true if the warm-up finds the clip norm
}

// Options say what a plan shows in addition to the guarantee.
type Options struct {
	// Steps are the steps whose errors are shown: see [Steps].
	Steps []uint64
	// Factorizations adds the errors under the factorizations that the stream does not use.
	Factorizations bool
	// Figure is true if [Plan.Draw] will be called.
	Figure bool
	// Condition is the assumed condition number of the features' second moment, if the mechanism is [Conditioned].
	Condition float64
	// StepRecords is the number of records assumed in a step by the clock.
	StepRecords uint64
}

// Steps removes steps that an epoch of the stream never reaches. Unless the user chose the steps, it adds the last step
// of the epoch.
func Steps(s *config.Stream, steps []uint64, chosen bool) []uint64 {
	last := s.LastStep()
	if last == 0 {
		return steps
	}
	switch { // the steps of the mechanism begin after the warm-up
	case s.Moments != nil:
		last -= s.Moments.WarmupSteps()
	case s.Automatic():
		last = s.Standing().LastStep()
	}
	var within []uint64
	for _, t := range steps {
		if t <= last {
			within = append(within, t)
		}
	}
	if !chosen && !slices.Contains(within, last) {
		within = append(within, last)
	}
	return within
}

// Of returns the plan of a stream of cfg.
func Of(cfg *config.Config, s *config.Stream, ask Options) (*Plan, error) {
	d, err := dryrun.Describe(s)
	if err == nil {
		err = d.Divide(cfg, s)
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Description: d, Steps: ask.Steps}
	if d.Warmup != nil {
		p.Warmup, s = d.Warmup, s.Standing()
	}
	if m := mechanismOf(s); m.plan != nil {
		return p, m.plan(p, s, ask)
	}
	return nil, fmt.Errorf("there is no plan of %s", s.Mechanism())
}

// Print writes the plan as text for people.
func (p *Plan) Print(w io.Writer) error {
	if err := PrintGuarantee(w, p.Description, "mechanism", InWords(p.Mechanism)); err != nil {
		return err
	}
	if b := p.Description.Warmup; b != nil {
		printWarmup(w, b.Records, b.Needed, b.Parts)
	}
	for _, sentence := range p.Why {
		fmt.Fprintf(w, "  %s\n", sentence)
	}
	if p.OfPersons != nil {
		if err := p.OfPersons.print(w); err != nil {
			return err
		}
	}
	return p.tables(w)
}

// printWarmup describes the warm-up that finds bounds before the mechanism starts.
func printWarmup(w io.Writer, records, needed, parts uint64) {
	steps := "1 step"
	if parts > 1 {
		steps = fmt.Sprintf("%d steps", parts)
	}
	fmt.Fprintf(w, "\n  warm-up: the first %d offsets, %s; at least %d of their records must be valid, for some data\n"+
		"  up to √6 times as many; the steps below begin after the warm-up\n", records, steps, needed)
}
