package dp_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
)

// This file has the reachable-set attack: y = x + noise is published once, for a secret x that is one of two
// candidates. A sampler of float64 can return only few of the numbers near any real number, so usually y − candidate is
// a possible result of the sampler for one candidate only, however small ε is. Against NormFloat64 that candidate is
// almost always x. Against the noise of this package the attack learns nothing.

// strips returns the table of math/rand/v2's ziggurat: except for one draw in 2000, NormFloat64 returns j·strips[i] for
// an int32 j. The table is computed with a source that always gives strip i and j = 1.
func strips(t *testing.T) [128]float64 {
	t.Helper()
	var w [128]float64
	for i := range w {
		if w[i] = rand.New(fixedWord(i)<<32 | 1).NormFloat64(); !(w[i] > 0 && w[i] < 1e-8) {
			t.Fatalf("strip %d is %g", i, w[i])
		}
	}
	return w
}

type fixedWord uint64

func (w fixedWord) Uint64() uint64 { return uint64(w) }

// reachable reports whether y can be x + σ·NormFloat64(), computed in float64. The product may be rounded, or fused
// with the sum, depending on the processor.
func reachable(y, x, sigma float64, strips *[128]float64) bool {
	for _, w := range strips {
		j := math.Round((y - x) / sigma / w)
		// (y−x)/σ may be wrong by some units in the last place, so try the neighbours.
		for d := -1.0; d <= 1; d++ {
			z := float64((j + d) * w)
			if math.Abs(j+d) <= 1<<31 && (x+float64(sigma*z) == y || math.FMA(sigma, z, x) == y) {
				return true
			}
		}
	}
	return false
}

// guess returns the candidate that the attack chooses. If the attack accepts both candidates or none, it tosses a coin.
func guess(accepts [2]bool, coin *rand.Rand) int {
	if accepts[0] != accepts[1] {
		if accepts[0] {
			return 0
		}
		return 1
	}
	return coin.IntN(2)
}

// TestAttackFloat attacks float64 noise at ε = 0.001. The attack must find x from one output in more than 99 of 100
// trials. This is the consequence of adding floats.
func TestAttackFloat(t *testing.T) {
	t.Parallel()
	table := strips(t)
	const trials = 20000
	sd, err := dp.Sigma(0.001, 1e-6, 1)
	if err != nil {
		t.Fatal(err)
	}
	coin := rand.New(rand.NewPCG(1, 1))
	for _, sigma := range []float64{1, 10.7, sd} {
		noise := rand.New(rand.NewChaCha8([32]byte{2}))
		right, false1 := 0, 0
		for range trials {
			x := coin.IntN(2)
			y := float64(x) + sigma*noise.NormFloat64()
			accepts := [2]bool{reachable(y, 0, sigma, &table), reachable(y, 1, sigma, &table)}
			if accepts[1-x] {
				false1++
			}
			if guess(accepts, coin) == x {
				right++
			}
		}
		t.Logf("σ = %.6g: %.2f %% right, the other candidate is accepted in %.3f %%", sigma, 100*float64(right)/trials,
			100*float64(false1)/trials)
		if right <= trials*99/100 {
			t.Errorf("σ = %g: the attack finds x in %d of %d trials", sigma, right, trials)
		}
	}
}

// latticeNoise returns a function that draws the lattice noise of one trial, as a mechanism does.
func latticeNoise(t *testing.T) func(trial uint64, sd float64, hidden int64) int64 {
	t.Helper()
	e, err := dp.NewEpoch(&[32]byte{3}, &[32]byte{4}, "attack", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	var h dp.Transcript
	return func(trial uint64, sd float64, hidden int64) int64 {
		var w [1]int64
		dp.RoundRow(w[:], e.Step(trial, &h).Row("attack", []int64{hidden}), []float64{sd}, nil, 1)
		return w[0]
	}
}

// exists reports whether a word of the generator rounds to w. It looks whether one of the 2⁶³ equidistant p is between
// the tails at (w ± ½)/sd. Beyond |Z| = 4.2 words are extended by 64 bits and more, so every w exists.
func exists(w int64, sd float64) bool {
	z := math.Abs(float64(w))
	if z/sd > 4.2 {
		return true
	}
	tail := func(x float64) *big.Float { // Q(x/sd)·2⁶⁴, with the float64 error 2⁻⁵², which is much less than the gap
		return new(big.Float).SetMantExp(big.NewFloat(math.Erfc(x/sd/math.Sqrt2)/2), 64)
	}
	low, high := tail(z+0.5), tail(math.Max(z-0.5, 0))
	return new(big.Float).Sub(high, low).Cmp(big.NewFloat(2)) > 0
}

// TestAttackLattice makes the same attack and similar ones against rounded Gaussians on a lattice. They must guess no
// better than chance. With Gaussian parameter μ, any attack is right with probability at most Φ(μ/2). In 20 000 trials
// it is right more often than the bound below only with probability 10⁻⁹ (Hoeffding). The lattice sampler can reach y
// from both candidates.
func TestAttackLattice(t *testing.T) {
	t.Parallel()
	table := strips(t)
	const trials, eps, delta = 20000, 0.001, 1e-6
	sigma, err := dp.Sigma(eps, delta, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dp.NewLattice(1, sigma, 24)
	if err != nil {
		t.Fatal(err)
	}
	sd := sigma / l.Step()
	// This is the largest number of right guesses that the privacy guarantee and chance allow.
	most := trials*stattest.Gaussian(1/sigma/2) + math.Sqrt(trials*math.Log(1/stattest.Alpha)/2)
	coin := rand.New(rand.NewPCG(5, 5))
	draw := latticeNoise(t)
	attacks := []struct {
		name   string
		accept func(y, x float64) bool // whether x may be the secret of y
	}{
		{"set of NormFloat64", func(y, x float64) bool { return reachable(y, x, sigma, &table) }},
		{"set of the lattice sampler", func(y, x float64) bool { return exists(int64((y-x)/l.Step()), sd) }},
		{"the lattice", func(y, x float64) bool { return math.Mod(y-x, l.Step()) == 0 }},
		{"the lowest bit", func(y, x float64) bool { return int64(y/l.Step())&1 == int64(x/l.Step())&1 }},
		{"a float64 quotient without a rest", func(y, x float64) bool { return (y-x)/sigma*sigma == y-x }},
	}
	right := make([]int, len(attacks))
	for trial := range trials {
		x := coin.IntN(2)
		k := int64(x) * l.K
		y := float64(k+draw(uint64(trial)+1, sd, k)) * l.Step()
		for i, a := range attacks {
			accepts := [2]bool{a.accept(y, 0), a.accept(y, l.Bound())}
			if a.name == "set of the lattice sampler" && accepts != [2]bool{true, true} {
				t.Fatalf("%g is not reachable from both candidates", y)
			}
			if guess(accepts, coin) == x {
				right[i]++
			}
		}
	}
	for i, a := range attacks {
		t.Logf("%s: %.2f %% right, at most %.2f %% allowed", a.name, 100*float64(right[i])/trials, 100*most/trials)
		if float64(right[i]) > most {
			t.Errorf("%s finds x in %d of %d trials, at most %.0f are allowed", a.name, right[i], trials, most)
		}
	}
}
