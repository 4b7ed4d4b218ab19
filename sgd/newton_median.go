package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
)

// A search for the median of residuals bisects twice. First it bisects the medianRungs numbers −2¹⁵, −2¹⁴, …, −2⁻¹⁶,
// 2⁻¹⁶, …, 2¹⁵. Then it bisects the medianParts equal parts of the interval between the number found and the number
// before it (−2¹⁶ before the first).
const (
	medianRungs     = 64
	medianParts     = 16
	medianQuestions = 6 + 4
)

// medianInterval returns the lower end and the width of the interval that ends at a rung.
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

// medianBin returns the index of the part that contains r. A smaller r belongs to the first part, a larger one to an
// extra part after the last.
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
	case size == 0.5: // a power of two is the upper end of an interval
		rung = e - 1 + 48
	default:
		rung = e + 48
	}
	low, width := medianInterval(rung)
	part := int(math.Ceil((r - low) / (width / medianParts)))
	return rung*medianParts + min(max(part, 1), medianParts) - 1
}

// A mode is a value that many residuals have, or nearly have: at least modeLeast of the slots have residuals in at most
// modeParts neighbouring parts, one of which contains the median. The noise of the difference of two counts has a
// deviation of at most 0.122 of the slots, because a search has at least 15√6/μ slots.
const (
	modeLeast = 0.4
	modeParts = 3
)

// findMedian releases the middle of the part that contains the median of the residuals, and whether the median is a
// mode. It returns 0 if the counts are so near to half of the slots that there may be only null records.
//
// Privacy: ten counts. A record moves each count by at most one, and a null record counts as one half. With noise of
// √10/μ records they are μ-Gaussian private.
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
	// The ends of the interval are also ends of parts.
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
