package sgd

import (
	"fmt"
	"math"
	"reflect"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Newton is online linear regression that needs only bounds of the records. Its epochs double in length. At the end of
// an epoch it releases a noisy Gram matrix of the epoch's rows, whose inverse root W whitens the gradients of later
// epochs. A step of b slots releases
//
//	u = Σ_i z_ir_i·min(1, ζ/a_i) + (ζ/K)[C⁻¹Z]_t,   z = Wx,  r = y − ⟨x, w⟩,  a = |r|‖z‖
//	c = #{x ≠ 0, a ≤ 0.27ζ},   n = #{x = 0},   both with noise
//
// and then updates
//
//	w ← w + ηWu/b,   ζ ← ζ·exp(−0.7((c + 0.53n)/b − 0.53)).
//
// Rows are in units of the bound of the features' norm. A record with longer features is shortened together with its
// target. The estimate is a Newton step from the mean iterate of the last two or three epochs,
//
//	θ̂ = Σbw/Σb + WVFVᵀW·ΣW_t⁻¹u_t/Σb
//
// V holds the eigenvectors of W. The diagonal matrix F weighs the error that such a step leaves against its noise; F =
// I in the first epoch. The scatter of such estimates over parts of those epochs gives the intervals. The first two
// steps search for the size of the features and of the gradients, each in records of its own. If ζ jumps, a hard
// restart drops W and repeats the searches. If means of w + Wu/b wander, a drift restart begins a new estimate.
//
// With an intercept, a row is s = (x − m, R/2) instead of x, where R is the norm to which features are shortened in the
// matrix. Then a null record is a row that is invalid, not a row with x = 0, and only the features of a record are
// shortened, not its target. The centre m is 0 at first; each epoch's matrix gives the next m and R, and everything
// learned so far is converted to the new rows. A third search, before the search for the gradients' size, finds the
// median of y − ⟨s, w⟩.
//
// Privacy: all releases together, however many, are μ-Gaussian private for one record nulled (zero-out) or replaced in
// its slot. A record is in one search, which may cost all of μ², or it is in one step and in its epoch's histogram of
// norms and Gram matrix. The gradient and the count c together cost 0.81μ² (c adds nothing; clipgrad.CountWeight). The
// count n costs 0.04μ², the histogram 0.03μ² and the matrix 0.12μ². Rows of the matrix have a squared norm of at most
// R², or 1.25R² with an intercept. C shapes the noise of u/ζ, whose sensitivity does not depend on W and ζ. W, ζ and
// the number of slots of a step are functions of earlier releases.
//
// Cost: O(d²) time a record, without allocation, and O(d³) at the end of an epoch.
// Memory: 4d² + 250d numbers, with an intercept 1026 more.
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
	reach       float64 // bound on predictions of noise, in lattice units
	fingerprint uint64

	// The state.
	step      uint64 // the last closed step
	iteration uint64 // number of closed gradient steps
	first     uint64 // first slot of the last step
	slots     uint64 // number of slots of all closed steps
	phase     phase
	w         []float64
	used      float64 // clip norm of the last gradient step
	restarts  uint64  // number of hard restarts
	drifts    uint64  // number of drift restarts
	unsettled bool    // no epoch with number 3 or more has ended since the last hard restart
	seen      presence
	believed  bool   // the searches saw records
	repeats   uint64 // number of pairs of searches that were repeated because one of them saw no records
	tries     uint64 // number of repeats in a row, up to now
	shaper    matfact.Shaper
	run

	// asPublished switches off modes and gains, which the published algorithm does not have. Tests compare with it.
	asPublished bool

	// The open step, which is not part of the state.
	added     uint64 // number of records
	nulls     int64
	search    ladder.Histogram
	residuals ladder.Histogram // residuals in the search for the median
	gradients gradients
	norms     newton.Histogram
	edge      uint64 // slot at which the current block of the Gram matrix ends
	held      int    // number of rows in x

	// Up to four rows, the whitened rows, their targets and squared norms.
	x, z, y, squares []float64

	// Scratch.
	noise                []int64
	predict, total, mean []float64
	whole                []float64
}

// phase says what the open step does.
type phase uint64

const (
	searchNorm   phase = iota
	searchMedian       // only with an intercept
	searchScale
	descent
)

// run is the part of the state that a hard restart forgets.
type run struct {
	centre   []float64 // m
	constant float64   // C; 0 if there is none, or none yet
	squared  float64   // R², the squared norm to which rows are shortened in the Gram matrix
	mode     bool      // the median that was found is a mode; set only during the next search
	zeta     float64   // clip norm of the next gradient step
	signal   float64   // τ: Σh divided by the share of rows that are not null
	epoch    int       // number k of the open epoch
	done     uint64    // number of closed steps in the open epoch
	white    *newton.Whitening
	jump     jump
	before   float64 // median clip norm of the epoch before, 0 if there is none
	wander   wander
	blocks   blocks

	// matrix, weight and missed are weighted sums over epochs. They add up the noisy Gram matrices per slot, the
	// weights, and the norm that shortening took away.
	matrix         []float64
	weight, missed float64

	// These fields hold the open epoch without the open step.
	gram *newton.Gram
	hist newton.Histogram
}

// NewNewton returns the estimator that cfg describes, with the guarantee p. It reports all
// faults at once.
func NewNewton(cfg Config, p dp.Params) (*Newton, error) {
	cfg.ofMethod("newton")
	plan, factor, err := resolveNewton(&cfg, p)
	if err != nil {
		return nil, err
	}
	return buildNewton(cfg, p, plan.clone(), factor)
}

// AdoptNewton returns the estimator of an epoch that has begun, with the plan that the epoch recorded; see [AdoptAMB].
func AdoptNewton(cfg Config, p dp.Params, plan NewtonPlan) (*Newton, error) {
	cfg.ofMethod("newton")
	if cfg.Start == nil {
		cfg.Start = plan.Start
	}
	own, factor, err := resolveNewton(&cfg, p)
	if err != nil {
		return nil, err
	}
	plan.adjacency, plan.bits, plan.dim, plan.intercept = own.adjacency, own.bits, own.dim, own.intercept
	if plan.Factorization == nil || !alike(reflect.ValueOf(plan), reflect.ValueOf(*own)) {
		return nil, calibration.ErrForeign
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
		horizon:   calibration.LastStep(cfg.LastStep(), d, factor),
		rows:      newRows(&cfg),
		reach:     calibration.Reach(limits, plan.GradientNoise),
		w:         make([]float64, d),
		shaper:    factor.NewShaper(d),
		search:    normLadder.Histogram(),
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
	if plan.intercept {
		e.residuals = make(ladder.Histogram, medianRungs*medianParts+2)
	}
	e.seen = full(float64(plan.batch(0)))
	for j, v := range plan.Start {
		e.w[j] = float64(v * e.unit(j))
	}
	e.forget()
	e.open()
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns the public numbers that the configuration resolved to.
func (e *Newton) Plan() NewtonPlan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *Newton) Columns() int { return e.rows.columns }

// Cost returns what one record pays for all releases of an epoch.
func (e *Newton) Cost() dp.Cost { return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu} }

// Range returns the slots of step t, [first, end). t must be the open step or the last closed one, because the slots of
// later steps depend on releases.
func (e *Newton) Range(t uint64) (first, end uint64) {
	switch t {
	case e.step:
		return e.first, e.slots
	case e.step + 1:
		return e.slots, e.slots + e.size()
	}
	panic(fmt.Sprintf("sgd: Range was called for step %d, but step %d is open", t, e.step+1))
}

// Longest returns an upper bound on the number of slots of any t successive steps: each may be as long as the longest
// step of any epoch or search. It returns math.MaxUint64 if the bound does not fit 64 bits.
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

// size returns the number of slots of the open step.
func (e *Newton) size() uint64 {
	switch {
	case e.phase == descent:
		return e.plan.batch(e.epoch)
	case e.tries > 0:
		return e.plan.Search * uint64(min(math.Ceil(1/e.seen.share()), searchMost))
	}
	return e.plan.Search
}

// open starts the step after the last closed one.
func (e *Newton) open() {
	e.added, e.nulls, e.held = 0, 0, 0
	clear(e.search)
	clear(e.residuals)
	clear(e.norms[:])
	if e.phase == descent {
		e.gradients.open(e.zeta)
		e.edge = e.slots + uint64(e.gram.Block())
	}
}

// Add adds a record to the open step. row is in scaled units; Add neither changes nor keeps it.
// Null records are: a row whose length is not Columns, in particular nil; a row with a number
// that is not finite; and, without an intercept, a row whose features are all 0.
func (e *Newton) Add(slot uint64, row []float64) {
	e.added++
	if e.phase == descent && slot >= e.edge {
		// The positions at which a block of the Gram matrix ends are public.
		e.flush()
		e.gram.EndBlock()
		block := uint64(e.gram.Block())
		e.edge = slot - (slot-e.slots)%block + block
	}
	d := len(e.w)
	x := e.x[e.held*d:][:d]
	y, square, ok := e.rows.read(x, row)
	if ok && e.rows.intercept && e.phase != searchNorm {
		square = e.centred(x)
	}
	switch {
	case !ok:
		e.nulls++
	case e.phase == searchNorm:
		e.search[normLadder.Index(square)]++
	case e.phase == searchMedian:
		if r := y - vector.Dot4(e.w, x); r-r == 0 {
			e.residuals[medianBin(r)]++
		} else {
			e.nulls++
		}
	case e.phase == searchScale:
		square += float64(e.constant * e.constant)
		if u := float64(math.Abs(y-vector.Dot4(e.w, x)) * math.Sqrt(square)); u-u == 0 {
			e.search[scaleLadder.Index(u)]++
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

// flush adds the rows held in x to the open step.
func (e *Newton) flush() {
	d, g := len(e.w), &e.gradients
	clear(e.x[e.held*d:])
	e.white.ApplyFour(e.z, e.x)
	for i := range e.held {
		x, z := e.x[i*d:][:d], e.z[i*d:][:d]
		r := e.y[i] - vector.Dot4(e.w, x)
		if r-r != 0 {
			e.nulls++
			continue
		}
		g.lattice.Accumulate(g.sum, z, g.scale(r, vector.Dot4(z, z)))
		if square := e.squares[i]; e.rows.intercept && square > e.squared {
			shrink := math.Sqrt(e.squared / square)
			for j, v := range x[:d-1] {
				x[j] = float64(v * shrink)
			}
		}
		e.gram.Add(x)
		e.norms[newton.Bin(e.squares[i])]++
	}
	e.held = 0
}

// Close ends the open step and returns its release, nil after a search. After the horizon it
// returns dp.ErrExhausted and changes nothing.
func (e *Newton) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	size := e.size()
	if size < e.added {
		return nil, fmt.Errorf("step %d has %d records, but only %d slots: its sums may be out of range",
			e.step+1, e.added, size)
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
