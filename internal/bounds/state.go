package bounds

import (
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
)

// AppendTo appends the state after the last Close. It contains the releases so far, but nothing of the open part.
func (w *Warmup) AppendTo(b *bin.Writer) {
	b.Uint(uint64(w.next))
	flag(b, w.failed)
	f := &w.found
	for _, x := range [][]float64{f.Centre, f.Scale, w.middle, w.dead} {
		floats(b, x)
	}
	for _, x := range f.Cap {
		b.Uint(math.Float64bits(x)) // may be infinite
	}
	for _, x := range []*float64{&f.Clip, &f.Unseen, &f.Clipped, &f.ClippedSE, &f.BiasMean, &f.BiasSecond, &f.Full,
		&f.FullSE} {
		b.Float(*x)
	}
	for _, x := range w.limits() {
		b.Float(*x)
	}
	flag(b, f.BiasedMean)
	flag(b, f.BiasedSecond)
	flag(b, w.ranges != nil)
	for _, c := range w.ranges {
		b.Uint(uint64(c.count))
		b.Float(c.width)
		b.Float(c.origin)
	}
	flag(b, w.pool != nil)
	if p := w.pool; p != nil {
		b.Float(p.sigma)
		b.Float(p.records)
		for _, x := range p.prefix {
			floats(b, x)
		}
	}
}

func floats(b *bin.Writer, x []float64) {
	for _, v := range x {
		b.Float(v)
	}
}

func flag(b *bin.Writer, yes bool) {
	if yes {
		b.Byte(1)
	} else {
		b.Byte(0)
	}
}

// Restore reads a state that AppendTo of a warm-up with the same configuration wrote. It discards the open part. After
// an error the warm-up must not be used.
func (w *Warmup) Restore(r *bin.Reader) error {
	w.begin()
	isSet := func() bool {
		b := r.Byte()
		r.Bad = r.Bad || b > 1
		return b == 1
	}
	next := r.Uint()
	w.failed = isSet()
	if next > uint64(len(w.taken)) || w.failed && next == uint64(len(w.taken)) {
		r.Bad = true
	} else {
		w.next = int(next)
	}
	f := &w.found
	for j := range f.Centre {
		f.Centre[j] = r.Float()
	}
	for j := range f.Scale {
		f.Scale[j] = r.Float()
		r.Bad = r.Bad || !(f.Scale[j] > 0)
	}
	for _, x := range [][]float64{w.middle, w.dead} {
		for j := range x {
			x[j] = r.Float()
		}
	}
	for j := range f.Cap {
		f.Cap[j] = math.Float64frombits(r.Uint())
		r.Bad = r.Bad || !(f.Cap[j] >= 0) || math.IsInf(f.Cap[j], 1) == math.IsNaN(w.cfg.Scale[j])
	}
	for _, x := range []*float64{&f.Clip, &f.Unseen, &f.Clipped, &f.ClippedSE, &f.BiasMean, &f.BiasSecond, &f.Full,
		&f.FullSE} {
		*x = r.Float()
	}
	for _, x := range w.limits() {
		*x = r.Float()
	}
	f.BiasedMean, f.BiasedSecond = isSet(), isSet()
	if g := w.cfg.Regression; g != nil && w.Done() && !w.failed {
		r.Bad = r.Bad || g.X && !(f.X.Clip > 0) || g.Y && !(f.Y.Clip > 0)
	}
	r.Bad = r.Bad || w.cfg.Clip && w.Done() && !w.failed && !(f.Clip > 0)
	if isSet() {
		w.ranges = make([]circle, len(unknown(w.cfg.Centre)))
		for i := range w.ranges {
			n := r.Uint()
			r.Bad = r.Bad || n > mostCircles
			w.ranges[i] = circle{int(min(n, mostCircles)), r.Float(), r.Float()}
			r.Bad = r.Bad || !w.ranges[i].possible()
		}
	}
	if isSet() {
		w.pool = &sums{shape: deviationShape(), sigma: r.Float(), records: r.Float()}
		for range unknown(w.cfg.Scale) {
			x := make([]float64, deviationBins)
			for b := range x {
				x[b] = r.Float()
			}
			w.pool.prefix = append(w.pool.prefix, x)
		}
	}
	// The state has the ranges of octaves if A1 is closed, and the sums of A3 from A3 until A4 is closed.
	closed := w.taken[:w.next]
	hasRanges, hasPool := slices.Contains(closed, octaves), slices.Contains(closed, deviations) &&
		!slices.Contains(closed, again)
	r.Bad = r.Bad || (w.ranges != nil) != hasRanges || w.pool != nil && !hasPool ||
		w.pool == nil && hasPool && !w.failed
	if r.Bad {
		return errors.New("cannot read the state of the warm-up: it is damaged")
	}
	w.reset()
	return nil
}
