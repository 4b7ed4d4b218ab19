package sgd

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"

	"streamdp/dp"
)

// CloneDelta returns the δ(ε), rounded up, of n shuffled records of which each
// goes through a pure ε₀-local randomizer: that of the pair
//
//	P = (A + D, C − A + 1 − D),   Q = (A + 1 − D, C − A + D)
//
// with C ~ Bin(n−1, e^−ε₀), A ~ Bin(C, ½), D ~ Bern(e^ε₀/(1+e^ε₀)), which
// dominates every such mechanism. For a given C the best event is a half-line of A.
//
// Cost: O(√n) binomial tails.
// Errors: n below 1, ε or ε₀ negative or not finite.
// Source: Feldman, McMillan, Talwar (2021), Theorem 3.1.
func CloneDelta(n int, epsilon0, epsilon float64) (float64, error) {
	if n < 1 || !(epsilon >= 0) || !(epsilon0 >= 0) || math.IsInf(epsilon0, 0) {
		return 0, fmt.Errorf("records %d, epsilon %g and epsilon0 %g must be positive", n, epsilon, epsilon0)
	}
	if epsilon >= epsilon0 {
		return 0, nil
	}
	p := math.Exp(-epsilon0)
	a := 1 / (1 + p) // P(D = 1)
	grow := math.Exp(epsilon)
	least, most, dropped := binomialRange(n-1, p, 1e-13)
	slope := (a*grow - (1 - a)) / ((2*a - 1) * (1 + grow))
	delta := dropped
	weight := newBinomial(n-1, p)
	for c := least; c <= most; c++ {
		k := math.Ceil(float64(c+1) * slope)
		above, at := halfTail(c, k-1), halfTail(c, k) // P(A ≥ k−1), P(A ≥ k)
		if term := a*above + (1-a)*at - grow*((1-a)*above+a*at); term > 0 {
			delta += weight.at(c) * term
		}
	}
	// The tails err by less than 10⁻¹³ each, relative and absolute.
	return min(1, delta*(1+1e-12)+1e-13*(1+grow)), nil
}

// halfTail returns P(A ≥ k) for A ~ Bin(c, ½).
func halfTail(c int, k float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > float64(c):
		return 0
	}
	return mathext.RegIncBeta(k, float64(c)-k+1, 0.5)
}

// binomial holds what the probabilities of Bin(n, p) have in common.
type binomial struct {
	n                int
	log, logNot, all float64
}

func newBinomial(n int, p float64) binomial {
	all, _ := math.Lgamma(float64(n) + 1)
	return binomial{n, math.Log(p), math.Log1p(-p), all}
}

func (b binomial) at(c int) float64 {
	if b.n == 0 {
		return 1
	}
	x, _ := math.Lgamma(float64(c) + 1)
	y, _ := math.Lgamma(float64(b.n-c) + 1)
	return math.Exp(b.all - x - y + float64(c)*b.log + float64(b.n-c)*b.logNot)
}

// binomialRange returns a range of Bin(n, p) and an upper bound on what lies
// outside of it, at most about 2·mass.
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

// ShuffleEpsilon returns the ε, rounded up, of n shuffled records of which each
// goes through a pure ε₀-local randomizer.
func ShuffleEpsilon(n int, epsilon0, delta float64) (float64, error) {
	if !(delta > 0 && delta < 1) {
		return 0, errors.New("delta must be in (0, 1)")
	}
	if _, err := CloneDelta(n, epsilon0, 0); err != nil {
		return 0, err
	}
	low, high := 0.0, epsilon0
	for range 100 {
		middle := (low + high) / 2
		if high-low <= 1e-9*high || middle <= low || middle >= high {
			break
		}
		d, err := CloneDelta(n, epsilon0, middle)
		if err != nil {
			return 0, err
		}
		if d <= delta {
			high = middle
		} else {
			low = middle
		}
	}
	return high, nil
}

// shuffled is a guarantee of shuffled Gaussian randomizers and the pure one of a
// single randomizer that it rests on.
type shuffled struct{ epsilon, epsilon0, delta0 float64 }

// shuffledEpsilon accounts for n shuffled randomizers that are μ-Gaussian private
// each. Half of δ is for the clones, half for the event that one of them is not
// ε₀-private:
//
//	δ = δ′ + (e^ε + 1)(1 + e^−ε₀/2)·n·δ₀
//
// where δ₀ depends on the ε to be found: iterated until it stands still and the
// sum, computed anew, is not above δ.
func shuffledEpsilon(n int, mu, delta float64) (shuffled, error) {
	s := shuffled{epsilon: 1, epsilon0: 1}
	events := func() float64 { return (math.Exp(s.epsilon) + 1) * (1 + math.Exp(-s.epsilon0)/2) * float64(n) }
	for range 100 {
		s.delta0 = delta / 2 * (1 - 1e-6) / events()
		var err error
		if !(s.delta0 > 0) {
			return shuffled{epsilon: math.Inf(1)}, nil
		}
		if s.epsilon0, err = dp.Epsilon(s.delta0, mu); err != nil {
			return s, err
		}
		before := s.epsilon
		if s.epsilon, err = ShuffleEpsilon(n, s.epsilon0, delta/2); err != nil {
			return s, err
		}
		if math.Abs(s.epsilon-before) < 1e-7 && events()*s.delta0 <= delta/2 {
			return s, nil
		}
	}
	return shuffled{epsilon: math.Inf(1)}, nil
}
