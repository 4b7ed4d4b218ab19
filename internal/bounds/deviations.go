package bounds

import (
	"math"
	"sync"

	"gonum.org/v1/gonum/mathext"
)

// deviationBins is the number of bins of deviations. Their edges are the levels e_q = 2^(q/2 − 104), q from 0 to 415,
// with either sign; the middle bin holds zero.
const (
	deviationBins = 833
	deviationZero = 416
	levels        = 416
)

// deviation returns the bin of y, a value less the centre. If |y| is below dead, y is in the bin of zero.
func deviation(y, dead float64) int {
	size := math.Abs(y)
	if size < max(0x1p-104, dead) {
		return deviationZero
	}
	m, e := math.Frexp(size)
	q := 2 * (e - 1 + topOctave)
	if m >= math.Sqrt2/2 {
		q++
	}
	q = max(0, min(q, levels-1))
	if y > 0 {
		return deviationZero + 1 + q
	}
	return deviationZero - 1 - q
}

// level returns e_q.
func level(q int) float64 {
	x := math.Ldexp(1, q>>1-topOctave)
	if q&1 == 1 {
		x *= math.Sqrt2
	}
	return x
}

// above returns T_q, the number of rows that are at least e_q away from the centre, as a linear form of prefix sums.
// The form is empty from level 416 on.
func above(q int) []term {
	if q >= levels {
		return nil
	}
	return []term{{deviationBins - 1, 1}, {deviationZero + q, -1}, {deviationZero - 1 - q, 1}}
}

// beyond returns, as a linear form, the number of rows at least e_q above the centre less the number of rows at least
// e_q below it.
func beyond(q int) []term {
	if q >= levels {
		return nil
	}
	return []term{{deviationBins - 1, 1}, {deviationZero + q, -1}, {deviationZero - 1 - q, -1}}
}

// minus returns the linear form factor·(a − b).
func minus(a, b []term, factor float64) []term {
	out := make([]term, 0, len(a)+len(b))
	for _, t := range a {
		out = append(out, term{t.bin, factor * t.factor})
	}
	for _, t := range b {
		out = append(out, term{t.bin, -factor * t.factor})
	}
	return out
}

// value evaluates a linear form of the prefix sums p.
func value(p []float64, terms []term) (sum float64) {
	for _, t := range terms {
		if t.bin >= 0 {
			sum += t.factor * p[t.bin]
		}
	}
	return sum
}

// window is a range of levels [from, to). deviation is the standard deviation of the noisy number of rows in it, for σ
// = 1.
type window struct {
	from, to int
	terms    []term
	sd       float64
}

// windows returns the 801 windows in which a spread is searched for, each 2 to 32 levels wide, and the largest of their
// deviations. ahead are windows of 24 levels, one from each level on.
var windows = sync.OnceValue(func() (w struct {
	all     []window
	largest float64
	ahead   [levels]window
}) {
	s := deviationShape()
	make := func(from, to int) window {
		terms := minus(above(from), above(to), 1)
		return window{from, to, terms, s.deviation(terms...)}
	}
	for width := 2; width <= 32; width *= 2 {
		for from := 0; from < levels-width/2; from += width / 2 {
			x := make(from, from+width)
			w.all = append(w.all, x)
			w.largest = max(w.largest, x.sd)
		}
	}
	for q := range levels {
		w.ahead[q] = make(q, q+reachAhead)
	}
	return w
})

// reachAhead is the number of levels, two an octave, that the search for a tail looks ahead, so that it crosses gaps.
const reachAhead = 24

// chance is the probability with which a stage mistakes noise for a spread.
const chance = 1e-3

// certain returns the number of standard deviations that a count must exceed to be distinguished from noise, if the
// number of counts compared is `looks`. It is the quantile of the normal distribution at 1 − chance/looks.
func certain(looks float64) float64 { return -mathext.NormalQuantile(chance / looks) }

// spread describes a column's distances from its centre, as estimated from prefix sums.
type spread struct {
	frozen  bool
	mean    float64 // m₁, the mean of the signed distances; 0 if it cannot be told from noise
	scale   float64 // before rounding
	largest float64 // the cap
}

// spreadOf finds the largest level that some row certainly reaches. From there it goes upward as long as the counts
// make a tail likely. From the numbers of rows beyond each level it computes the first two moments of the distances up
// to the last level.
func spreadOf(prefix []float64, sigma, records, certainty float64) spread {
	s, w := deviationShape(), windows()
	k := -1
	for i := range w.all {
		if x := &w.all[i]; x.from > k && value(prefix, x.terms) >= certainty*sigma*x.sd {
			k = x.from
		}
	}
	if k < 0 {
		return spread{frozen: true}
	}
	for next := k; ; k = next {
		for q := k + 1; q <= min(k+4, levels-1); q++ {
			if x := &w.ahead[q]; value(prefix, x.terms) >= 3*sigma*x.sd {
				next = q
			}
		}
		if next == k {
			break
		}
	}

	first := max(0, k-reachAhead)
	tail := make([]float64, 0, k-first+1) // from k down, therefore rising
	for q := k; q >= first; q-- {
		tail = append(tail, value(prefix, minus(above(q), above(k+reachAhead), 1)))
	}
	tail = rising(tail)
	var second float64
	var mean []term
	var before1, before2 float64
	for q := first; q <= k; q++ {
		e := level(q)
		// e1 and e2 are the mean and the mean square of the values in a level, if their logarithm is uniform.
		e1, e2 := e*(math.Sqrt2-1)/(math.Ln2/2), e*e/math.Ln2
		second += (e2 - before2) * max(tail[k-q], 0)
		mean = append(mean, minus(beyond(q), beyond(k+reachAhead), e1-before1)...)
		before1, before2 = e1, e2
	}
	second += 0.4 * before2 * max(tail[0], 0)
	m1, m2 := value(prefix, mean)/records, second/records
	if math.Abs(m1)*records < 2*sigma*s.deviation(merged(mean)...) {
		m1 = 0
	}
	e := level(k)
	return spread{mean: m1, scale: math.Sqrt(max(m2-m1*m1, m2/8, e*e/256)), largest: math.Sqrt2 * e}
}

// merged adds the factors of terms with equal bins.
func merged(terms []term) []term {
	at := map[int]int{}
	var out []term
	for _, t := range terms {
		if i, ok := at[t.bin]; ok {
			out[i].factor += t.factor
			continue
		}
		at[t.bin] = len(out)
		out = append(out, t)
	}
	return out
}
