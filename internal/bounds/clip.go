package bounds

import (
	"math"
	"slices"
)

// normBins is the number of bins of the norm of a scaled row. The lower edges of the bins are the levels √d′·2^(k/8−6),
// k = 127 … 0, from the largest down. The first bin has no upper limit, and the last no lower limit. So a prefix sum is
// the number of rows beyond a level.
const normBins = 128

// normEdges returns the lower edges of the bins, in falling order. active is d′, the number of columns that are not
// frozen.
func normEdges(active int) []float64 {
	edges := make([]float64, normBins)
	root := math.Sqrt(float64(active))
	for i := range edges {
		edges[i] = root * math.Exp2(float64(normBins-1-i)/8-6)
	}
	return edges
}

// normBin returns the bin of a norm.
func normBin(edges []float64, norm float64) int {
	lo, hi := 0, normBins-1 // the last bin has no lower edge
	for lo < hi {
		mid := (lo + hi) / 2
		if norm >= edges[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// tails holds the estimated shares of rows beyond each level of the norm, from the highest level down.
type tails struct {
	edges []float64
	share []float64 // the share of rows beyond an edge
	mean  []float64 // b₁: the change of the mean by clipping at an edge
	other []float64 // b₂: the change of the second moment by clipping at an edge
}

// newTails computes tails by integrating shares of rows:
//
//	b₁(R) = ∫_R^∞ share dr,   b₂(R) = ∫_R^∞ share d(r²)
//
// Between two edges, the share is the geometric mean of the shares at the edges. If the share at the upper edge is 0,
// it is half of the share at the lower edge.
func newTails(edges, share []float64) *tails {
	t := &tails{edges, share, make([]float64, normBins), make([]float64, normBins)}
	for i := 1; i < normBins; i++ {
		lower, upper := share[i], share[i-1]
		between := math.Sqrt(lower * upper)
		if upper == 0 {
			between = lower / 2
		}
		hi, lo := edges[i-1], edges[i]
		t.mean[i] = t.mean[i-1] + between*(hi-lo)
		t.other[i] = t.other[i-1] + between*(hi*hi-lo*lo)
	}
	return t
}

// choice is a clip norm, with the numbers by which it was chosen.
type choice struct {
	clip         float64
	edge         int // the bin whose edge is the clip norm before rounding
	choose, tell *tails
	first        int     // the highest level that some row certainly exceeds
	exponent     float64 // of the power law above that level
	shareSum     float64 // sum of the shares of all levels
}

// chooseClip balances noise, which grows with the clip norm, against the loss by clipping. It uses estimated shares of
// rows beyond each level, and minimises
//
//	[(g₁R)² + b₁²d^−½/d]/V + [(g₂R²)² + b₂²d^−½/d²]/V²,   V = max(1, b₂(lowest)/d)
//
// over the levels that shorten at most a quarter of the rows. The factor d^−½ is between two extremes: all clipped rows
// point in one direction, or they point in all directions.
func chooseClip(prefix []float64, sigma, records float64, active int, gains Gains) *choice {
	c, share, beyond := measured(prefix, sigma, records, active, gains.Reference)
	edges, d := normEdges(active), float64(active)
	kept := func(least float64) *tails {
		x := slices.Clone(share)
		for i, v := range x {
			if v < least {
				x[i] = 0
			}
		}
		return newTails(edges, x)
	}
	c.choose, c.tell = kept(beyond/(1+6/d)), kept(beyond/10)

	v := max(1, c.choose.other[normBins-1]/d)
	best := math.Inf(1)
	for i, r := range edges {
		if c.choose.share[i] > 0.25 {
			break // shares rise from here on
		}
		noise1, noise2 := gains.Mean*r, gains.Second*r*r
		b1, b2 := c.choose.mean[i], c.choose.other[i]
		cost := (noise1*noise1+b1*b1/math.Sqrt(d)/d)/v + (noise2*noise2+b2*b2/math.Sqrt(d)/(d*d))/(v*v)
		if cost < best {
			best, c.edge = cost, i
		}
	}
	c.clip = rounded(edges[c.edge], 2)
	return c
}

// measured returns the shares of rows beyond each level. Up to the highest level that some row certainly exceeds, they
// come from the prefix sums. Above that level they follow a power law, until less than one in `reference` rows remains.
// beyond is the share at that highest level, at least 1/reference.
func measured(prefix []float64, sigma, records float64, active int, reference float64) (c *choice, share []float64,
	beyond float64) {
	s := normShape()
	sd := make([]float64, normBins)
	var sum float64
	for i := range sd {
		sum += s.f[i] * s.f[i]
		sd[i] = sigma * math.Sqrt(sum)
	}
	t := rising(prefix)
	for i := range t {
		t[i] = max(t[i], 0)
	}
	c = &choice{first: normBins - 1}
	sure := certain(normBins)
	for i, p := range prefix {
		if p >= sure*sd[i] {
			c.first = i
			break
		}
	}
	for next := c.first; ; c.first = next {
		for i := c.first - 1; i >= max(0, c.first-16); i-- {
			if t[i] >= 3*sd[i] {
				next = i
			}
		}
		if next == c.first {
			break
		}
	}

	edges := normEdges(active)
	share = make([]float64, normBins)
	for i := range share {
		share[i] = min(1, t[i]/records)
		c.shareSum += share[i]
	}
	beyond = max(share[c.first], 1/reference)
	c.exponent = 60
	for q := c.first + 1; q < normBins; q++ {
		if share[q] >= min(3*beyond, 0.5+beyond/2) {
			c.exponent = max(0.5, min(math.Log(share[q]/beyond)/math.Log(edges[c.first]/edges[q]), 60))
			break
		}
	}
	for i := range c.first {
		x := share[c.first] * math.Pow(edges[i]/edges[c.first], -c.exponent)
		if x*reference < 1 {
			x = 0
		}
		share[i] = x
	}
	return c, share, beyond
}
