package audit

import (
	"fmt"
	"math/big"

	"github.com/streamdp/streamdp/dp"
)

// The noise of this file protects nothing. Therefore none of these types may leave the package.

// given is a row of chosen numbers. Coordinate j is computed when it is first read.
type given struct {
	make func(j int) float64
	z    []float64
	made []bool
	err  *error // set if something other than Gaussians is drawn
}

func newGiven(err *error, length int, f func(j int) float64) *given {
	return &given{make: f, z: make([]float64, length), made: make([]bool, length), err: err}
}

func (g *given) At(j int) float64 {
	if j >= len(g.z) {
		g.z = append(g.z, make([]float64, j+1-len(g.z))...)
		g.made = append(g.made, make([]bool, j+1-len(g.made))...)
	}
	if !g.made[j] {
		g.z[j], g.made[j] = g.make(j), true
	}
	return g.z[j]
}

func (g *given) Fill(dst []float64) {
	for j := range dst {
		dst[j] = g.At(j)
	}
}

func (g *given) Above(j int, b *big.Rat) bool {
	return new(big.Rat).SetFloat64(g.At(j)).Cmp(b) > 0
}

func (g *given) Word(j int) uint64 {
	fail(g.err, fmt.Errorf("coordinate %d is drawn from uniform bits, but this audit supports only Gaussian noise", j))
	return 1 << 62
}

// fail sets *dst to err, unless *dst already holds an error.
func fail(dst *error, err error) {
	if *dst == nil {
		*dst = err
	}
}

// noiseFunc implements dp.Noise.
type noiseFunc func(array string, hidden []int64) dp.Row

func (f noiseFunc) Row(array string, hidden []int64) dp.Row { return f(array, hidden) }

// silence is noise that is 0 everywhere.
func silence(err *error) Source {
	return func(uint64) dp.Noise {
		return noiseFunc(func(_ string, hidden []int64) dp.Row {
			return newGiven(err, len(hidden), func(int) float64 { return 0 })
		})
	}
}

// Keys makes keyed noise for any number of runs, by the production code under keys derived from a secret. If the secret
// is fresh, no other run anywhere has the same noise.
//
// Keys are not safe for concurrent use.
type Keys struct {
	secret [32]byte
	runs   uint64
	free   map[freeRow][]float64
}

type freeRow struct {
	array string
	step  uint64
}

// NewKeys returns keys made from secret. Use dp.NewSecret and forget it afterwards, or fixed bytes for a test that must
// be reproducible.
func NewKeys(secret [32]byte) *Keys { return &Keys{secret: secret, free: map[freeRow][]float64{}} }

// next returns the noise of a new run. Like the daemon's noise, it also depends on the integers that it hides.
func (k *Keys) next() Source {
	k.runs++
	e, h := k.epoch("run", k.runs)
	return func(t uint64) dp.Noise {
		h.AbsorbRecords(t)
		return e.Step(t, h)
	}
}

// unbound returns noise that depends only on step and array, and is the same in all runs.
func (k *Keys) unbound(err *error) Source {
	return func(t uint64) dp.Noise {
		return noiseFunc(func(array string, hidden []int64) dp.Row {
			z := k.row(array, t, len(hidden))
			return newGiven(err, len(hidden), func(j int) float64 { return z[j] })
		})
	}
}

// row returns length standard Gaussians, which depend only on name and number.
func (k *Keys) row(name string, number uint64, length int) []float64 {
	at := freeRow{name, number}
	if len(k.free[at]) < length {
		e, h := k.epoch(name, number)
		z := make([]float64, length)
		e.Step(1, h).Row(name, nil).Fill(z)
		k.free[at] = z
	}
	return k.free[at]
}

func (k *Keys) epoch(name string, number uint64) (*dp.Epoch, *dp.Transcript) {
	e, err := dp.NewEpoch(&k.secret, &k.secret, "offline/audit/"+name, number, [16]byte{}, [32]byte{})
	if err != nil {
		panic(err) // unreachable: HKDF with 32 bytes
	}
	h := dp.NewTranscript(k.secret)
	return e, &h
}

// recorder passes on the noise of another source, and records it together with the integers that it hid.
type recorder struct {
	dp.Noise
	rows map[string]*recorded
}

type recorded struct {
	hidden []int64
	z      []float64
	words  []uint64
}

func (r *recorder) Row(array string, hidden []int64) dp.Row {
	row := r.Noise.Row(array, hidden)
	k := &recorded{hidden: append([]int64(nil), hidden...), z: make([]float64, len(hidden)),
		words: make([]uint64, len(hidden))}
	for j := range k.words {
		k.words[j] = row.Word(j)
	}
	row.Fill(k.z)
	r.rows[array] = k
	return row
}
