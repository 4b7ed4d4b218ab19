package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
)

// presence estimates the share of slots that hold records, from released numbers only. A step of b slots holds v = b −
// (noisy count of null records) records, with noise of standard deviation s. presence keeps, over the past steps,
//
//	A = Σ_j λʲb·v,  B = Σ_j λʲb²,  C = Σ_j λ²ʲb²,
//
// once for λ = 7/8 and once for λ = 255/256. The share is A/B. It is A/(s√C) standard deviations away from 0; this
// number is standard normal if no slot holds a record. If the two shares differ by more than four standard deviations
// of the first, the share has changed: the sums for λ = 7/8 replace the others.
type presence struct {
	recent, long decaying
}

type decaying struct{ records, slots, noise float64 }

const (
	recentDecay = 1 - 1./8
	longDecay   = 1 - 1./256
	// evident is the distance from 0, in standard deviations, at which there certainly are records. Noise alone reaches
	// it once in 3·10⁶ independent trials.
	evident = 5
)

// full returns the presence after many steps of b slots that all hold a record.
func full(b float64) presence {
	square := float64(b * b)
	d := decaying{square / (1 - recentDecay), square / (1 - recentDecay), square / (1 - recentDecay*recentDecay)}
	return presence{d, d}
}

// observe adds a step of b slots with v records, and reports whether there certainly are records.
func (p *presence) observe(b, v, sd float64) bool {
	p.recent.add(recentDecay, b, v)
	p.long.add(longDecay, b, v)
	if math.Abs(p.recent.share()-p.long.share())*p.recent.slots > 4*sd*math.Sqrt(p.recent.noise) {
		p.long = p.recent
	}
	return max(p.recent.distance(sd), p.long.distance(sd)) >= evident
}

func (d *decaying) add(decay, b, v float64) {
	d.records = float64(decay*d.records) + float64(b*v)
	d.slots = float64(decay*d.slots) + float64(b*b)
	d.noise = float64(decay*decay*d.noise) + float64(b*b)
}

func (d *decaying) share() float64 { return d.records / d.slots }

func (d *decaying) distance(sd float64) float64 { return d.records / (sd * math.Sqrt(d.noise)) }

// share returns the estimated share of slots that hold records, in (0, 1].
func (p *presence) share() float64 { return min(max(p.long.share(), 1./256), 1) }

func (p *presence) appendTo(w *bin.Writer) {
	for _, d := range []decaying{p.recent, p.long} {
		w.Float(d.records)
		w.Float(d.slots)
		w.Float(d.noise)
	}
}

func (p *presence) restore(r *bin.Reader) {
	for _, d := range []*decaying{&p.recent, &p.long} {
		d.records, d.slots, d.noise = r.Float(), r.Float(), r.Float()
		r.Bad = r.Bad || !(d.slots >= 0 && d.noise >= 0 && d.noise <= d.slots) || (d.slots > 0) != (d.noise > 0)
	}
}
