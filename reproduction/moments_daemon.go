package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// elevators lists the columns of the data set "elevators" in order. Each has a round number of about four standard
// deviations, which stands for a user's knowledge of the units. The numbers come from the tests of the demonstration
// and were chosen before this comparison.
var elevators = []struct {
	name  string
	scale float64
}{
	{"climbRate", 1000}, {"Sgz", 100}, {"p", 1}, {"q", 0.5}, {"curRoll", 3}, {"absRoll", 15}, {"diffClb", 40},
	{"diffRollRate", 0.05}, {"diffDiffClb", 4},
	{"SaTime1", 0.0015}, {"SaTime2", 0.0015}, {"SaTime3", 0.0015}, {"SaTime4", 0.0015},
	{"diffSaTime1", 0.0003}, {"diffSaTime2", 0.000006}, {"diffSaTime3", 0.0002}, {"diffSaTime4", 0.000008},
	{"Sa", 0.0015}, {"Goal", 1},
}

const elevatorsClip = 1.5

// momentStreams sends a data set through the daemon. It compares the correlation matrix that follows from the last
// release with that of the rows.
func momentStreams(p *page) error {
	const title, keys = "### A correlation matrix through the daemon", 5
	p.text("## Moments of a stream\n")
	if dataset.Folder() == "" {
		return p.keep(title)
	}
	rows, err := wholeSet("elevators")
	if err != nil {
		return err
	}
	columns, d := passage{seed: 1}, len(elevators)
	for _, c := range elevators {
		columns.columns, columns.scale = append(columns.columns, c.name), append(columns.scale, c.scale)
	}
	const step = 100
	covered := rows[:len(rows)/step*step]
	p.text(`%s

elevators (UCI): %d records of %d columns, the target included, through a broker and the daemon; steps of %d records, %d releases, running means, defaults otherwise, δ = 10⁻⁶. Correlations follow from the last release's covariance; a column has none if its released variance is below 4 standard errors. Errors are against the correlations of the rows, and of the rows scaled and shortened to norm %g: root mean square and largest over all pairs, means over %d keys. "covered" is the share of the covariance's entries within 1.96 standard errors of the covariance of the shortened rows.
Public constants: centre 0, because the published file is centred; clip %g; scales as listed in moments_daemon.go, for "suitable" about four deviations of each column. Their author knew the file; a deployment must take them from elsewhere. For "Goal 0.1" the scale of column Goal is ten times smaller; the errors grow, but as many entries are covered.
`, title, len(rows), d, step, len(covered)/step, elevatorsClip, keys, elevatorsClip)
	var cells [][]string
	for _, g := range []struct {
		constants, adjacency string
		epsilon, goal        float64
	}{
		{"suitable", "replace", 1, 1}, {"suitable", "replace", 4, 1}, {"suitable", "zero-out", 1, 1},
		{"Goal 0.1", "replace", 1, 0.1}, {"Goal 0.1", "replace", 4, 0.1}, {"Goal 0.1", "zero-out", 1, 0.1},
	} {
		columns.scale[d-1] = g.goal
		plain, shortened := covariance(covered, columns.scale, math.Inf(1)),
			covariance(covered, columns.scale, elevatorsClip)
		clipped := 100 * float64(beyond(covered, columns.scale, elevatorsClip)) / float64(len(covered))
		var total comparison
		without := map[string]int{}
		for key := range keys {
			run := columns
			run.seed = uint64(key + 1)
			run.tables = fmt.Sprintf(
				"step = %d\n[stream.data.privacy]\nepsilon = %g\ndelta = 1e-6\nadjacency = %q\nlimit_epsilon = %g\n"+
					"[stream.data.moments]\nclip = %g\nmethod = \"auto\"\n",
				step, g.epsilon, g.adjacency, g.epsilon, elevatorsClip)
			last, err := run.run(rows, nil)
			if err != nil {
				return err
			}
			released := last.Values["covariance"]
			one := compare(released.Data, released.SE, plain, shortened, d)
			total.add(one)
			for _, i := range one.without {
				without[elevators[i].name]++
			}
		}
		var names []string
		for _, c := range elevators {
			if n := without[c.name]; n == keys {
				names = append(names, c.name)
			} else if n > 0 {
				names = append(names, fmt.Sprintf("%s (%d of %d)", c.name, n, keys))
			}
		}
		if names == nil {
			names = []string{"none"}
		}
		n := float64(keys)
		cells = append(cells,
			[]string{g.constants, fmt.Sprintf("%.1f %%", clipped), g.adjacency, num(g.epsilon),
				num(total.plain.rms / n), num(total.plain.most / n), num(total.shortened.rms / n),
				num(total.shortened.most / n),
				fmt.Sprintf("%.1f %%", 100*total.covered/n), strings.Join(names, ", ")})
	}
	head := []string{"constants", "clipped rows", "adjacency", "ε", "error, rms", "error, largest",
		"against shortened rows, rms", "against shortened rows, largest", "covered", "columns without"}
	return p.large("correlations", head, cells, nil)
}

// comparison compares a released covariance with that of the rows.
type comparison struct {
	plain, shortened struct{ rms, most float64 } // errors of correlations
	covered          float64                     // share of the covariance's entries that are within their intervals
	without          []int                       // columns that have no correlations
}

func (c *comparison) add(o comparison) {
	c.plain.rms += o.plain.rms
	c.plain.most += o.plain.most
	c.shortened.rms += o.shortened.rms
	c.shortened.most += o.shortened.most
	c.covered += o.covered
}

// compare compares the upper triangle of a released covariance of d columns, with its standard errors, with the
// covariances of the unclipped rows and of the shortened rows.
func compare(released, se, plain, shortened []float64, d int) (c comparison) {
	for i := range d {
		if !(variance(released, d, i) > 4*variance(se, d, i)) {
			c.without = append(c.without, i)
		}
	}
	n, pairs := 0, 0.0
	for i := range d {
		for j := i; j < d; j++ {
			if math.Abs(released[n]-shortened[n]) <= 1.96*se[n] {
				c.covered += 1 / float64(len(released))
			}
			if i < j && !slices.Contains(c.without, i) && !slices.Contains(c.without, j) {
				correlation := func(x []float64) float64 {
					return x[n] / math.Sqrt(variance(x, d, i)*variance(x, d, j))
				}
				pairs++
				e, f := math.Abs(correlation(released)-correlation(plain)),
					math.Abs(correlation(released)-correlation(shortened))
				c.plain.rms, c.plain.most = c.plain.rms+e*e, max(c.plain.most, e)
				c.shortened.rms, c.shortened.most = c.shortened.rms+f*f, max(c.shortened.most, f)
			}
			n++
		}
	}
	c.plain.rms, c.shortened.rms = math.Sqrt(c.plain.rms/max(pairs, 1)), math.Sqrt(c.shortened.rms/max(pairs, 1))
	return c
}

// variance returns entry i of the diagonal of an upper triangle.
func variance(upper []float64, d, i int) float64 { return upper[i*d-i*(i-1)/2] }

// covariance returns the upper triangle of the covariance of scaled rows that are shortened to a norm.
func covariance(rows [][]float64, scale []float64, norm float64) []float64 {
	d := len(scale)
	mean, squares := make([]float64, d), make([]float64, 0, d*(d+1)/2)
	scaled := make([][]float64, len(rows))
	for k, row := range rows {
		z := make([]float64, d)
		for i, v := range row {
			z[i] = v / scale[i]
		}
		short := min(1, norm/length(z))
		for i := range z {
			z[i] *= short
			mean[i] += z[i] / float64(len(rows))
		}
		scaled[k] = z
	}
	for i := range d {
		for j := i; j < d; j++ {
			var sum float64
			for _, z := range scaled {
				sum += (z[i] - mean[i]) * (z[j] - mean[j])
			}
			squares = append(squares, sum/float64(len(rows)))
		}
	}
	return squares
}

// beyond returns the number of scaled rows that are longer than norm.
func beyond(rows [][]float64, scale []float64, norm float64) (n int) {
	z := make([]float64, len(scale))
	for _, row := range rows {
		for i, v := range row {
			z[i] = v / scale[i]
		}
		if length(z) > norm {
			n++
		}
	}
	return n
}

// wholeSet reads all rows of a data set from the folder STREAMDP_DATA: the training rows of a split, then its test
// rows. The target is the last column.
func wholeSet(name string) (rows [][]float64, err error) {
	for _, read := range []func(string, string, int) ([][]float64, []float64, error){dataset.Read, dataset.Test} {
		x, y, err := read(dataset.Folder(), name, 0)
		if err != nil {
			return nil, err
		}
		for i := range x {
			rows = append(rows, append(slices.Clip(x[i]), y[i]))
		}
	}
	return rows, nil
}
