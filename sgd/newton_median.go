package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
)

// A search for the median of residuals bisects twice. First it bisects among the medianRungs
// numbers −2¹⁵, −2¹⁴, …, −2⁻¹⁶, 2⁻¹⁶, …, 2¹⁵. Then it bisects among the medianParts equal parts
// between the number found and the one before it (−2¹⁶ before the first).
const (
	medianRungs     = 64
	medianParts     = 16
	medianQuestions = 6 + 4
)

// medianInterval returns the lower end and the width of the interval that ends with a
// rung.
func medianInterval(rung int) (low, width float64) {
	switch half := medianRungs / 2; {
	case rung < half:
		return -math.Ldexp(1, 16-rung), math.Ldexp(1, 15-rung)
	case rung == half:
		return -0x1p-16, 0x1p-15
	default:
		low = math.Ldexp(1, rung-half-17)
		return low, low
	}
}

// medianBin returns the part in which r lies. A smaller r is in the first part, a larger one in
// the one after the last.
func medianBin(r float64) int {
	var rung int
	switch size, e := math.Frexp(math.Abs(r)); {
	case r <= -0x1p16:
		return 0
	case r > 0x1p15:
		return medianRungs * medianParts
	case r > -0x1p-16 && r <= 0x1p-16:
		rung = medianRungs / 2
	case r < 0:
		rung = 16 - e
	case size == 0.5: // a power of two ends an interval
		rung = e - 1 + 48
	default:
		rung = e + 48
	}
	low, width := medianInterval(rung)
	part := int(math.Ceil((r - low) / (width / medianParts)))
	return rung*medianParts + min(max(part, 1), medianParts) - 1
}

// A mode is one number, or nearly so, that many residuals are: modeLeast of the slots have
// theirs in at most modeParts neighbouring parts, that of the median among them. The noise
// of a part's two counts has a deviation of at most 0.122 of the slots together, for a
// search has 15√6/μ slots or more.
const (
	modeLeast = 0.4
	modeParts = 3
)

// findMedian releases the median of the residuals by part, the middle of a part, and whether it
// is a mode. It returns 0 if the counts are no farther from half of the slots than those of null
// records may be.
//
// Privacy: ten counts. A record moves each by at most one, and a null record counts as half:
// μ-Gaussian private for noise of √10/μ records.
func (e *Newton) findMedian(n dp.Noise) (median float64, mode bool) {
	p, h := &e.plan, e.residuals
	*h.Nulls() = e.nulls
	row := n.Row("newton/locate", h)
	slots := float64(e.size())
	c := ladder.Counting{Unit: p.Unit, Null: p.NullLocate, SD: p.LocateNoise}
	rung := h.Search(medianRungs, func(rung int) int64 { return h.UpTo(rung*medianParts + medianParts - 1) }, c,
		0.5*slots, row, 0)
	part := h.Search(medianParts, func(part int) int64 { return h.UpTo(rung.Place*medianParts + part) }, c,
		0.5*slots, row, 6)
	if rung.Far < farEnough && e.tries < triesMost {
		return 0, false
	}
	// The ends of the interval are ends of parts too.
	counts := part.Answers
	for _, a := range rung.Answers {
		switch a.Place {
		case rung.Place - 1:
			counts = append(counts, ladder.Answer{Place: -1, Count: a.Count})
		case rung.Place:
			counts = append(counts, ladder.Answer{Place: medianParts - 1, Count: a.Count})
		}
	}
	for _, a := range counts {
		for _, b := range counts {
			if a.Place < part.Place && part.Place <= b.Place && b.Place-a.Place <= modeParts {
				mode = mode || b.Count-a.Count >= float64(modeLeast*float64(slots*float64(p.Unit)))
			}
		}
	}
	low, width := medianInterval(rung.Place)
	return low + float64((float64(part.Place)+0.5)*(width/medianParts)), mode
}
