package adam

import (
	"math"
	"math/bits"
	"runtime"
	"sync"
)

// shardSize is the number of coordinates of a shard. A shard has its own shaper, and only one goroutine works on it at
// a time. Its noise, moments and parameters fit the second-level cache. shardSize is part of the state's format.
const shardSize = 1 << 14

// all calls f for all coordinates: once if there are few coordinates, otherwise once per shard, on all processors. The
// results of f must not depend on how the coordinates are divided.
func (e *Estimator) all(f func(e *Estimator, from, to int)) {
	if len(e.shards) < 4 {
		f(e, 0, e.dim)
		return
	}
	e.split(f)
}

func (e *Estimator) split(f func(e *Estimator, from, to int)) {
	workers := min(runtime.GOMAXPROCS(0), len(e.shards))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			f(e, e.shards[len(e.shards)*w/workers].from, e.shards[len(e.shards)*(w+1)/workers-1].to)
		})
	}
	wg.Wait()
}

// addGradient clips and quantises a gradient, and adds it and its squares to the sums of the step. It ignores a
// gradient that is not finite.
func (e *Estimator) addGradient(g []float64) {
	if e.cfg.Method == "joint_clip" {
		if e.joint.quantise(e.record, e.squares, g) {
			e.all((*Estimator).addJoint)
		}
		return
	}
	if !e.plan.Lattice.QuantiseLong(e.record, g) {
		return
	}
	switch e.cfg.Method {
	case "jme", "jme_per_example":
		e.all((*Estimator).addSquares)
	default:
		e.all((*Estimator).addRecord)
	}
}

func (e *Estimator) addRecord(from, to int) {
	sum := e.first[from:to]
	for i, k := range e.record[from:to] {
		sum[i] += k
	}
}

func (e *Estimator) addSquares(from, to int) {
	sum, squares, record := e.first[from:to], e.squares[from:to], e.record[from:to]
	for i, k := range record {
		sum[i] += k
		squares[i] += k * k
	}
}

func (e *Estimator) addJoint(from, to int) {
	sum, squares, record, second := e.first[from:to], e.squares[from:to], e.record[from:to], e.second[from:to]
	for i, k := range record {
		sum[i] += k
		second[i] += squares[i]
	}
}

// endBlock rounds the exact squares of a block to their lattice and adds them to the squares of the step.
func (e *Estimator) endBlock() {
	e.all((*Estimator).roundSquares)
	e.inBlock = 0
}

func (e *Estimator) roundSquares(from, to int) {
	shift, half := e.shift()
	second, squares := e.second[from:to], e.squares[from:to]
	for i, p := range squares {
		second[i] += (p + half) >> shift
		squares[i] = 0
	}
}

// shift returns the number of bits by which squares of lattice steps are shifted to their own lattice, and half of the
// last bit, for rounding to nearest.
func (e *Estimator) shift() (shift uint, half int64) {
	shift = uint(e.plan.SecondExp - 2*e.plan.Lattice.Exp)
	if shift > 0 {
		half = 1 << (shift - 1)
	}
	return shift, half
}

// squareSums sets the second sums to the squares of the first, rounded.
func (e *Estimator) squareSums(from, to int) {
	shift, half := e.shift()
	second := e.second[from:to]
	for i, x := range e.first[from:to] {
		u := uint64(max(x, -x))
		hi, lo := bits.Mul64(u, u)
		lo, carry := bits.Add64(lo, uint64(half), 0)
		second[i] = int64((hi+carry)<<(64-shift) | lo>>shift) // the result is below 2⁶²; in Go, a shift by 64 gives 0
	}
}

// clipSum scales the first sums to the norm limit if their norm is larger. It rounds to the nearest integers, so the
// distance of neighbours grows by less than one per coordinate. The norm is computed exactly up to its last rounding: a
// larger error would depend on the data and would have to be charged too.
func (e *Estimator) clipSum(limit float64) {
	var hi, lo uint64
	for _, x := range e.first {
		u := uint64(max(x, -x))
		h, l := bits.Mul64(u, u)
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	norm := math.Sqrt(float64(float64(hi)*0x1p64) + float64(lo))
	if norm <= limit {
		return
	}
	scale := limit / norm
	for i, x := range e.first {
		e.first[i] = int64(math.RoundToEven(float64(float64(x) * scale)))
	}
}

// jointClip maps a gradient g to the lattices of (g, √τ·g∘g), clipped in norm.
type jointClip struct {
	tau    float64
	clip   float64 // K·g
	g, g2  float64 // values of a lattice step of g and of g∘g
	limit  float64 // K², minus more than the rounding error of the test
	weight float64 // weight of a squared step of the second lattice: τ(g₂/g)²
}

// newJointClip returns the jointClip for a plan and its τ.
func newJointClip(p *Plan, tau float64) jointClip {
	j := jointClip{tau: tau, clip: p.Clip, g: p.Lattice.Step(), g2: math.Ldexp(1, p.SecondExp)}
	ratio := j.g2 / j.g // exact
	j.weight = tau * ratio * ratio
	k := float64(p.Lattice.K)
	j.limit = k * k * (1 - 0x1p-48)
	return j
}

// quantise writes the lattice points of κg and κg∘g, κ = min(1, ζ/‖(g, √τ·g∘g)‖), to first and second. If the gradient
// is not finite, or if no rounding fits the bound, it returns false and sets both to zeros.
//
// Privacy: ‖first‖² + τ(g₂/g)²‖second‖² ≤ K². The test is in integers except for one rounding, which can only reject a
// valid point. So both together have norm at most K·g.
func (j *jointClip) quantise(first, second []int64, g []float64) bool {
	largest := 0.0
	for _, v := range g {
		largest = max(largest, math.Abs(v)) // NaN if an entry is NaN
	}
	// Let c = 2^−e and h = c·g, whose entries are at most 1 in size. Then ‖g‖² + τΣg⁴ = 2^(4e)(c²Σh² + τΣh⁴), κg =
	// ζ·c·h/E and κg∘g = ζ·h∘h/E, where E is the root of c²Σh² + τΣh⁴.
	_, e := math.Frexp(largest)
	e = max(e, -200)
	c := math.Ldexp(1, -e)
	var two, four float64
	for _, v := range g {
		h := float64(v * c)
		h2 := float64(h * h)
		two += h2
		four += float64(h2 * h2)
	}
	root := math.Sqrt(float64(float64(c*c)*two) + float64(j.tau*four))
	// The norm divided by the clip norm is root·2^(2e)/ζ.
	norm := math.Ldexp(root, 2*e)
	fx, fq := math.Ldexp(1, e)/j.g, math.Ldexp(1, 2*e)/j.g2
	if norm > j.clip {
		fx, fq = j.clip*c/root/j.g, j.clip/root/j.g2
	}
	if largest-largest != 0 || fx-fx != 0 || fq-fq != 0 {
		clear(first)
		clear(second)
		return false
	}
	for _, shrink := range [...]float64{0, 1, 1 - 1.0/(1<<40)} { // 0 means: round to nearest
		for i, v := range g {
			h := float64(v * c)
			x, q := float64(h*fx), float64(float64(h*h)*fq)
			if shrink == 0 {
				first[i], second[i] = int64(math.Floor(x+0.5)), int64(math.Floor(q+0.5))
			} else {
				first[i], second[i] = int64(float64(x*shrink)), int64(float64(q*shrink))
			}
		}
		if j.inside(first, second) {
			return true
		}
	}
	clear(first)
	clear(second)
	return false
}

// inside reports whether the weighted squares are at most K². The sums are integers, and as float64 they are exact to
// 2⁻⁵³; limit is lower than K² by 2⁻⁴⁸.
func (j *jointClip) inside(first, second []int64) bool {
	var a, b uint64
	const most = 1 << 31
	for i, k := range first {
		q := second[i]
		if k >= most || k <= -most || q >= most || q < 0 {
			return false
		}
		if a += uint64(k * k); a >= 1<<62 {
			return false
		}
		if b += uint64(q * q); b >= 1<<63 {
			return false
		}
	}
	return float64(a)+float64(j.weight*float64(b)) <= j.limit
}
