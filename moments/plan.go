package moments

import (
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Version names the mechanism's algorithm and state. A new version needs a new epoch.
const Version = "jme/v2"

// Plan contains public numbers on which releases depend. They are computed from the configuration, before the first
// record. An epoch records its plan, because another processor may compute different last bits.
type Plan struct {
	Method        string          `json:"method"`
	Factorization *matfact.Stored `json:"factorization"`
	// Clip is K·g, the norm to which records are clipped.
	Clip float64 `json:"clip"`
	// Nu and Lambda are the weight of the second moment, dimensionless and in 1/x². Both are 0 if the second moment is
	// computed only from noisy rows.
	Nu     float64 `json:"nu"`
	Lambda float64 `json:"lambda"`
	// Sensitivity is the charged joint ℓ₂ sensitivity of both moments, including the effect of quantisation and of
	// rounding correlated noise.
	Sensitivity float64 `json:"sensitivity"`
	// Mu is the guarantee: Sensitivity divided by the standard deviation of the noise.
	Mu float64 `json:"mu"`
	// First, Diagonal and OffDiagonal are the standard deviations of one
	// step's independent draws, in scaled units.
	First       float64 `json:"first"`
	Diagonal    float64 `json:"diagonal"`
	OffDiagonal float64 `json:"off_diagonal"`
	// Lattice is the lattice of the rows. SecondExp is the exponent of the lattice step of the second moments.
	Lattice   dp.Lattice `json:"lattice"`
	SecondExp int        `json:"second_exp"`
	// SecondFactorization is the factorization of the second moment, if it has a separate one.
	SecondFactorization *matfact.Stored `json:"second_factorization,omitempty"`
	// Count is the standard deviation of a step's draw for the number of valid records, if that is released. CountExp
	// is the exponent of its lattice step.
	Count    float64 `json:"count,omitempty"`
	CountExp int     `json:"count_exp,omitempty"`
	// Full is the standard deviation of a step's draw for the number of rows that are not shortened, in rows. FullExp
	// is the exponent of its lattice step.
	Full    float64 `json:"full"`
	FullExp int     `json:"full_exp"`
	// Person says how the records of a person are protected; nil: single records are protected.
	Person *PersonPlan `json:"person,omitempty"`
	// Choice says between which methods Method was chosen; nil: the configuration gave it.
	Choice *Choice `json:"choice,omitempty"`
	// Warmup describes the warm-up that finds bounds; nil if there is none. If the warm-up finds the clip norm, Clip is
	// about 1, and all numbers above are in units of the clip norm that will be found.
	Warmup *WarmupPlan `json:"warmup,omitempty"`
}

// PersonPlan says which records of a person are protected together, and with which norm.
type PersonPlan = calibration.Person

// joint reports whether the second moment has noise of its own.
func (p *Plan) joint() bool { return p.Lambda > 0 }

// squares reports whether noisy rows are squared.
func (p *Plan) squares() bool { return squaring(p.Method) }

// second returns the factorization of the second moment.
func (p *Plan) second() *matfact.Stored {
	if p.SecondFactorization != nil {
		return p.SecondFactorization
	}
	return p.Factorization
}

// resolve computes the plan and the shapes of both moments. If kept is not nil, it uses the factorizations in kept.
// Otherwise it uses those that the configuration asks for. It gives them narrow states if that is possible and
// multiplies the noise by at most `growth`. It never chooses a method whose sums do not fit their integers.
func resolve(cfg *Config, p dp.Params, kept *Plan, growth float64) (*Plan, shapes, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), err); err != nil {
		return nil, shapes{}, err
	}
	if cfg.autoClip() { // the unit is the clip norm that will be found
		unit := *cfg
		unit.Clip, cfg = 1, &unit
	}
	plan, s, err := resolveMethod(cfg, mu, p, kept, growth)
	if err != nil && cfg.Method == "auto" {
		joint := *cfg
		joint.Method = "jme"
		return resolveMethod(&joint, mu, p, kept, growth)
	}
	return plan, s, err
}

// shapesOf returns the shapes of both moments, by the factorizations of a plan or, if kept is
// nil, by those that the configuration asks for.
func shapesOf(cfg *Config, kept *Plan) (shapes, error) {
	var stored, storedSecond *matfact.Stored
	if kept != nil {
		stored, storedSecond = kept.Factorization, kept.SecondFactorization
	}
	factor, err := factorize(cfg, stored)
	if err != nil {
		return shapes{}, err
	}
	over := shapes{first: newShape(cfg, factor)}
	over.second = over.first
	if cfg.Second != nil {
		other, err := factorize(cfg.second(), storedSecond)
		if err != nil {
			return shapes{}, err
		}
		over.second = newShape(cfg.second(), other)
	}
	return over, nil
}

func resolveMethod(cfg *Config, mu float64, p dp.Params, kept *Plan, growth float64) (*Plan, shapes, error) {
	over, err := shapesOf(cfg, kept)
	if err != nil {
		return nil, shapes{}, err
	}
	plan, err := calibrate(cfg, mu, p, &over)
	if err != nil {
		return nil, shapes{}, err
	}
	if kept == nil && growth > 0 && !cfg.personal() {
		if other, some := over.narrow(cfg, plan); some {
			if small, err := calibrate(cfg, mu, p, &other); err == nil && small.First <= plan.First*growth {
				return small, other, nil
			}
		}
	}
	return plan, over, nil
}

// narrow returns the shapes with narrow states, made for the noise of a plan. The result is false if no factorization
// can have a narrow state.
func (s *shapes) narrow(cfg *Config, plan *Plan) (shapes, bool) {
	first := max(plan.First/plan.Lattice.Step(), math.Ldexp(plan.Count, -plan.CountExp),
		math.Ldexp(plan.Full, -plan.FullExp))
	// second is the deviation of the entries with the most noise; 0 if the moment has no noise of its own.
	second := plan.Diagonal / plan.SecondStep()
	if cfg.Second == nil {
		all, some := calibration.Narrow([]matfact.Factorization{s.first.factor}, []float64{max(first, second)})
		shape := newShape(cfg, all[0])
		return shapes{shape, shape}, some
	}
	all, some := calibration.Narrow([]matfact.Factorization{s.first.factor, s.second.factor}, []float64{first, second})
	return shapes{newShape(cfg, all[0]), newShape(cfg.second(), all[1])}, some
}

// countWeight is the weight of the number of valid records in the sensitivity, in
// units of ζ².
const countWeight = 0.1

// tradeoff returns the weights of the moments in a method, and the sensitivity that the method charges.
func (c *Config) tradeoff(method string, nu float64, adjacency dp.Adjacency) Tradeoff {
	if c.personal() {
		return c.personTradeoff(method, nu, adjacency)
	}
	kappa := c.countWeight(method, nu, adjacency)
	full := c.fullCount(method, nu, adjacency)
	switch method {
	case "ime":
		return full.charge(Single(adjacency).withCount(kappa)).split(c.Split, len(c.Columns), adjacency)
	case "cs":
		return full.charge(CS(c.Tau*c.Clip*c.Clip, adjacency).withCount(kappa))
	case "pp", "pp_debiased":
		return full.charge(Single(adjacency).withCount(kappa))
	}
	return full.charge(Joint(nu, len(c.Columns), adjacency).withCount(kappa))
}

// choose determines the method and the weight ν, and returns the methods that it compared.
func (c *Config) choose(mu float64, adjacency dp.Adjacency, over *shapes, alpha, beta float64) (method string,
	nu float64, choice *Choice, err error) {
	d, reference := len(c.Columns), c.reference()
	var own Gains
	if c.Second != nil {
		own = over.total(nil, reference, c.Step, false)
	}
	if nu, err = c.nu(adjacency, over, own); err != nil {
		return "", 0, nil, err
	}
	method = c.Method
	white := over.first.factor.Kind() == "identity"
	compare := method == "auto" && c.Step == 1 && c.Second == nil &&
		checkSquares(over.first.factor.Kind(), c.Normalise, c.last()) == ""
	if method == "auto" {
		method = "jme"
	}
	if !compare && method != "combined" {
		return method, nu, nil, nil
	}
	// The charge for the count of rows that are not shortened increases the errors of all methods alike.
	if f := c.fullCount(method, nu, adjacency); f.plain {
		mu /= math.Sqrt(1 + plainWeight)
	}
	x := circumstances{
		Mu: mu, Clip: c.Clip, Dim: d, Adjacency: adjacency, Joint: c.dimension(), Alpha: alpha, Beta: beta,
		Gains:   over.total(newOverlap(over.first.factor, over.first.kernel), reference, c.Step, c.Metric == "sum"),
		Squares: true, Combine: white,
		Nu: nu, Search: c.Nu == 0 && c.Inflation == 0 && (adjacency == dp.ZeroOut || len(c.Weights) == 2),
		Weights: [2]float64{1 / (c.Clip * c.Clip), 1 / (c.Clip * c.Clip * c.Clip * c.Clip)},
	}
	if len(c.Weights) == 2 {
		x.Weights = [2]float64(c.Weights)
	}
	if !compare {
		best, _ := x.best(method)
		return method, best.Nu, nil, nil
	}
	all, best := x.choose()
	for _, a := range all {
		if !vector.Finite([]float64{a.Nu, a.First, a.Second}) {
			return method, nu, nil, nil
		}
	}
	if all[best].Nu != 0 {
		nu = all[best].Nu
	}
	return all[best].Method, nu, &Choice{Metric: c.Metric, Step: reference, Alternatives: all}, nil
}

// adopt returns an error unless a kept plan belongs to the configuration. A plan decides how much noise there is, so a
// plan from another source must not pass.
//
// All other numbers follow from the configuration and the factorizations by arithmetic. adopt compares them within the
// margin that resolve adds to the sensitivity. A factorization may come from another processor's optimiser, which finds
// different numbers that are equally good. If the plan of an old epoch has no narrow states, the states stay wide.
func adopt(kept *Plan, cfg *Config, p dp.Params) error {
	fresh, best, err := resolve(cfg, p, nil, calibration.GrowthOf(kept.Factorization, kept.SecondFactorization))
	if err != nil {
		return err
	}
	if kept.Factorization == nil || !calibration.SameKind(kept.Factorization, fresh.Factorization) ||
		!calibration.SameKind(kept.SecondFactorization, fresh.SecondFactorization) {
		return calibration.ErrForeign
	}
	own, over, err := resolve(cfg, p, kept, 0)
	if err != nil {
		return errors.Join(calibration.ErrForeign, err)
	}
	for _, x := range [...][2]float64{
		{kept.Clip, own.Clip}, {kept.Nu, own.Nu}, {kept.Lambda, own.Lambda}, {kept.Sensitivity, own.Sensitivity},
		{kept.Mu, own.Mu},
		{kept.First, own.First}, {kept.Diagonal, own.Diagonal}, {kept.OffDiagonal, own.OffDiagonal},
		{kept.Count, own.Count}, {kept.Full, own.Full},
	} {
		if !calibration.Near(x[0], x[1], calibration.LastBits) {
			return calibration.ErrForeign
		}
	}
	if kept.Method != own.Method || kept.Lattice != own.Lattice || kept.SecondExp != own.SecondExp ||
		kept.CountExp != own.CountExp || kept.FullExp != own.FullExp ||
		!kept.Choice.agrees(own.Choice, calibration.Optimum) || !kept.Person.Agrees(own.Person) {
		return calibration.ErrForeign
	}
	for _, x := range []struct {
		kept, fresh *matfact.Stored
		over, best  *shape
		cfg         *Config
	}{
		{kept.Factorization, fresh.Factorization, &over.first, &best.first, cfg},
		{kept.SecondFactorization, fresh.SecondFactorization, &over.second, &best.second, cfg.second()},
	} {
		if x.kept == nil {
			continue
		}
		at := x.cfg.tune()
		if at == 0 {
			at = 1e4
		}
		if h := x.best.factor.Horizon(); h > 0 {
			at = min(at, h)
		}
		f := calibration.Factor{Kept: x.kept, Fresh: x.fresh, Own: x.over.factor, Best: x.best.factor,
			Workload: x.cfg.workload(), At: at}
		if cfg.personal() {
			f.OwnNorm, f.BestNorm = own.Person.Norm, fresh.Person.Norm
		}
		if !f.Same() {
			return calibration.ErrForeign
		}
	}
	return nil
}

// tune returns the number of steps for which a factorization is tuned, 0 if there is no such number.
func (c *Config) tune() uint64 {
	if c.Tune != 0 {
		return c.Tune
	}
	return c.Horizon
}

// factorize builds the configured factorization.
func factorize(cfg *Config, stored *matfact.Stored) (matfact.Factorization, error) {
	c := matfact.Config{Kind: cfg.Factorization, Horizon: cfg.Horizon, Buffers: cfg.Buffers, Tune: cfg.Tune,
		Normalise: cfg.Normalise}
	if cfg.personal() {
		c.Participation = cfg.participation()
	}
	if c.Kind == "auto" {
		if squaring(cfg.Method) {
			c = matfact.Config{Kind: "identity"}
		} else {
			c = cfg.auto()
		}
		c.Horizon, c.Normalise = cfg.Horizon, cfg.Normalise
		if cfg.Tune != 0 {
			c.Tune = cfg.Tune
		}
		if cfg.Buffers != 0 {
			c.Buffers = cfg.Buffers
		}
	}
	if banded(c.Kind) {
		c.Bands = cfg.Bands
	}
	c.Stored = stored
	return matfact.New(c, cfg.workload())
}

// auto returns the default factorization.
func (c *Config) auto() matfact.Config {
	if c.personal() {
		return matfact.AutoPersons(c.workload(), c.tune(), c.participation())
	}
	return matfact.Auto(c.workload(), c.tune())
}

func (c *Config) workload() matfact.Workload {
	return matfact.Workload{Kind: c.Workload, Decay: c.Decay, Window: c.Window}
}

// nu returns the weight of the second moment. If both moments have the same workload and factorization, only the
// weights of the errors decide: K₂/K₁ = w₂ζ²(d+1)/(2w₁) at every step. Otherwise nu uses the gains of the reference
// step.
func (c *Config) nu(adjacency dp.Adjacency, over *shapes, gains Gains) (float64, error) {
	ratio, d := float64(len(c.Columns)+1)/2, c.dimension()
	if c.Second != nil {
		alpha, beta := over.first.factor.ColNorm(), over.second.factor.ColNorm()
		ratio *= beta * beta * gains.Second / (alpha * alpha * gains.First)
	}
	switch {
	case c.Nu != 0:
		return c.Nu, nil
	case c.Inflation != 0:
		nu, err := nuForInflation(c.Inflation, d, adjacency)
		if err != nil {
			return 0, &fault.Fault{Key: "inflation", Rule: err.Error(), Value: nil}
		}
		return nu, nil
	case len(c.Weights) == 2:
		return chooseNu(1, ratio*c.Weights[1]*c.Clip*c.Clip/c.Weights[0], d, adjacency), nil
	case adjacency == dp.Replace:
		return calibration.FreeSquares(d), nil
	}
	return chooseNu(1, ratio, d, adjacency), nil
}

// clone returns a copy that shares no memory with p.
func (p *Plan) clone() Plan {
	c := *p
	c.Factorization, c.SecondFactorization = p.Factorization.Clone(), p.SecondFactorization.Clone()
	c.Person = p.Person.Clone()
	if p.Choice != nil {
		choice := *p.Choice
		choice.Alternatives = slices.Clone(choice.Alternatives)
		c.Choice = &choice
	}
	if p.Warmup != nil {
		warmup := *p.Warmup
		c.Warmup = &warmup
	}
	return c
}

// SecondStep returns the lattice step of the second moments.
func (p *Plan) SecondStep() float64 { return math.Ldexp(1, p.SecondExp) }
