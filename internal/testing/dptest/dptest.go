// Package dptest makes noise with values that a test chooses. For tests only: it uses no keys and protects nothing.
package dptest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"

	"github.com/streamdp/streamdp/dp"
)

// Queue returns noise that consists of the values z, in turn. When a coordinate of any array is read for the first
// time, it gets the next value.
func Queue(z ...float64) *Source {
	return &Source{next: func(string, uint64, int) float64 {
		if len(z) == 0 {
			panic("dptest: the queue of noise values is empty")
		}
		first := z[0]
		z = z[1:]
		return first
	}}
}

// Arrays returns noise that consists of the given rows. When an array is opened for the t-th time, counted from 0, its
// noise is its row t.
func Arrays(rows map[string][][]float64) *Source {
	return &Source{next: func(array string, t uint64, j int) float64 {
		r, ok := rows[array]
		if !ok || t >= uint64(len(r)) || j >= len(r[t]) {
			panic(fmt.Sprintf("dptest: array %s has no value (%d, %d)", array, t, j))
		}
		return r[t][j]
	}}
}

// Zero returns noise that is 0 everywhere.
func Zero() *Source { return &Source{next: func(string, uint64, int) float64 { return 0 }} }

// Seeded returns independent standard Gaussians of a statistical generator, for simulations.
func Seeded(seed uint64) *Source {
	source := rand.New(rand.NewPCG(seed, 0))
	return &Source{next: func(string, uint64, int) float64 { return source.NormFloat64() }}
}

// Source is the noise of a sequence of steps. It implements dp.Noise for all these steps: opening an array again
// returns the row of the next step.
type Source struct {
	next   func(array string, t uint64, j int) float64
	opened map[string]uint64
	hidden map[string][]int64
}

// Row implements dp.Noise.
func (s *Source) Row(array string, hidden []int64) dp.Row {
	if s.opened == nil {
		s.opened, s.hidden = map[string]uint64{}, map[string][]int64{}
	}
	t := s.opened[array]
	s.opened[array]++
	s.hidden[array] = append([]int64(nil), hidden...)
	return &row{source: s, array: array, t: t, z: make([]float64, 0, len(hidden))}
}

// Hidden returns the integers that were passed when the array was last opened.
func (s *Source) Hidden(array string) []int64 { return s.hidden[array] }

type row struct {
	source *Source
	array  string
	t      uint64
	z      []float64       // the coordinates that were read in order
	ahead  map[int]float64 // the coordinates that were read out of order
}

func (r *row) At(j int) float64 {
	if j < len(r.z) {
		return r.z[j]
	}
	z, ok := r.ahead[j]
	if !ok {
		z = r.source.next(r.array, r.t, j)
	}
	switch {
	case j == len(r.z):
		r.z = append(r.z, z)
	case !ok:
		if r.ahead == nil {
			r.ahead = map[int]float64{}
		}
		r.ahead[j] = z
	}
	return z
}

func (r *row) Fill(dst []float64) {
	for j := range dst {
		dst[j] = r.At(j)
	}
}

func (r *row) Above(j int, b *big.Rat) bool { return new(big.Rat).SetFloat64(r.At(j)).Cmp(b) > 0 }

// Word returns bits derived from the coordinate's value.
func (r *row) Word(j int) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], math.Float64bits(r.At(j)))
	return binary.LittleEndian.Uint64(b[:])
}

// Columns returns n column names.
func Columns(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("c", i+1)
	}
	return names
}
