package sgd

import (
	"math"
	"testing"

	"streamdp/dp"
	"streamdp/internal/dptest"
)

func mustNewton(t testing.TB, c Config, p dp.Params) *Newton {
	t.Helper()
	e, err := NewNewton(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// online is a Newton on records that a test draws.
type online struct {
	e     *Newton
	noise dp.Noise
	row   []float64
}

// newOnline returns one for d features without a constant, of norm at most clip.
func newOnline(t testing.TB, d int, clip float64, p dp.Params, seed uint64) *online {
	t.Helper()
	e := mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: clip, Intercept: new(bool)}, p)
	return &online{e: e, noise: dptest.Seeded(seed), row: make([]float64, d+1)}
}

// next takes records from draw until a release is due. A target of NaN is a null record.
func (s *online) next(t testing.TB, draw func(x []float64) float64) *dp.Release {
	t.Helper()
	for {
		first, end := s.e.Range(s.e.step + 1)
		for slot := first; slot < end; slot++ {
			d := len(s.row) - 1
			s.row[d] = draw(s.row[:d])
			s.e.Add(slot, s.row)
		}
		r, err := s.e.Close(s.noise)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			return r
		}
	}
}

// until returns the last release of a stream of so many records.
func (s *online) until(t testing.TB, records uint64, draw func(x []float64) float64) (r *dp.Release) {
	t.Helper()
	for {
		_, end := s.e.Range(s.e.step + 1)
		if end > records {
			return r
		}
		r = s.next(t, draw)
	}
}

// conditioned draws records whose features have variances from 1 down to 1/condition.
func conditioned(seed uint64, d int, condition float64) *linear {
	l := newLinear(seed, d, 1)
	for j := range l.deviation {
		l.deviation[j] = math.Pow(condition, -float64(j)/float64(d-1)/2)
	}
	return l
}
