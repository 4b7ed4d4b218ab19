package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/sgd"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
)

// plan is a stream's plan as --json prints it.
type plan struct {
	*core.Description
	Steps          []uint64    `json:"steps"`
	Factorizations []planForms `json:"factorizations,omitempty"`
	Methods        []planForms `json:"methods,omitempty"`
	// Correlation is the correlation of the noise between these steps: of the means, and
	// so of the second moments. It is absent if it depends on records.
	Correlation [][]float64 `json:"correlation,omitempty"`
	Comparison  *comparison `json:"comparison,omitempty"`
	// Outlook is the expected error of a regression after so many gradient steps.
	// Independent is the same with independent noise instead of correlated noise.
	Outlook     []sgd.Outlook `json:"outlook,omitempty"`
	Independent []sgd.Outlook `json:"outlook_independent,omitempty"`
	Pace        *sgd.Pace     `json:"pace,omitempty"`
	// Schedule is the schedule of method newton. Descent is the outlook of method amb after
	// about the same number of slots as each entry of Outlook.
	Schedule *schedule     `json:"schedule,omitempty"`
	Descent  []sgd.Outlook `json:"outlook_amb,omitempty"`

	// Warmup is what goes before a mechanism whose bounds are found: a *moments.WarmupPlan or
	// a *core.WarmupPlan.
	Warmup any `json:"warmup,omitempty"`

	// OfPersons is what protecting persons costs, nil where records are protected.
	OfPersons *rulesNoise `json:"persons_cost,omitempty"`

	// Why says what "auto" took, and why, in sentences.
	Why []string `json:"why,omitempty"`

	// StepRecords is the number of records that a step by the clock is taken to hold, 0 for
	// other steps.
	StepRecords uint64 `json:"step_records,omitempty"`

	tables   func(w io.Writer) error // prints what follows the guarantee
	original bool                    // values in original units are released too
	found    bool                    // the clip norm is found
}

func planCommand(g *globals) *cobra.Command {
	var name, steps, plotFile string
	var condition float64
	var records uint64
	var all bool
	c := &cobra.Command{
		Use:   "plan -c FILE",
		Short: "Show, before any data, the guarantee and the noise of every released value",
		Long: "Show what a configuration promises and how noisy its releases will be,\n" +
			"without reading any data: everything printed is a function of the\n" +
			"configuration alone. Standard errors are of noise only, in scaled units, for\n" +
			"steps whose every slot holds a record; those of steps by the clock are for\n" +
			"--step-records, and smaller where a step has more. For an online regression, what is\n" +
			"shown is the expected excess risk and the length of steps: by newton for\n" +
			"features of any second moment, by amb for independent ones of unit variance,\n" +
			"and with step size and settling time for the condition number given.",
		RunE: func(c *cobra.Command, _ []string) error {
			if !(condition >= 1 && condition <= 1e12) {
				return usagef("--condition is %g, must be 1 to 1e12", condition)
			}
			if records < 2 || records > 1<<40 {
				return usagef("--step-records is %d, must be 2 to %d", records, uint64(1)<<40)
			}
			cfg, err := g.load()
			if err != nil {
				return err
			}
			at, err := parseSteps(steps)
			if err != nil {
				return err
			}
			chosen := c.Flags().Changed("steps")
			var plans []plan
			guessed := !c.Flags().Changed("condition")
			of := cfg.Representative()
			for _, s := range of.Streams {
				if name != "" && !names(cfg, s, name) {
					continue
				}
				guessed = guessed || mechanismOf(s).conditioned
				within := stepsWithin(s, at, chosen)
				if len(within) == 0 {
					return usagef("--steps has no step of stream %s, which ends with step %d", s.Name, s.LastStep())
				}
				p, err := planOf(of, s, within, planQuestion{all, plotFile != "", condition, records})
				if err != nil {
					return configError{fmt.Errorf("stream %s: %w", s.Name, err)}
				}
				plans = append(plans, *p)
			}
			if len(plans) == 0 {
				return noStream(cfg, name)
			}
			if !guessed {
				return usagef("--condition is for regressions by method \"amb\", and there is none")
			}
			for _, p := range plans {
				warn(g, p.Description)
				if large := oversize(p.Description); large != "" {
					fmt.Fprintf(g.stderr, "streamdp: warning: stream %s: %s, or raise the output topic's max.message.bytes\n", p.Stream, large)
				}
			}
			if plotFile != "" {
				if len(plans) > 1 {
					return usagef("--plot draws one stream: choose it with --stream")
				}
				if plans[0].Comparison == nil {
					return usagef("--plot draws the noise of moments, stream %s has none", plans[0].Stream)
				}
				if err := plans[0].Comparison.draw(plotFile); err != nil {
					return err
				}
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(plans)
			}
			for i, p := range plans {
				if i > 0 {
					fmt.Fprintln(g.stdout)
				}
				if err := p.print(g.stdout); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "stream", "", "only this stream")
	c.Flags().StringVar(&steps, "steps", "1,10,100,1000,10000", "steps at which to show the noise; unless given, the horizon too")
	c.Flags().Float64Var(&condition, "condition", 1, "for a regression by amb: a guess of the condition number of the features' second moment")
	c.Flags().Uint64Var(&records, "step-records", 1000, "records that a step by the clock is taken to hold, for its errors")
	c.Flags().BoolVar(&all, "factorizations", true, "show the other factorizations beside the configured one")
	c.Flags().StringVar(&plotFile, "plot", "", "draw the error of every factorization against time into this .svg or .png file")
	return c
}

func parseSteps(list string) ([]uint64, error) {
	var steps []uint64
	for _, word := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 62)
		if err != nil || n == 0 {
			return nil, usagef("step is %q, must be a positive number", word)
		}
		steps = append(steps, n)
	}
	return steps, nil
}

// stepsWithin returns the steps that an epoch of the stream has. It adds the last step of
// the epoch, unless the user chose the steps.
func stepsWithin(s *config.Stream, steps []uint64, chosen bool) []uint64 {
	last := s.LastStep()
	if last == 0 {
		return steps
	}
	switch { // what is shown is of the mechanism, whose steps begin behind the warm-up
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

func planOf(cfg *config.Config, s *config.Stream, steps []uint64, ask planQuestion) (*plan, error) {
	d, err := stream.Describe(s)
	if err == nil {
		d.Stream = title(s)
		err = d.Divide(cfg, s)
	}
	if err != nil {
		return nil, err
	}
	p := &plan{Description: d, Steps: steps}
	if d.Warmup != nil {
		p.Warmup, s = d.Warmup, s.Standing()
	}
	if m := mechanismOf(s); m.plan != nil {
		return p, m.plan(p, s, ask)
	}
	return nil, fmt.Errorf("there is no plan of %s", s.Mechanism())
}

// planForms holds the errors under one factorization, or of one method.
type planForms struct {
	Factorization string `json:"factorization"`
	Method        string `json:"method,omitempty"`
	Configured    bool   `json:"configured,omitempty"`      // the one that the stream uses
	Errors        []any  `json:"standard_errors,omitempty"` // the mechanism's, by step
	StateBytes    int64  `json:"state_bytes,omitempty"`
	Unavailable   string `json:"unavailable,omitempty"`
}

// name returns the form's name in a table.
func (f *planForms) name() string {
	if f.Method != "" {
		return f.Method
	}
	return f.Factorization
}

// planned has the methods of a mechanism that tables of errors use.
type planned interface {
	Sizes() dp.Sizes
	expect(t uint64) any
}

// form returns the errors of e.
func (p *plan) form(e planned, factorization string) planForms {
	f := planForms{Factorization: factorization, StateBytes: e.Sizes().State}
	for _, t := range p.Steps {
		f.Errors = append(f.Errors, e.expect(t))
	}
	return f
}

// unavailable returns the form that a mechanism does not have, and why.
func unavailable(factorization string, err error) planForms {
	var why []string
	for _, err := range fault.All(err) {
		f, ok := err.(*fault.Fault)
		switch {
		case !ok:
			why = append(why, err.Error())
		case f.Key == "factorization" || f.Key == "method":
			why = append(why, f.Rule)
		default: // without the value, which is the plan's and not the file's
			why = append(why, f.Key+" "+f.Rule)
		}
	}
	return planForms{Factorization: factorization, Unavailable: strings.Join(why, "; ")}
}

// compare fills in the errors under each kind of factorization or, without all, under the
// configured one only. other builds the mechanism with another kind.
func (p *plan) compare(kinds []string, all bool, configured planned, other func(kind string) (planned, error)) {
	switch {
	case !all:
		kinds = []string{p.Factorization}
	case !slices.Contains(kinds, p.Factorization):
		kinds = append(kinds, p.Factorization)
	}
	for _, kind := range kinds {
		var f planForms
		if kind == p.Factorization {
			f = p.form(configured, kind)
			f.Configured = true
		} else if e, err := other(kind); err != nil {
			f = unavailable(kind, err)
		} else {
			f = p.form(e, kind)
		}
		p.Factorizations = append(p.Factorizations, f)
	}
}

// warn prints the settings that are probably not meant.
func warn(g *globals, d *core.Description) {
	for _, w := range d.Warnings {
		fmt.Fprintf(g.stderr, "streamdp: warning: stream %s: %s\n", d.Stream, w)
	}
}

// printGuarantee writes the rows that check and plan share, and a last row.
func printGuarantee(w io.Writer, d *core.Description, name, text string) error {
	fmt.Fprintf(w, "stream %s\n", d.Stream)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("guarantee", "(%g, %g)-differential privacy for all releases of an epoch together, %s accounting", d.Epsilon, d.Delta, d.Accounting)
	row("adjacency", "%s: %s", d.Adjacency, d.Neighbours)
	if d.Person == nil {
		row("limit", "(%g, %g) over all epochs and streams of the input partition", d.LimitEpsilon, d.LimitDelta)
	} else {
		over := "all epochs of the population"
		if n := d.Person.Period; n > 0 {
			over = fmt.Sprintf("epochs of the population in a row until they have %d steps, and then anew", n)
		}
		row("limit", "(%g, %g) over %s, of every stream, topic and partition", d.LimitEpsilon, d.LimitDelta, over)
		personRows(d, row)
	}
	if d.Reserved != nil {
		row("set aside", "for sketches: %s", d.Reserved)
	}
	switch {
	case d.Merged && d.Partitions == 0:
		row("merged", "all partitions are one sequence of releases; as many sequences with noise of their own, averaged, would have the root of their number times the noise")
		row("", "what follows is for %d partitions: for more, name them in input.partition", config.FewestMerged)
	case d.Merged:
		row("merged", "%d partitions are one sequence of releases; %d with noise of their own, averaged, would have %.2f times the noise", d.Partitions, d.Partitions, math.Sqrt(float64(d.Partitions)))
	}
	if d.Clock != "" {
		row("steps", "by the clock, every %s, each of at most %d offsets", core.Brief(d.Clock), d.StepMax)
	}
	row("mu", "%.6g (noise multiplier %.6g)", d.Mu, d.NoiseMultiplier)
	if d.Found {
		row("clip", "found by the warm-up; what follows is in units of it")
	} else {
		row("clip", "%.6g", d.Clip)
	}
	row("sensitivity", "%.6g", d.Sensitivity)
	row("lattice", "%s", joinFloats(d.Lattice))
	var noise []string
	for _, name := range noiseNames(d.Noise) {
		noise = append(noise, fmt.Sprintf("%s %.4g", name, d.Noise[name]))
	}
	if len(noise) > 0 {
		row("noise of a step", "%s", strings.Join(noise, ", "))
	}
	row("checkpoint", "%s", size(d.StateBytes))
	row("memory", "%s for the estimator", size(d.PeakBytes))
	release := "at most " + size(d.ReleaseBytes)
	if d.MessageBytes < d.ReleaseBytes {
		release += ", in messages of " + size(d.MessageBytes)
	}
	row("release", "%s", release)
	row(name, "%s", text)
	return t.Flush()
}

// noiseNames returns the names of a mechanism's noise arrays, the most interesting first.
func noiseNames(noise map[string]float64) []string {
	first := []string{"first", "second", "second_diagonal", "second_off_diagonal", "valid_count", "full", "gradient", "count", "nulls", "search", "histogram"}
	return slices.SortedFunc(maps.Keys(noise), func(a, b string) int {
		place := func(name string) int {
			if i := slices.Index(first, name); i >= 0 {
				return i
			}
			return len(first)
		}
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
	})
}

func (p *plan) print(w io.Writer) error {
	if err := printGuarantee(w, p.Description, "mechanism", inWords(p.Mechanism)); err != nil {
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

// printWarmup says what goes before a mechanism whose bounds are found.
func printWarmup(w io.Writer, records, needed, parts uint64) {
	steps := "1 step"
	if parts > 1 {
		steps = fmt.Sprintf("%d steps", parts)
	}
	fmt.Fprintf(w, "\n  warm-up: the first %d offsets, %s; at least %d of their records must be valid, up to √6\n"+
		"  times as many where columns have large offsets; the steps below begin behind it\n", records, steps, needed)
}

// printTable prints one number of each form by step, and nothing if all are 0. E is the type
// of the mechanism's errors.
func printTable[E any](w io.Writer, p *plan, title string, forms []planForms, of func(E) float64) error {
	if !slices.ContainsFunc(forms, func(f planForms) bool { return len(f.Errors) > 0 && of(f.Errors[0].(E)) > 0 }) {
		return nil
	}
	fmt.Fprintf(w, "\n  %s\n", title)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "  step\t")
	for _, f := range forms {
		mark := ""
		if f.Configured {
			mark = "*"
		}
		fmt.Fprintf(t, "%s%s\t", f.name(), mark)
	}
	fmt.Fprintln(t)
	for i, step := range p.Steps {
		fmt.Fprintf(t, "  %d\t", step)
		for _, f := range forms {
			if f.Unavailable != "" {
				fmt.Fprint(t, "-\t")
				continue
			}
			fmt.Fprintf(t, "%.4g\t", of(f.Errors[i].(E)))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// printMissing names the forms that are not available, and says why.
func printMissing(w io.Writer, forms ...[]planForms) {
	for _, f := range slices.Concat(forms...) {
		if f.Unavailable != "" {
			fmt.Fprintf(w, "  - %s: %s\n", f.name(), f.Unavailable)
		}
	}
}

func joinFloats(x []float64) string {
	words := make([]string, len(x))
	for i, v := range x {
		words[i] = fmt.Sprintf("%.4g", v)
	}
	return strings.Join(words, ", ")
}

// size writes a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}
