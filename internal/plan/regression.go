package plan

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/sgd"
)

// ofRefit fills in nothing: the errors of a refit depend on the data of its window.
func (p *Plan) ofRefit(*config.Stream, Options) error {
	p.tables = func(w io.Writer) error {
		_, err := fmt.Fprintln(w, "\n  errors depend on the data of the window, so they are not known in advance")
		return err
	}
	return nil
}

// schedule says when the steps of method newton end.
type schedule struct {
	// Searches is the number of searches. Search is the number of slots of each search.
	Searches uint64 `json:"searches"`
	Search   uint64 `json:"search"`
	// Epochs are the first epochs inside the mechanism. Each later epoch has twice as many steps as the one before it,
	// and its steps are as long as those of the last epoch listed here.
	Epochs []scheduleEpoch `json:"epochs"`
	// Useful is the number of slots after which the estimate is useful.
	Useful uint64 `json:"useful_after_slots"`
}

type scheduleEpoch struct {
	Steps uint64 `json:"steps"`
	Slots uint64 `json:"slots_per_step"`
}

// ofNewton computes the schedule and the expected error. It compares the error with that of method amb, under the
// assumption that the curvature is known to amb.
func (p *Plan) ofNewton(s *config.Stream, _ Options) error {
	p.tables = p.printNewton
	e, err := sgd.NewNewton(*s.SGD, s.Params())
	if err != nil {
		return err
	}
	plan := e.Plan()
	p.Schedule = &schedule{Searches: plan.Searches(), Search: plan.Search, Useful: plan.Course(sgd.UsefulSteps).Slots}
	steps := uint64(0)
	for n := uint64(4); len(p.Schedule.Epochs) < len(plan.Batch); n *= 2 {
		steps += n
		p.Schedule.Epochs = append(p.Schedule.Epochs, scheduleEpoch{n, plan.Course(steps).Batch})
	}
	told := *s.SGD
	told.Method, told.Curvature, told.Horizon = "amb", min(1, told.ClipX*told.ClipX), 0
	if told.Radius == 0 {
		told.Radius = 1
	}
	amb, err := sgd.NewAMB(told, s.Params())
	if err != nil {
		amb = nil // then nothing is compared
	}
	for _, n := range p.Steps {
		if n < sgd.UsefulSteps {
			continue
		}
		o := e.Expect(plan.Course(n).Slots)
		p.Outlook = append(p.Outlook, o)
		if amb != nil {
			q := amb.Plan()
			p.Descent = append(p.Descent, amb.Expect(max(1, (o.Slots-min(o.Slots, q.Search))/q.Batch)))
		}
	}
	return nil
}

// printNewton writes the tables of ofNewton.
func (p *Plan) printNewton(w io.Writer) error {
	fmt.Fprintf(w, "\n  the epoch begins with %d searches of %d slots each, without a release; if the data change "+
		"abruptly, they are repeated\n",
		p.Schedule.Searches, p.Schedule.Search)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "  epoch\tsteps\tslots per step\t")
	last := len(p.Schedule.Epochs) - 1
	for k, e := range p.Schedule.Epochs {
		if k == last {
			fmt.Fprintf(t, "  %d and later\ttwice those of the epoch before\t%d\t\n", k, e.Slots)
			break
		}
		fmt.Fprintf(t, "  %d\t%d\t%d\t\n", k, e.Steps, e.Slots)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w,
		"\n  the estimate is useful after %d gradient steps, from slot %d on: until then releases hold little more "+
			"than noise\n", sgd.UsefulSteps, p.Schedule.Useful)
	if len(p.Outlook) > 0 {
		fmt.Fprint(w, "\n  expected excess risk of theta_average, divided by the residuals' variance, for features "+
			"with\n"+
			"  any constant second moment; last column: method amb, for uncorrelated features of unit variance,\n"+
			"  if its keys are set for such features\n")
		fmt.Fprint(t, "  iteration\tslots\tby sampling\tby privacy\t")
		if p.Descent != nil {
			fmt.Fprint(t, "amb, both\t")
		}
		fmt.Fprintln(t)
		for i, o := range p.Outlook {
			fmt.Fprintf(t, "  %d\t%d\t%.3g\t%.3g\t", o.Iteration, o.Slots, o.Sampling, o.Privacy)
			if p.Descent != nil {
				fmt.Fprintf(t, "%.3g\t", p.Descent[i].Sampling+p.Descent[i].Privacy)
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "\n  the noise of gradient is in clip norms, all other noise in records")
	return err
}

// ofDescent computes the expected error of a descent, and whether its steps suit features with the condition number
// that the user gave.
func (p *Plan) ofDescent(s *config.Stream, ask Options) error {
	p.tables = p.printOutlook
	e, err := sgd.NewAMB(*s.SGD, s.Params())
	if err != nil {
		return err
	}
	pace := e.Pace(ask.Condition)
	p.Pace = &pace
	if pace.Batch < pace.Least {
		p.Warnings = append(p.Warnings,
			fmt.Sprintf(
				"batches of %d slots are too short: below %d slots coefficients diverge, if the features' "+
					"condition number is %g; the default would then be %d",
				pace.Batch, pace.Least, ask.Condition, pace.Advised))
	}
	outlook := func(c sgd.Config) ([]sgd.Outlook, error) {
		e, err := sgd.NewAMB(c, s.Params())
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
	if p.Outlook, err = outlook(c); err != nil || c.Bands == 1 {
		return err
	}
	c.Bands = 1
	if p.Independent, err = outlook(c); err != nil {
		p.Independent = nil // the batch is too short for independent noise
	}
	return nil
}

// printOutlook writes the expected errors of a regression.
func (p *Plan) printOutlook(w io.Writer) error {
	fmt.Fprint(w, "\n  expected excess risk of theta_average, divided by the residuals' variance,\n"+
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
	a := p.Pace
	fmt.Fprintf(w, "\n  batches of %d slots, searches of %d, step size %.3g; for a condition number of %g\n"+
		"  the smallest useful batch is %d, the advised one %d, and coefficients settle in %d steps\n",
		a.Batch, a.Search, a.StepSize, a.Condition, a.Least, a.Advised, a.Settling)
	fmt.Fprintln(w, "\n  the noise of gradient is in clip norms, that of count and search in records;\n"+
		"  searches for the clip norm have no release")
	return nil
}
