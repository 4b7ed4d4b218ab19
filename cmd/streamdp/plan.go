package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"streamdp/adam"
	"streamdp/config"
	"streamdp/dp"
	"streamdp/moments"
	"streamdp/sgd"
	"streamdp/stream"
)

// plan is a stream's plan as --json prints it.
type plan struct {
	*stream.Description
	Steps          []uint64    `json:"steps"`
	Factorizations []planForms `json:"factorizations,omitempty"`
	// Outlook is what a regression reaches after so many gradient steps, and
	// with independent noise in place of correlated.
	Outlook     []sgd.Outlook `json:"outlook,omitempty"`
	Independent []sgd.Outlook `json:"outlook_independent,omitempty"`

	tables   []planTable
	original bool // values in original units are released too
}

// planForms are the standard errors under one factorization.
type planForms struct {
	Factorization string `json:"factorization"`
	Configured    bool   `json:"configured,omitempty"`      // the one that the stream uses
	Errors        []any  `json:"standard_errors,omitempty"` // the mechanism's, by step
	StateBytes    int64  `json:"state_bytes,omitempty"`
	Unavailable   string `json:"unavailable,omitempty"`
}

func planCommand(g *globals) *cobra.Command {
	var name, steps string
	var all bool
	c := &cobra.Command{
		Use:   "plan -c FILE",
		Short: "Show, before any data, the guarantee and the noise of every released value",
		Long: "Show what a configuration promises and how noisy its releases will be,\n" +
			"without reading any data: everything printed is a function of the\n" +
			"configuration alone. Standard errors are of noise only, in scaled units, for\n" +
			"steps whose every slot holds a record. For a regression, what is shown is the\n" +
			"expected excess risk, where features are of unit variance and independent.",
		RunE: func(c *cobra.Command, _ []string) error {
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
			for _, s := range cfg.Streams {
				if name != "" && s.Name != name {
					continue
				}
				within := stepsWithin(s, at, chosen)
				if len(within) == 0 {
					return usagef("--steps has no step of stream %s, which ends with step %d", s.Name, s.LastStep())
				}
				p, err := planOf(s, within, all)
				if err != nil {
					return configError{fmt.Errorf("stream %s: %w", s.Name, err)}
				}
				plans = append(plans, *p)
			}
			if len(plans) == 0 {
				return usagef("the configuration has no stream %s", name)
			}
			for _, p := range plans {
				warn(g, p.Description)
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
	c.Flags().BoolVar(&all, "factorizations", true, "show the other factorizations beside the configured one")
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

// stepsWithin returns those of the steps that an epoch of the stream has and,
// unless the user chose them, its last one.
func stepsWithin(s *config.Stream, steps []uint64, chosen bool) []uint64 {
	last := s.LastStep()
	if last == 0 {
		return steps
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

func planOf(s *config.Stream, steps []uint64, all bool) (*plan, error) {
	d, err := stream.Describe(s)
	if err != nil {
		return nil, err
	}
	if s.SGD != nil {
		return planSGD(s, d, steps)
	}
	p := &plan{Description: d, Steps: steps}
	// The mechanism with another factorization.
	var kinds []string
	var build func(kind string) (estimator, error)
	switch {
	case s.Moments != nil:
		p.original = slices.Contains(s.Moments.Values(), "mean_original")
		kinds, build = []string{"identity", "sqrt", "blt", "phased"}, func(kind string) (estimator, error) {
			c := *s.Moments
			if kind != d.Factorization {
				c.Factorization, c.Buffers = kind, 0
				if kind == "blt" && c.Horizon == 0 && c.Tune == 0 {
					c.Tune = slices.Max(p.Steps)
				}
			}
			e, err := moments.New(c, s.Params())
			return momentsPlan{e}, err
		}
		p.tables = momentsTables
	case s.Adam != nil:
		kinds, build = []string{"identity", "sqrt", "blt"}, func(kind string) (estimator, error) {
			c := *s.Adam
			c.Factorization = kind
			e, err := adam.New(c, s.Params())
			return adamPlan{e}, err
		}
		p.tables = adamTables
	}
	if !all {
		kinds = []string{d.Factorization}
	}
	for _, kind := range kinds {
		f := planForms{Factorization: kind, Configured: kind == d.Factorization}
		e, err := build(kind)
		if err != nil {
			if f.Configured {
				return nil, err
			}
			f.Unavailable = strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "factorization: ")
			p.Factorizations = append(p.Factorizations, f)
			continue
		}
		f.StateBytes = e.Sizes().State
		for _, t := range p.Steps {
			f.Errors = append(f.Errors, e.expect(t))
		}
		p.Factorizations = append(p.Factorizations, f)
	}
	return p, nil
}

// planSGD is planOf for a regression.
func planSGD(s *config.Stream, d *stream.Description, steps []uint64) (*plan, error) {
	p := &plan{Description: d, Steps: steps}
	outlook := func(c sgd.Config) ([]sgd.Outlook, error) {
		e, err := sgd.New(c, s.Params())
		if err != nil {
			return nil, err
		}
		var all []sgd.Outlook
		for _, n := range steps {
			all = append(all, e.Expect(n))
		}
		return all, nil
	}
	c := *s.SGD
	var err error
	if p.Outlook, err = outlook(c); err != nil || c.Bands == 1 {
		return p, err
	}
	c.Bands = 1
	if p.Independent, err = outlook(c); err != nil {
		p.Independent = nil // a batch that is too short for it
	}
	return p, nil
}

// estimator is what a plan asks of a mechanism.
type estimator interface {
	Sizes() dp.Sizes
	expect(t uint64) any
}

type momentsPlan struct{ *moments.Estimator }

func (e momentsPlan) expect(t uint64) any { return e.Expect(t) }

type adamPlan struct{ *adam.Estimator }

func (e adamPlan) expect(t uint64) any { return e.Expect(t) }

// planTable is one table of a plan: a number for each step and factorization.
type planTable struct {
	title string
	of    func(e any) float64
}

var momentsTables = []planTable{
	{"standard error of mean, scaled units", func(e any) float64 { return e.(moments.Errors).Mean }},
	{"standard error of second moment, diagonal, scaled units", func(e any) float64 { return e.(moments.Errors).Diagonal }},
	{"standard error of second moment, off-diagonal, scaled units", func(e any) float64 { return e.(moments.Errors).OffDiagonal }},
	{"standard error of covariance, diagonal (at most), scaled units", func(e any) float64 { return e.(moments.Errors).CovarianceDiagonal }},
	{"standard error of covariance, off-diagonal (at most), scaled units", func(e any) float64 { return e.(moments.Errors).CovarianceOffDiagonal }},
}

var adamTables = []planTable{
	{"learning rate", func(e any) float64 { return e.(adam.Errors).Rate }},
	{"noise of a coordinate of the first moment", func(e any) float64 { return e.(adam.Errors).First }},
	{"noise of a coordinate of the second moment", func(e any) float64 { return e.(adam.Errors).Second }},
	{"bias of the second moment", func(e any) float64 { return e.(adam.Errors).Bias }},
}

// warn prints what is probably not meant.
func warn(g *globals, d *stream.Description) {
	for _, w := range d.Warnings {
		fmt.Fprintf(g.stderr, "streamdp: warning: stream %s: %s\n", d.Stream, w)
	}
}

// printGuarantee writes what check and plan have in common, and a last row.
func printGuarantee(w io.Writer, d *stream.Description, name, text string) error {
	fmt.Fprintf(w, "stream %s\n", d.Stream)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("guarantee", "(%g, %g)-differential privacy for all releases of an epoch together, exact Gaussian accounting", d.Epsilon, d.Delta)
	row("adjacency", "%s: %s", d.Adjacency, d.Neighbours)
	row("limit", "(%g, %g) over all epochs and streams of the input partition", d.LimitEpsilon, d.LimitDelta)
	row("mu", "%.6g (noise multiplier %.6g)", d.Mu, d.NoiseMultiplier)
	row("clip", "%.6g", d.Clip)
	row("sensitivity", "%.6g", d.Sensitivity)
	row("lattice", "%s", joinFloats(d.Lattice))
	var noise []string
	for _, name := range []string{"first", "second", "second_diagonal", "second_off_diagonal", "gradient", "count", "search"} {
		if v, ok := d.Noise[name]; ok {
			noise = append(noise, fmt.Sprintf("%s %.4g", name, v))
		}
	}
	row("noise of a step", "%s", strings.Join(noise, ", "))
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

func (p *plan) print(w io.Writer) error {
	if err := printGuarantee(w, p.Description, "mechanism", string(p.Mechanism)); err != nil {
		return err
	}
	if p.Outlook != nil {
		return p.printOutlook(w)
	}
	for _, v := range p.tables {
		if !p.has(v.of) {
			continue
		}
		fmt.Fprintf(w, "\n  %s\n", v.title)
		t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(t, "  step\t")
		for _, f := range p.Factorizations {
			mark := ""
			if f.Configured {
				mark = "*"
			}
			fmt.Fprintf(t, "%s%s\t", f.Factorization, mark)
		}
		fmt.Fprintln(t)
		for i, step := range p.Steps {
			fmt.Fprintf(t, "  %d\t", step)
			for _, f := range p.Factorizations {
				if f.Unavailable != "" {
					fmt.Fprint(t, "-\t")
					continue
				}
				fmt.Fprintf(t, "%.4g\t", v.of(f.Errors[i]))
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "\n  * is what the stream uses")
	if p.original {
		fmt.Fprintln(w, "  in original units (values …_original) entry i of the mean has scale[i] times that error,\n"+
			"  entry ij of the covariance scale[i]·scale[j] times")
	}
	for _, f := range p.Factorizations {
		if f.Unavailable != "" {
			fmt.Fprintf(w, "  - %s: %s\n", f.Factorization, f.Unavailable)
		}
	}
	return nil
}

// printOutlook writes what a regression will reach.
func (p *plan) printOutlook(w io.Writer) error {
	fmt.Fprint(w, "\n  expected excess risk of theta_average, over the residuals' variance,\n"+
		"  for independent features of unit variance that do not change\n")
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "  iteration\tslots\tby sampling\tby privacy\t")
	if p.Independent != nil {
		fmt.Fprint(t, "with independent noise\t")
	}
	fmt.Fprintln(t)
	for i, o := range p.Outlook {
		fmt.Fprintf(t, "  %d\t%d\t%.3g\t%.3g\t", o.Iteration, o.Slots, o.Sampling, o.Privacy)
		if p.Independent != nil {
			fmt.Fprintf(t, "%.3g\t", p.Independent[i].Privacy)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\n  noise of gradient is in clip norms, of count and search in records;\n"+
		"  searches of the clip norm have no release")
	return nil
}

func (p *plan) has(of func(any) float64) bool {
	for _, f := range p.Factorizations {
		if len(f.Errors) > 0 && of(f.Errors[0]) > 0 {
			return true
		}
	}
	return false
}

func joinFloats(x []float64) string {
	words := make([]string, len(x))
	for i, v := range x {
		words[i] = fmt.Sprintf("%.4g", v)
	}
	return strings.Join(words, ", ")
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}
