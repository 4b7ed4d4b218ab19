package audit

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Running describes a mechanism that releases workload-weighted sums of noisy rows, for each of its arrays in every
// step. Each sum is divided by a public number: the weighted number of records, at least 1, or 1 for the workload
// "sum".
type Running struct {
	Mechanism
	Mu       float64
	Workload matfact.Workload
	Series   []Series
}

// Series is one array of a Running mechanism.
type Series struct {
	Array      string    // name of the array
	Value      string    // name of the value that is released from its rows
	Exp        int       // the spacing of its lattice is 2^Exp
	Deviations []float64 // in lattice units
	C          Matrix
	// Workload is the array's own workload, if it has one. With Undivided, its sums are not divided. With Divided, they
	// are divided even for the workload "sum".
	Workload           matfact.Workload
	Undivided, Divided bool
}

// Subject returns the mechanism in the form that is audited.
func (r Running) Subject() *Subject {
	arrays := map[string]Array{}
	for _, s := range r.Series {
		arrays[s.Array] = Array{Deviations: s.Deviations, C: s.C}
	}
	return &Subject{
		Mechanism: r.Mechanism,
		Mu:        r.Mu,
		Array:     func(name string, _ uint64) (Array, bool) { a, ok := arrays[name]; return a, ok },
		Recover:   r.recover,
	}
}

// recover computes the rows from the releases, by undoing divisor and workload.
func (r Running) recover(releases []*dp.Release) (map[string][][]float64, error) {
	all := map[string][][]float64{}
	for _, s := range r.Series {
		workload := r.Workload
		if s.Workload.Kind != "" {
			workload = s.Workload
		}
		kernel := workload.Kernel()
		rows := make([][]float64, len(releases))
		var total []float64
		var weight float64 // Σ_j a_tj m_j
		for t, release := range releases {
			if release == nil {
				return nil, fmt.Errorf("step %d has no release", t+1)
			}
			i := slices.IndexFunc(release.Values, func(v dp.Value) bool { return v.Name == s.Value })
			if i < 0 {
				return nil, fmt.Errorf("the release of step %d has no value %s", t+1, s.Value)
			}
			data := release.Values[i].Data
			if total == nil {
				total = make([]float64, len(data))
			}
			left := t - int(kernel.Window) // the step that leaves the window
			switch {
			case kernel.Kind == "exponential":
				weight *= kernel.Decay
			case kernel.Kind == "window" && left >= 0:
				weight -= float64(releases[left].Rows)
			}
			weight += float64(release.Rows)
			divisor := max(weight, 1)
			if workload.Kind == "sum" && !s.Divided || s.Undivided {
				divisor = 1
			}
			row := make([]float64, len(data))
			for j, x := range data {
				now := math.Ldexp(x*divisor, -s.Exp)
				before := total[j]
				if kernel.Kind == "exponential" {
					before *= kernel.Decay
				}
				total[j] = now
				if now -= before; kernel.Kind == "window" && left >= 0 {
					now += rows[left][j]
				}
				row[j] = math.Round(now)
				if !(math.Abs(now-row[j]) <= 1./16) {
					return nil, fmt.Errorf("step %d: coordinate %d of %s is not on its lattice, by %g", t+1, j,
						s.Value, now-row[j])
				}
			}
			rows[t] = row
		}
		all[s.Array] = rows
	}
	return all, nil
}
