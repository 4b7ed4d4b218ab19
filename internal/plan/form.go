package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
)

// form holds the errors of a stream under one factorization or with one method.
type form struct {
	Factorization string `json:"factorization"`
	Method        string `json:"method,omitempty"`
	Configured    bool   `json:"configured,omitempty"`      // true for the form that the stream uses
	Errors        []any  `json:"standard_errors,omitempty"` // the mechanism's errors, by step
	StateBytes    int64  `json:"state_bytes,omitempty"`
	Unavailable   string `json:"unavailable,omitempty"`
}

// name returns the form's name in a table.
func (f *form) name() string {
	if f.Method != "" {
		return f.Method
	}
	return f.Factorization
}

// planned is the interface of mechanisms whose errors are shown in tables.
type planned interface {
	Sizes() dp.Sizes
	expect(t uint64) any
}

// form returns the errors of e as the form of a factorization.
func (p *Plan) form(e planned, factorization string) form {
	f := form{Factorization: factorization, StateBytes: e.Sizes().State}
	for _, t := range p.Steps {
		f.Errors = append(f.Errors, e.expect(t))
	}
	return f
}

// unavailable returns a form without errors, with the reason why the mechanism cannot have it.
func unavailable(factorization string, err error) form {
	var why []string
	for _, err := range fault.All(err) {
		f, ok := err.(*fault.Fault)
		switch {
		case !ok:
			why = append(why, err.Error())
		case f.Key == "factorization" || f.Key == "method":
			why = append(why, f.Rule)
		default: // omits the value, which comes from the plan instead of the file
			why = append(why, f.Key+" "+f.Rule)
		}
	}
	return form{Factorization: factorization, Unavailable: strings.Join(why, "; ")}
}

// compare fills in the errors under each kind of factorization. If all is false, it does so only for the configured
// one. other builds the mechanism with another kind.
func (p *Plan) compare(kinds []string, all bool, configured planned, other func(kind string) (planned, error)) {
	switch {
	case !all:
		kinds = []string{p.Factorization}
	case !slices.Contains(kinds, p.Factorization):
		kinds = append(kinds, p.Factorization)
	}
	for _, kind := range kinds {
		var f form
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

// printTable prints one number per form and step, which `of` selects. It prints nothing if all are 0. E is the type of
// the mechanism's errors.
func printTable[E any](w io.Writer, p *Plan, title string, forms []form, of func(E) float64) error {
	if !slices.ContainsFunc(forms, func(f form) bool { return len(f.Errors) > 0 && of(f.Errors[0].(E)) > 0 }) {
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

// printMissing lists the forms that are not available, with reasons.
func printMissing(w io.Writer, forms ...[]form) {
	for _, f := range slices.Concat(forms...) {
		if f.Unavailable != "" {
			fmt.Fprintf(w, "  - %s: %s\n", f.name(), f.Unavailable)
		}
	}
}
