package matfact

import "math"

// phased returns the phased scheme: buffers with the fixed gaps a_i = 0.3·10⁻ⁱ. Phase p has the steps 2^p … 2^(p+1)−1.
// In it, the first few buffers have the weights that minimise S·E(m·2^(p+1)) over ω > 0. The diagonal of the phase is
// 1/√S, so
//
//	C_tj = S^(−½) (δ_tj + Σ_i ω_i θ_i^(t−j−1)),   S, ω of j's phase:
//
// every column is a column of some Toeplitz matrix, and its norm is 1 at infinite height.
//
// Privacy: the guarantee needs only that norm, so it holds on an endless stream and against adaptively chosen rows. (If
// a Toeplitz C is valid for every length, Σc_j² < ∞, and its error has an additional power of log t. Here the weights
// of each column suit the time at which it begins.) The last phase of the table never ends; in it the variance grows
// linearly.
//
// m decides between accuracy early and late in a phase: it is 8 for sums, exponential weights and windows, and 1 for
// running averages, whose largest errors are early.
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
			// Drop a weight below 2⁻⁶⁴. Its buffer is added in the next phase.
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
