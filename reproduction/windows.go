package main

import (
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

// refitWindow is the number of records of a window in the daemon's run.
const refitWindow = 5000

// refitRun holds the results of a stream of refits and of a stream of moments over the same topic.
type refitRun struct {
	r2   []float64 // R² of each refit on held-out rows
	both *ledger.SpentRange
	// reserved is the part of the limit that is reserved for sketches; nil if nothing is reserved.
	reserved *core.Reserved
}

// refits runs the daemon with a stream of refits by a solver and a stream of moments over the same topic, with one
// ledger.
func (s *regressionSet) refits(solver string, seed uint64) (*refitRun, error) {
	const privacy = `[stream.%s.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
`
	out := &refitRun{}
	g := passage{columns: s.columns, centre: s.centre, scale: s.scale, seed: seed}
	g.tables = fmt.Sprintf(privacy+
		"[stream.data.refit]\ntarget = \"y\"\nsolver = %q\nclip_x = %g\nclip_y = %g\nwindow = %d\n", "data", solver,
		s.clipX, s.clipY, refitWindow)
	g.beside = fmt.Sprintf("step = 500\n"+privacy+"[stream.beside.moments]\nclip = %g\n", "beside", s.clipX)
	g.inspect = func(dir string) error {
		books, err := ledger.ReadBooks(dir)
		if err != nil {
			return err
		}
		spent, err := books.Spent("", []int{10})
		if err != nil {
			return err
		}
		if len(spent) != 1 || len(spent[0].Ranges) != 1 || len(spent[0].Ranges[0].By) != 2 {
			return fmt.Errorf("the ledger is %+v, want one range that two streams charge", spent)
		}
		out.both, out.reserved = &spent[0].Ranges[0], spent[0].Reserved
		return nil
	}
	_, err := g.run(s.train, func(r *release) error {
		theta := original(r)
		if len(theta) != len(s.columns) {
			return fmt.Errorf("window %d has no coefficients", r.Step)
		}
		out.r2 = append(out.r2, s.score(theta))
		return nil
	})
	if err == nil && len(out.r2) != len(s.train)/refitWindow {
		err = fmt.Errorf("%d releases of %d rows", len(out.r2), len(s.train))
	}
	return out, err
}

// windowRefits shows a use of package refit: the daemon fits windows of a topic, while another stream reads the same
// topic.
func windowRefits(p *page) error {
	const title = "## Refits of windows through the daemon"
	if dataset.Folder() == "" {
		return p.keep(title)
	}
	p.text(`%s

elevators and pol of the UCI repository: the training rows of the first split, in random order, through a broker and the daemon. Windows of %d records are each refitted at ε = 1, δ = 10⁻⁸, zero-out. Moments of the same topic, at the same (ε, δ), are released every 500 records; one ledger, limit_epsilon = 3. R² is on held-out rows. Constants as in "Data sets through the daemon".
`, title, refitWindow)
	solvers := []string{"newton", "dp-gd", "adassp", "ihm"}
	var quality, ledger [][]string
	for i, name := range []string{"elevators", "pol"} {
		set, err := openSet(name, 0)
		if err != nil {
			return err
		}
		theta, err := set.ols()
		if err != nil {
			return err
		}
		all := set.score(theta)
		var runs []*refitRun
		for j, solver := range solvers {
			r, err := set.refits(solver, uint64(100*i+j))
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, solver, err)
			}
			runs = append(runs, r)
			aside, ten := "nothing", "none"
			if r.reserved != nil {
				aside = r.reserved.String()
			}
			if e := r.both.Persons[0].Epsilon; e != nil {
				ten = num(*e)
			}
			ledger = append(ledger,
				[]string{name, solver, num(r.both.By[0].Epsilon), num(r.both.By[1].Epsilon), num(r.both.Epsilon),
					ten, aside})
		}
		for k := range len(set.train) / refitWindow {
			part := *set
			part.train = set.train[k*refitWindow : (k+1)*refitWindow]
			if theta, err = part.ols(); err != nil {
				return err
			}
			row := []string{name, fmt.Sprintf("[%d, %d)", k*refitWindow, (k+1)*refitWindow), fmt.Sprintf("%.3f", all),
				fmt.Sprintf("%.3f", set.score(theta))}
			for _, r := range runs {
				row = append(row, fmt.Sprintf("%.3f", r.r2[k]))
			}
			quality = append(quality, row)
		}
	}
	if err := p.large("refits-windows",
		slices.Concat([]string{"data", "offsets", "least squares, all rows", "least squares, window"}, solvers),
		quality, nil); err != nil {
		return err
	}
	p.text(
		"The charge of a record in the ledger at δ = 10⁻⁸. Windows are disjoint, so a record pays for one refit and " +
			"the moments:\n")
	return p.large("refits-ledger",
		[]string{"data", "solver", "refit, ε", "moments, ε", "both, ε", "both, ten records", "reserved for sketches"},
		ledger, func(row []string) bool {
			return row[0] == "elevators" && (row[1] == "newton" || row[1] == "ihm")
		}, 0, 1, 2, 3, 4, 5)
}
