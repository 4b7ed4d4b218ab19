package adam

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"streamdp/dp"
	"streamdp/internal/fault"
	"streamdp/matfact"
)

// Version names the mechanism's algorithm and state; another version is
// another epoch.
const Version = "adam/v1"

// endless is the number of noisy coordinates for which the rounding of
// correlated noise is charged where there is no horizon: ten million a second
// for two centuries. The mechanism ends there.
const endless = 1 << 56

// Plan is everything that a configuration resolves to before the first record:
// public numbers that the releases are a function of. An epoch keeps its plan,
// because another processor may compute other last bits. Deviations are those of
// means over a step's slots.
type Plan struct {
	Method string `json:"method"`
	// First and Second shape the noise of the two moments; Second is nil where
	// the method has one noise array.
	First  *matfact.Stored `json:"first"`
	Second *matfact.Stored `json:"second,omitempty"`
	// Parameters is their number, Initial the SHA-256 of the initial ones as
	// little-endian float64s.
	Parameters int    `json:"parameters"`
	Initial    string `json:"initial"`
	// Clip is K·g, the norm to which gradients are clipped, SumClip that of
	// their sum in lattice steps; 0 for none.
	Clip    float64 `json:"clip"`
	SumClip float64 `json:"sum_clip,omitempty"`
	// Nu and Lambda weigh the second moment: dimensionless, and in 1/gradient².
	Nu     float64 `json:"nu,omitempty"`
	Lambda float64 `json:"lambda,omitempty"`
	// Sensitivity is the joint ℓ₂ sensitivity of both means, with what
	// quantisation and the rounding of correlated noise add.
	Sensitivity float64 `json:"sensitivity"`
	// Mu is Sensitivity over the noise: the guarantee.
	Mu float64 `json:"mu"`
	// FirstNoise and SecondNoise are ρ₁ and ρ₂, standard deviations of one
	// step's independent draws.
	FirstNoise  float64 `json:"first_noise"`
	SecondNoise float64 `json:"second_noise,omitempty"`
	// Lattice is that of the gradients; SecondExp is the exponent of the
	// squares' step.
	Lattice   dp.Lattice `json:"lattice"`
	SecondExp int        `json:"second_exp,omitempty"`
}

// units returns what one lattice step of either sum is worth in the means.
func (p *Plan) units(m uint64) (first, second float64) {
	n := float64(m)
	first, second = p.Lattice.Step()/n, math.Ldexp(1, p.SecondExp)/n
	if p.Method == "jme_batch" {
		second /= n // the square of a sum
	}
	return first, second
}

// factors are the two matrices C; second is nil where the method has one.
type factors struct{ first, second matfact.Factorization }

// resolve computes the plan, and the factorizations it names: those of kept where
// that is given, else the ones that the configuration asks for.
func resolve(cfg *Config, p dp.Params, kept *Plan) (*Plan, factors, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), err); err != nil {
		return nil, factors{}, err
	}
	f, err := cfg.factorize(kept)
	if err != nil {
		return nil, factors{}, err
	}
	plan, err := calibrate(cfg, p, mu, f)
	return plan, f, err
}

func calibrate(cfg *Config, p dp.Params, mu float64, f factors) (*Plan, error) {
	d, m := cfg.Parameters(), float64(cfg.Step)
	alpha, beta := f.first.ColNorm(), 1.0
	if f.second != nil {
		beta = f.second.ColNorm()
	}
	plan := &Plan{
		Method: cfg.Method, First: f.first.Stored(), Parameters: d, Initial: fingerprintOf(cfg.initial()),
		Nu: cfg.nu(f, p.Adjacency), Mu: mu * (1 - 0x1p-49), // leaves room for the roundings of a ledger
	}
	if f.second != nil {
		plan.Second = f.second.Stored()
	}

	// The lattice needs the noise and the noise the clip norm that the lattice
	// has; the latter is smaller than the configured one by less than 2⁻²³.
	_, rough := cfg.sensitivity(plan.Nu, cfg.Clip, alpha, beta, 0, p.Adjacency)
	lattice, err := dp.NewLattice(cfg.Clip, m*rough/mu*(1-0x1p-20), p.Bits())
	if err != nil {
		return nil, err
	}
	plan.Lattice, plan.Clip = lattice, lattice.Bound()
	g := lattice.Step()
	spare := 0.0 // what rounding a clipped sum adds to a distance of means
	if cfg.MeanClip > 0 {
		// Half a step a coordinate, and the error of float64.
		most := m * cfg.MeanClip / g
		loss := math.Sqrt(float64(d)) + float64(most*0x1p-48)
		plan.SumClip, spare = most-loss, loss*g/m
		if !(plan.SumClip >= 1<<20) {
			return nil, &fault.Fault{Key: "mean_clip", Rule: "must be larger: it is hardly more than the lattice step", Value: cfg.MeanClip}
		}
		if k := m * float64(lattice.K); !(k*k*float64(d) < 0x1p126) {
			return nil, &fault.Fault{Key: "step", Rule: "must be less, for the norm of the sum to fit 126 bits", Value: cfg.Step}
		}
	}
	lambda, s := cfg.sensitivity(plan.Nu, plan.Clip, alpha, beta, spare, p.Adjacency)
	n := spread(lambda, s, mu)
	if !(plan.Clip > 1e-60 && plan.Clip < 1e60 && n.First > 1e-60 && n.First < 1e60) {
		return nil, fmt.Errorf("gradients of norm %g and noise of %g leave the range of float64: scale the loss so that they are about 1", plan.Clip, n.First)
	}

	// Squares: g₂ = 2^e ≤ 2^−bits·min(largest square, noise), at least g².
	second := 1.0
	if f.second != nil {
		if !(positive(lambda) && positive(n.Second)) {
			return nil, fmt.Errorf("the weight of the second moment is out of range: its noise would be %g", n.Second)
		}
		_, unit := (&Plan{Method: cfg.Method}).units(cfg.Step) // of 2⁰
		sd := n.Second / unit * (1 - 0x1p-20)
		if cfg.Method == "joint_clip" {
			squares, err := dp.NewLattice(plan.Clip/math.Sqrt(lambda), sd, p.Bits())
			if err != nil {
				return nil, err
			}
			plan.SecondExp = squares.Exp
		} else {
			largest := plan.Clip * plan.Clip
			if cfg.Method == "jme_batch" {
				largest *= m
			}
			_, e := math.Frexp(min(largest, sd))
			plan.SecondExp = e - 1 - p.Bits()
			if shift := plan.SecondExp - 2*lattice.Exp; shift < 0 || shift > 62 {
				return nil, fmt.Errorf("noise of the second moment, %g, does not go with squares of gradients on a lattice of step %g: change lattice_bits, nu or clip", n.Second, g)
			}
		}
		second = math.Ldexp(1, plan.SecondExp)
	}
	firstUnit, secondUnit := plan.units(cfg.Step)

	// What arithmetic adds: squares are rounded once, or once a block, by less
	// than a lattice step an entry between neighbours; and each prediction of
	// correlated noise may err by its Rounding on either side.
	coordinates := float64(endless)
	if h := cfg.LastStep(); h > 0 {
		coordinates = float64(h) * float64(d)
	}
	root := math.Sqrt(lambda)
	s = float64(s * (1 + 0x1p-40))
	switch cfg.Method {
	case "jme", "jme_per_example", "jme_batch":
		s += float64(root * beta * math.Sqrt(float64(d)) * secondUnit)
	}
	const guess = 1 + 0x1p-10 // of how much the noise grows by what follows
	limits, err := f.first.Limits(guess * n.First / firstUnit)
	if err != nil {
		return nil, err
	}
	s += float64(2 * limits.Rounding * firstUnit * math.Sqrt(coordinates))
	var limits2 matfact.Limits
	if f.second != nil {
		if limits2, err = f.second.Limits(guess * n.Second / secondUnit); err != nil {
			return nil, err
		}
		s += float64(2 * limits2.Rounding * secondUnit * root * math.Sqrt(coordinates))
	}
	s = float64(s * (1 + 0x1p-40))
	final := spread(lambda, s, mu*(1-0x1p-48))
	if !(final.First <= guess*n.First) {
		return nil, fmt.Errorf("rounding would cost %.1g of the noise: use another factorization or more lattice_bits", final.First/n.First-1)
	}
	plan.Lambda, plan.Sensitivity, plan.FirstNoise, plan.SecondNoise = lambda, final.Sensitivity, final.First, final.Second

	// int64 holds every sum, and the noise.
	k := float64(lattice.K)
	if !(m*k+limits.Noise < 1<<62) {
		return nil, &fault.Fault{Key: "step", Rule: fmt.Sprintf("must be less, for sums of %d lattice steps a record to fit 62 bits", lattice.K), Value: cfg.Step}
	}
	squares := 0.0 // the largest entry of a step's squares
	switch cfg.Method {
	case "jme", "jme_per_example":
		squares = m*k*k*math.Ldexp(1, 2*lattice.Exp-plan.SecondExp) + m
	case "jme_batch":
		squares = m*k*m*k*math.Ldexp(1, 2*lattice.Exp-plan.SecondExp) + 1
	case "joint_clip":
		squares = m * plan.Clip / math.Sqrt(cfg.Tau) / second
	}
	if !(squares+limits2.Noise < 1<<62) {
		return nil, &fault.Fault{Key: "step", Rule: "must be less, for sums of squares to fit 62 bits", Value: cfg.Step}
	}
	return plan, nil
}

// adopt returns the factorizations of a kept plan, after checking that the plan
// is what the configuration resolves to: a plan decides how much noise there is,
// so nothing else may have written it.
//
// Everything but the factorizations follows from the configuration and the
// factorizations by arithmetic, and is compared to within the margin that resolve
// adds to the sensitivity. The factorizations may be ones that another
// processor's optimiser found: equally good, in other numbers.
func adopt(kept *Plan, cfg *Config, p dp.Params) (factors, error) {
	fresh, best, err := resolve(cfg, p, nil)
	if err != nil {
		return factors{}, err
	}
	foreign := errors.New("the epoch's plan does not belong to this configuration")
	if kept.First == nil || (kept.Second == nil) != (fresh.Second == nil) ||
		kept.First.Kind != fresh.First.Kind || kept.Second != nil && kept.Second.Kind != fresh.Second.Kind {
		return factors{}, foreign
	}
	// ν may be chosen from the factorizations' errors, which differ a little.
	chosen := *cfg
	if cfg.weighted() && cfg.Nu == 0 {
		if !near(kept.Nu, fresh.Nu, 1e-3) || !positive(kept.Nu) {
			return factors{}, foreign
		}
		chosen.Nu = kept.Nu
	}
	own, f, err := resolve(&chosen, p, kept)
	if err != nil {
		return factors{}, errors.Join(foreign, err)
	}
	const last = 0x1p-42
	for _, x := range [...][2]float64{
		{kept.Clip, own.Clip}, {kept.Nu, own.Nu}, {kept.Lambda, own.Lambda}, {kept.Sensitivity, own.Sensitivity}, {kept.Mu, own.Mu},
		{kept.FirstNoise, own.FirstNoise}, {kept.SecondNoise, own.SecondNoise},
	} {
		if !near(x[0], x[1], last) {
			return factors{}, foreign
		}
	}
	if kept.Method != own.Method || kept.Lattice != own.Lattice || kept.SecondExp != own.SecondExp ||
		kept.SumClip != own.SumClip || kept.Parameters != own.Parameters || kept.Initial != own.Initial {
		return factors{}, foreign
	}
	for _, c := range []struct {
		kept, fresh *matfact.Stored
		own, best   matfact.Factorization
		decay       float64
	}{{kept.First, fresh.First, f.first, best.first, cfg.Beta1}, {kept.Second, fresh.Second, f.second, best.second, cfg.Beta2}} {
		switch {
		case c.kept == nil:
		case c.kept.Kind != "blt":
			if !reflect.DeepEqual(c.kept, c.fresh) {
				return factors{}, foreign
			}
		default:
			const optimum = 1e-6
			at := func(f matfact.Factorization) float64 {
				return f.ColNorm() * math.Sqrt(f.RowVar(exponential(c.decay), steady))
			}
			if !near(at(c.own), at(c.best), optimum) {
				return factors{}, foreign
			}
		}
	}
	return f, nil
}

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }

// steady is a number of steps at which exponential averages do not remember
// their beginning any more, or hardly.
const steady = 10_000

func exponential(decay float64) matfact.Workload {
	return matfact.Workload{Kind: "exponential", Decay: decay}
}

// factorize builds the configured factorizations.
func (c *Config) factorize(kept *Plan) (f factors, err error) {
	build := func(decay float64, stored *matfact.Stored) (matfact.Factorization, error) {
		m := matfact.Config{Kind: c.Factorization, Horizon: c.Horizon}
		if kept != nil {
			m.Stored = stored
		}
		return matfact.New(m, exponential(decay))
	}
	if kept == nil {
		kept = &Plan{}
	}
	if f.first, err = build(c.Beta1, kept.First); err != nil || !c.joint() {
		return f, err
	}
	f.second, err = build(c.Beta2, kept.Second)
	return f, err
}

// weighted reports whether the method has a weight ν.
func (c *Config) weighted() bool { return c.joint() && c.Method != "joint_clip" }

// nu returns the weight of the second moment: the configured one; for single
// vectors under replacement the largest that is free; else the ν that minimises
// (K₁ + K₂/ν)(1 + price·ν), ν = √(K₂/(K₁·price)), where K₁ and K₂ are the squared
// errors of m̂ and v̂ after many steps, with weights 1/ζ² and 1/ζ⁴.
func (c *Config) nu(f factors, adjacency dp.Adjacency) float64 {
	switch {
	case !c.weighted():
		return 0
	case c.Nu != 0:
		return c.Nu
	case adjacency == dp.Replace && (c.Method != "jme_batch" || c.Step == 1):
		return dp.FreeSquares(c.Parameters())
	}
	p := 1.0 // of a single vector, zeroed
	if c.Method == "jme_batch" {
		p = price(c.Step, adjacency)
	}
	at := uint64(steady)
	if h := f.first.Horizon(); h > 0 { // the same for both
		at = min(at, h)
	}
	k1 := f.first.ColNorm() * linear(f.first, c.Beta1, at)
	k2 := f.second.ColNorm() * linear(f.second, c.Beta2, at)
	return k2 / k1 / math.Sqrt(p)
}

// initial returns the parameters before the first step.
func (c *Config) initial() []float64 {
	if len(c.Initial) > 0 {
		return c.Initial
	}
	if c.Mode == "model" {
		return c.Model.initial(c.Columns)
	}
	return nil // zeros
}

// fingerprintOf returns the SHA-256 of parameters; "" of zeros that are not
// written out.
func fingerprintOf(x []float64) string {
	if len(x) == 0 {
		return ""
	}
	h := sha256.New()
	var b []byte
	for part := range slices.Chunk(x, 1024) {
		b = b[:0]
		for _, v := range part {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// clone returns a copy that shares nothing with p.
func (p *Plan) clone() Plan {
	c := *p
	for _, s := range []**matfact.Stored{&c.First, &c.Second} {
		if *s == nil {
			continue
		}
		f := **s
		f.Decay, f.Phases = slices.Clone(f.Decay), slices.Clone(f.Phases)
		for i := range f.Phases {
			f.Phases[i].Weight = slices.Clone(f.Phases[i].Weight)
		}
		*s = &f
	}
	return c
}
