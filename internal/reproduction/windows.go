package main

import (
	"errors"
	"fmt"
	"slices"

	"streamdp/internal/dataset"
	"streamdp/stream"
)

// refitWindow is the number of records of a window of the daemon's run.
const refitWindow = 5000

// refitStream is what a stream of refits, with moments beside it, released about a set.
type refitStream struct {
	Set     string         `json:"set"`
	Rows    int            `json:"n"`
	Columns int            `json:"columns"`
	OLS     float64        `json:"ols"` // R² of least squares on all training rows
	Solvers []streamSolver `json:"solvers"`
	// Least squares on each window: what a refit comes near.
	Windows []float64 `json:"windows"`
}

// streamSolver is one run.
type streamSolver struct {
	Solver string    `json:"solver"`
	R2     []float64 `json:"r2"` // of each refit, on the rows of the split that were held out
	// What the ledger charges a record for the refit, the moments, and both together.
	Refit  float64 `json:"refit_epsilon"`
	Beside float64 `json:"moments_epsilon"`
	Both   float64 `json:"epsilon"`
	// Ten is the ε of both for a person with ten records, 0 where there is none.
	Ten float64 `json:"ten"`
}

// windowSolvers are the solvers that run in the daemon.
var windowSolvers = []string{"newton", "dp-gd", "ihm"}

// simulateWindows runs the daemon over sets.
func simulateWindows(sets []string) (all []refitStream, err error) {
	if dataset.Folder() == "" {
		return nil, errors.New("STREAMDP_DATA names no folder of data sets")
	}
	for i, name := range sets {
		set, err := openSet(name, 0)
		if err != nil {
			return nil, err
		}
		r := refitStream{Set: name, Rows: len(set.train), Columns: len(set.columns)}
		theta, err := set.ols()
		if err != nil {
			return nil, err
		}
		r.OLS = digits(set.score(theta))
		for end := refitWindow; end <= len(set.train); end += refitWindow {
			part := *set
			part.train = set.train[end-refitWindow : end]
			if theta, err = part.ols(); err != nil {
				return nil, err
			}
			r.Windows = append(r.Windows, digits(set.score(theta)))
		}
		for j, solver := range windowSolvers {
			s, err := set.windows(solver, uint64(100*i+j))
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", name, solver, err)
			}
			r.Solvers = append(r.Solvers, *s)
		}
		all = append(all, r)
	}
	return all, nil
}

const windowPrivacy = `[stream.%s.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
`

// windows runs the daemon with refits of a solver and moments over the same topic.
func (s *regressionSet) windows(solver string, seed uint64) (*streamSolver, error) {
	g := s.passage(seed, windowPrivacy+`[stream.data.refit]
target = "y"
solver = %q
clip_x = %g
clip_y = %g
window = %d
`, "data", solver, s.clipX, s.clipY, refitWindow)
	g.beside = fmt.Sprintf("step = 500\n"+windowPrivacy+"[stream.beside.moments]\nclip = %g\n", "beside", s.clipX)
	out := &streamSolver{Solver: solver}
	g.inspect = func(dir string) error {
		spent, err := stream.ReadSpent(dir, "", []int{10})
		if err != nil {
			return err
		}
		if len(spent) != 1 || len(spent[0].Ranges) != 1 || len(spent[0].Ranges[0].By) != 2 {
			return fmt.Errorf("the ledger knows %d topics", len(spent))
		}
		r := spent[0].Ranges[0]
		out.Both = digits(r.Epsilon)
		if ten := r.Persons[0].Epsilon; ten != nil {
			out.Ten = digits(*ten)
		}
		for _, by := range r.By {
			if by.Stream == "data" {
				out.Refit = digits(by.Epsilon)
			} else {
				out.Beside = digits(by.Epsilon)
			}
		}
		return nil
	}
	_, err := g.run(s.train, func(r *release) error {
		theta := original(r)
		if len(theta) != len(s.columns) {
			return fmt.Errorf("window %d has no coefficients", r.Step)
		}
		out.R2 = append(out.R2, digits(s.score(theta)))
		return nil
	})
	if err == nil && len(out.R2) != len(s.train)/refitWindow {
		err = fmt.Errorf("%d releases of %d rows", len(out.R2), len(s.train))
	}
	return out, err
}

// refitWindows is what package sketch is for: refits in the daemon, of windows of a
// topic, beside another task.
func refitWindows(p *page) error {
	all, err := kept[[]refitStream]("windows")
	if err != nil {
		return err
	}
	p.text(`## Refits in the daemon

A topic of a set's training rows, from a broker over TCP; windows of %d records, each refitted at ε = 1, δ = 10^-8, zero-out, beside moments of all columns at the same (ε, δ) that release after every 500 records, one ledger with limit_epsilon = 3. R² is on the rows of the split that were held out.
Scales and clip norms are those of the training rows: the part that a deployment must know beforehand.
`, refitWindow)
	var rows [][]string
	for _, r := range all {
		for k := range r.Windows {
			row := []string{r.Set, fmt.Sprintf("%d to %d", k*refitWindow, (k+1)*refitWindow), fmt.Sprintf("%.4f", r.OLS), fmt.Sprintf("%.4f", r.Windows[k])}
			for _, s := range r.Solvers {
				row = append(row, fmt.Sprintf("%.4f", s.R2[k]))
			}
			rows = append(rows, row)
		}
	}
	p.table(slices.Concat([]string{"set", "offsets", "OLS, all rows", "OLS, window"}, windowSolvers), rows)
	rows = nil
	for _, r := range all {
		for _, s := range r.Solvers {
			ten := "none"
			if s.Ten > 0 {
				ten = num(s.Ten)
			}
			rows = append(rows, []string{r.Set, s.Solver, num(s.Refit), num(s.Beside), num(s.Both), ten})
		}
	}
	p.text("What the ledger says that a record pays, at δ = 10^-8; windows are disjoint, so however many there are it is one refit and the moments:\n")
	p.table([]string{"set", "solver", "refit, ε", "moments, ε", "both, ε", "both, a person with ten records"}, rows)
	return nil
}
