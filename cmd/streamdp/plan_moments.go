package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"streamdp/config"
	"streamdp/moments"
	"streamdp/stream"
)

// planForms are the errors under one factorization, or of one method.
type planForms struct {
	Factorization string           `json:"factorization"`
	Method        string           `json:"method,omitempty"`
	Configured    bool             `json:"configured,omitempty"` // the one that the stream uses
	Errors        []moments.Errors `json:"standard_errors,omitempty"`
	StateBytes    int64            `json:"state_bytes,omitempty"`
	Unavailable   string           `json:"unavailable,omitempty"`
}

// name returns what the form stands for in a table.
func (f *planForms) name() string {
	if f.Method != "" {
		return f.Method
	}
	return f.Factorization
}

// planMoments is planOf for moments: the errors under every factorization, and of
// every method that the stream could use.
func planMoments(s *config.Stream, d *stream.Description, steps []uint64, all bool) (*plan, error) {
	p := &plan{Description: d, Steps: steps, original: slices.Contains(s.Moments.Values(), "mean_original")}
	configured, err := moments.New(*s.Moments, s.Params())
	if err != nil {
		return nil, err
	}
	uses := configured.Plan()
	form := func(e *moments.Estimator) planForms {
		f := planForms{Factorization: e.Plan().Factorization.Kind, StateBytes: e.Sizes().State}
		for _, t := range steps {
			f.Errors = append(f.Errors, e.Expect(t))
		}
		return f
	}
	other := func(c moments.Config) planForms {
		e, err := moments.New(c, s.Params())
		if err != nil {
			return planForms{Factorization: c.Factorization, Unavailable: strings.ReplaceAll(err.Error(), "\n", "; ")}
		}
		return form(e)
	}
	kinds := []string{"identity", "sqrt", "blt", "phased"}
	switch kind := uses.Factorization.Kind; {
	case !all:
		kinds = []string{kind}
	case !slices.Contains(kinds, kind):
		kinds = append(kinds, kind)
	}
	for _, kind := range kinds {
		if kind == uses.Factorization.Kind {
			f := form(configured)
			f.Configured = true
			p.Factorizations = append(p.Factorizations, f)
			continue
		}
		c := *s.Moments
		c.Factorization, c.Buffers, c.Bands, c.Normalise = kind, 0, 0, false
		if c.Method == "auto" {
			c.Method, c.Metric = uses.Method, "last"
		}
		if kind == "blt" && c.Horizon == 0 && c.Tune == 0 {
			c.Tune = slices.Max(steps)
		}
		f := other(c)
		f.Unavailable = strings.TrimPrefix(f.Unavailable, "factorization: ")
		p.Factorizations = append(p.Factorizations, f)
	}
	for _, method := range []string{"jme", "ime", "cs", "pp_debiased", "pp", "combined"} {
		var f planForms
		if f.Configured = method == uses.Method; f.Configured {
			f = form(configured)
			f.Configured = true
		} else {
			f = other(variant(*s.Moments, method, uses))
			f.Unavailable = strings.TrimPrefix(f.Unavailable, "method: ")
		}
		f.Method = method
		p.Methods = append(p.Methods, f)
	}
	p.Correlation = correlation(configured, steps)
	return p, nil
}

// variant returns the configuration of the same stream by another method, at the
// weight of the second moment that the stream has, where it has one.
func variant(c moments.Config, method string, uses moments.Plan) moments.Config {
	if method != "jme" && method != "combined" {
		c.Nu, c.Weights, c.Inflation = 0, nil, 0
	}
	if method != "ime" {
		c.Split = 0
	}
	if c.Tau = 0; method == "cs" {
		if c.Tau = uses.Lambda; c.Tau == 0 {
			c.Tau = 1 / (c.Clip * c.Clip)
		}
	}
	c.Method, c.Metric = method, "last"
	return c
}

// correlation returns the correlation of the noise of means between steps, each
// with itself and those before it; nil where it depends on records.
func correlation(e *moments.Estimator, steps []uint64) [][]float64 {
	rows := make([][]float64, len(steps))
	sd := make([]float64, len(steps))
	for i, t := range steps {
		own, err := e.Across(t, t)
		if err != nil {
			return nil
		}
		sd[i] = math.Sqrt(own.Mean)
		for j := range i {
			c, err := e.Across(t, steps[j])
			if err != nil {
				return nil
			}
			rows[i] = append(rows[i], c.Mean/(sd[i]*sd[j]))
		}
		rows[i] = append(rows[i], 1)
	}
	return rows
}

// printMoments writes the tables of planMoments.
func (p *plan) printMoments(w io.Writer) error {
	type column struct {
		name string
		of   func(moments.Errors) float64
	}
	for _, v := range []column{
		{"mean", func(e moments.Errors) float64 { return e.Mean }},
		{"second moment, diagonal", func(e moments.Errors) float64 { return e.Diagonal }},
		{"second moment, off-diagonal", func(e moments.Errors) float64 { return e.OffDiagonal }},
		{"covariance, diagonal (at most)", func(e moments.Errors) float64 { return e.CovarianceDiagonal }},
		{"covariance, off-diagonal (at most)", func(e moments.Errors) float64 { return e.CovarianceOffDiagonal }},
	} {
		if err := p.table(w, "standard error of "+v.name+", scaled units", p.Factorizations, v.of); err != nil {
			return err
		}
	}
	applicable := slices.DeleteFunc(slices.Clone(p.Methods), func(f planForms) bool { return f.Unavailable != "" })
	for _, v := range []column{
		{"mean, by method: Euclidean norm", func(e moments.Errors) float64 { return e.RMSEMean }},
		{"second moment, by method: Frobenius norm", func(e moments.Errors) float64 { return e.RMSESecondMoment }},
		{"covariance, by method: Frobenius norm (at most)", func(e moments.Errors) float64 { return e.RMSECovariance }},
	} {
		if err := p.table(w, "expected root squared error of "+v.name, applicable, v.of); err != nil {
			return err
		}
	}
	if len(p.Correlation) > 1 {
		fmt.Fprint(w, "\n  correlation of the noise of these steps\n")
		t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
		for i, row := range p.Correlation {
			fmt.Fprintf(t, "  %d\t", p.Steps[i])
			for _, r := range row {
				fmt.Fprintf(t, "%.3f\t", r)
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
	for _, f := range append(slices.Clone(p.Factorizations), p.Methods...) {
		if f.Unavailable != "" {
			fmt.Fprintf(w, "  - %s: %s\n", f.name(), f.Unavailable)
		}
	}
	return nil
}

// table prints one number of each form by step, and nothing where all are 0.
func (p *plan) table(w io.Writer, title string, forms []planForms, of func(moments.Errors) float64) error {
	if !slices.ContainsFunc(forms, func(f planForms) bool { return len(f.Errors) > 0 && of(f.Errors[0]) > 0 }) {
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
			fmt.Fprintf(t, "%.4g\t", of(f.Errors[i]))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
