package fit

import (
	"errors"
	"strings"

	"github.com/streamdp/streamdp/refit"
)

// byRefit returns a fit by a solver of package refit. The file is one window.
func byRefit(name string) func(*data) (*Result, error) {
	return func(d *data) (*Result, error) {
		r, err := refit.New(refit.Config{
			Solver: name, Target: d.names[d.target], ClipX: d.clipX, ClipY: d.clipY, Intercept: &d.intercept,
			Window: uint64(len(d.rows)), Columns: d.names,
		}, d.params)
		if err != nil {
			return nil, err
		}
		for i, row := range d.rows {
			r.Add(uint64(i), row)
		}
		release, err := r.Close(d.noise(1))
		if err != nil {
			return nil, err
		}
		if release.Failed != "" {
			return nil, errors.New(release.Failed)
		}
		plan, notes := r.Plan(), r.Warnings()
		if !plan.FinitePrecision() {
			notes = append(notes, "finite precision: not proven (sketch)")
		}
		if name == "newton" && release.Values[0].SE == nil {
			notes = append(notes, "no standard errors: the noise is too large for so few records, or the solver "+
				"learnt nothing")
		}
		out := &Result{Account: string(plan.Accounting), Note: strings.Join(notes, "\n")}
		for _, v := range release.Values {
			switch v.Name {
			case "theta":
				out.Theta, out.SE = v.Data, v.SE
			case "intercept":
				out.Intercept, out.SE = v.Data[0], append(out.SE, v.SE...)
			}
		}
		return out, nil
	}
}
