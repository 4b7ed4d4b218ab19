package moments

import (
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

// noisy is one array of noisy sums of a step. A mechanism has up to four: the rows, the second moments, the number of
// rows that are not shortened, and the number of valid records.
type noisy struct {
	calibration.Array
	exp    int     // the lattice step is 2^exp
	scale  float64 // for a count: the square root of its weight, times the clip norm
	most   float64 // the largest sum of a step without noise, in lattice steps
	limits matfact.Limits
	rule   string // the text of the fault of Config.Step if the sums do not fit
}

// noisyRows returns the array of the rows' sums.
func noisyRows(cfg *Config, factor matfact.Factorization, l dp.Lattice, n Noise) *noisy {
	return &noisy{
		Array: calibration.Array{Factor: factor, Entries: len(cfg.Columns), Unit: l.Step(),
			Deviation: n.First, Weight: 1},
		exp:  l.Exp,
		most: float64(cfg.Step) * float64(l.K),
		rule: fmt.Sprintf("must be less: sums with up to %d lattice steps per record must fit 62 bits", l.K),
	}
}

// noisySquares returns the array of the second moments. Their lattice is
//
//	g₂ = g²·2^s ≤ 2^−bits·min(ζ², τ/√(2λ)),   s ≥ 0
func noisySquares(cfg *Config, factor matfact.Factorization, l dp.Lattice, n Noise, bits int) (*noisy, error) {
	clip, d := l.Bound(), len(cfg.Columns)
	exp := calibration.Exponent(min(clip*clip, n.OffDiagonal*calibration.NoiseRoom), bits)
	if exp < 2*l.Exp {
		return nil,
			fmt.Errorf(
				"noise of the second moment, %g, is too small for squares of rows on a lattice of step %g: lower "+
					"lattice_bits or nu", n.OffDiagonal, l.Step())
	}
	step, k := float64(cfg.Step), float64(l.K)
	return &noisy{
		Array: calibration.Array{
			Factor: factor, Entries: d * (d + 1) / 2, Unit: math.Ldexp(1, exp), Deviation: n.Diagonal,
			Weight: math.Sqrt(n.Lambda), Symmetric: true,
		},
		exp:  exp,
		most: step*k*k*math.Ldexp(1, 2*l.Exp-exp) + step,
		rule: "must be less: sums of squares must fit 62 bits",
	}, nil
}

// noisyCount returns the array of one count of records. A record adds 2^−exp lattice steps. weight is the weight of the
// count in the sensitivity, in units of ζ². It also decides the unit of this array relative to the unit of the rows.
func noisyCount(cfg *Config, factor matfact.Factorization, l dp.Lattice, n Noise, weight float64, bits int) *noisy {
	scale := math.Sqrt(weight) * l.Bound()
	exp := calibration.Exponent(min(1, n.First/scale*calibration.NoiseRoom), bits)
	unit := math.Ldexp(1, exp)
	return &noisy{
		Array: calibration.Array{Factor: factor, Entries: 1, Unit: unit * scale, Deviation: n.First, Weight: 1},
		exp:   exp,
		scale: scale,
		most:  float64(cfg.Step) / unit,
	}
}

// calibrate chooses method, lattices and noise. It takes the configuration, the ratio μ and the shapes of both moments.
func calibrate(cfg *Config, mu float64, p dp.Params, over *shapes) (*Plan, error) {
	d := len(cfg.Columns)
	factor := over.first.factor
	alpha, err := cfg.norm(factor)
	if err = errors.Join(err, cfg.checkNonNegative(factor)); err != nil {
		return nil, err
	}
	beta := alpha // persons have a single matrix
	if !cfg.personal() {
		beta = over.second.factor.ColNorm()
	}
	method, nu, choice, err := cfg.choose(mu, p.Adjacency, over, alpha, beta)
	if err != nil {
		return nil, err
	}
	share := cfg.tradeoff(method, nu, p.Adjacency)

	// The lattice depends on the noise, and the noise on the clip norm of the lattice. That norm is smaller than the
	// configured one by less than 2⁻²³ of it.
	rough := share.Noise(mu, cfg.Clip, alpha, beta)
	lattice, err := dp.NewLattice(cfg.Clip, rough.First*calibration.NoiseRoom, p.Bits())
	if err != nil {
		return nil, err
	}
	clip := lattice.Bound()
	n := share.Noise(mu, clip, alpha, beta)
	// Bound the numbers, because the standard errors of covariances need fourth powers.
	if !(clip > 1e-60 && clip < 1e60 && n.First < 1e60) {
		return nil,
			fmt.Errorf("rows of norm %g and noise of %g exceed the range of float64: scale the columns to about 1",
				clip, n.First)
	}
	joint := method != "pp" && method != "pp_debiased"
	if joint && !(vector.Positive(n.Lambda) && vector.Positive(n.Diagonal)) {
		return nil, fmt.Errorf("nu is %g, must be closer to 1: the second moment's noise would be %g",
			share.Nu, n.Diagonal)
	}

	rows := noisyRows(cfg, factor, lattice, n)
	full := noisyCount(cfg, factor, lattice, n, cfg.fullCount(method, nu, p.Adjacency).weight, p.Bits())
	full.rule = "must be less: the number of rows that are not shortened must fit 62 bits"
	var squares, valid *noisy // nil: the mechanism has none
	if joint {
		if squares, err = noisySquares(cfg, over.second.factor, lattice, n, p.Bits()); err != nil {
			return nil, err
		}
	}
	if cfg.countsValid() {
		valid = noisyCount(cfg, factor, lattice, n, cfg.countWeight(method, nu, p.Adjacency), p.Bits())
		valid.rule = "must be less: the number of valid records must fit 62 bits"
	}

	// Rounding adds to the sensitivity. Squares are rounded once a block, and the rounding differs between neighbours
	// by less than g₂ per entry. Correlated noise is rounded too. For persons under replacement, neighbours differ in
	// two sets of blocks: those where the first has records of its person, and those where the second has.
	rounded, apart := 0.0, 1.0
	if squares != nil {
		rounded = float64(squares.Weight * beta * float64(d) * squares.Unit)
	}
	if cfg.personal() {
		rounded *= p.Adjacency.Factor()
		apart = calibration.ApartWeight(p.Adjacency)
	}
	all := slices.DeleteFunc([]*noisy{rows, full, squares, valid}, func(a *noisy) bool { return a == nil })
	arrays := make([]calibration.Array, len(all))
	for i, a := range all {
		arrays[i] = a.Array
		arrays[i].Weight *= apart
	}
	s, limits, err := calibration.Charge(n.Sensitivity, rounded, cfg.last(), arrays...)
	if err != nil {
		return nil, err
	}
	for i, a := range all {
		a.limits = limits[i]
	}
	total := spread(n.Lambda, s, mu*calibration.BudgetRoom)
	if err := calibration.Grown(total.First, n.First); err != nil {
		return nil, err
	}
	// int64 must hold every sum of one step's rows or squares, including the noise.
	for _, a := range []*noisy{rows, squares, valid, full} {
		if a != nil && !calibration.Fits(a.most, a.limits) {
			return nil, &fault.Fault{Key: "step", Rule: a.rule, Value: cfg.Step}
		}
	}
	plan := &Plan{
		Method:        method,
		Factorization: factor.Stored(),
		Clip:          clip,
		Nu:            share.Nu,
		Sensitivity:   total.Sensitivity,
		Mu:            mu * dp.LedgerRoom,
		First:         total.First,
		Lattice:       lattice,
		Choice:        choice,
		Full:          total.First / full.scale,
		FullExp:       full.exp,
	}
	if cfg.personal() {
		plan.Person = calibration.NewPerson(cfg.participation(), alpha)
	}
	if joint {
		plan.Lambda, plan.Diagonal, plan.OffDiagonal, plan.SecondExp = n.Lambda, total.Diagonal,
			total.OffDiagonal, squares.exp
	}
	if cfg.Second != nil {
		plan.SecondFactorization = over.second.factor.Stored()
	}
	if valid != nil {
		plan.Count, plan.CountExp = total.First/valid.scale, valid.exp
	}
	if reach := float64(lattice.K) + rows.limits.Noise; plan.squares() && !fit(reach, squaredSteps(cfg, d)) {
		return nil,
			fmt.Errorf(
				"noisy rows reach %.1g lattice steps, and the sum of their squares would not fit 127 bits: lower "+
					"lattice_bits", reach)
	}
	return plan, nil
}

// squaredSteps returns the largest number of steps over which squares are summed.
func squaredSteps(cfg *Config, d int) float64 {
	switch {
	case cfg.Workload == "exponential":
		return 1
	case cfg.Workload == "window":
		return float64(cfg.Window)
	case cfg.last() > 0:
		return float64(cfg.last())
	}
	return calibration.Endless / float64(d*(d+1)/2)
}
