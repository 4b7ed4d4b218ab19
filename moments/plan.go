package moments

import (
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
const Version = "jme/v1"

// endless is the number of noisy coordinates for which the rounding of
// correlated noise is charged where there is no horizon: ten million a second
// for two centuries. The mechanism ends there.
const endless = 1 << 56

// Plan is everything that a configuration resolves to before the first record:
// public numbers that the releases are a function of. An epoch keeps its plan,
// because another processor may compute other last bits.
type Plan struct {
	Method        string          `json:"method"`
	Factorization *matfact.Stored `json:"factorization"`
	// Clip is K·g, the norm to which records are clipped.
	Clip float64 `json:"clip"`
	// Nu and Lambda weigh the second moment: dimensionless, and in 1/x². 0 where
	// it is made of noisy rows alone.
	Nu     float64 `json:"nu"`
	Lambda float64 `json:"lambda"`
	// Sensitivity is what is charged for the joint ℓ₂ sensitivity of both
	// moments, with what quantisation and the rounding of correlated noise add.
	Sensitivity float64 `json:"sensitivity"`
	// Mu is Sensitivity over the noise: the guarantee.
	Mu float64 `json:"mu"`
	// First, Diagonal and OffDiagonal are the standard deviations of one
	// step's independent draws, in scaled units.
	First       float64 `json:"first"`
	Diagonal    float64 `json:"diagonal"`
	OffDiagonal float64 `json:"off_diagonal"`
	// Lattice is that of the rows; SecondExp is the exponent of the second
	// moments' step.
	Lattice   dp.Lattice `json:"lattice"`
	SecondExp int        `json:"second_exp"`
	// SecondFactorization is that of the second moment where it has its own.
	SecondFactorization *matfact.Stored `json:"second_factorization,omitempty"`
	// Count is the standard deviation of a step's draw for the number of valid
	// records, where that is released, and CountExp the exponent of its step.
	Count    float64 `json:"count,omitempty"`
	CountExp int     `json:"count_exp,omitempty"`
	// Choice is what Method was chosen from, where there was something to choose.
	Choice *Choice `json:"choice,omitempty"`
}

// joint reports whether the second moment is given noise of its own.
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

// resolve computes the plan and the shapes of both moments, with the
// factorizations of a kept plan where that is given, else with those that the
// configuration asks for. A method that was chosen and does not fit the range of
// integers was no choice.
func resolve(cfg *Config, p dp.Params, kept *Plan) (*Plan, shapes, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), err); err != nil {
		return nil, shapes{}, err
	}
	plan, s, err := resolveMethod(cfg, mu, p, kept)
	if err != nil && cfg.Method == "auto" {
		joint := *cfg
		joint.Method = "jme"
		return resolveMethod(&joint, mu, p, kept)
	}
	return plan, s, err
}

func resolveMethod(cfg *Config, mu float64, p dp.Params, kept *Plan) (*Plan, shapes, error) {
	d := cfg.Columns
	var stored, storedSecond *matfact.Stored
	if kept != nil {
		stored, storedSecond = kept.Factorization, kept.SecondFactorization
	}
	factor, err := factorize(cfg, stored)
	if err != nil {
		return nil, shapes{}, err
	}
	over := shapes{first: newShape(cfg, factor)}
	over.second = over.first
	if cfg.Second != nil {
		other, err := factorize(cfg.second(), storedSecond)
		if err != nil {
			return nil, shapes{}, err
		}
		over.second = newShape(cfg.second(), other)
	}
	alpha, beta := factor.ColNorm(), over.second.factor.ColNorm()
	method, nu, choice, err := cfg.choose(mu, p.Adjacency, &over, kept)
	if err != nil {
		return nil, shapes{}, err
	}
	share := cfg.tradeoff(method, nu, p.Adjacency)

	// The lattice needs the noise and the noise the clip norm that the lattice
	// has; the latter is smaller than the configured one by less than 2⁻²³.
	rough := share.Noise(mu, cfg.Clip, alpha, beta)
	lattice, err := dp.NewLattice(cfg.Clip, rough.First*(1-0x1p-20), p.Bits())
	if err != nil {
		return nil, shapes{}, err
	}
	clip := lattice.Bound()
	n := share.Noise(mu, clip, alpha, beta)
	// Standard errors of covariances are fourth powers on the way.
	if !(clip > 1e-60 && clip < 1e60 && n.First < 1e60) {
		return nil, shapes{}, fmt.Errorf("rows of norm %g and noise of %g leave the range of float64: scale the columns to about 1", clip, n.First)
	}
	joint := method != "pp" && method != "pp_debiased"
	if joint && !(positive(n.Lambda) && positive(n.Diagonal)) {
		return nil, shapes{}, fmt.Errorf("nu is %g, must be nearer to 1: the second moment's noise would be %g", share.Nu, n.Diagonal)
	}
	g := lattice.Step()

	// Second moments: g₂ = g²·2^s ≤ 2^−bits·min(ζ², τ/√(2λ)), s ≥ 0.
	secondExp := 0
	if joint {
		_, e := math.Frexp(min(clip*clip, n.OffDiagonal*(1-0x1p-20)))
		if secondExp = e - 1 - p.Bits(); secondExp < 2*lattice.Exp {
			return nil, shapes{}, fmt.Errorf("noise of the second moment, %g, is too small for squares of rows on a lattice of step %g: lower lattice_bits or nu", n.OffDiagonal, g)
		}
	}
	g2 := math.Ldexp(1, secondExp)
	// A valid record counts 2^−countExp units of the count's lattice.
	countExp, kappa := 0, math.Sqrt(countWeight)*clip // the root of its weight
	if cfg.ValidCount {
		_, e := math.Frexp(min(1, n.First/kappa*(1-0x1p-20)))
		countExp = e - 1 - p.Bits()
	}
	g3 := math.Ldexp(1, countExp)

	// What arithmetic adds: squares are rounded once a block, by less than g₂
	// an entry between neighbours; and each prediction of correlated noise may
	// err by its Rounding on either side.
	coordinates := func(f matfact.Factorization, dim int) float64 {
		if h := f.Horizon(); h > 0 {
			return float64(h) * float64(dim)
		}
		if h := cfg.LastStep(); h > 0 {
			return float64(h) * float64(dim)
		}
		return endless
	}
	root := math.Sqrt(n.Lambda)
	s := float64(n.Sensitivity*(1+0x1p-40)) + float64(root*beta*float64(d)*g2)
	const guess = 1 + 0x1p-10 // of how much the noise grows by what follows
	first, err := factor.Limits(guess * n.First / g)
	var second, count matfact.Limits
	if joint {
		var e error
		second, e = over.second.factor.Limits(guess * n.Diagonal / g2)
		err = errors.Join(err, e)
	}
	if cfg.ValidCount {
		var e error
		count, e = factor.Limits(guess * n.First / kappa / g3)
		err = errors.Join(err, e)
	}
	if err != nil {
		return nil, shapes{}, err
	}
	s += float64(2 * first.Rounding * g * math.Sqrt(coordinates(factor, d)))
	s += float64(2 * second.Rounding * g2 * math.Sqrt2 * root * math.Sqrt(coordinates(over.second.factor, d*(d+1)/2)))
	s += float64(2 * count.Rounding * g3 * kappa * math.Sqrt(coordinates(factor, 1)))
	s *= 1 + 0x1p-40
	total := spread(n.Lambda, s, mu*(1-0x1p-48))
	if !(total.First <= guess*n.First) {
		return nil, shapes{}, fmt.Errorf("rounding of correlated noise would cost %.1g of the noise: use another factorization", total.First/n.First-1)
	}

	// int64 holds every sum: rows and squares of one step, and the noise.
	step, k := float64(cfg.Step), float64(lattice.K)
	if !(step*k+first.Noise < 1<<62) {
		return nil, shapes{}, &fault.Fault{Key: "step", Rule: fmt.Sprintf("must be less, for sums of %d lattice steps a record to fit 62 bits", lattice.K), Value: cfg.Step}
	}
	if joint && !(step*k*k*math.Ldexp(1, 2*lattice.Exp-secondExp)+step+second.Noise < 1<<62) {
		return nil, shapes{}, &fault.Fault{Key: "step", Rule: "must be less, for sums of squares to fit 62 bits", Value: cfg.Step}
	}
	if cfg.ValidCount && !(step/g3+count.Noise < 1<<62) {
		return nil, shapes{}, &fault.Fault{Key: "step", Rule: "must be less, for the number of valid records to fit 62 bits", Value: cfg.Step}
	}
	plan := &Plan{
		Method:        method,
		Factorization: factor.Stored(),
		Clip:          clip,
		Nu:            share.Nu,
		Sensitivity:   total.Sensitivity,
		Mu:            mu * (1 - 0x1p-49), // leaves room for the roundings of a ledger
		First:         total.First,
		Lattice:       lattice,
		Choice:        choice,
	}
	if joint {
		plan.Lambda, plan.Diagonal, plan.OffDiagonal, plan.SecondExp = n.Lambda, total.Diagonal, total.OffDiagonal, secondExp
	}
	if cfg.Second != nil {
		plan.SecondFactorization = over.second.factor.Stored()
	}
	if cfg.ValidCount {
		plan.Count, plan.CountExp = total.First/kappa, countExp
	}
	if plan.squares() && !fit(k+first.Noise, squaredSteps(cfg, d)) {
		return nil, shapes{}, fmt.Errorf("squares of noisy rows, of up to %.1g lattice steps, would not fit 127 bits when they are summed: lower lattice_bits", k+first.Noise)
	}
	return plan, over, nil
}

// countWeight is the weight of the number of valid records in the sensitivity, in
// units of ζ².
const countWeight = 0.1

// squaredSteps returns the largest number of steps whose squares are summed.
func squaredSteps(cfg *Config, d int) float64 {
	switch {
	case cfg.Workload == "exponential":
		return 1
	case cfg.Workload == "window":
		return float64(cfg.Window)
	case cfg.LastStep() > 0:
		return float64(cfg.LastStep())
	}
	return endless / float64(d*(d+1)/2)
}

// tradeoff returns how a method weighs the moments and what it charges.
func (c *Config) tradeoff(method string, nu float64, adjacency dp.Adjacency) Tradeoff {
	kappa := 0.0
	if c.ValidCount {
		kappa = countWeight
	}
	switch method {
	case "ime":
		return Single(adjacency).withCount(kappa).split(c.Split, c.Columns, adjacency)
	case "cs":
		return CS(c.Tau*c.Clip*c.Clip, adjacency).withCount(kappa)
	case "pp", "pp_debiased":
		return Single(adjacency).withCount(kappa)
	}
	return Joint(nu, c.Columns, adjacency).withCount(kappa)
}

// choose resolves method and weight ν, and says between what was chosen. kept is
// the plan of an epoch that has begun, or nil.
func (c *Config) choose(mu float64, adjacency dp.Adjacency, over *shapes, kept *Plan) (method string, nu float64, choice *Choice, err error) {
	d, reference := c.Columns, c.reference()
	var own Gains
	if c.Second != nil {
		own = over.total(nil, reference, c.Step, false)
	}
	if nu, err = c.nu(d, adjacency, over, own); err != nil {
		return "", 0, nil, err
	}
	method = c.Method
	// One that an earlier version began, for which "auto" was joint estimation.
	earlier := kept != nil && kept.Choice == nil && kept.Method == "jme"
	white := over.first.factor.Kind() == "identity"
	compare := method == "auto" && !earlier && c.Step == 1 && c.Second == nil && checkSquares(over.first.factor.Kind(), c.Normalise, c.LastStep()) == ""
	if method == "auto" {
		method = "jme"
	}
	if !compare && method != "combined" {
		return method, nu, nil, nil
	}
	x := Circumstances{
		Mu: mu, Clip: c.Clip, Dim: d, Adjacency: adjacency, Alpha: over.first.factor.ColNorm(), Beta: over.second.factor.ColNorm(),
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
	all, best := x.Choose()
	for _, a := range all {
		if !finite([]float64{a.Nu, a.First, a.Second}) {
			return method, nu, nil, nil
		}
	}
	if all[best].Nu != 0 {
		nu = all[best].Nu
	}
	return all[best].Method, nu, &Choice{Metric: c.Metric, Step: reference, Alternatives: all}, nil
}

// adopt returns the shapes of a kept plan, after checking that the plan is what
// the configuration resolves to: a plan decides how much noise there is, so
// nothing else may have written it.
//
// Everything but the factorizations follows from the configuration and the
// factorizations by arithmetic, and is compared to within the margin that
// resolve adds to the sensitivity. A factorization may be one that another
// processor's optimiser found: equally good, in other numbers.
func adopt(kept *Plan, cfg *Config, p dp.Params) (shapes, error) {
	fresh, best, err := resolve(cfg, p, nil)
	if err != nil {
		return shapes{}, err
	}
	foreign := errors.New("the epoch's plan does not belong to this configuration")
	sameKind := func(a, b *matfact.Stored) bool { return (a == nil) == (b == nil) && (a == nil || a.Kind == b.Kind) }
	if kept.Factorization == nil || !sameKind(kept.Factorization, fresh.Factorization) || !sameKind(kept.SecondFactorization, fresh.SecondFactorization) {
		return shapes{}, foreign
	}
	own, over, err := resolve(cfg, p, kept)
	if err != nil {
		return shapes{}, errors.Join(foreign, err)
	}
	const last, optimum = 0x1p-42, 1e-6
	near := func(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }
	for _, x := range [...][2]float64{
		{kept.Clip, own.Clip}, {kept.Nu, own.Nu}, {kept.Lambda, own.Lambda}, {kept.Sensitivity, own.Sensitivity}, {kept.Mu, own.Mu},
		{kept.First, own.First}, {kept.Diagonal, own.Diagonal}, {kept.OffDiagonal, own.OffDiagonal}, {kept.Count, own.Count},
	} {
		if !near(x[0], x[1], last) {
			return shapes{}, foreign
		}
	}
	if kept.Method != own.Method || kept.Lattice != own.Lattice || kept.SecondExp != own.SecondExp || kept.CountExp != own.CountExp ||
		!kept.Choice.agrees(own.Choice, optimum) {
		return shapes{}, foreign
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
		deviation := func(s *shape) float64 {
			return s.factor.ColNorm() * math.Sqrt(s.factor.RowVar(x.cfg.workload(), at))
		}
		tolerance := optimum
		switch x.kept.Kind {
		case "blt":
		case "banded":
			// The optimum is flat, and the search may end elsewhere on it.
			tolerance = 1e-3
		case "dense":
			deviation = func(s *shape) float64 { return matfact.RMSE(s.factor, x.cfg.workload(), x.cfg.Horizon) }
		default:
			if !reflect.DeepEqual(x.kept, x.fresh) {
				return shapes{}, foreign
			}
			continue
		}
		if !near(deviation(x.over), deviation(x.best), tolerance) {
			return shapes{}, foreign
		}
	}
	return over, nil
}

// tune returns the number of steps that a factorization is made for, 0 for none.
func (c *Config) tune() uint64 {
	if c.Tune != 0 {
		return c.Tune
	}
	return c.Horizon
}

// factorize builds the configured factorization.
func factorize(cfg *Config, stored *matfact.Stored) (matfact.Factorization, error) {
	c := matfact.Config{Kind: cfg.Factorization, Horizon: cfg.Horizon, Buffers: cfg.Buffers, Tune: cfg.Tune, Normalise: cfg.Normalise}
	if c.Kind == "auto" {
		if squaring(cfg.Method) {
			c = matfact.Config{Kind: "identity"}
		} else {
			c = matfact.Auto(cfg.workload(), cfg.tune())
		}
		c.Horizon, c.Tune, c.Normalise = cfg.Horizon, cfg.Tune, cfg.Normalise
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

func (c *Config) workload() matfact.Workload {
	return matfact.Workload{Kind: c.Workload, Decay: c.Decay, Window: c.Window}
}

// nu returns the weight of the second moment. Where both moments have one
// workload and one factorization the weights of the errors decide alone:
// K₂/K₁ = w₂ζ²(d+1)/(2w₁), whatever the step. Else gains are those of the
// reference step.
func (c *Config) nu(d int, adjacency dp.Adjacency, over *shapes, gains Gains) (float64, error) {
	ratio := float64(d+1) / 2
	if c.Second != nil {
		alpha, beta := over.first.factor.ColNorm(), over.second.factor.ColNorm()
		ratio *= beta * beta * gains.Second / (alpha * alpha * gains.First)
	}
	switch {
	case c.Nu != 0:
		return c.Nu, nil
	case c.Inflation != 0:
		nu, err := NuForInflation(c.Inflation, d, adjacency)
		if err != nil {
			return 0, &fault.Fault{Key: "inflation", Rule: err.Error(), Value: nil}
		}
		return nu, nil
	case len(c.Weights) == 2:
		return ChooseNu(1, ratio*c.Weights[1]*c.Clip*c.Clip/c.Weights[0], d, adjacency), nil
	case adjacency == dp.Replace:
		return dp.FreeSquares(d), nil
	}
	return ChooseNu(1, ratio, d, adjacency), nil
}

// clone returns a copy that shares nothing with p.
func (p *Plan) clone() Plan {
	c := *p
	c.Factorization, c.SecondFactorization = cloneStored(p.Factorization), cloneStored(p.SecondFactorization)
	if p.Choice != nil {
		choice := *p.Choice
		choice.Alternatives = slices.Clone(choice.Alternatives)
		c.Choice = &choice
	}
	return c
}

func cloneStored(s *matfact.Stored) *matfact.Stored {
	if s == nil {
		return nil
	}
	f := *s
	f.Decay, f.Phases, f.Bands = slices.Clone(f.Decay), slices.Clone(f.Phases), slices.Clone(f.Bands)
	f.Scales, f.Entries = slices.Clone(f.Scales), slices.Clone(f.Entries)
	for i := range f.Phases {
		f.Phases[i].Weight = slices.Clone(f.Phases[i].Weight)
	}
	return &f
}

// SecondStep returns the lattice step of the second moments.
func (p *Plan) SecondStep() float64 { return math.Ldexp(1, p.SecondExp) }
