package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"streamdp/adam"
	"streamdp/config"
	"streamdp/sgd"
)

type adamPlan struct{ *adam.Estimator }

func (e adamPlan) expect(t uint64) any { return e.Expect(t) }

// ofAdam shows the noise of the moments that updates are made from.
func (p *plan) ofAdam(s *config.Stream, all bool) error {
	p.tables = p.printAdam
	configured, err := adam.New(*s.Adam, s.Params())
	if err != nil {
		return err
	}
	p.compare([]string{"identity", "sqrt", "blt"}, all, adamPlan{configured}, func(kind string) (planned, error) {
		c := *s.Adam
		c.Factorization = kind
		e, err := adam.New(c, s.Params())
		return adamPlan{e}, err
	})
	return nil
}

// printAdam writes the tables of ofAdam.
func (p *plan) printAdam(w io.Writer) error {
	for _, v := range []struct {
		title string
		of    func(adam.Errors) float64
	}{
		{"learning rate", func(e adam.Errors) float64 { return e.Rate }},
		{"noise of a coordinate of the first moment", func(e adam.Errors) float64 { return e.First }},
		{"noise of a coordinate of the second moment", func(e adam.Errors) float64 { return e.Second }},
		{"bias of the second moment", func(e adam.Errors) float64 { return e.Bias }},
	} {
		if err := printTable(w, p, v.title, p.Factorizations, v.of); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "\n  * is what the stream uses")
	printMissing(w, p.Factorizations)
	return nil
}

// ofRefit shows no errors: they depend on the window.
func (p *plan) ofRefit() error {
	p.tables = func(w io.Writer) error {
		_, err := fmt.Fprintln(w, "\n  errors depend on the window, and are not known before it")
		return err
	}
	return nil
}

// ofRegression shows what a regression will reach.
func (p *plan) ofRegression(s *config.Stream) error {
	p.tables = p.printOutlook
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
