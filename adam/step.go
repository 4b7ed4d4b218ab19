package adam

import (
	"math"

	"streamdp/dp"
)

// update holds the public numbers of one step. Products that are added to
// something are written float64(x*y) throughout: the conversion forbids to fuse
// the two, which some architectures would do, and a release would differ from its
// re-derivation elsewhere.
type update struct {
	first, second float64 // what a lattice step of a sum is worth in the mean
	beta1, part1  float64 // β₁, 1−β₁
	beta2, part2  float64
	unbias1       float64 // 1/(1−β₁^i)
	unbias2       float64
	bias          float64 // to be taken off v̂
	deviation     float64 // of the noise in v̂
	floor         float64
	abs           bool // the absolute value of v̂ instead
	eps           float64
	rate          float64
	decay         float64
	shrink        float64 // of u, to bound its norm
	out           []float64
}

// update prepares e.step, which has just been opened.
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

// draw adds the noise of a shard to its sums.
func (e *Estimator) draw(w *worker, s *shard, rows [2]dp.Row) {
	for i, sums := range [2][]int64{e.first, e.second} {
		if rows[i] == nil {
			continue
		}
		sums = sums[s.from:s.to]
		noise, predict, r := w.noise[:len(sums)], []float64(nil), 1.0
		if s.shapers[i] != nil {
			predict = w.predict[:len(sums)]
			r = s.shapers[i].Predict(predict)
		}
		w.cursors[i].Round(noise, s.from, e.sd[i], predict, r)
		if s.shapers[i] != nil {
			s.shapers[i].Push(noise)
		}
		for j, k := range noise {
			sums[j] += k
		}
	}
	if e.tap != nil {
		second := e.second
		if second != nil {
			second = second[s.from:s.to]
		}
		e.tap(s.from, e.first[s.from:s.to], second)
	}
}

// average moves the moments of a shard by its noisy sums, and empties these.
func (e *Estimator) average(s *shard, u *update) {
	sums, m := e.first[s.from:s.to], e.m[s.from:s.to]
	m = m[:len(sums)]
	switch {
	case e.v == nil:
		for i, k := range sums {
			x := float64(float64(k) * u.first)
			m[i] = float64(u.beta1*m[i]) + float64(u.part1*x)
		}
	case e.second == nil:
		v := e.v[s.from:s.to][:len(sums)]
		for i, k := range sums {
			x := float64(float64(k) * u.first)
			m[i] = float64(u.beta1*m[i]) + float64(u.part1*x)
			v[i] = float64(u.beta2*v[i]) + float64(u.part2*float64(x*x))
		}
	default:
		v, second := e.v[s.from:s.to][:len(sums)], e.second[s.from:s.to][:len(sums)]
		for i, k := range sums {
			x, q := float64(float64(k)*u.first), float64(float64(second[i])*u.second)
			m[i] = float64(u.beta1*m[i]) + float64(u.part1*x)
			v[i] = float64(u.beta2*v[i]) + float64(u.part2*q)
		}
		clear(second)
	}
	clear(sums)
}

// root returns √v̂ as it divides, for a second moment v.
func (u *update) root(v float64) float64 {
	v = float64(v*u.unbias2) - u.bias
	if u.abs {
		return math.Sqrt(math.Abs(v))
	}
	if v < u.floor {
		v = u.floor
	}
	return math.Sqrt(v)
}

// length returns ‖u‖² of a shard.
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

// move takes the step of a shard's parameters and writes what is released.
func (e *Estimator) move(s *shard, u *update) {
	m, theta, out := e.m[s.from:s.to], e.theta[s.from:s.to], u.out[s.from:s.to]
	theta, out = theta[:len(m)], out[:len(m)]
	rate := float64(u.rate * u.shrink)
	shrinkage := float64(u.rate * u.decay)
	bad := 0.0
	if e.v == nil {
		for i, x := range m {
			x = float64(float64(x*u.unbias1)*rate) + float64(shrinkage*theta[i])
			theta[i] -= x
			out[i] = -x
		}
	} else {
		v := e.v[s.from:s.to][:len(m)]
		for i, x := range m {
			x = float64(float64(x*u.unbias1)/(u.root(v[i])+u.eps)*rate) + float64(shrinkage*theta[i])
			theta[i] -= x
			out[i] = -x
		}
	}
	for i, x := range theta {
		bad += x - x
		if e.cfg.Release == "parameters" {
			out[i] = x
		}
	}
	s.bad = bad
}
