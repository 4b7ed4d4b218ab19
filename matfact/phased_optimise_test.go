package matfact

import (
	"math"

	"github.com/streamdp/streamdp/internal/optimise"
)

// optimisePhase minimises S·E(n) over the weights ω > 0 of buffers with the given gaps a, largest first: the Toeplitz
// matrix of one phase of the phased scheme. It returns three results: the weights; the squared norm of a column of
// infinite height, S = 1 + Σ_ik ω_iω_k/D_ik; and the value S·E.
//
// The variables are ln ω. E follows from the roots â of Σ ω_i/(â−a_i) = 1, where the largest root must stay below 1;
// its gradient uses ∂â_j/∂ω_i = κ_j²/(â_j−a_i).
func optimisePhase(a []float64, n float64) (omega []float64, s, value float64) {
	p := newPhaseObjective(a, n)
	// In a long phase the best weights are ω_i ≈ 0.73√a_i.
	x := make([]float64, len(a))
	for i := range x {
		x[i] = math.Log(0.6 * math.Sqrt(a[i]))
	}
	optimise.Minimise(x, p.log)
	value = math.Exp(p.log(x, make([]float64, len(a))))
	return p.omega, p.sens, value
}

// phaseObjective is S·E(n) as a function of the weights of fixed gaps.
type phaseObjective struct {
	gap   []float64
	decay []Fixed
	n     float64
	omega []float64 // of the last evaluation, like sens
	sens  float64
}

func newPhaseObjective(a []float64, n float64) *phaseObjective {
	p := &phaseObjective{gap: a, n: n, omega: make([]float64, len(a))}
	for _, gap := range a {
		p.decay = append(p.decay, floorDecay(gap))
	}
	return p
}

// log returns ln S + ln E at x = ln ω, and its gradient; +Inf if C⁻¹ is not stable.
func (p *phaseObjective) log(x, grad []float64) float64 {
	k := len(x)
	ph := Phase{Scale: 1, Weight: make([]Fixed, k)}
	var stable float64
	for i := range x {
		p.omega[i] = math.Exp(x[i])
		ph.Weight[i] = floorFixed(p.omega[i])
		stable += p.omega[i] / (1 - p.gap[i])
	}
	if !(stable < 1) {
		return math.Inf(1)
	}
	m := newModes(p.decay, ph)
	ds, unused := make([]float64, k), make([]float64, k)
	p.sens = 1 + energy(p.omega, m.pole, math.Inf(1), ds, unused)
	e, _, de := squaredError(m.pole, m.gap, 0, p.n, 0, true)
	for i := range x {
		d := ds[i] / p.sens
		for j := range de {
			d += de[j] / e * m.drive[j] * m.drive[j] / m.diff[j*k+i]
		}
		grad[i] = d * p.omega[i]
	}
	return math.Log(p.sens) + math.Log(e)
}

// phaseWeights optimises the weights of the phase that ends before step end. It uses at least the given number of
// buffers, and no more than are needed to come within 10⁻⁶ of the best S·E(m·end).
func phaseWeights(m, end float64, least int) tablePhase {
	n := m * end
	best := math.Inf(1)
	rows := make([]tablePhase, len(phasedGaps)+1)
	values := make([]float64, len(phasedGaps)+1)
	for k := 1; k <= len(phasedGaps) && k <= least+2; k++ {
		rows[k].omega, rows[k].s, values[k] = optimisePhase(phasedGaps[:k], n)
		best = min(best, values[k])
	}
	k := max(least, 1)
	for values[k] > best*(1+1e-6) {
		k++
	}
	return rows[k]
}
