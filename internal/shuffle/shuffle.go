// Package shuffle computes the privacy of shuffled records. Each of n records passes a separate randomizer, and an
// observer sees the results in a random order that nobody knows. Shuffled results are more private than each result
// alone.
package shuffle

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"

	"github.com/streamdp/streamdp/dp"
)

// Delta returns δ(ε), rounded up, for n shuffled records that each pass a pure ε₀-local randomizer. It is the δ
// of the pair
//
//	P = (A + D, C − A + 1 − D),   Q = (A + 1 − D, C − A + D)
//
// with C ~ Bin(n−1, e^−ε₀), A ~ Bin(C, ½), D ~ Bern(e^ε₀/(1+e^ε₀)), which dominates every such mechanism. For a given C
// the best event is a half-line of A.
//
// Cost: O(√n).
// Errors: n below 1, ε or ε₀ negative or not finite.
// Source: Feldman, McMillan, Talwar (2021), Theorem 3.1.
func Delta(n int, epsilon0, epsilon float64) (float64, error) {
	if n < 1 || !(epsilon >= 0) || !(epsilon0 >= 0) || math.IsInf(epsilon0, 0) {
		return 0, fmt.Errorf("%d records, epsilon %g and epsilon0 %g must be positive and finite", n, epsilon, epsilon0)
	}
	return newClones(n, epsilon0).delta(epsilon), nil
}

// clones holds the numbers that do not depend on ε, so that they are computed once.
type clones struct {
	n           int
	epsilon0    float64
	p           float64 // e^−ε₀
	least, most int     // the range of C; dropped is the probability outside
	dropped     float64
}

func newClones(n int, epsilon0 float64) clones {
	c := clones{n: n, epsilon0: epsilon0, p: math.Exp(-epsilon0)}
	c.least, c.most, c.dropped = binomialRange(n-1, c.p, 1e-13)
	return c
}

func (s clones) delta(epsilon float64) float64 {
	if epsilon >= s.epsilon0 {
		return 0
	}
	a := 1 / (1 + s.p) // P(D = 1)
	grow := math.Exp(epsilon)
	slope := (a*grow - (1 - a)) / ((2*a - 1) * (1 + grow))
	event := func(c int) int { return max(1, int(math.Ceil(float64(c+1)*slope))) }

	// For each C = c and k = event(c), compute by recursion the weight of c, P(A ≥ k) and P(A = k−1).
	c := s.least
	k := event(c)
	weight := binomial(s.n-1, c, s.p)
	at, terms := upperTail(c, k)
	one := binomial(c, k-1, 0.5)
	first, most, moved, steps := at, 0.0, 0.0, 0.0 // for the bound of the rounding errors
	delta := s.dropped
	for {
		above := at + one
		most = max(most, above)
		if term := a*above + (1-a)*at - grow*((1-a)*above+a*at); term > 0 {
			delta += weight * term
		}
		if c == s.most {
			break
		}
		weight *= float64(s.n-1-c) / float64(c+1) * (s.p / (1 - s.p))
		at += one / 2
		moved += one
		one *= float64(c+1) / (2 * float64(c+2-k))
		steps++
		c++
		for next := event(c); k < next; k++ {
			one *= float64(c-k+1) / float64(k)
			at = max(0, at-one)
			moved += one
			steps++
		}
	}
	// A binomial has a relative error of 10⁻¹³. One step of the recursion rounds a binomial twice, `weight` up to five
	// times, and the new value of `at` once.
	step := 0x1p-52 * steps
	off := first*(1e-13+0x1p-51*terms) + moved*(1e-13+2*step) + most*(step+1e-15)
	return min(1, delta*(1+1e-12+3*step)+off*(1+grow))
}

// upperTail returns P(X ≥ k) for X ~ Bin(n, ½), n/2 < k ≤ n+1, and the number of terms in the
// sum. Each term is smaller than the one before, so the relative error is small however small
// the sum is.
func upperTail(n, k int) (sum, terms float64) {
	if k > n {
		return 0, 0
	}
	for term := binomial(n, k, 0.5); term > sum*0x1p-70; k++ {
		sum += term
		terms++
		term *= float64(n-k) / float64(k+1)
	}
	return sum, terms
}

// binomial returns P(X = k) for X ~ Bin(n, p), with a relative error of at most 10⁻¹³.
//
// Source: Loader (2000), "Fast and Accurate Computation of Binomial Probabilities". It avoids
// differences of large logarithms.
func binomial(n, k int, p float64) float64 {
	switch {
	case k < 0 || k > n:
		return 0
	case k == 0:
		return math.Exp(float64(n) * math.Log1p(-p))
	case k == n:
		return math.Exp(float64(n) * math.Log(p))
	}
	x, y, m := float64(k), float64(n-k), float64(n)
	exponent := stirlingError(m) - stirlingError(x) - stirlingError(y) - deviance(x, m*p) - deviance(y, m*(1-p))
	return math.Exp(exponent) * math.Sqrt(m/(2*math.Pi*x*y))
}

// stirlingError returns log n! − log(√(2πn)(n/e)ⁿ) for n ≥ 1.
func stirlingError(n float64) float64 {
	if n < 16 {
		l, _ := math.Lgamma(n + 1)
		return l - (n+0.5)*math.Log(n) + n - math.Log(2*math.Pi)/2
	}
	s := n * n
	return (1./12 - (1./360-(1./1260-(1./1680-1./1188/s)/s)/s)/s) / n
}

// deviance returns x·log(x/m) + m − x.
func deviance(x, m float64) float64 {
	if math.Abs(x-m) < 0.1*(x+m) {
		v := (x - m) / (x + m)
		sum := (x - m) * v
		term := 2 * x * v
		for j := 3.0; ; j += 2 {
			term *= v * v
			next := sum + term/j
			if next == sum {
				return next
			}
			sum = next
		}
	}
	return x*math.Log(x/m) + m - x
}

// binomialRange returns a range of Bin(n, p), and an upper bound on the probability outside it, which is at most about
// 2·mass.
func binomialRange(n int, p, mass float64) (least, most int, outside float64) {
	if n == 0 {
		return 0, 0, 0
	}
	below := func(c int) float64 { // P(X < c)
		if c <= 0 {
			return 0
		}
		if c > n {
			return 1
		}
		return mathext.RegIncBeta(float64(n-c+1), float64(c), 1-p)
	}
	above := func(c int) float64 { // P(X > c)
		if c >= n {
			return 0
		}
		return mathext.RegIncBeta(float64(c+1), float64(n-c), p)
	}
	low, high := 0, int(float64(n)*p)
	for low < high { // the largest c with P(X < c) ≤ mass
		middle := (low + high + 1) / 2
		if below(middle) <= mass {
			low = middle
		} else {
			high = middle - 1
		}
	}
	least = low
	low, high = int(float64(n)*p), n
	for low < high { // the smallest c with P(X > c) ≤ mass
		middle := (low + high) / 2
		if above(middle) <= mass {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return least, low, below(least) + above(low)
}

// Epsilon returns ε, rounded up, for n shuffled records that each pass a pure ε₀-local randomizer.
//
// Errors: as Delta, and δ outside (0, 1).
func Epsilon(n int, epsilon0, delta float64) (float64, error) {
	if !(delta > 0 && delta < 1) {
		return 0, fmt.Errorf("delta is %g, must be in (0, 1)", delta)
	}
	if _, err := Delta(n, epsilon0, 0); err != nil {
		return 0, err
	}
	c := newClones(n, epsilon0)
	low, high := 0.0, epsilon0
	for range 100 {
		middle := (low + high) / 2
		if high-low <= 1e-10*high || middle <= low || middle >= high {
			break
		}
		if c.delta(middle) <= delta {
			high = middle
		} else {
			low = middle
		}
	}
	return high, nil
}

// Guarantee is the ε of shuffled Gaussian randomizers. It is derived from Epsilon0, the pure guarantee of a single
// randomizer, which fails with probability Delta0. Epsilon is +Inf if no finite ε was found.
type Guarantee struct{ Epsilon, Epsilon0, Delta0 float64 }

// Gaussian returns the guarantee at δ of n shuffled randomizers, each μ-Gaussian private. Half of δ is spent on the
// shuffled ε₀-private randomizers, the other half on the event that some randomizer is not ε₀-private:
//
//	δ = δ′ + (e^ε + 1)(1 + e^−ε₀/2)·n·δ₀
//
// δ₀ depends on the resulting ε, so Gaussian iterates until ε no longer changes. At the end it checks that the sum is
// at most δ.
func Gaussian(n int, mu, delta float64) (Guarantee, error) {
	s := Guarantee{Epsilon: 1, Epsilon0: 1}
	events := func() float64 { return (math.Exp(s.Epsilon) + 1) * (1 + math.Exp(-s.Epsilon0)/2) * float64(n) }
	for range 100 {
		s.Delta0 = delta / 2 * (1 - 1e-6) / events()
		var err error
		if !(s.Delta0 > 0) {
			return Guarantee{Epsilon: math.Inf(1)}, nil
		}
		if s.Epsilon0, err = dp.Epsilon(s.Delta0, mu); err != nil {
			return s, err
		}
		before := s.Epsilon
		if s.Epsilon, err = Epsilon(n, s.Epsilon0, delta/2); err != nil {
			return s, err
		}
		if math.Abs(s.Epsilon-before) < 1e-7 && events()*s.Delta0 <= delta/2 {
			return s, nil
		}
	}
	return Guarantee{Epsilon: math.Inf(1)}, nil
}
