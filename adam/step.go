package adam

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// update holds the public numbers of one step. In this file, a product that is added to something is written
// float64(x*y). On some architectures the compiler would otherwise fuse multiplication and addition. A fused operation
// has different last bits, so releases would differ between architectures.
type update struct {
	first, second float64 // value of a lattice step of each sum in the mean
	beta1, part1  float64 // β₁, 1−β₁
	beta2, part2  float64
	unbias1       float64 // 1/(1−β₁^i)
	unbias2       float64
	bias          float64 // subtracted from v̂
	deviation     float64 // standard deviation of the noise in v̂
	floor         float64
	abs           bool // take the absolute value of v̂
	eps           float64
	rate          float64
	decay         float64
	shrink        float64 // factor on u that bounds its norm
}

// update computes the public numbers of e.step, which has just been opened.
func (e *Estimator) update() update {
	c := &e.cfg
	u := update{
		beta1: c.Beta1, part1: 1 - c.Beta1, beta2: c.Beta2, part2: 1 - c.Beta2,
		eps: c.Eps, rate: c.rate(e.step), decay: c.WeightDecay, shrink: 1,
	}
	u.first, u.second = e.plan.units(c.Step)
	u.unbias1 = 1 / complement(u.part1, e.step)
	u.unbias2 = 1 / complement(u.part2, e.step)
	switch {
	case e.noise != nil:
		e.noise.advance()
		v := e.noise.squares()
		variance := float64(e.plan.FirstNoise * e.plan.FirstNoise)
		u.deviation = variance * v.Squared
		if c.Method == "pp_debiased" {
			u.bias = variance * v.Bias
		}
	case e.second != nil:
		u.deviation = e.plan.SecondNoise * linear(e.factors.second, c.Beta2, e.step)
	}
	switch c.Negative {
	case "floor":
		if u.floor = c.VFloor; u.floor == 0 {
			u.floor = u.deviation
		}
	case "abs":
		u.abs = true
	}
	return u
}

// draw draws the noise of a shard.
func (e *Estimator) draw(w *worker, s *shard, rows [2]dp.Row) {
	for i, row := range rows {
		if row == nil {
			continue
		}
		noise, predict, r := w.noise[i][:s.to-s.from], []float64(nil), 1.0
		if s.shapers[i] != nil {
			predict = w.predict[:len(noise)]
			r = s.shapers[i].Predict(predict)
		}
		w.cursors[i].Round(noise, s.from, e.sd[i], predict, r)
		if s.shapers[i] != nil {
			s.shapers[i].Push(noise)
		}
	}
	if e.tap != nil {
		e.tap(e, w, s)
	}
}

// average updates the moments of a shard with its noisy sums, and sets the sums to zero.
func (e *Estimator) average(w *worker, s *shard, u *update) {
	sums := e.first[s.from:s.to]
	noise, m := w.noise[0][:len(sums)], e.m[s.from:s.to][:len(sums)]
	first, beta1, part1, beta2, part2 := u.first, u.beta1, u.part1, u.beta2, u.part2
	switch {
	case e.v == nil:
		for i, k := range sums {
			x := float64(float64(k+noise[i]) * first)
			m[i] = float64(beta1*m[i]) + float64(part1*x)
		}
	case e.second == nil:
		v := e.v[s.from:s.to][:len(sums)]
		for i, k := range sums {
			x := float64(float64(k+noise[i]) * first)
			m[i] = float64(beta1*m[i]) + float64(part1*x)
			v[i] = float64(beta2*v[i]) + float64(part2*float64(x*x))
		}
	default:
		second, noise2, v := e.second[s.from:s.to][:len(sums)], w.noise[1][:len(sums)], e.v[s.from:s.to][:len(sums)]
		unit := u.second
		for i, k := range sums {
			x, q := float64(float64(k+noise[i])*first), float64(float64(second[i]+noise2[i])*unit)
			m[i] = float64(beta1*m[i]) + float64(part1*x)
			v[i] = float64(beta2*v[i]) + float64(part2*q)
		}
		clear(second)
	}
	clear(sums)
}

// root returns the divisor √v̂ for a second moment v.
func (u *update) root(v float64) float64 {
	v = float64(v*u.unbias2) - u.bias
	if u.abs {
		v = math.Abs(v)
	}
	return math.Sqrt(max(v, u.floor))
}

// length returns ‖u‖² over a shard.
func (e *Estimator) length(s *shard, u *update) (sum float64) {
	m := e.m[s.from:s.to]
	if e.v == nil {
		for _, x := range m {
			x *= u.unbias1
			sum += float64(x * x)
		}
		return sum
	}
	for i, v := range e.v[s.from:s.to] {
		x := float64(m[i]*u.unbias1) / (u.root(v) + u.eps)
		sum += float64(x * x)
	}
	return sum
}

// move updates the parameters of a shard and writes the values to release.
func (e *Estimator) move(s *shard, u *update) {
	m, theta, out := e.m[s.from:s.to], e.theta[s.from:s.to], e.out[s.from:s.to]
	theta, out = theta[:len(m)], out[:len(m)]
	rate, unbias := float64(u.rate*u.shrink), u.unbias1
	shrinkage, eps := float64(u.rate*u.decay), u.eps
	parameters := e.cfg.Release == "parameters"
	bad := 0.0
	if e.v == nil {
		for i, x := range m {
			old := theta[i]
			step := float64(float64(x*unbias)*rate) + float64(shrinkage*old)
			now := old - step
			theta[i] = now
			bad += now - now
			if out[i] = -step; parameters {
				out[i] = now
			}
		}
		s.bad = bad
		return
	}
	v := e.v[s.from:s.to][:len(m)]
	for i, x := range m {
		old := theta[i]
		step := float64(float64(x*unbias)/(u.root(v[i])+eps)*rate) + float64(shrinkage*old)
		now := old - step
		theta[i] = now
		bad += now - now
		if out[i] = -step; parameters {
			out[i] = now
		}
	}
	s.bad = bad
}
