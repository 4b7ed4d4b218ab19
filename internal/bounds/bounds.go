// Package bounds finds the centre and scale of columns and the clip norm of rows privately, from the first records of a
// stream: its warm-up.
//
// For example, the columns of five thousand rows lie around 2·10⁹, 0.3 and 40. The warm-up finds the centres 2e9, 0.31
// and 38, the scales 1100, 0.27 and 12, and the clip norm 3.1, which one row in a hundred exceeds. Later rows are
// scaled with these constants. The mechanism that uses them is as accurate as with constants chosen by somebody who
// knows the data.
//
// There are five stages. Each fills a set of histograms and releases their noisy prefix sums. A stage uses only the
// releases of earlier stages:
//
//	A1  octaves      what is the size of a column's values?
//	A2  circles      where is its middle?
//	A3  deviations   how far from the middle are values?
//	A4  deviations   A3 again with less noise, for columns without a spread in A3;
//	                 for all columns if each had one
//	B   norms        how long are scaled rows?
//
// The derivation is in docs/theory/bounds.md.
package bounds

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
)

// These are the stages, in order.
const (
	octaves = iota
	circles
	deviations
	again
	norms
	stages
)

var (
	names = [stages]string{"A1", "A2", "A3", "A4", "B"}
	// percent is each stage's share, in per cent: of μ² in mode "buffer", of the records in mode "split".
	percent = [stages]uint64{12, 18, 32, 23, 15}
	// percentRegression replaces percent before a regression that chooses the clip norm itself. With these shares all
	// stages need about the same number of records.
	percentRegression = [stages]uint64{22, 22, 24, 25, 7}
	// need is the least ratio of a stage's number of records to its standard deviation.
	need = [stages]float64{14, 10, 14, 14, 14}
)

// Config says which bounds to find, and from how many records.
type Config struct {
	// Columns is the length of a row.
	Columns int
	// Centre and Scale are the given constants. NaN stands for a constant to find; nil means to find all.
	Centre, Scale []float64
	// Clip says that the warm-up must find the clip norm as well.
	Clip bool
	// Regression says which bounds to find in addition to centres and scales if a regression follows; then Clip is
	// false. Nil: no regression follows.
	Regression *Regression
	// Records is the number of slots, N.
	Records uint64
	// Split gives each stage separate records and the whole budget, instead of all records and a share of the budget.
	// Then no record is buffered, but the warm-up needs two to three times as many records.
	Split bool
	// Gains are the gains of the mechanism that follows. The choice of the clip norm uses them.
	Gains Gains
	// Full returns the weight with which a row counts as not shortened. norm is the row's norm divided by the clip
	// norm. The weight is 1 for small norms and falls to 0 at norm 1. Nil: the share of rows that are not shortened is
	// not estimated.
	Full func(norm float64) float64
}

// Regression says which bounds on a regression's records to find.
type Regression struct {
	// Target is the column that is predicted from the others, the features.
	Target int
	// X says to find a bound on the norm of the scaled features, Y a bound on the absolute value of the scaled target.
	X, Y bool
}

// Gains are public numbers of the mechanism that follows the warm-up. They describe the reference release, by which the
// clip norm is chosen: for the clip norm 1, the standard deviation of an entry of the mean and that of an off-diagonal
// entry of the second moment; and the number of rows of that release.
type Gains struct {
	Mean      float64 `json:"mean"`
	Second    float64 `json:"second"`
	Reference float64 `json:"rows"`
}

// Stage is the release of one stage. It contains only the numbers that the stage finds.
type Stage struct {
	Stage   string `json:"stage"`
	Verdict string `json:"verdict"` // "ok" or "fail"
	Reason  string `json:"reason,omitempty"`
	// Records is the noisy number of valid records, Needed the least number that the stage needs, and Sigma the
	// standard deviation of one bin's noise. All are 0 if the stage had nothing to count.
	Records float64 `json:"records"`
	Needed  float64 `json:"needed"`
	Sigma   float64 `json:"sigma"`
	// Ranges are the octaves that contain the middle half of each column's values. Circles are the columns' numbers of
	// circles in A2.
	Ranges  [][2]float64 `json:"ranges,omitempty"`
	Circles []int        `json:"circles,omitempty"`
	Centre  []float64    `json:"centre,omitempty"`
	Dead    []float64    `json:"dead,omitempty"`
	Scale   []float64    `json:"scale,omitempty"`
	// Cap holds the largest deviation from the centre that was found in each column; larger ones cannot be told from
	// noise. It is 0 for a frozen column, and null for a column with a given scale.
	Cap    []*float64 `json:"cap,omitempty"`
	Frozen []int      `json:"frozen,omitempty"` // numbers of columns, from 0
	// Unseen is a share of rows: a frozen column can differ from its centre in at most about this share.
	Unseen float64 `json:"unseen,omitempty"`
	Clip   float64 `json:"clip,omitempty"`
	*Clipping
	// Features and Target are the bounds that stage B found for a regression.
	Features *Limit `json:"features,omitempty"`
	Target   *Limit `json:"target,omitempty"`
}

// Limit is a bound on the features or the target of a regression.
type Limit struct {
	Clip float64 `json:"clip"`
	// Clipped is the share of rows beyond the bound, and ClippedSE the standard deviation of that share.
	Clipped   float64 `json:"clipped"`
	ClippedSE float64 `json:"clipped_se"`
}

// Clipping is the result of stage B for its clip norm.
type Clipping struct {
	// Clipped is the share of rows beyond the clip norm, and ClippedSE the standard deviation of that share.
	Clipped   float64 `json:"clipped"`
	ClippedSE float64 `json:"clipped_se"`
	// BiasMean and BiasSecond estimate how much clipping changes the mean of scaled rows, in Euclidean norm, and their
	// second moment, in Frobenius norm.
	BiasMean   float64 `json:"bias_mean"`
	BiasSecond float64 `json:"bias_second"`
	// BiasedMean and BiasedSecond say whether that change is more than twice the noise of the reference release.
	BiasedMean   bool `json:"biased_mean"`
	BiasedSecond bool `json:"biased_second"`
}

// Warmup finds bounds. It gets the records of the slots [0, N): in one part, or in one part for each stage if
// Config.Split is set. Afterwards it converts rows to scaled rows.
//
// Privacy: all its releases together are μ-Gaussian private for one record zeroed out or replaced in its slot. A
// mechanism over other records may use the bounds and spend the same μ again, because each record is either in the
// warm-up or in that mechanism, never in both.
//
// Memory: buffered rows take 8·N·d bytes. The largest stage, A2 with six circles a column, takes 8·3072·d bytes of
// counts, and twice as much in addition while noise is drawn. A1 and A3 need 417 and 833 instead of 3072. From A3 to
// A4, 8·833·d bytes are kept.
//
// A Warmup is not safe for concurrent use.
type Warmup struct {
	cfg       Config
	mu        float64
	adjacency dp.Adjacency
	bits      int
	taken     []int // the stages that the configuration needs, in order
	shares    [stages]uint64

	// The fields below hold the results of the releases so far.
	next     int // index in taken of the next stage
	failed   bool
	ranges   []circle  // the ranges of the columns counted in A1
	dead     []float64 // of the columns counted in A3: a smaller deviation counts as none
	middle   []float64 // the centres found in A2, for all columns
	pool     *sums     // the sums of A3, until A4 has ended
	found    Found     // the bounds so far
	released []*sums   // the raw releases of the last Close, for audits and replays
	choice   *choice   // the choice of stage B, for audits and replays; nil for a regression

	// The fields below hold the open part.
	columns []int       // the columns that the open stage counts
	edges   [][]float64 // the edges of stage B's histograms
	open    *histograms // nil if the open stage counts nothing
	rows    []float64   // the buffered rows
	records uint64      // number of records of the open part, valid or not
}

// Found holds the bounds that a warm-up found, and those that were given.
type Found struct {
	Centre, Scale []float64
	// Cap holds the largest deviation from the centre that was found in each column. It is 0 for a frozen column, and
	// +Inf if the scale was given.
	Cap    []float64
	Clip   float64 // 0 if the warm-up did not have to find it
	Unseen float64
	Clipping
	// X and Y are bounds on the features and the target of a regression, 0 if the warm-up did not have to find them.
	X, Y Limit
	// Full estimates the share of records that are not shortened, from below; each record has the weight of
	// Config.Full. FullSE is the standard deviation of the estimate.
	Full, FullSE float64
}

// Frozen reports whether column j is frozen: no spread was found for it, and its scaled value is always 0.
func (f *Found) Frozen(j int) bool { return f.Cap[j] == 0 }

// FrozenColumns returns the numbers of the frozen columns.
func (f *Found) FrozenColumns() []int {
	all := make([]int, len(f.Cap))
	for j := range all {
		all[j] = j
	}
	return f.frozenOf(all)
}

// frozenOf returns the frozen columns among the given ones.
func (f *Found) frozenOf(columns []int) (frozen []int) {
	for _, j := range columns {
		if f.Frozen(j) {
			frozen = append(frozen, j)
		}
	}
	return frozen
}

// Scaled writes (x − centre)/scale to dst, limited to 16 times the cap in absolute value, and 0 for frozen columns. It
// returns false if a number of x is not finite; then the contents of dst have no meaning.
func (f *Found) Scaled(dst, x []float64) bool {
	for j, v := range x {
		if v-v != 0 {
			return false
		}
		dst[j] = f.scaled(j, v)
	}
	return true
}

// scaled returns the scaled value of column j.
func (f *Found) scaled(j int, v float64) float64 {
	limit := f.Cap[j]
	if limit == 0 {
		return 0
	}
	if math.IsInf(limit, 1) {
		return (v - f.Centre[j]) / f.Scale[j]
	}
	limit *= 16 / f.Scale[j]
	return max(-limit, min((clamped(v)-f.Centre[j])/f.Scale[j], limit))
}

// Needed returns the number of valid records that a warm-up needs, see Warmup.Needed.
func (c Config) Needed(mu float64, adjacency dp.Adjacency) uint64 {
	return newWarmup(c, mu, adjacency, 24).Needed()
}

// Parts returns the number of parts of a warm-up.
func (c Config) Parts() uint64 {
	taken, _ := c.stages()
	if c.Split {
		return uint64(len(taken))
	}
	return 1
}

// New returns a warm-up that is μ-Gaussian private.
func New(cfg Config, mu float64, adjacency dp.Adjacency, bits int) (*Warmup, error) {
	d := cfg.Columns
	if d < 1 || cfg.Centre != nil && len(cfg.Centre) != d || cfg.Scale != nil && len(cfg.Scale) != d {
		return nil, errors.New("warm-up: centre and scale must have an entry for each column")
	}
	w := newWarmup(cfg, mu, adjacency, bits)
	if len(w.taken) == 0 {
		return nil, errors.New("warm-up: all bounds are given, so there is nothing to find")
	}
	if least := w.Needed(); cfg.Records < least {
		return nil, &fault.Fault{Key: "warmup", Value: cfg.Records,
			Rule: fmt.Sprintf(
				"must be at least %d offsets: the counts of fewer records would be lost in the noise", least)}
	}
	for _, s := range w.taken {
		// Try the smallest and the largest possible number of histograms, because the numbers of circles and of frozen
		// columns are known only later.
		widths := []int{1, w.width(s)}
		if s == circles {
			widths[1] *= mostCircles
		}
		for _, width := range widths {
			if _, _, err := calibrate(w.shape(s), width, w.budget(s), adjacency, bits, cfg.Records); err != nil {
				return nil, err
			}
		}
	}
	w.begin()
	return w, nil
}

// newWarmup does what New does, but does not check the number of records and the noise, and does not call begin.
func newWarmup(cfg Config, mu float64, adjacency dp.Adjacency, bits int) *Warmup {
	given := func(x []float64) []float64 {
		if x != nil {
			return slices.Clone(x)
		}
		return slices.Repeat([]float64{math.NaN()}, cfg.Columns)
	}
	cfg.Centre, cfg.Scale = given(cfg.Centre), given(cfg.Scale)
	w := &Warmup{cfg: cfg, mu: mu * calibration.BudgetRoom, adjacency: adjacency, bits: bits}
	w.taken, w.shares = cfg.stages()
	return w
}

// begin sets the bounds that are known before the first record.
func (w *Warmup) begin() {
	f := Found{Centre: slices.Clone(w.cfg.Centre), Scale: slices.Clone(w.cfg.Scale),
		Cap: make([]float64, w.cfg.Columns)}
	for j := range f.Cap {
		if math.IsNaN(f.Centre[j]) {
			f.Centre[j] = 0
		}
		if math.IsNaN(f.Scale[j]) {
			f.Scale[j] = 1
		} else {
			f.Cap[j] = math.Inf(1)
		}
	}
	w.found, w.middle, w.dead = f, slices.Clone(f.Centre), make([]float64, w.cfg.Columns)
	w.next, w.failed, w.pool, w.ranges = 0, false, nil, nil
	w.reset()
}

// reset discards the open part.
func (w *Warmup) reset() {
	w.rows, w.open, w.records = w.rows[:0], nil, 0
	if w.cfg.Split && !w.Done() {
		w.openStage()
	}
}

// unknown returns the columns whose constant has to be found.
func unknown(given []float64) (columns []int) {
	for j, v := range given {
		if math.IsNaN(v) {
			columns = append(columns, j)
		}
	}
	return columns
}

// stages returns the stages that take place, and their shares. If the clip norm is given, the share of stage B goes to
// A3. The share of any other stage without columns is divided among the remaining stages.
func (c *Config) stages() (taken []int, shares [stages]uint64) {
	centred, scaled := len(unknown(c.Centre)) > 0, len(unknown(c.Scale)) > 0
	shares = percent
	if c.Regression != nil {
		shares = percentRegression
	}
	limited := c.norms() > 0
	if !limited {
		shares[deviations] += shares[norms]
	}
	for s, takes := range [stages]bool{centred, centred, scaled, scaled, limited} {
		if takes {
			taken = append(taken, s)
		} else {
			shares[s] = 0
		}
	}
	return taken, shares
}

// norms returns the number of histograms of stage B.
func (c *Config) norms() (width int) {
	if c.Clip {
		return 1
	}
	if r := c.Regression; r != nil {
		for _, found := range []bool{r.X, r.Y} {
			if found {
				width++
			}
		}
	}
	return width
}

// total returns the sum of shares.
func (w *Warmup) total() (sum uint64) {
	for _, x := range w.shares {
		sum += x
	}
	return sum
}

// budget returns the μ of a stage.
func (w *Warmup) budget(s int) float64 {
	if w.cfg.Split {
		return w.mu
	}
	return w.mu * math.Sqrt(float64(w.shares[s])/float64(w.total()))
}

// shape returns the shape of a stage's histograms.
func (w *Warmup) shape(s int) *shape {
	switch s {
	case octaves:
		return octaveShape()
	case circles:
		return circleShape()
	case norms:
		return normShape()
	}
	return deviationShape()
}

// stageColumns returns the columns that a stage counts and that are known already.
func (w *Warmup) stageColumns(s int) []int {
	switch s {
	case octaves, circles:
		return unknown(w.cfg.Centre)
	case norms:
		return nil
	}
	all := unknown(w.cfg.Scale)
	if s == again && w.pool != nil {
		if frozen := w.found.frozenOf(all); len(frozen) > 0 {
			return frozen
		}
	}
	return all
}

// width returns W, the number of a stage's histograms. For A2 it assumes one circle a column as long as the number of
// circles is not known.
func (w *Warmup) width(s int) int {
	switch {
	case s == norms:
		return w.cfg.norms()
	case s == circles && w.ranges != nil:
		n := 0
		for _, c := range w.ranges {
			n += c.count
		}
		return n
	}
	return len(w.stageColumns(s))
}

// Needed returns the number of valid records that the stages need. It depends only on the public configuration, and
// assumes one circle a column in A2. √6 times this number is enough for any data.
func (w *Warmup) Needed() (least uint64) {
	for _, s := range w.taken {
		shape := w.shape(s)
		x := need[s] * shape.alpha * shape.alpha * math.Sqrt(float64(w.width(s))*shape.moves(w.adjacency)) / w.budget(s)
		if w.cfg.Split {
			x *= float64(w.total()) / float64(w.shares[s])
		}
		least = max(least, uint64(math.Ceil(min(x, 1<<62))))
	}
	return least
}

// Parts returns the number of parts of the warm-up.
func (w *Warmup) Parts() uint64 { return w.cfg.Parts() }

// Range returns the slots of part t, from 1: [first, end).
func (w *Warmup) Range(t uint64) (first, end uint64) {
	if !w.cfg.Split {
		return 0, w.cfg.Records
	}
	var before uint64
	for _, s := range w.taken[:t-1] {
		before += w.shares[s]
	}
	total := w.total()
	border := func(share uint64) uint64 {
		whole, rest := w.cfg.Records/total, w.cfg.Records%total
		return whole*share + (rest*share+total/2)/total
	}
	return border(before), border(before + w.shares[w.taken[t-1]])
}

// Part returns the number of closed parts.
func (w *Warmup) Part() uint64 {
	if w.cfg.Split {
		return uint64(w.next)
	}
	if w.next > 0 {
		return 1
	}
	return 0
}

// Done reports whether all parts are closed or a part has failed.
func (w *Warmup) Done() bool { return w.failed || w.next == len(w.taken) }

// Failed reports whether a part found no bounds. Then no step may follow.
func (w *Warmup) Failed() bool { return w.failed }

// Found returns the bounds so far. They are complete when the warm-up is done and has not failed.
func (w *Warmup) Found() *Found { return &w.found }

// Sizes returns the memory of the warm-up. After the end of the warm-up it needs little.
func (w *Warmup) Sizes() dp.Sizes {
	d := int64(w.cfg.Columns)
	counts := 8 * max(circleBins*mostCircles*int64(len(unknown(w.cfg.Centre))),
		deviationBins*int64(len(unknown(w.cfg.Scale))), normBins)
	pool := 8 * deviationBins * int64(len(unknown(w.cfg.Scale)))
	s := dp.Sizes{State: 64*d + 128 + pool, Release: 8 * (14*d + 64)}
	s.Peak = s.State + s.Release + 3*counts + pool
	if !w.cfg.Split {
		s.Peak += 8 * d * int64(min(w.cfg.Records, 1<<40))
	}
	return s
}

// Add adds a record to the open part. A record of the wrong length, or with a number that is not finite, is counted in
// no histogram.
func (w *Warmup) Add(row []float64) {
	w.records++
	if len(row) != w.cfg.Columns || !vector.Finite(row) {
		return
	}
	switch {
	case !w.cfg.Split:
		w.rows = append(w.rows, row...)
	case w.open != nil:
		w.count(row)
	}
}

// openStage prepares the histograms of the next stage.
func (w *Warmup) openStage() {
	s := w.taken[w.next]
	w.columns, w.open = w.stageColumns(s), nil
	if s == norms {
		w.edges = w.normEdges()
	}
	width := w.width(s)
	if width == 0 {
		return
	}
	h, err := newHistograms(w.shape(s), width, w.budget(s), w.adjacency, w.bits, w.cfg.Records)
	if err != nil {
		panic(err) // New has tried the smallest and the largest possible noise
	}
	w.open = h
}

// active returns the number of columns that are not frozen.
func (w *Warmup) active() int { return w.cfg.Columns - len(w.found.FrozenColumns()) }

// count adds a valid row to the open stage.
func (w *Warmup) count(row []float64) {
	switch w.taken[w.next] {
	case octaves:
		for n, j := range w.columns {
			w.open.add(octave(clamped(row[j])), n)
		}
	case circles:
		n := 0
		for i, j := range w.columns {
			c := &w.ranges[i]
			for k := range c.count {
				w.open.add(c.bin(k, clamped(row[j])), n)
				n++
			}
		}
	case deviations, again:
		for n, j := range w.columns {
			w.open.add(deviation(clamped(row[j])-w.middle[j], w.dead[j]), n)
		}
	case norms:
		if w.cfg.Regression != nil {
			w.countLimits(row)
			return
		}
		var sum float64
		for j, v := range row {
			y := w.found.scaled(j, v)
			sum += float64(y * y)
		}
		w.open.add(normBin(w.edges[0], math.Sqrt(sum)), 0)
	}
}

// Close ends the open part and returns the releases of its stages, in order. A stage that fails is the last one in the
// result.
func (w *Warmup) Close(n dp.Noise) ([]Stage, error) {
	if w.Done() {
		return nil, dp.ErrExhausted
	}
	w.released = nil
	var all []Stage
	for !w.Done() {
		if !w.cfg.Split {
			w.openStage()
			for i := 0; w.open != nil && i < len(w.rows); i += w.cfg.Columns {
				w.count(w.rows[i:][:w.cfg.Columns])
			}
		}
		x := w.closeStage(n)
		all = append(all, x)
		if w.cfg.Split {
			break
		}
	}
	w.reset()
	if w.Done() {
		w.rows = nil
	}
	return all, nil
}

// closeStage releases the open stage and computes its bounds.
func (w *Warmup) closeStage(n dp.Noise) Stage {
	s := w.taken[w.next]
	x := Stage{Stage: names[s], Verdict: "ok"}
	var p *sums
	if w.open != nil {
		p = w.open.release(n, "warmup/"+names[s])
		x.Records, x.Needed, x.Sigma = p.records, need[s]*p.noise(), p.sigma
	}
	w.released = append(w.released, p)
	w.open = nil
	if p != nil && !(x.Records >= x.Needed) {
		w.fail(&x, x.Stage, "not enough records")
		return x
	}
	switch s {
	case octaves:
		w.ranges = []circle{}
		for i := range w.columns {
			lo, hi, count := quartiles(p.prefix[i], p.records)
			w.ranges = append(w.ranges, newCircle(lo, hi, count))
			x.Ranges, x.Circles = append(x.Ranges, [2]float64{lo, hi}), append(x.Circles, count)
		}
	case circles:
		first := 0
		for i, j := range w.columns {
			c := &w.ranges[i]
			w.middle[j], w.dead[j] = 0, 0
			if c.count > 0 {
				w.middle[j], w.dead[j] = c.centre(p.prefix[first:][:c.count])
			}
			first += c.count
		}
		copy(w.found.Centre, w.middle)
		x.Centre, x.Dead = slices.Clone(w.middle), slices.Clone(w.dead)
	case deviations, again:
		w.closeDeviations(s, p, &x)
	case norms:
		w.closeNorms(p, &x)
	}
	if !w.failed {
		w.next++
	}
	return x
}

func (w *Warmup) fail(x *Stage, stage, reason string) {
	x.Stage, x.Verdict, x.Reason = stage, "fail", reason
	w.failed, w.open = true, nil
}

// closeDeviations computes scales from the prefix sums of A3 or A4.
func (w *Warmup) closeDeviations(s int, p *sums, x *Stage) {
	all := unknown(w.cfg.Scale)
	if s == again && len(w.columns) == len(all) && len(w.found.frozenOf(all)) == 0 {
		p = w.pool.with(p, !w.cfg.Split)
	}
	certainty := certain(2 * float64(len(windows().all)*len(w.columns)))
	for i, j := range w.columns {
		found := spreadOf(p.prefix[i], p.sigma, p.records, certainty)
		w.found.Centre[j], w.found.Scale[j], w.found.Cap[j] = w.middle[j], 1, 0
		if found.frozen {
			continue
		}
		w.found.Scale[j], w.found.Cap[j] = rounded(found.scale, 2), found.largest
		if found.mean != 0 && math.IsNaN(w.cfg.Centre[j]) {
			middle, reach := w.middle[j]+found.mean, found.scale/64
			w.found.Centre[j] = simplest(middle-reach, middle+reach)
		}
	}
	w.found.Unseen = certainty * windows().largest * p.sigma / p.records
	x.Centre, x.Scale = slices.Clone(w.found.Centre), slices.Clone(w.found.Scale)
	x.Frozen, x.Unseen = w.found.FrozenColumns(), w.found.Unseen
	for _, c := range w.found.Cap {
		if math.IsInf(c, 1) {
			x.Cap = append(x.Cap, nil)
		} else {
			x.Cap = append(x.Cap, &c)
		}
	}
	if w.pool = nil; s == deviations {
		w.pool = p
	} else if why := w.noSpread(); why != "" {
		w.fail(x, names[deviations], why)
	}
}

// with combines the releases p and q. If same is true, both have counted the same records, and the result is the
// average of their prefix sums, weighted by inverse variances. If same is false, they have counted different records,
// and the result is the sum.
func (p *sums) with(q *sums, same bool) *sums {
	a, b, sigma := 1.0, 1.0, math.Hypot(p.sigma, q.sigma)
	if same {
		a, b = 1/(p.sigma*p.sigma), 1/(q.sigma*q.sigma)
		sigma = math.Sqrt(1 / (a + b))
		a, b = a/(a+b), b/(a+b)
	}
	out := &sums{shape: p.shape, sigma: sigma, records: a*p.records + b*q.records}
	for i := range p.prefix {
		x := make([]float64, len(p.prefix[i]))
		for k := range x {
			x[k] = a*p.prefix[i][k] + b*q.prefix[i][k]
		}
		out.prefix = append(out.prefix, x)
	}
	return out
}

// noSpread returns the reason why no step can follow although there were enough records, or "" if steps can follow.
func (w *Warmup) noSpread() string {
	if r := w.cfg.Regression; r != nil {
		switch {
		case w.found.Frozen(r.Target):
			return "the target has no spread"
		case w.cfg.Columns > 1 && w.active() == 1:
			return "no feature has a spread"
		}
	}
	if w.active() == 0 {
		return "no column has a spread"
	}
	return ""
}

// closeNorms chooses the clip norm from the prefix sums of B.
func (w *Warmup) closeNorms(p *sums, x *Stage) {
	if w.cfg.Regression != nil {
		w.closeLimits(p, x)
		return
	}
	d := float64(w.active())
	c := chooseClip(p.prefix[0], p.sigma, p.records, w.active(), w.cfg.Gains)
	f := &w.found
	f.Clip = c.clip
	f.Clipping = Clipping{
		Clipped: c.tell.share[c.edge], ClippedSE: p.sigma * normShape().deviation(term{c.edge, 1}) / p.records,
		BiasMean: c.tell.mean[c.edge], BiasSecond: c.tell.other[c.edge],
	}
	f.BiasedMean = f.BiasMean > 2*math.Sqrt(d)*w.cfg.Gains.Mean*f.Clip
	f.BiasedSecond = f.BiasSecond > 2*d*w.cfg.Gains.Second*f.Clip*f.Clip
	w.estimateFull(p)
	clipping := f.Clipping
	x.Clip, x.Clipping, w.choice = f.Clip, &clipping, c
}

// estimateFull estimates the share of records that are not shortened: Σ (P_i − P_(i−1))·h. h is taken at a bin's upper
// edge, where it is at most the h of any row in the bin.
func (w *Warmup) estimateFull(p *sums) {
	if w.cfg.Full == nil || w.records == 0 {
		return
	}
	f, edges := &w.found, normEdges(w.active())
	full := make([]float64, normBins+1) // h(upper edge) of each bin, 0 after the last
	for i := 1; i < normBins; i++ {
		if edges[i-1] < f.Clip {
			full[i] = w.cfg.Full(edges[i-1] / f.Clip)
		}
	}
	var terms []term
	for i := range normBins {
		if x := full[i] - full[i+1]; x != 0 {
			terms = append(terms, term{i, x / float64(w.records)})
		}
	}
	f.Full, f.FullSE = value(p.prefix[0], terms), p.sigma*normShape().deviation(terms...)
}
