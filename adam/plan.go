package adam

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Version names the mechanism's algorithm and state. A new version needs a new epoch.
const Version = "adam/v1"

// Plan holds the public numbers that follow from a configuration before the first record, and on which the releases
// depend. An epoch records its plan, because another processor may compute different last bits. Standard deviations
// refer to means over the slots of a step.
type Plan struct {
	Method string `json:"method"`
	// First and Second say how the noise of the two moments is correlated. Second is nil if the method has only one
	// noise array.
	First  *matfact.Stored `json:"first"`
	Second *matfact.Stored `json:"second,omitempty"`
	// Parameters is the number of parameters. Initial is the SHA-256 of the initial parameters as little-endian
	// float64.
	Parameters int    `json:"parameters"`
	Initial    string `json:"initial"`
	// Clip is K·g, the norm to which gradients are clipped. SumClip is the norm, in lattice steps, to which their sum
	// is clipped; 0 means that it is not clipped.
	Clip    float64 `json:"clip"`
	SumClip float64 `json:"sum_clip,omitempty"`
	// Nu and Lambda are the weight of the second moment: Nu is dimensionless, Lambda is in 1/gradient².
	Nu     float64 `json:"nu,omitempty"`
	Lambda float64 `json:"lambda,omitempty"`
	// Sensitivity is the joint ℓ₂ sensitivity of both means, including the amounts that quantisation and the rounding
	// of correlated noise add.
	Sensitivity float64 `json:"sensitivity"`
	// Mu is Sensitivity divided by the noise: the guarantee.
	Mu float64 `json:"mu"`
	// FirstNoise and SecondNoise are ρ₁ and ρ₂, the standard deviations of one step's independent draws.
	FirstNoise  float64 `json:"first_noise"`
	SecondNoise float64 `json:"second_noise,omitempty"`
	// Lattice is the lattice of the gradients. SecondExp is the exponent of the lattice step of the squares.
	Lattice   dp.Lattice `json:"lattice"`
	SecondExp int        `json:"second_exp,omitempty"`
	// Person says how the records of a person are protected together. It is nil if single records are protected.
	Person *PersonPlan `json:"person,omitempty"`
}

// PersonPlan says which records of a person are protected together, and with which norm.
type PersonPlan = calibration.Person

// units returns the value of one lattice step of each sum in the means of m slots.
func (p *Plan) units(m uint64) (first, second float64) {
	n := float64(m)
	first, second = p.Lattice.Step()/n, math.Ldexp(1, p.SecondExp)/n
	if p.Method == "jme_batch" {
		second /= n // the step of the squared sum
	}
	return first, second
}

// factors holds the two matrices C. second is nil if the method has only one.
type factors struct{ first, second matfact.Factorization }

// resolve computes the plan and its factorizations. If kept is not nil, it uses the factorizations in kept. Otherwise
// it builds the configured ones. They get narrow states if that is possible and makes the noise at most growth times as
// large.
func resolve(cfg *Config, p dp.Params, kept *Plan, growth float64) (*Plan, factors, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), err); err != nil {
		return nil, factors{}, err
	}
	f, err := cfg.factorize(kept)
	if err != nil {
		return nil, factors{}, err
	}
	plan, err := calibrate(cfg, p, mu, f)
	if err != nil || kept != nil || growth == 0 || cfg.personal() {
		return plan, f, err
	}
	// Calibrate both moments together, and together with the cost of narrow states.
	if g, some := f.narrow(plan, cfg.Step); some {
		if other, err := calibrate(cfg, p, mu, g); err == nil && other.FirstNoise <= plan.FirstNoise*growth {
			return other, g, nil
		}
	}
	return plan, f, nil
}

// narrow returns the factorizations with narrow states for the noise of a plan, and whether any of them can have narrow
// states.
func (f factors) narrow(plan *Plan, m uint64) (factors, bool) {
	first, second := plan.units(m)
	all, sd := []matfact.Factorization{f.first}, []float64{plan.FirstNoise / first}
	if f.second != nil {
		all, sd = append(all, f.second), append(sd, plan.SecondNoise/second)
	}
	all, some := calibration.Narrow(all, sd)
	f.first = all[0]
	if f.second != nil {
		f.second = all[1]
	}
	return f, some
}

// calibrate computes lattice and noise for a configuration, its factorizations and the ratio μ.
func calibrate(cfg *Config, p dp.Params, mu float64, f factors) (*Plan, error) {
	d, m := cfg.Parameters(), float64(cfg.Step)
	alpha, beta, err := cfg.norms(f)
	if err != nil {
		return nil, err
	}
	plan := &Plan{
		Method: cfg.Method, First: f.first.Stored(), Parameters: d, Initial: fingerprintOf(cfg.initial()),
		Nu: cfg.nu(f, p.Adjacency), Mu: mu * dp.LedgerRoom,
	}
	if f.second != nil {
		plan.Second = f.second.Stored()
	}

	// The lattice depends on the noise, and the noise depends on the lattice's clip norm. That clip norm is at most
	// 2⁻²³ smaller than the configured one, relatively.
	_, rough := cfg.sensitivity(plan.Nu, cfg.Clip, alpha, beta, 0, p.Adjacency)
	lattice, err := dp.NewLattice(cfg.Clip, m*rough/mu*calibration.NoiseRoom, p.Bits())
	if err != nil {
		return nil, err
	}
	plan.Lattice, plan.Clip = lattice, lattice.Bound()
	spare, err := plan.clipSum(cfg)
	if err != nil {
		return nil, err
	}
	lambda, s := cfg.sensitivity(plan.Nu, plan.Clip, alpha, beta, spare, p.Adjacency)
	n := spread(lambda, s, mu)
	if !(plan.Clip > 1e-60 && plan.Clip < 1e60 && n.First > 1e-60 && n.First < 1e60) {
		return nil,
			fmt.Errorf(
				"gradients of norm %g and noise of %g leave the range of float64: scale the loss so that gradients "+
					"are about 1", plan.Clip, n.First)
	}

	if f.second != nil {
		if err := plan.refineSquares(cfg, lambda, n.Second, p.Bits()); err != nil {
			return nil, err
		}
	}
	firstUnit, secondUnit := plan.units(cfg.Step)

	// Arithmetic adds to the sensitivity. Squares are rounded once, or once per block; this adds less than a lattice
	// step per entry to the distance of neighbours. Correlated noise is rounded too.
	root, rounded := math.Sqrt(lambda), 0.0
	switch cfg.Method {
	case "jme", "jme_per_example", "jme_batch":
		rounded = float64(root * beta * math.Sqrt(float64(d)) * secondUnit)
	}
	if cfg.personal() { // under replace, steps differ where either of the two persons has records
		rounded *= p.Adjacency.Factor()
		plan.Person = calibration.NewPerson(cfg.participation(), alpha)
	}
	arrays := []calibration.Array{{Factor: f.first, Entries: d, Unit: firstUnit, Deviation: n.First, Weight: 1}}
	if f.second != nil {
		arrays = append(arrays,
			calibration.Array{Factor: f.second, Entries: d, Unit: secondUnit, Deviation: n.Second, Weight: root})
	}
	if cfg.personal() {
		for i := range arrays {
			arrays[i].Weight *= calibration.ApartWeight(p.Adjacency)
		}
	}
	s, limits, err := calibration.Charge(s, rounded, cfg.LastStep(), arrays...)
	if err != nil {
		return nil, err
	}
	final := spread(lambda, s, mu*calibration.BudgetRoom)
	if err := calibration.Grown(final.First, n.First); err != nil {
		return nil, err
	}
	plan.Lambda, plan.Sensitivity, plan.FirstNoise, plan.SecondNoise = lambda, final.Sensitivity, final.First,
		final.Second

	if err := plan.fits(cfg, limits); err != nil {
		return nil, err
	}
	return plan, nil
}

// clipSum sets the clip norm of a step's sum, if there is one. It returns how much the rounding of a clipped sum adds
// to the distance of two means.
func (p *Plan) clipSum(cfg *Config) (spare float64, err error) {
	if cfg.MeanClip == 0 {
		return 0, nil
	}
	// Rounding adds half a lattice step per coordinate; add the error of float64.
	d, m, g := float64(p.Parameters), float64(cfg.Step), p.Lattice.Step()
	most := m * cfg.MeanClip / g
	loss := math.Sqrt(d) + float64(most*0x1p-48)
	p.SumClip = most - loss
	if !(p.SumClip >= 1<<20) {
		return 0, &fault.Fault{Key: "mean_clip", Rule: "must be larger: it must exceed the lattice step by far",
			Value: cfg.MeanClip}
	}
	if k := m * float64(p.Lattice.K); !(k*k*d < 0x1p126) {
		return 0, &fault.Fault{Key: "step", Rule: "must be smaller, so that the norm of the sum fits 126 bits",
			Value: cfg.Step}
	}
	return loss * g / m, nil
}

// refineSquares sets the lattice step of the squares for their weight λ and their noise: g₂ = 2^e ≤ 2^−bits·min(largest
// square, noise), but at least g².
func (p *Plan) refineSquares(cfg *Config, lambda, noise float64, bits int) error {
	if !(vector.Positive(lambda) && vector.Positive(noise)) {
		return fmt.Errorf("the weight of the second moment is out of range: its noise would be %g", noise)
	}
	// Unit is the value of one lattice step of the squares if that step is 2⁰.
	_, unit := (&Plan{Method: cfg.Method}).units(cfg.Step)
	sd := noise / unit * calibration.NoiseRoom
	if cfg.Method == "joint_clip" {
		squares, err := dp.NewLattice(p.Clip/math.Sqrt(lambda), sd, bits)
		p.SecondExp = squares.Exp
		return err
	}
	largest := p.Clip * p.Clip
	if cfg.Method == "jme_batch" {
		largest *= float64(cfg.Step)
	}
	p.SecondExp = calibration.Exponent(min(largest, sd), bits)
	if shift := p.SecondExp - 2*p.Lattice.Exp; shift < 0 || shift > 62 {
		return fmt.Errorf(
			"noise of the second moment, %g, does not fit squared gradients on a lattice of step %g: change "+
				"lattice_bits, nu or clip", noise, p.Lattice.Step())
	}
	return nil
}

// fits returns a fault unless int64 can hold every sum, noise included.
func (p *Plan) fits(cfg *Config, limits []matfact.Limits) error {
	m, k := float64(cfg.Step), float64(p.Lattice.K)
	if !calibration.Fits(m*k, limits[0]) {
		return &fault.Fault{Key: "step",
			Rule: fmt.Sprintf("must be smaller, so that sums with up to %d lattice steps per record fit 62 bits",
				p.Lattice.K),
			Value: cfg.Step}
	}
	squares := 0.0 // the largest entry of a step's squares
	switch cfg.Method {
	case "jme", "jme_per_example":
		squares = m*k*k*math.Ldexp(1, 2*p.Lattice.Exp-p.SecondExp) + m
	case "jme_batch":
		squares = m*k*m*k*math.Ldexp(1, 2*p.Lattice.Exp-p.SecondExp) + 1
	case "joint_clip":
		squares = m * p.Clip / math.Sqrt(cfg.Tau) / math.Ldexp(1, p.SecondExp)
	}
	if !calibration.Fits(squares, limits[len(limits)-1]) {
		return &fault.Fault{Key: "step", Rule: "must be smaller, so that sums of squares fit 62 bits", Value: cfg.Step}
	}
	return nil
}

// adopt returns the factorizations of a kept plan. It checks that the plan is the one that the configuration resolves
// to. A plan decides how much noise there is, so a forged plan must be refused.
//
// The other numbers follow from the configuration and the factorizations by arithmetic. They are compared to within the
// margin that resolve adds to the sensitivity. The factorizations may have been optimised on another processor: then
// their numbers differ, but they are equally good. An epoch whose factorizations have wide states keeps them.
func adopt(kept *Plan, cfg *Config, p dp.Params) (factors, error) {
	fresh, best, err := resolve(cfg, p, nil, calibration.GrowthOf(kept.First, kept.Second))
	if err != nil {
		return factors{}, err
	}
	if kept.First == nil || !calibration.SameKind(kept.First, fresh.First) ||
		!calibration.SameKind(kept.Second, fresh.Second) {
		return factors{}, calibration.ErrForeign
	}
	// ν may have been chosen by the errors of the factorizations, which differ slightly.
	chosen := *cfg
	if cfg.weighted() && cfg.Nu == 0 {
		if !calibration.Near(kept.Nu, fresh.Nu, 1e-3) || !vector.Positive(kept.Nu) {
			return factors{}, calibration.ErrForeign
		}
		chosen.Nu = kept.Nu
	}
	own, f, err := resolve(&chosen, p, kept, 0)
	if err != nil {
		return factors{}, errors.Join(calibration.ErrForeign, err)
	}
	for _, x := range [...][2]float64{
		{kept.Clip, own.Clip}, {kept.Nu, own.Nu}, {kept.Lambda, own.Lambda}, {kept.Sensitivity, own.Sensitivity},
		{kept.Mu, own.Mu},
		{kept.FirstNoise, own.FirstNoise}, {kept.SecondNoise, own.SecondNoise},
	} {
		if !calibration.Near(x[0], x[1], calibration.LastBits) {
			return factors{}, calibration.ErrForeign
		}
	}
	if kept.Method != own.Method || kept.Lattice != own.Lattice || kept.SecondExp != own.SecondExp ||
		kept.SumClip != own.SumClip || !kept.Person.Agrees(own.Person) || kept.Parameters != own.Parameters ||
		kept.Initial != own.Initial {
		return factors{}, calibration.ErrForeign
	}
	first := calibration.Factor{Kept: kept.First, Fresh: fresh.First, Own: f.first, Best: best.first,
		Workload: exponential(cfg.Beta1), At: steady}
	if cfg.personal() {
		first.OwnNorm, first.BestNorm = own.Person.Norm, fresh.Person.Norm
	}
	for _, c := range []calibration.Factor{
		first,
		{Kept: kept.Second, Fresh: fresh.Second, Own: f.second, Best: best.second, Workload: exponential(cfg.Beta2),
			At: steady},
	} {
		if !c.Same() {
			return factors{}, calibration.ErrForeign
		}
	}
	return f, nil
}

// steady is a number of steps after which exponential averages have practically forgotten their beginning.
const steady = 10_000

func exponential(decay float64) matfact.Workload {
	return matfact.Workload{Kind: "exponential", Decay: decay}
}

// factorize builds the configured factorizations.
func (c *Config) factorize(kept *Plan) (f factors, err error) {
	build := func(decay float64, stored *matfact.Stored) (matfact.Factorization, error) {
		m := matfact.Config{Kind: c.Factorization, Horizon: c.Horizon}
		if c.personal() {
			m.Participation = c.participation()
		}
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

// nu returns the weight of the second moment: the configured weight, if any. For single vectors under replacement it is
// the largest weight that is free. Otherwise it is the ν that minimises (K₁ + K₂/ν)(1 + price·ν), which is ν =
// √(K₂/(K₁·price)). K₁ and K₂ are the squared errors of m̂ and v̂ after many steps, with weights 1/ζ² and 1/ζ⁴.
func (c *Config) nu(f factors, adjacency dp.Adjacency) float64 {
	switch {
	case !c.weighted():
		return 0
	case c.Nu != 0:
		return c.Nu
	case c.personal() && c.Method == "jme_batch":
		adjacency = dp.ZeroOut // persons pay a multiple of the cost under zero-out
	case c.personal() && adjacency == dp.Replace:
		return calibration.FreeSquares(2)
	case adjacency == dp.Replace && (c.Method != "jme_batch" || c.Step == 1):
		return calibration.FreeSquares(c.Parameters())
	}
	p := 1.0 // price for a single vector under zero-out
	if c.Method == "jme_batch" {
		p = price(c.Step, adjacency)
	}
	at := uint64(steady)
	if h := f.first.Horizon(); h > 0 { // equal for both factorizations
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
		return c.Model.initial(len(c.Columns))
	}
	return nil // zeros
}

// fingerprintOf returns the SHA-256 of parameters. For nil, which stands for zeros, it returns "".
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

// clone returns a copy that shares no memory with p.
func (p *Plan) clone() Plan {
	c := *p
	c.First, c.Second = p.First.Clone(), p.Second.Clone()
	c.Person = p.Person.Clone()
	return c
}
