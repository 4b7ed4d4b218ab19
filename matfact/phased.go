package matfact

import "math"

// phased returns the phased scheme: buffers with the fixed gaps a_i = 0.3·10⁻ⁱ. In phase p, the steps 2^p … 2^(p+1)−1,
// the first few buffers have the weights that minimise S·E(m·2^(p+1)) over ω > 0. The diagonal of the phase is 1/√S, so
//
//	C_tj = S^(−½) (δ_tj + Σ_i ω_i θ_i^(t−j−1)),   S, ω of j's phase:
//
// every column is a Toeplitz column of its own, with norm 1 at every height.
//
// Privacy: the guarantee needs only that norm, so it holds on an endless stream and against adaptively chosen rows. (A
// Toeplitz C valid for every length has Σc_j² < ∞ and pays a power of log t; here each column has weights for its own
// time.) The last phase of the table never ends; in it the variance grows linearly.
//
// m weighs early accuracy against late accuracy: 8 for sums, exponential weights and windows, 1 for running averages,
// whose largest errors are early.
//
// Cost: O(log t) buffers a coordinate, 8 at t = 10⁶, at most 14.
func phased(w Workload) *Stored {
	table := phasedSum
	if w.Kind == "mean" {
		table = phasedMean
	}
	s := &Stored{Kind: "phased"}
	for p, ph := range table {
		r := math.Sqrt(ph.s)
		phase := Phase{Start: 1 << p, Scale: r}
		for _, omega := range ph.omega {
			// Drop a weight below 2⁻⁶⁴; its buffer is added in the next phase.
			if weight := floorFixed(omega / r); weight > 0 {
				phase.Weight = append(phase.Weight, weight)
			}
		}
		s.Phases = append(s.Phases, phase)
	}
	for _, a := range phasedGaps[:len(table[len(table)-1].omega)] {
		s.Decay = append(s.Decay, floorDecay(a))
	}
	return s
}

// tablePhase is one row of the tables in phased_table.go, which phased_optimise_test.go generates.
type tablePhase struct {
	s     float64 // S = 1 + Σ_ik ω_iω_k/D_ik
	omega []float64
}
