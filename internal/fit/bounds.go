package fit

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/table"
)

// These constants give the share of μ² that is spent on bounds that are not given. It is at least leastShare. If a file
// has few rows, the share grows, up to mostShare, until the file has boundsRoom times as many rows as the bounds need.
// On 14 data sets, smaller shares made bounds worse by more than the saved budget was worth.
const (
	leastShare = 0.1
	mostShare  = 0.5
	boundsRoom = 2.5
)

// Bounds are the bounds that a fit found.
type Bounds struct {
	// Share is the part of μ² that the bounds cost.
	Share  float64   `json:"share"`
	Centre []float64 `json:"centre"`
	Scale  []float64 `json:"scale"`
	// Limit is the largest distance of a scaled value from 0; larger values are moved to it. It is 0 for a frozen
	// column, and null for a column whose scale was given.
	Limit  []*float64 `json:"limit"`
	Frozen []string   `json:"frozen"`
	ClipX  float64    `json:"clip_x"`
	ClipY  float64    `json:"clip_y"`
}

// numbersOrAuto reads a list of numbers, some of them "auto". It returns NaN for "auto".
func numbersOrAuto(flag, list string, columns int) ([]float64, error) {
	words := strings.Split(list, ",")
	auto := make([]bool, len(words))
	for i, w := range words {
		if auto[i] = strings.TrimSpace(w) == "auto"; auto[i] {
			words[i] = "0"
		}
	}
	x, err := table.Numbers(flag, strings.Join(words, ","), columns)
	for i := range x {
		if auto[min(i, len(auto)-1)] {
			x[i] = math.NaN()
		}
	}
	return x, err
}

// automatic reports whether any bound must be found.
func (d *data) automatic() bool { return d.find != nil }

// shareOf returns the share of μ² for the bounds of a file with the given number of rows. It depends only on public
// numbers.
//
// Errors: there are too few rows for any share.
func shareOf(c bounds.Config, rows int, mu float64, a dp.Adjacency) (float64, error) {
	// Number of rows needed with the whole budget; with a share of it, 1/√share times as many are needed
	least := float64(c.Needed(mu, a))
	share := boundsRoom * least / float64(rows)
	share = min(max(leastShare, share*share), mostShare)
	if needed := uint64(math.Ceil(least / math.Sqrt(share))); needed > uint64(rows) {
		return 0,
			fmt.Errorf("%w: finding bounds needs at least %d; give --centre, --scale, --clip-x and --clip-y",
				errTooFew, needed)
	}
	return share, nil
}

// bounded finds the bounds of the rows with a share of the budget. It returns the data that a solver takes, with the
// rest of the budget.
//
// Privacy: the bounds cost every row share·μ², and the solver costs it (1 − share)·μ². Together that is μ², because
// Gaussian mechanisms compose in this way even if the second depends on the releases of the first. The share is a
// function of public numbers.
//
// Errors: there are too few rows; a stage did not find its bounds. In the second case the stage's cost is spent.
func (d *data) bounded() (*data, *Bounds, error) {
	mu, err := d.params.Budget()
	if err != nil {
		return nil, nil, err
	}
	share, err := shareOf(*d.find, len(d.rows), mu, d.params.Adjacency)
	if err != nil {
		return nil, nil, err
	}
	f, stages, err := bounds.Find(*d.find, d.rows, mu*math.Sqrt(share), d.params.Adjacency, d.params.Bits(), d.noise(0))
	if err != nil {
		return nil, nil, err
	}
	if f == nil {
		last := stages[len(stages)-1]
		return nil, nil,
			fmt.Errorf(
				"cannot find bounds (stage %s: %s, %.0f of %.0f needed), and their share of the budget is spent: "+
					"give --centre, --scale, --clip-x and --clip-y",
				last.Stage, last.Reason, last.Records, last.Needed)
	}
	own := *d
	own.find, own.params = nil,
		dp.Params{Mu: mu * math.Sqrt(1-share), Adjacency: d.params.Adjacency, LatticeBits: d.params.LatticeBits}
	if d.find.Regression.X {
		own.clipX = f.X.Clip
	}
	if d.find.Regression.Y {
		own.clipY = f.Y.Clip
	}
	if own.radius == 0 {
		own.radius = 100 * own.clipY / own.clipX
	}
	out := &Bounds{Share: share, Centre: f.Centre, Scale: f.Scale, Frozen: []string{}, ClipX: own.clipX,
		ClipY: own.clipY}
	for j, c := range f.Cap {
		if limit := 16 * c / f.Scale[j]; math.IsInf(limit, 1) {
			out.Limit = append(out.Limit, nil)
		} else {
			out.Limit = append(out.Limit, &limit)
		}
	}
	for _, j := range f.FrozenColumns() {
		out.Frozen = append(out.Frozen, d.names[j])
		own.frozen = append(own.frozen, j)
	}
	own.rows = make([][]float64, len(d.rows))
	for i, row := range d.rows {
		if scaled := make([]float64, len(d.names)); len(row) == len(scaled) && f.Scaled(scaled, row) {
			own.rows[i] = scaled
		}
	}
	// Columns with standard deviation 1 have a second moment whose trace is the number of columns.
	if features := float64(len(d.names) - 1 - len(own.frozen)); own.curvature == 0 && d.standard && features > 0 {
		own.curvature = min(features, own.clipX*own.clipX)
	}
	return &own, out, nil
}

// deviations holds standard errors. An unknown one is NaN, and null in JSON.
type deviations []float64

// MarshalJSON writes the errors, and null for unknown ones.
func (d deviations) MarshalJSON() ([]byte, error) {
	known := make([]*float64, len(d))
	for i := range d {
		if !math.IsNaN(d[i]) {
			known[i] = &d[i]
		}
	}
	return json.Marshal(known)
}

func (d deviations) text(i int) string {
	if math.IsNaN(d[i]) {
		return "–"
	}
	return fmt.Sprintf("%.2g", d[i])
}

// freeze sets the coefficients of frozen columns to 0 and removes their standard errors, because the solver's
// coefficients for them are only noise.
func (d *data) freeze(r *Result) {
	for _, j := range d.frozen {
		if j > d.target {
			j--
		}
		if r.Theta[j] = 0; j < len(r.SE) {
			r.SE[j] = math.NaN()
		}
	}
}

// String describes the bounds in words.
func (b *Bounds) String() string {
	text := fmt.Sprintf("bounds found with %.0f %% of the budget: clip-x %.3g, clip-y %.3g", 100*b.Share,
		b.ClipX, b.ClipY)
	if len(b.Frozen) > 0 {
		text += "; the coefficient is 0 for these columns, because they do not vary enough: " +
			strings.Join(b.Frozen, ", ")
	}
	return text
}
