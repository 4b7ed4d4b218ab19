package bounds

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

const (
	// limitShare is the share of rows that the bounds of a regression may shorten.
	limitShare = 1e-3
	// limitReference ends the power law of a tail: it ends where less than one in limitReference rows lies beyond.
	limitReference = 1e6
	// limitReach is the number of levels (two octaves) by which a bound may exceed the highest level that some row
	// certainly exceeds. Without it a bound could be far too large, because with few rows a power law falls too slowly.
	limitReach = 16
)

// normEdges returns the edges of stage B's histograms, in order.
func (w *Warmup) normEdges() (all [][]float64) {
	r := w.cfg.Regression
	if r == nil {
		return [][]float64{normEdges(w.active())}
	}
	if r.X {
		all = append(all, normEdges(w.features()))
	}
	if r.Y {
		all = append(all, normEdges(1))
	}
	return all
}

// features returns the number of features of a regression that are not frozen, at least 1.
// The target is not frozen when stage B begins.
func (w *Warmup) features() int { return max(1, w.active()-1) }

// countLimits adds a valid row to stage B of a regression.
func (w *Warmup) countLimits(row []float64) {
	r := w.cfg.Regression
	var sum float64
	for j, v := range row {
		if j != r.Target {
			y := w.found.scaled(j, v)
			sum += float64(y * y)
		}
	}
	n := 0
	if r.X {
		w.open.add(normBin(w.edges[n], math.Sqrt(sum)), n)
		n++
	}
	if r.Y {
		w.open.add(normBin(w.edges[n], math.Abs(w.found.scaled(r.Target, row[r.Target]))), n)
	}
}

// closeLimits computes the bounds of a regression from the prefix sums of B.
func (w *Warmup) closeLimits(p *sums, x *Stage) {
	r, n := w.cfg.Regression, 0
	if r.X {
		w.found.X = limit(p, n, w.features())
		found := w.found.X
		x.Features = &found
		n++
	}
	if r.Y {
		w.found.Y = limit(p, n, 1)
		found := w.found.Y
		x.Target = &found
	}
}

// limit returns the least level that at most limitShare of the rows exceed, rounded to two digits. It estimates that
// from the tail of a histogram.
func limit(p *sums, n, active int) Limit {
	c, share, _ := measured(p.prefix[n], p.sigma, p.records, active, limitReference)
	edges, i := normEdges(active), max(0, c.first-limitReach)
	for i+1 < normBins && share[i+1] <= limitShare {
		i++
	}
	return Limit{Clip: rounded(edges[i], 2), Clipped: share[i],
		ClippedSE: p.sigma * normShape().deviation(term{i, 1}) / p.records}
}

// limits returns pointers to the numbers of a regression's bounds in the state. It returns none if no regression
// follows.
func (w *Warmup) limits() []*float64 {
	if w.cfg.Regression == nil {
		return nil
	}
	f := &w.found
	return []*float64{&f.X.Clip, &f.X.Clipped, &f.X.ClippedSE, &f.Y.Clip, &f.Y.Clipped, &f.Y.ClippedSE}
}

// Find finds the bounds of a table. All rows of the table are the records of one warm-up, in one part. A nil row is an
// invalid record. A mechanism that uses the same rows afterwards needs a budget of its own.
//
// Errors: too few rows for the noise; then nothing is released. If a stage fails, Find returns no error: the last Stage
// says so, and found is nil.
func Find(cfg Config, rows [][]float64, mu float64, adjacency dp.Adjacency, bits int, n dp.Noise) (found *Found,
	stages []Stage, err error) {
	cfg.Records, cfg.Split = uint64(len(rows)), false
	w, err := New(cfg, mu, adjacency, bits)
	if err != nil {
		return nil, nil, err
	}
	for _, row := range rows {
		w.Add(row)
	}
	if stages, err = w.Close(n); err != nil || w.Failed() {
		return nil, stages, err
	}
	return w.Found(), stages, nil
}
