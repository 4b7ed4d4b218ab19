package plan

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/moments"
)

type momentsPlan struct{ *moments.Estimator }

func (e momentsPlan) expect(t uint64) any { return e.Expect(t) }

// ofMoments computes the errors under every factorization, and with every method that the stream could use.
func (p *Plan) ofMoments(s *config.Stream, ask Options) error {
	p.tables = p.printMoments
	if s.Step.Clock() > 0 {
		c, m := *s, *s.Moments
		m.Step, c.Moments, p.StepRecords = ask.StepRecords, &m, ask.StepRecords
		s = &c
	}
	p.original = slices.Contains(s.Moments.Values(), "mean_original")
	configured, err := moments.New(*s.Moments, s.Params())
	if err != nil {
		return err
	}
	uses := configured.Plan()
	if uses.Warmup != nil {
		p.Warmup, p.found = uses.Warmup, math.IsNaN(s.Moments.Clip)
	}
	p.compare([]string{"identity", "sqrt", "blt", "phased"}, ask.Factorizations, momentsPlan{configured},
		func(kind string) (planned, error) {
			c := *s.Moments
			c.Factorization, c.Buffers, c.Bands, c.Normalise = kind, 0, 0, false
			if c.Method == "auto" {
				c.Method, c.Metric = uses.Method, "last"
			}
			if kind == "blt" && c.Horizon == 0 && c.Tune == 0 {
				c.Tune = slices.Max(p.Steps)
			}
			e, err := moments.New(c, s.Params())
			return momentsPlan{e}, err
		})
	for _, method := range []string{"jme", "ime", "cs", "pp_debiased", "pp", "combined"} {
		f, c := form{}, variant(*s.Moments, method, uses)
		if method == uses.Method {
			f = p.form(momentsPlan{configured}, uses.Factorization.Kind)
			f.Configured = true
		} else if e, err := moments.New(c, s.Params()); err != nil {
			f = unavailable(c.Factorization, err)
		} else {
			f = p.form(momentsPlan{e}, e.Plan().Factorization.Kind)
		}
		f.Method = method
		p.Methods = append(p.Methods, f)
	}
	p.Why = p.explain(s, uses)
	if p.OfPersons, err = personsCost(s, uses.Factorization); err != nil {
		return err
	}
	p.Correlation = correlation(configured, p.Steps)
	if ask.Factorizations || ask.Figure {
		p.Comparison, err = comparisonOf(s.Moments, uses.Factorization, p.Steps)
	}
	return err
}

// variant returns the configuration of the same stream with another method. If the stream has a second moment, its
// weight does not change.
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

// correlation returns the correlations of the means' noise between steps: row i has the correlations of steps[i] with
// the steps up to it. The result is nil if the correlations depend on records.
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

// printMoments writes the tables of ofMoments.
func (p *Plan) printMoments(w io.Writer) error {
	type column struct {
		name string
		of   func(moments.Errors) float64
	}
	units := "scaled units"
	if p.StepRecords > 0 {
		units += fmt.Sprintf(", for %d records per step", p.StepRecords)
	}
	if b, ok := p.Warmup.(*moments.WarmupPlan); ok {
		printWarmup(w, b.Records, b.Needed, b.Parts)
		if p.found {
			units = "units of the clip norm that the warm-up finds"
		}
	}
	for _, v := range []column{
		{"mean", func(e moments.Errors) float64 { return e.Mean }},
		{"second moment, diagonal", func(e moments.Errors) float64 { return e.Diagonal }},
		{"second moment, off-diagonal", func(e moments.Errors) float64 { return e.OffDiagonal }},
		{"covariance, diagonal (at most)", func(e moments.Errors) float64 { return e.CovarianceDiagonal }},
		{"covariance, off-diagonal (at most)", func(e moments.Errors) float64 { return e.CovarianceOffDiagonal }},
	} {
		if err := printTable(w, p, "standard error of "+v.name+", "+units, p.Factorizations, v.of); err != nil {
			return err
		}
	}
	applicable := slices.DeleteFunc(slices.Clone(p.Methods), func(f form) bool { return f.Unavailable != "" })
	for _, v := range []column{
		{"mean, by method: Euclidean norm", func(e moments.Errors) float64 { return e.RMSEMean }},
		{"second moment, by method: Frobenius norm", func(e moments.Errors) float64 { return e.RMSESecondMoment }},
		{"covariance, by method: Frobenius norm (at most)", func(e moments.Errors) float64 { return e.RMSECovariance }},
	} {
		if err := printTable(w, p, "expected root squared error of "+v.name, applicable, v.of); err != nil {
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
	if p.Comparison != nil {
		if err := p.Comparison.print(w); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "\n  * marks what the stream uses")
	if p.original {
		fmt.Fprintln(w, "  for original units (values …_original), multiply the error of entry i of the mean by "+
			"scale[i],\n"+
			"  that of entry ij of the covariance by scale[i]·scale[j]")
	}
	printMissing(w, p.Factorizations, p.Methods)
	return nil
}
