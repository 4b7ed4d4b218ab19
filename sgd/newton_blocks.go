package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/newton"
)

// stretch holds the sums Σb, Σb·w and ΣW⁻¹u over successive steps, where u is a step's released sum of gradients and w
// the iterate at which it was computed.
type stretch struct {
	at    uint64 // index of the stretch within its epoch
	slots float64
	w, u  []float64
}

// blocks holds the stretches of the last epochs, the open one last. Each epoch has at most
// stretchesMost stretches of equal length.
//
// Cost: O(d) a step, 2·epochsMost·stretchesMost·d numbers.
type blocks struct {
	dim    int
	epochs [][]stretch
}

const (
	epochsMost    = 3
	stretchesMost = 8
)

// begin begins an epoch.
func (b *blocks) begin() {
	if len(b.epochs) == epochsMost {
		copy(b.epochs, b.epochs[1:])
		b.epochs = b.epochs[:epochsMost-1]
	}
	b.epochs = append(b.epochs, nil)
}

// reset drops all stretches and keeps the number of epochs.
func (b *blocks) reset() { clear(b.epochs) }

// add adds a step with the given number of slots to stretch at of the open epoch.
func (b *blocks) add(at uint64, slots float64, w, u []float64) {
	open := &b.epochs[len(b.epochs)-1]
	if n := len(*open); n == 0 || (*open)[n-1].at != at {
		*open = append(*open, b.stretch(at))
	}
	s := &(*open)[len(*open)-1]
	s.slots += slots
	for j := range s.w {
		s.w[j] += float64(slots * w[j])
		s.u[j] += u[j]
	}
}

func (b *blocks) stretch(at uint64) stretch {
	return stretch{at: at, w: make([]float64, b.dim), u: make([]float64, b.dim)}
}

// newest returns the stretches of at most the given number of epochs, the oldest stretch first. It takes the last
// epochs that have stretches, and the open epoch too if open is set.
func (b *blocks) newest(most int, open bool) stretches {
	end := len(b.epochs)
	if !open {
		end--
	}
	first := end
	for n := 0; first > 0 && n < most; {
		if first--; len(b.epochs[first]) > 0 {
			n++
		}
	}
	var all stretches
	for _, e := range b.epochs[first:max(end, 0)] {
		all = append(all, e...)
	}
	return all
}

// stretches is a list of successive stretches.
type stretches []stretch

// slots returns the number of slots.
func (s stretches) slots() float64 {
	var n float64
	for i := range s {
		n += s[i].slots
	}
	return n
}

// estimate sets dst to θ̂ = Σbw/Σb + WVFVᵀW·ΣW⁻¹u/Σb, where F = diag(gains). If gains is nil, F = I.
func (s stretches) estimate(dst []float64, white *newton.Whitening, gains []float64) {
	d, slots := len(dst), s.slots()
	scratch := make([]float64, 2*d)
	u, once := scratch[:d], scratch[d:]
	s.gradient(u)
	white.Apply(once, u)
	if gains != nil {
		copy(u, once)
		white.Scaled(once, u, gains)
	}
	white.Apply(dst, once)
	for j, v := range dst {
		var sum float64
		for i := range s {
			sum += s[i].w[j]
		}
		dst[j] = (sum + v) / slots
	}
}

// gradient adds ΣW⁻¹u to dst.
func (s stretches) gradient(dst []float64) {
	for i := range s {
		for j, v := range s[i].u {
			dst[j] += v
		}
	}
}

// partsMost and partsLeast bound the number of parts from which intervals are computed.
const (
	partsMost  = 8
	partsLeast = 4
)

// errors sets se to the standard errors of the estimate θ̂ of s,
//
//	se² = Σ_p n_p(e_p − θ̂)²/(n̄P(P−1)),
//
// and returns P. It cuts s into at most eight parts of n_p slots, as equal as the stretches allow. e_p is the estimate
// from part p with the gains of θ̂. The function `meaning` converts e_p; the caller has converted θ̂ in the same way.
// With fewer than 4 parts it computes no errors.
func (s stretches) errors(se, estimate []float64, white *newton.Whitening, gains []float64,
	meaning func([]float64)) (parts int) {
	total := s.slots()
	clear(se)
	part := make([]float64, len(se))
	var sofar float64
	first, q := 0, 1.0
	for i := range s {
		sofar += s[i].slots
		if sofar < q/partsMost*total {
			continue
		}
		for q/partsMost*total <= sofar && q <= partsMost {
			q++
		}
		own := s[first : i+1]
		own.estimate(part, white, gains)
		meaning(part)
		for j, v := range part {
			v -= estimate[j]
			se[j] += float64(own.slots() * float64(v*v))
		}
		first = i + 1
		parts++
	}
	if parts < partsLeast {
		return 0
	}
	n := float64(parts)
	for j, v := range se {
		se[j] = math.Sqrt(v / (total * (n - 1)))
	}
	return parts
}

func (b *blocks) appendTo(w *bin.Writer) {
	w.Uint(uint64(len(b.epochs)))
	for _, e := range b.epochs {
		w.Uint(uint64(len(e)))
		for _, s := range e {
			w.Uint(s.at)
			w.Float(s.slots)
			for _, x := range [][]float64{s.w, s.u} {
				for _, v := range x {
					w.Float(v)
				}
			}
		}
	}
}

func (b *blocks) restore(r *bin.Reader) {
	b.epochs = make([][]stretch, r.Index(epochsMost+1))
	for i := range b.epochs {
		n := r.Index(stretchesMost + 1)
		for k := range n {
			s := stretch{at: r.Uint(), slots: r.Float()}
			r.Bad = r.Bad || s.at >= stretchesMost || !(s.slots > 0) || k > 0 && s.at <= b.epochs[i][k-1].at
			if r.Bad {
				return
			}
			s.w, s.u = floats(r, b.dim), floats(r, b.dim)
			b.epochs[i] = append(b.epochs[i], s)
		}
	}
}
