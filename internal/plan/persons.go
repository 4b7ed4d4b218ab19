package plan

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/matfact"
)

// rulesNoise says how much accuracy it costs to protect persons in a stream of moments.
type rulesNoise struct {
	// Steps is the step for which the noise is given: the horizon, otherwise the step for which the noise is tuned,
	// otherwise 10 000.
	Steps uint64      `json:"steps"`
	Alpha float64     `json:"column_norm"` // largest column norm of the configured factorization
	Caps  []ruleNoise `json:"caps"`
}

// ruleNoise is the cost of one rule. Noise is the noise of one coordinate of a sum at noise multiplier 1 and clip norm
// 1.
type ruleNoise struct {
	Configured bool    `json:"configured,omitempty"`
	Cap        uint64  `json:"cap"`
	Separation uint64  `json:"separation"`
	Norm       float64 `json:"norm"`
	Noise      float64 `json:"noise"`
	// OverRecords is the noise divided by the noise for single records. OverFloor is the noise divided by cap·per_step.
	// A single person can move the sum by cap·per_step, so no Gaussian release has less noise than that.
	OverRecords float64 `json:"over_records"`
	OverFloor   float64 `json:"over_floor"`
}

// longestPersons is the largest number of steps for which the noise of rules is compared.
const longestPersons = 1 << 20

// personsCost compares the stream's rule with other rules, and the configured factorization with factorizations that
// suit these rules. It returns nil if records are protected, or if there is no sum.
func personsCost(s *config.Stream, stored *matfact.Stored) (*rulesNoise, error) {
	m := s.Moments
	if s.User == nil || m == nil || stored == nil {
		return nil, nil
	}
	w := matfact.Workload{Kind: m.Workload, Decay: m.Decay, Window: m.Window}
	sum := w
	if w.Kind == "mean" {
		sum.Kind = "sum" // compares sums, because the divisor is public
	}
	n := min(cmp.Or(m.Horizon, m.Tune, 10_000), longestPersons)
	p := &rulesNoise{Steps: n}
	records, err := matfact.New(matfact.Auto(w, n), w)
	if err != nil {
		return nil, err
	}
	record := matfact.MaxError(records, sum, n) // includes the column norm, which is how far a record moves the sum
	end := m.Horizon                            // nobody counts after the last step
	if s.OnHorizon == "continue" {
		end = 0
	}
	of := func(f matfact.Factorization, rule matfact.Participation) (ruleNoise, error) {
		norm, err := matfact.Sensitivity(f, rule, end)
		if err != nil {
			return ruleNoise{}, err
		}
		noise := norm / f.ColNorm() * matfact.MaxError(f, sum, n)
		return ruleNoise{Cap: rule.Count, Separation: rule.Separation, Norm: norm, Noise: noise,
			OverRecords: noise / record, OverFloor: noise / float64(rule.Count*rule.PerStep)}, nil
	}
	used, err := matfact.New(
		matfact.Config{Kind: stored.Kind, Horizon: m.Horizon, Normalise: stored.Height > 0, Stored: stored}, w)
	if err != nil {
		return nil, err
	}
	p.Alpha = used.ColNorm()
	rule := s.Participation()
	own, err := of(used, rule)
	if err != nil {
		return nil, err
	}
	own.Configured = true
	p.Caps = append(p.Caps, own)
	span := n // number of steps that can hold all records of a person
	if period := s.User.Period; period > 0 {
		span = min(span, period)
	}
	for k := uint64(1); k <= span; k *= 10 {
		other := matfact.Participation{Count: k, Separation: span / k, PerStep: rule.PerStep}
		if other.Count == rule.Count && other.Separation == rule.Separation {
			continue
		}
		f, err := matfact.New(matfact.AutoPersons(w, m.Horizon, other), w)
		if err != nil {
			return nil, err
		}
		c, err := of(f, other)
		if err != nil {
			return nil, err
		}
		p.Caps = append(p.Caps, c)
	}
	slices.SortStableFunc(p.Caps, func(a, b ruleNoise) int { return cmp.Compare(a.Cap, b.Cap) })
	return p, nil
}

// print writes the cost of the rules as a table.
func (p *rulesNoise) print(w io.Writer) error {
	fmt.Fprintf(w,
		"\n  cost of a person's cap: noise of a sum at step %d, with noise multiplier 1 and clip 1; the largest "+
			"column norm of the stream's matrix is %.6g\n", p.Steps, p.Alpha)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "  steps of a person\tapart\tnorm\tnoise\ttimes the noise for records\ttimes the least possible\t\n")
	for _, c := range p.Caps {
		mark := ""
		if c.Configured {
			mark = "*"
		}
		fmt.Fprintf(t, "  %d%s\t%d\t%.4g\t%.4g\t%.4g\t%.4g\t\n", c.Cap, mark, c.Separation, c.Norm, c.Noise,
			c.OverRecords, c.OverFloor)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w,
		"  A larger cap pays off if many persons have that many records. One person can move a sum by cap × per_step, "+
			"and the noise is never less than that. With a small cap the mean is closer to the mean over persons "+
			"than over records.")
	return err
}
