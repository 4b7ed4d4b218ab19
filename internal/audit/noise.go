package audit

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
)

// NoiseReport is the result of noise audits in one or several runs.
type NoiseReport struct {
	// White holds C(x̃−x)/σ by array, with one row each time the array is opened. In a sound mechanism all entries are
	// independent standard Gaussians. Draws is their number.
	White map[string][][]float64
	Draws int
	// Off is the largest distance between a whitened release and the noise that was drawn, divided by the largest
	// distance that one rounding can make: at most 1 in a sound mechanism. If it is larger, Identity says where.
	Off      float64
	Identity error
	// Words is the number of words of the random generator that were remembered. They must all differ; Repeated names
	// one that came twice.
	Words    int
	Repeated error

	steps int
	words map[uint64]bool
}

// lags is the largest distance in steps over which noise is tested for correlation.
const lags = 8

// Noise runs the stream under known noise. The whitened releases must contain the noise that was drawn, up to one
// rounding: |C(x̃−x) − σZ| ≤ C_tt/2 lattice units. Then the released integers are a function of the Gaussian
// mechanism's output. NoiseReport.Law tests White. Noise needs Recover.
func (s *Subject) Noise(x Stream, noise Source) (*NoiseReport, error) {
	recorders := make([]*recorder, len(x))
	rows, err := s.rows(x, func(t uint64) dp.Noise {
		recorders[t-1] = &recorder{Noise: noise(t), rows: map[string]*recorded{}}
		return recorders[t-1]
	})
	if err != nil {
		return nil, err
	}
	n := &NoiseReport{White: map[string][][]float64{}, words: map[uint64]bool{}, steps: len(x)}
	var errs []error
	for t, r := range recorders {
		for _, name := range slices.Sorted(maps.Keys(r.rows)) {
			if rows[name] == nil || rows[name][t] == nil {
				return nil, fmt.Errorf("step %d: array %s is opened but never released", t+1, name)
			}
			for _, w := range r.rows[name].words {
				n.see(w)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		sequences, err := s.sequences(name, rows[name])
		if err != nil {
			return nil, err
		}
		for j, q := range sequences {
			if j == 0 {
				n.White[name] = make([][]float64, len(q.steps))
			}
			var reach float64
			for i, t := range q.steps {
				k := recorders[t].rows[name]
				if k == nil {
					return nil, fmt.Errorf("step %d: array %s is released but was not opened", t+1, name)
				}
				q.x[i] -= float64(k.hidden[j])
				reach = max(reach, math.Abs(q.x[i]))
			}
			white, diagonal := Whiten(q.whitener, q.x)
			// slack bounds the error of the audit's own rounding, which is a few units of 2⁻⁵² of the largest sum.
			slack := reach * 0x1p-45
			for i, t := range q.steps {
				n.White[name][i] = append(n.White[name][i], white[i]/q.sd[i])
				n.Draws++
				units := math.Abs(white[i] - q.sd[i]*recorders[t].rows[name].z[j])
				off := units / (diagonal[i]/2 + slack)
				if n.Off = max(n.Off, off); !(off <= 1) {
					errs = append(errs,
						fmt.Errorf("step %d, coordinate %d of %s: the noise differs by %g lattice units from the "+
							"noise that was drawn",
							t+1, j, name, units))
				}
			}
		}
	}
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and %d more", len(errs)-3))
	}
	n.Identity = errors.Join(errs...)
	return n, nil
}

// NoiseUnder calls Noise with keyed noise for a new run.
func (s *Subject) NoiseUnder(x Stream, keys *Keys) (*NoiseReport, error) {
	return s.Noise(x, keys.next())
}

// maxWords is the largest number of words that are remembered. This many random words are all different except with
// probability 2⁻³¹.
const maxWords = 1 << 17

func (n *NoiseReport) see(word uint64) {
	if len(n.words) == maxWords && !n.words[word] {
		return
	}
	if n.words[word] {
		fail(&n.Repeated, fmt.Errorf("the generator returned the word %016x twice", word))
	}
	n.words[word] = true
	n.Words = len(n.words)
}

// Add adds the report of another run under other keys. A word that occurs in both runs is a fault.
func (n *NoiseReport) Add(o *NoiseReport) {
	for name, rows := range o.White {
		n.White[name] = append(n.White[name], rows...)
	}
	for w := range o.words {
		n.see(w)
	}
	n.steps += o.steps
	n.Draws += o.Draws
	n.Off = max(n.Off, o.Off)
	n.Identity = errors.Join(n.Identity, o.Identity)
	if o.Repeated != nil {
		fail(&n.Repeated, o.Repeated)
	}
}

// Law tests that White is white. It tests the variance of each coordinate and of all together, the means, correlations
// between coordinates (of one array and of different arrays), and correlations with the next 8 times that the array is
// opened. alpha is divided among all tests. The first test concerns the variance of all draws in the arrays that every
// step opens.
func (n *NoiseReport) Law(alpha float64) []stattest.Check {
	// The arrays that every step opens are tested together, as one wide row.
	var groups [][][]float64
	wide := make([][]float64, n.steps)
	for _, name := range slices.Sorted(maps.Keys(n.White)) {
		rows := n.White[name]
		if len(rows) < n.steps {
			groups = append(groups, rows)
			continue
		}
		for t, row := range rows {
			wide[t] = append(wide[t], row...)
		}
	}
	if n.steps > 0 && len(wide[0]) > 0 {
		groups = append([][][]float64{wide}, groups...)
	}
	var checks []stattest.Check
	for _, g := range groups {
		checks = append(checks, stattest.Whiteness(g, lags, alpha/float64(len(groups)))...)
	}
	return checks
}

// Failed returns an error that lists the failed checks, nil if there are none.
func Failed(checks []stattest.Check) error {
	var errs []error
	for _, c := range checks {
		errs = append(errs, c.Err())
	}
	return errors.Join(errs...)
}
