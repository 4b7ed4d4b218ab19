package bounds

import (
	"math"
	"sort"
)

// circleBins is the number of bins of a circle. In a column's next circle, bins are narrower by the factor `finer`.
const (
	circleBins  = 512
	finer       = 64
	mostCircles = 6
)

// circle describes the circles of a column: circle k has bins of width/64^k, and all circles begin at origin.
type circle struct {
	count         int
	width, origin float64
}

// newCircle returns the circles of a column whose middle half is in [lo, hi].
func newCircle(lo, hi float64, count int) circle {
	if count == 0 {
		return circle{}
	}
	m, e := math.Frexp(4 * (hi - lo))
	if m == 0.5 { // a power of two
		e--
	}
	around := math.Ldexp(1, e)
	w := around / circleBins
	return circle{count, w, math.Floor(((lo+hi)/2-around/2)/w) * w}
}

// possible reports whether each circle has a bin for every value that histograms can count.
func (c *circle) possible() bool {
	if c.count == 0 {
		return c.width == 0 && c.origin == 0
	}
	finest := math.Ldexp(c.width, -6*(c.count-1))
	return finest > 0 && !math.IsInf((0x1p104+math.Abs(c.origin))/finest, 1)
}

// bin returns the bin of x in circle k.
func (c *circle) bin(k int, x float64) int {
	w := math.Ldexp(c.width, -6*k)
	b := int(math.Mod(math.Floor((x-c.origin)/w), circleBins))
	if b < 0 {
		b += circleBins
	}
	return b
}

// centre computes a centre of the column from the prefix sums of its circles. dead is the deviation below which a value
// counts as equal to the centre.
//
// In one circle after another, it finds the shortest arc that contains half of the records. It stops when that arc is
// longer than two bins.
func (c *circle) centre(prefix [][]float64) (centre, dead float64) {
	if c.count == 0 {
		return 0, 0
	}
	// mid is in bins of the current circle, from origin; it is a multiple of ½.
	mid, w := float64(circleBins/2), c.width
	for k, p := range prefix {
		if k > 0 {
			mid *= finer
			w = math.Ldexp(c.width, -6*k)
		}
		cut := mid - circleBins/2
		first := int(math.Mod(cut, circleBins))
		if first < 0 {
			first += circleBins
		}
		m := rising(rotated(p, first))
		half := m[circleBins-1] / 2
		from, arc := shortest(m, half)
		if arc > 2 {
			median := c.origin + (cut+crossing(m, half))*w
			reach := max(w, float64(arc)*w/16)
			return simplest(median-reach, median+reach), 0
		}
		mid = cut + float64(from) + float64(arc)/2
	}
	if c.count > 1 {
		dead = 4 * w
	}
	x := c.origin + mid*w
	return simplest(x-w, x+w), dead
}

// rotated returns the prefix sums once around the circle, beginning at the given bin.
func rotated(p []float64, first int) []float64 {
	before, last := 0.0, p[len(p)-1]
	if first > 0 {
		before = p[first-1]
	}
	out := make([]float64, 0, len(p))
	for _, v := range p[first:] {
		out = append(out, v-before)
	}
	for _, v := range p[:first] {
		out = append(out, last-before+v)
	}
	return out
}

// shortest returns the shortest range of bins that contains at least `mass`, the first one if there are several. m are
// rising prefix sums. If no range contains that much, shortest returns all bins.
func shortest(m []float64, mass float64) (from, length int) {
	length = len(m)
	for i := range m {
		before := 0.0
		if i > 0 {
			before = m[i-1]
		}
		n := sort.Search(len(m)-i, func(n int) bool { return m[i+n]-before >= mass }) + 1
		if n <= len(m)-i && n < length {
			from, length = i, n
		}
	}
	return from, length
}

// crossing returns the position, in bins, at which prefix sums reach a value. It interpolates linearly within bins.
func crossing(m []float64, value float64) float64 {
	before := 0.0
	for b, v := range m {
		if v >= value {
			if v > before {
				return float64(b) + max(0, value-before)/(v-before)
			}
			return float64(b)
		}
		before = v
	}
	return float64(len(m)) / 2
}
