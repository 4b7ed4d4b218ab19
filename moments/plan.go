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
	// Nu and Lambda weigh the second moment: dimensionless, and in 1/x².
	Nu     float64 `json:"nu"`
	Lambda float64 `json:"lambda"`
	// Sensitivity is the joint ℓ₂ sensitivity of both moments, with what
	// quantisation and the rounding of correlated noise add.
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
}

// resolve computes the plan, and the factorization it names: a stored one where
// that is given, else the one that the configuration asks for.
func resolve(cfg *Config, p dp.Params, stored *matfact.Stored) (*Plan, matfact.Factorization, error) {
	mu, err := p.Budget()
	err = errors.Join(cfg.Validate(), cfg.validateScaling(), err)
	if err != nil {
		return nil, nil, err
	}
	d := cfg.Columns
	factor, err := factorize(cfg, stored)
	if err != nil {
		return nil, nil, err
	}
	alpha := factor.ColNorm()
	nu, err := cfg.nu(d, p.Adjacency)
	if err != nil {
		return nil, nil, err
	}

	// The lattice needs the noise and the noise the clip norm that the lattice
	// has; the latter is smaller than the configured one by less than 2⁻²³.
	rough := Calibrate(mu, nu, cfg.Clip, alpha, alpha, d, p.Adjacency)
	lattice, err := dp.NewLattice(cfg.Clip, rough.First*(1-0x1p-20), p.Bits())
	if err != nil {
		return nil, nil, err
	}
	clip := lattice.Bound()
	n := Calibrate(mu, nu, clip, alpha, alpha, d, p.Adjacency)
	// Standard errors of covariances are fourth powers on the way.
	if !(clip > 1e-60 && clip < 1e60 && n.First < 1e60) {
		return nil, nil, fmt.Errorf("rows of norm %g and noise of %g leave the range of float64: scale the columns to about 1", clip, n.First)
	}
	if !(positive(n.Lambda) && positive(n.Diagonal)) {
		return nil, nil, fmt.Errorf("nu is %g, must be nearer to 1: the second moment's noise would be %g", nu, n.Diagonal)
	}
	g := lattice.Step()

	// Second moments: g₂ = g²·2^s ≤ 2^−bits·min(ζ², τ/√(2λ)), s ≥ 0.
	_, e := math.Frexp(min(clip*clip, n.OffDiagonal*(1-0x1p-20)))
	secondExp := e - 1 - p.Bits()
	if secondExp < 2*lattice.Exp {
		return nil, nil, fmt.Errorf("noise of the second moment, %g, is too small for squares of rows on a lattice of step %g: lower lattice_bits or nu", n.OffDiagonal, g)
	}
	g2 := math.Ldexp(1, secondExp)

	// What arithmetic adds: squares are rounded once a block, by less than g₂
	// an entry between neighbours; and each prediction of correlated noise may
	// err by its Rounding on either side.
	coordinates := func(dim int) float64 {
		if h := factor.Horizon(); h > 0 {
			return float64(h) * float64(dim)
		}
		if h := cfg.LastStep(); h > 0 {
			return float64(h) * float64(dim)
		}
		return endless
	}
	root := math.Sqrt(n.Lambda)
	s := float64(n.Sensitivity*(1+0x1p-40)) + float64(root*alpha*float64(d)*g2)
	const guess = 1 + 0x1p-10 // of how much the noise grows by what follows
	first, err1 := factor.Limits(guess * n.First / g)
	second, err2 := factor.Limits(guess * n.Diagonal / g2)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	s += float64(2 * first.Rounding * g * math.Sqrt(coordinates(d)))
	s += float64(2 * second.Rounding * g2 * math.Sqrt2 * root * math.Sqrt(coordinates(d*(d+1)/2)))
	s *= 1 + 0x1p-40
	total := spread(n.Lambda, s, mu*(1-0x1p-48))
	if !(total.First <= guess*n.First) {
		return nil, nil, fmt.Errorf("rounding of correlated noise would cost %.1g of the noise: use another factorization", total.First/n.First-1)
	}

	// int64 holds every sum: rows and squares of one step, and the noise.
	step, k := float64(cfg.Step), float64(lattice.K)
	if !(step*k+first.Noise < 1<<62) {
		return nil, nil, &fault.Fault{Key: "step", Rule: fmt.Sprintf("must be less, for sums of %d lattice steps a record to fit 62 bits", lattice.K), Value: cfg.Step}
	}
	if !(step*k*k*math.Ldexp(1, 2*lattice.Exp-secondExp)+step+second.Noise < 1<<62) {
		return nil, nil, &fault.Fault{Key: "step", Rule: "must be less, for sums of squares to fit 62 bits", Value: cfg.Step}
	}
	return &Plan{
		Method:        "jme",
		Factorization: factor.Stored(),
		Clip:          clip,
		Nu:            nu,
		Lambda:        n.Lambda,
		Sensitivity:   total.Sensitivity,
		Mu:            mu * (1 - 0x1p-49), // leaves room for the roundings of a ledger
		First:         total.First,
		Diagonal:      total.Diagonal,
		OffDiagonal:   total.OffDiagonal,
		Lattice:       lattice,
		SecondExp:     secondExp,
	}, factor, nil
}

// adopt returns the factorization of a kept plan, after checking that the plan
// is what the configuration resolves to: a plan decides how much noise there is,
// so nothing else may have written it.
//
// Everything but the factorization follows from the configuration and the
// factorization by arithmetic, and is compared to within the margin that
// resolve adds to the sensitivity. The factorization may be one that another
// processor's optimiser found: equally good, in other numbers.
func adopt(kept *Plan, cfg *Config, p dp.Params) (matfact.Factorization, error) {
	fresh, best, err := resolve(cfg, p, nil)
	if err != nil {
		return nil, err
	}
	foreign := errors.New("the epoch's plan does not belong to this configuration")
	if kept.Factorization == nil || kept.Factorization.Kind != fresh.Factorization.Kind {
		return nil, foreign
	}
	own, factor, err := resolve(cfg, p, kept.Factorization)
	if err != nil {
		return nil, errors.Join(foreign, err)
	}
	const last, optimum = 0x1p-42, 1e-6
	near := func(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }
	for _, x := range [...][2]float64{
		{kept.Clip, own.Clip}, {kept.Nu, own.Nu}, {kept.Lambda, own.Lambda}, {kept.Sensitivity, own.Sensitivity}, {kept.Mu, own.Mu},
		{kept.First, own.First}, {kept.Diagonal, own.Diagonal}, {kept.OffDiagonal, own.OffDiagonal},
	} {
		if !near(x[0], x[1], last) {
			return nil, foreign
		}
	}
	if kept.Method != own.Method || kept.Lattice != own.Lattice || kept.SecondExp != own.SecondExp {
		return nil, foreign
	}
	if kept.Factorization.Kind != "blt" {
		if !reflect.DeepEqual(kept.Factorization, fresh.Factorization) {
			return nil, foreign
		}
		return factor, nil
	}
	at := cfg.tune()
	if at == 0 {
		at = 1e4
	}
	deviation := func(f matfact.Factorization) float64 { return f.ColNorm() * math.Sqrt(f.RowVar(cfg.workload(), at)) }
	if !near(deviation(factor), deviation(best), optimum) {
		return nil, foreign
	}
	return factor, nil
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
	c := matfact.Config{Kind: cfg.Factorization, Horizon: cfg.Horizon, Buffers: cfg.Buffers, Tune: cfg.Tune}
	if c.Kind == "auto" {
		c = matfact.Auto(cfg.workload(), cfg.tune())
		c.Horizon, c.Tune = cfg.Horizon, cfg.Tune
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

// nu returns the weight of the second moment. Both moments have one workload
// and one factorization, so the weights of the errors decide alone:
// K₂/K₁ = w₂ζ²(d+1)/(2w₁), whatever the step.
func (c *Config) nu(d int, adjacency dp.Adjacency) (float64, error) {
	ratio := float64(d+1) / 2
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
		return free(d), nil
	}
	return ChooseNu(1, ratio, d, adjacency), nil
}

// clone returns a copy that shares nothing with p.
func (p *Plan) clone() Plan {
	c, f := *p, *p.Factorization
	f.Decay, f.Phases, f.Bands = slices.Clone(f.Decay), slices.Clone(f.Phases), slices.Clone(f.Bands)
	for i := range f.Phases {
		f.Phases[i].Weight = slices.Clone(f.Phases[i].Weight)
	}
	c.Factorization = &f
	return c
}

// SecondStep returns the lattice step of the second moments.
func (p *Plan) SecondStep() float64 { return math.Ldexp(1, p.SecondExp) }
