package sgd

import (
	"fmt"
	"math"
	"reflect"

	"streamdp/dp"
	"streamdp/internal/newton"
	"streamdp/matfact"
)

// Newton is online linear regression that needs nothing but bounds of the records.
// Epochs of doubling length release a noisy Gram matrix of their rows, whose inverse
// root W whitens the gradients of the epochs that follow. A step of b slots releases
//
//	u = Σ_i z_ir_i·min(1, ζ/a_i) + (ζ/K)[C⁻¹Z]_t,   z = Wx,  r = y − ⟨x, w⟩,  a = |r|‖z‖
//	c = #{x ≠ 0, a ≤ 0.27ζ},   n = #{x = 0},   both with noise
//
// and then moves on,
//
//	w ← w + ηWu/b,   ζ ← ζ·exp(−0.7((c + 0.53n)/b − 0.53)).
//
// Rows are in units of the bound of the features' norm; a record with longer ones is
// shortened, target and all. The estimate is a Newton step from the mean iterate of the
// last two or three epochs,
//
//	θ̂ = Σbw/Σb + W²·ΣW_t⁻¹u_t/Σb
//
// with intervals from the scatter of such estimates over parts of those epochs. Two
// steps at the start search for the size of the features and of the gradients, each in
// records of its own. They come again, W forgotten, where ζ jumps: a hard restart.
// Where means of w + Wu/b wander, the estimate begins anew: a drift restart.
//
// Privacy: all releases together, however many, are μ-Gaussian private for one record
// nulled (zero-out) or replaced in its slot. A record is in one search, which may take
// all of μ, or in one step, and in one epoch's histogram of norms and Gram matrix:
// 0.81μ² for gradient and c, which is free (clipgrad.CountWeight), 0.04μ² for n, 0.03μ²
// and 0.12μ². C shapes the noise of u/ζ, which has the same sensitivity whatever W and
// ζ are: functions of earlier releases, and so is the number of a step's slots.
//
// Cost: O(d²) time a record, without allocation, and O(d³) at an epoch's end; memory
// 4d² + 250d numbers.
// Source: docs/theory/sgd.md.
//
// A Newton is not safe for concurrent use.
type Newton struct {
	cfg     Config
	params  dp.Params
	plan    NewtonPlan
	factor  matfact.Factorization
	horizon uint64

	rows        rows
	reach       float64 // bounds predictions of noise, in lattice units
	fingerprint uint64

	// The state.
	step      uint64 // last closed
	iteration uint64 // gradient steps closed
	first     uint64 // slot of the last step
	slots     uint64 // of all closed steps
	phase     phase
	w         []float64
	used      float64 // clip norm of the last gradient step
	restarts  uint64  // hard ones
	drifts    uint64  // drift restarts
	hasty     bool    // since a hard restart no epoch of number 3 or more has ended
	seen      presence
	sure      bool   // the searches saw records
	repeats   uint64 // pairs of searches that repeated one which saw none
	tries     uint64 // of these, the last ones in a row
	shaper    matfact.Shaper
	run

	// The open step; no part of the state.
	added     uint64 // records
	nulls     int64
	search    histogram
	gradients gradients
	norms     newton.Histogram
	edge      uint64 // slot with which a block of the Gram matrix ends
	held      int    // rows in x

	// Four rows, whitened, their targets and squared norms.
	x, z, y, squares []float64

	// Scratch.
	noise                []int64
	predict, total, mean []float64
	whole                []float64
}

// phase is what a step does.
type phase uint64

const (
	searchNorm phase = iota
	searchScale
	descent
)

// run is what the state holds of the time since the last hard restart.
type run struct {
	constant float64 // feature; 0: there is none, or none yet
	squared  float64 // R²: squared norm to which rows are shortened in the Gram matrix
	zeta     float64 // of the next gradient step
	signal   float64 // τ: Σh over the part of rows that are not null
	epoch    int     // k
	done     uint64  // steps of the open epoch
	white    *newton.Whitening
	jump     jump
	before   float64 // median clip norm of the epoch before; 0: none
	wander   wander
	blocks   blocks

	// Sums over epochs: of noisy Gram matrices a slot, of their weights, of what
	// shortening took.
	matrix         []float64
	weight, missed float64

	// Of the open epoch without the open step.
	gram *newton.Gram
	hist newton.Histogram
}

// NewNewton returns the estimator that cfg describes, built for the guarantee p. All
// faults are reported at once.
func NewNewton(cfg Config, p dp.Params) (*Newton, error) {
	cfg.Defaults()
	plan, factor, err := resolveNewton(&cfg, p)
	if err != nil {
		return nil, err
	}
	return buildNewton(cfg, p, plan.clone(), factor)
}

// AdoptNewton is NewNewton with the plan of an epoch that has begun; see [Adopt].
func AdoptNewton(cfg Config, p dp.Params, plan NewtonPlan) (*Newton, error) {
	cfg.Defaults()
	if cfg.Start == nil {
		cfg.Start = plan.Start
	}
	own, factor, err := resolveNewton(&cfg, p)
	if err != nil {
		return nil, err
	}
	plan.adjacency, plan.bits, plan.dim = own.adjacency, own.bits, own.dim
	if plan.Factorization == nil || !alike(reflect.ValueOf(plan), reflect.ValueOf(*own)) {
		return nil, errPlan
	}
	return buildNewton(cfg, p, plan.clone(), factor)
}

func buildNewton(cfg Config, p dp.Params, plan NewtonPlan, factor matfact.Factorization) (*Newton, error) {
	d := cfg.features()
	limits, err := factor.Limits(plan.GradientNoise)
	if err != nil {
		return nil, err
	}
	e := &Newton{
		cfg: cfg, params: p, plan: plan, factor: factor,
		horizon:   cfg.LastStep(),
		rows:      newRows(&cfg),
		reach:     limits.Noise + 14*plan.GradientNoise + 4,
		w:         make([]float64, d),
		shaper:    factor.NewShaper(d),
		search:    normLadder.histogram(),
		gradients: newGradients(plan.Lattice, plan.One, d),
		x:         make([]float64, 4*d),
		z:         make([]float64, 4*d),
		y:         make([]float64, 4),
		squares:   make([]float64, 4),
		noise:     make([]int64, d),
		predict:   make([]float64, d),
		total:     make([]float64, d),
		mean:      make([]float64, d),
		whole:     make([]float64, d),
	}
	e.gradients.near = plan.Near
	e.seen = full(float64(plan.batch(0)))
	if e.horizon == 0 {
		e.horizon = endless / uint64(d)
	}
	for j, v := range plan.Start {
		e.w[j] = float64(v * e.unit(j))
	}
	e.forget()
	e.open()
	e.fingerprint, err = e.identify()
	return e, err
}

// unit returns what coordinate j of an iterate is for a coefficient of 1.
func (e *Newton) unit(j int) float64 {
	if *e.cfg.Intercept && j == len(e.w)-1 {
		if e.constant == 0 {
			return 1
		}
		return 1 / e.constant
	}
	return e.cfg.ClipX
}

// Plan returns what the configuration resolved to.
func (e *Newton) Plan() NewtonPlan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *Newton) Columns() int { return e.rows.columns }

// Cost returns what one record pays for all releases of an epoch.
func (e *Newton) Cost() dp.Cost { return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu} }

// Range returns the slots of step t, [first, end), for the open step and the last one:
// those of later ones depend on releases.
func (e *Newton) Range(t uint64) (first, end uint64) {
	switch t {
	case e.step:
		return e.first, e.slots
	case e.step + 1:
		return e.slots, e.slots + e.size()
	}
	panic(fmt.Sprintf("sgd: slots of step %d are asked for, and step %d is open", t, e.step+1))
}

// Longest returns the largest number of slots that the first t steps may have,
// math.MaxUint64 where that is beyond 64 bits.
func (e *Newton) Longest(t uint64) uint64 {
	most := searchMost * e.plan.Search
	for _, b := range e.plan.Batch {
		most = max(most, b)
	}
	if t > math.MaxUint64/most {
		return math.MaxUint64
	}
	return t * most
}

// size returns the slots of the open step.
func (e *Newton) size() uint64 {
	switch {
	case e.phase == descent:
		return e.plan.batch(e.epoch)
	case e.tries > 0:
		return e.plan.Search * uint64(min(math.Ceil(1/e.seen.share()), searchMost))
	}
	return e.plan.Search
}

// Opened returns what earlier releases made of the open step: the quantile that it
// searches, 0 if it is a gradient step, its slots, and R², the squared norm, in units
// of the bound, to which rows are shortened in the open epoch's matrix.
func (e *Newton) Opened() (quantile float64, slots uint64, squared float64) {
	switch e.phase {
	case searchNorm:
		quantile = normQuantile
	case searchScale:
		quantile = scaleQuantile
	}
	return quantile, e.size(), e.squared
}

// open starts the step after the last closed one.
func (e *Newton) open() {
	e.added, e.nulls, e.held = 0, 0, 0
	clear(e.search)
	clear(e.norms[:])
	if e.phase == descent {
		e.gradients.open(e.zeta)
		e.edge = e.slots + uint64(e.gram.Block())
	}
}

// Add adds a record to the open step. row is in scaled units, of length Columns, and
// is neither changed nor kept; one of another length, nil above all, one that holds no
// numbers, and one whose features are all 0 where there is no constant, are null
// records.
func (e *Newton) Add(slot uint64, row []float64) {
	e.added++
	if e.phase == descent && slot >= e.edge {
		// Blocks of the Gram matrix end at public positions.
		e.flush()
		e.gram.EndBlock()
		block := uint64(e.gram.Block())
		e.edge = slot - (slot-e.slots)%block + block
	}
	d := len(e.w)
	x := e.x[e.held*d:][:d]
	y, square, ok := e.rows.read(x, row, e.constant)
	switch {
	case !ok:
		e.nulls++
	case e.phase == searchNorm:
		e.search[normLadder.index(square)]++
	case e.phase == searchScale:
		if u := float64(math.Abs(y-dot(e.w, x)) * math.Sqrt(square)); u-u == 0 {
			e.search[scaleLadder.index(u)]++
		} else {
			e.nulls++
		}
	default:
		e.y[e.held], e.squares[e.held] = y, square
		if e.held++; e.held == 4 {
			e.flush()
		}
	}
}

// flush takes the held rows into the open step.
func (e *Newton) flush() {
	d, g := len(e.w), &e.gradients
	clear(e.x[e.held*d:])
	e.white.ApplyFour(e.z, e.x)
	for i := range e.held {
		x, z := e.x[i*d:][:d], e.z[i*d:][:d]
		r := e.y[i] - dot(e.w, x)
		if r-r != 0 {
			e.nulls++
			continue
		}
		g.lattice.Accumulate(g.sum, z, g.scale(r, dot(z, z)))
		e.gram.Add(x)
		e.norms[newton.Bin(e.squares[i])]++
	}
	e.held = 0
}

// Close ends the open step and returns its release, nil after a search. It returns
// dp.ErrExhausted, and changes nothing, after the horizon.
func (e *Newton) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	size := e.size()
	if size < e.added {
		return nil, fmt.Errorf("step %d was given %d records for %d slots: its sums may have left their range", e.step+1, e.added, size)
	}
	e.nulls += int64(size - e.added) // slots without a record
	searching := e.phase != descent
	if searching {
		e.find(n)
	} else if err := e.descend(n, float64(size)); err != nil {
		return nil, err
	}
	e.step++
	e.first, e.slots = e.slots, e.slots+size
	var r *dp.Release
	if !searching {
		if r = e.release(e.added); !allFinite(r) {
			e.abandon()
			r = e.release(e.added)
		}
	}
	e.open()
	return r, nil
}

func allFinite(r *dp.Release) bool {
	for _, v := range r.Values {
		if !finite(v.Data) || !finite(v.SE) {
			return false
		}
	}
	return true
}

// The ladders of the two searches: of ‖x‖² and of |r|‖x‖.
var (
	normLadder  = ladder{1, 32}
	scaleLadder = ladder{0x1p16, 32}
)

// Parts of the records at which the searches stop.
const (
	normQuantile  = 0.75
	scaleQuantile = 0.6
)

// A search is believed if the counts that it was told are far from the threshold: with
// null records alone the sum of squares of six such distances, in deviations of the
// noise, is beyond farEnough once in 2·10⁶ searches. Else it is repeated as soon as
// records are evident, in as many slots as their share asks for, up to searchMost times
// as many; what has been found triesMost times is believed.
const (
	farEnough  = 40
	searchMost = 16
	triesMost  = 7
)

// find ends a search.
func (e *Newton) find(n dp.Noise) {
	p := &e.plan
	*e.search.nulls() = e.nulls
	row := n.Row("newton/boot", e.search)
	ask := func(l ladder, null int64, quantile float64) (found float64, sure bool) {
		rung, far := l.locate(e.search, counting{p.Unit, null, p.SearchNoise}, quantile*float64(e.size()), row)
		if sure = far >= farEnough; !sure && e.tries < triesMost {
			return 1, false
		}
		return l.rung(rung), sure
	}
	if e.phase == searchNorm {
		e.squared, e.sure = ask(normLadder, p.NullNorm, normQuantile)
		if last := len(e.w) - 1; *e.cfg.Intercept {
			e.constant = constantFor(e.squared)
			e.w[last] /= e.constant
		}
		e.phase = searchScale
		return
	}
	scale, sure := ask(scaleLadder, p.NullScale, scaleQuantile)
	if e.sure = e.sure && sure; e.sure {
		e.tries = 0
	} else {
		e.seen = presence{}
	}
	norm := math.Sqrt(2 * e.squared)
	e.zeta = scale / norm
	e.white = newton.Uniform(len(e.w), norm)
	e.signal = 0.5
	e.phase = descent
	e.begin()
}

// constantFor returns the constant feature for features of a squared norm: half as large
// as they are. A larger one hides them in the Gram matrix, a smaller one is learned late.
func constantFor(squared float64) float64 { return math.Sqrt(squared) / 2 }

// begin begins an epoch.
func (e *Newton) begin() {
	e.done = 0
	e.gram, _ = e.plan.gram(e.squared) // as the plan has tried
	clear(e.hist[:])
	e.jump = jump{factor: e.plan.jump(e.epoch)}
	e.wander.begin()
	e.blocks.begin()
}

// What decides how ζ follows the gradients' norms.
const (
	countedPart  = 0.27 // of ζ, below which a record counts
	countedShare = 0.53 // of the records, that ζ makes count
	gain         = 0.7
	few          = 0.4 // of the slots hold records: fewer make slower steps
	zetaLeast    = 0x1p-40
	zetaMost     = 0x1p32
)

// descend ends a gradient step of b slots.
func (e *Newton) descend(n dp.Noise, b float64) error {
	p := &e.plan
	e.flush()
	e.used = e.zeta
	unit := float64(p.Unit)
	counts := []int64{e.gradients.inside * p.Unit, e.nulls * p.Unit}
	row := n.Row("newton/count", counts)
	counted := float64(counts[0]+dp.RoundAt(row, 0, p.CountNoise)) / unit
	nulls := float64(counts[1]+dp.RoundAt(row, 1, p.NullNoise)) / unit

	sum := e.gradients.integers()
	row = n.Row("newton/grad", sum)
	r := e.shaper.Predict(e.predict)
	dp.RoundRow(e.noise, row, []float64{p.GradientNoise}, e.predict, r)
	e.shaper.Push(e.noise)
	u := e.total
	for j, k := range sum {
		u[j] = float64(float64(k+e.noise[j]) * (e.zeta / p.One))
	}

	e.iteration++
	there := e.seen.sees(b, b-nulls, p.NullNoise/unit)
	switch {
	case there && !e.sure && e.tries < triesMost:
		e.tries++
		e.repeats++
		e.forget()
		return nil
	case !there:
		e.gram.Drop()
		return nil
	}
	e.sure, e.tries = true, 0
	rate, gain, share := p.rate(e.epoch), float64(gain), e.seen.share()
	if share >= few {
		nulls = newton.Clip(nulls, 0, b)
	} else {
		// Few records are hardly heard in the noise: smaller steps listen longer.
		// The clip's bias would be more than they say.
		rate *= float64(share / few * (share / few))
		gain *= share / few
	}

	// In the features' space: W⁻¹u for the blocks, y = w + Wu/b.
	e.white.Unapply(e.whole, u)
	e.blocks.add(e.done/p.stretch(e.epoch), b, e.w, e.whole)
	e.white.Apply(e.mean, u)
	for j, v := range e.mean {
		v /= b
		e.mean[j] = e.w[j] + v
		e.w[j] += float64(rate * v)
	}
	e.project(e.w)

	part := newton.Clip((counted+float64(countedShare*nulls))/b, 0, 1)
	e.zeta = newton.Clip(float64(e.zeta*newton.Exp(float64(-gain*(part-countedShare)))), zetaLeast, zetaMost)

	e.done++
	e.gram.Seal()
	for j, c := range e.norms {
		e.hist[j] += c
	}
	drifted := e.wander.sees(e.mean, e.white)
	// Before an epoch knows its clip norms, only what can't be chance is a jump.
	early := len(e.jump.recent) < recentLeast && e.before > 0 && e.zeta > 8*e.before
	switch jumped := e.jump.sees(e.zeta) || early; {
	case !finite(e.w) || e.zeta == zetaMost || jumped && e.hasty:
		e.abandon()
		return nil
	case jumped:
		recent := e.recent(false)
		if len(recent) == 0 && e.epoch > 0 {
			recent = e.recent(true)
		}
		if len(recent) > 0 {
			recent.estimate(e.w, e.white)
			e.project(e.w)
		}
		e.restart()
		return nil
	case drifted != nil:
		copy(e.w, drifted)
		e.project(e.w)
		e.wander.reset()
		e.blocks.reset()
		e.drifts++
	}
	if e.done == p.steps(e.epoch) {
		return e.end(n)
	}
	return nil
}

// project shortens w to the radius, where there is one.
func (e *Newton) project(w []float64) {
	if e.plan.Radius > 0 {
		shorten(w, e.plan.Radius*e.cfg.ClipX)
	}
}

// restart forgets everything but the iterate and the noise: a hard restart.
func (e *Newton) restart() {
	e.restarts++
	e.hasty = true
	e.forget()
}

// abandon is a hard restart from 0.
func (e *Newton) abandon() {
	clear(e.w)
	e.restart()
}

// forget begins with the searches.
func (e *Newton) forget() {
	d := len(e.w)
	if e.constant > 0 {
		e.w[d-1] = float64(e.w[d-1] * e.constant)
	}
	e.phase = searchNorm
	e.run = run{
		wander: newWander(d),
		blocks: blocks{dim: d},
		matrix: make([]float64, d*(d+1)/2),
	}
}

// end ends an epoch with its releases.
func (e *Newton) end(n dp.Noise) error {
	p, d := &e.plan, float64(len(e.w))
	slots := float64(p.steps(e.epoch) * p.batch(e.epoch))
	norms := e.hist.Release(n, "newton/hist", p.HistogramNoise, e.params.Bits())
	upper, err := e.gram.Release(n, "newton/gram")
	if err != nil {
		return err
	}
	e.before = 0
	if len(e.jump.recent) >= recentLeast {
		e.before = median(e.jump.recent)
	}
	// Without a record there is nothing to learn, and the smallest R² would have
	// the largest weight.
	if !norms.Empty() {
		root := slots / e.gram.SD
		weight := float64(root * root)
		for i, v := range upper {
			e.matrix[i] += float64(weight * (v / slots))
		}
		e.weight += weight
		missed := norms.Missed(e.squared)
		e.missed += float64(weight * (missed / slots))

		valid := norms.Valid(slots)
		trace := norms.Trace(e.squared, valid, missed) / slots
		ridge := min(float64(1.35*math.Sqrt(d/e.weight))+float64(0.25*e.missed)/e.weight, trace)
		scaled := make([]float64, len(e.matrix))
		for i, v := range e.matrix {
			scaled[i] = v / e.weight
		}
		e.white = newton.Whiten(scaled, len(e.w), ridge, trace)
		signal := max(e.white.Signal()*slots/valid, 0.05)
		e.zeta = newton.Clip(float64(e.zeta*math.Sqrt(signal/e.signal)), zetaLeast, zetaMost)
		e.before = float64(e.before * math.Sqrt(signal/e.signal))
		e.signal = signal
		if share := e.seen.share(); share < few {
			// The histogram does not know how few there are, and rows would be
			// shortened until they are lost in the matrix.
			valid = min(valid, float64(slots*share))
		}
		e.squared, _ = norms.Radius(valid, p.RadiusNoise, 0.5)
	}
	if e.epoch >= 3 {
		e.hasty = false
	}
	e.epoch++
	e.begin()
	return nil
}

// sinceRestart returns the steps since the last hard restart, those of this epoch and
// of all before it.
func (e *Newton) sinceRestart() uint64 {
	steps := e.done
	for k := range e.epoch {
		steps += e.plan.steps(k)
	}
	return steps
}

// recent returns the stretches that the estimate rests on, those of the open epoch
// only if open says so.
func (e *Newton) recent(open bool) stretches {
	most := 2
	if e.epoch >= 5 {
		most = 3
	}
	return e.blocks.newest(most, open)
}

// release assembles what is published.
func (e *Newton) release(rows uint64) *dp.Release {
	d := len(e.w)
	recent := e.recent(true)
	if len(recent) > 0 {
		recent.estimate(e.mean, e.white)
	} else {
		copy(e.mean, e.w)
	}
	shape := []int{d}
	average := dp.Value{Name: "theta_average", Shape: shape, Data: e.coefficients(e.mean)}
	var low, high []float64
	if *e.cfg.Intervals && len(recent) > 0 && e.sinceRestart() >= UsefulSteps {
		if parts := recent.errors(e.total, e.mean, e.white); parts > 0 {
			average.SE = e.coefficients(e.total)
			for j, v := range average.Data {
				half := float64(e.plan.Student[parts] * average.SE[j])
				low, high = append(low, v-half), append(high, v+half)
			}
		}
	}
	values := []dp.Value{{Name: "theta", Shape: shape, Data: e.coefficients(e.w)}, average}
	if low != nil {
		values = append(values, dp.Value{Name: "interval_low", Shape: shape, Data: low},
			dp.Value{Name: "interval_high", Shape: shape, Data: high})
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"zeta", e.used}, {"whitening", float64(e.epoch)}, {"restarts", float64(e.restarts)}, {"drift_restarts", float64(e.drifts)},
		{"iteration", float64(e.iteration)}, {"slots", float64(e.slots)},
	} {
		values = append(values, dp.Value{Name: v.name, Shape: []int{1}, Data: []float64{v.value}})
	}
	if e.cfg.scaled() {
		original := e.cfg.original(average.Data)
		values = append(values, dp.Value{Name: "theta_average_original", Shape: []int{len(original)}, Data: original})
	}
	return &dp.Release{Step: e.step, Rows: rows, Values: values}
}

// coefficients returns an iterate as coefficients of the features and of the constant 1.
func (e *Newton) coefficients(w []float64) []float64 {
	theta := make([]float64, len(w))
	for j, v := range w {
		theta[j] = v / e.unit(j)
	}
	return theta
}
