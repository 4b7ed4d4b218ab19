package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"streamdp/adam"
	"streamdp/config"
	"streamdp/moments"
	"streamdp/sgd"
)

type momentsPlan struct{ *moments.Estimator }

func (e momentsPlan) expect(t uint64) any { return e.Expect(t) }

var momentsTables = []planTable{
	{"standard error of mean, scaled units", func(e any) float64 { return e.(moments.Errors).Mean }},
	{"standard error of second moment, diagonal, scaled units", func(e any) float64 { return e.(moments.Errors).Diagonal }},
	{"standard error of second moment, off-diagonal, scaled units", func(e any) float64 { return e.(moments.Errors).OffDiagonal }},
	{"standard error of covariance, diagonal (at most), scaled units", func(e any) float64 { return e.(moments.Errors).CovarianceDiagonal }},
	{"standard error of covariance, off-diagonal (at most), scaled units", func(e any) float64 { return e.(moments.Errors).CovarianceOffDiagonal }},
}

// ofMoments shows the standard errors of moments.
func (p *plan) ofMoments(s *config.Stream, all bool) error {
	p.tables = momentsTables
	p.original = slices.Contains(s.Moments.Values(), "mean_original")
	return p.compare([]string{"identity", "sqrt", "blt", "phased"}, all, func(kind string) (estimator, error) {
		c := *s.Moments
		if kind != p.Factorization {
			c.Factorization, c.Buffers = kind, 0
			if kind == "blt" && c.Horizon == 0 && c.Tune == 0 {
				c.Tune = slices.Max(p.Steps)
			}
		}
		e, err := moments.New(c, s.Params())
		return momentsPlan{e}, err
	})
}

type adamPlan struct{ *adam.Estimator }

func (e adamPlan) expect(t uint64) any { return e.Expect(t) }

var adamTables = []planTable{
	{"learning rate", func(e any) float64 { return e.(adam.Errors).Rate }},
	{"noise of a coordinate of the first moment", func(e any) float64 { return e.(adam.Errors).First }},
	{"noise of a coordinate of the second moment", func(e any) float64 { return e.(adam.Errors).Second }},
	{"bias of the second moment", func(e any) float64 { return e.(adam.Errors).Bias }},
}

// ofAdam shows the noise of the moments that updates are made from.
func (p *plan) ofAdam(s *config.Stream, all bool) error {
	p.tables = adamTables
	return p.compare([]string{"identity", "sqrt", "blt"}, all, func(kind string) (estimator, error) {
		c := *s.Adam
		c.Factorization = kind
		e, err := adam.New(c, s.Params())
		return adamPlan{e}, err
	})
}

// ofRegression shows what a regression will reach.
func (p *plan) ofRegression(s *config.Stream) error {
	outlook := func(c sgd.Config) ([]sgd.Outlook, error) {
		e, err := sgd.New(c, s.Params())
		if err != nil {
			return nil, err
		}
		var all []sgd.Outlook
		for _, n := range p.Steps {
			all = append(all, e.Expect(n))
		}
		return all, nil
	}
	c := *s.SGD
	var err error
	if p.Outlook, err = outlook(c); err != nil || c.Bands == 1 {
		return err
	}
	c.Bands = 1
	if p.Independent, err = outlook(c); err != nil {
		p.Independent = nil // a batch that is too short for it
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
