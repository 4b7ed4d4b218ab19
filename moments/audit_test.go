package moments

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"streamdp/dp"
	"streamdp/internal/stattest"
	"streamdp/matfact"
)

// The audits of this file take an estimator as a stranger would: rows in,
// releases out. From the releases they recover the noisy integer rows, and from
// the plan's public numbers alone what the noise should be; the matrix C is
// rebuilt from its stored integers by other arithmetic than the estimator's.
//
//	sensitivity audit  the same noise under two neighbouring streams: the
//	                   whitened difference of all releases, now and for ever, is
//	                   at most μ
//	noise audit        known noise under one stream: the whitened releases are
//	                   the noise that was drawn, to half a lattice unit, and are
//	                   white
//
// Together they are the guarantee: the first says that the signal is at most μ
// where the noise is white of variance 1, the second that it is.

// subject is an estimator under audit with what is public about it.
type subject struct {
	e      *Estimator
	cfg    Config
	plan   Plan
	kernel matfact.Workload
	start  []byte // the state before the first step
}

// newSubject returns a subject for e, which must not have closed a step.
func newSubject(e *Estimator) (*subject, error) {
	start, err := e.AppendBinary(nil)
	w := matfact.Workload{Kind: e.cfg.Workload, Decay: e.cfg.Decay, Window: e.cfg.Window}
	return &subject{e: e, cfg: e.cfg, plan: e.Plan(), kernel: w.Kernel(), start: start}, err
}

// stream holds the records of each step; nil is an invalid one.
type stream [][][]float64

// replace returns the neighbour of s whose record i of step t (from 0) is x.
func (s stream) replace(t, i int, x []float64) stream {
	n := slices.Clone(s)
	n[t] = slices.Clone(n[t])
	n[t][i] = x
	return n
}

// rows runs the stream from the first step, with noise(t) in step t, and returns
// the noisy row of each step in lattice units, first and second moments one after
// the other: what the releases say about it.
func (a *subject) rows(s stream, noise func(t uint64) dp.Noise) ([][]float64, error) {
	if err := a.e.UnmarshalBinary(a.start); err != nil {
		return nil, err
	}
	d := a.cfg.Columns
	rows := make([][]float64, len(s))
	total := make([]float64, d*(d+3)/2)
	var weight float64 // Σ_j a_tj m_j
	for t, records := range s {
		for i, x := range records {
			a.e.Add(uint64(t)*a.cfg.Step+uint64(i), x)
		}
		r, err := a.e.Close(noise(uint64(t) + 1))
		if err != nil {
			return nil, err
		}
		// Undo the divisor, then the workload's kernel.
		switch {
		case a.kernel.Kind == "exponential":
			weight *= a.kernel.Decay
		case a.kernel.Kind == "window" && t >= int(a.kernel.Window):
			weight -= float64(len(s[t-int(a.kernel.Window)]))
		}
		weight += float64(len(records))
		divisor := max(weight, 1)
		if a.cfg.Workload == "sum" {
			divisor = 1
		}
		row := make([]float64, len(total))
		for j := range row {
			x, g := 0.0, a.plan.Lattice.Exp
			if j < d {
				x = r.Values[0].Data[j]
			} else {
				x, g = r.Values[1].Data[j-d], a.plan.SecondExp
			}
			now := math.Ldexp(x*divisor, -g)
			before := total[j]
			if a.kernel.Kind == "exponential" {
				before *= a.kernel.Decay
			}
			total[j] = now
			if now -= before; a.kernel.Kind == "window" && t >= int(a.kernel.Window) {
				now += rows[t-int(a.kernel.Window)][j]
			}
			row[j] = math.Round(now)
			if math.Abs(now-row[j]) > 1./16 {
				return nil, fmt.Errorf("step %d: coordinate %d is not on the lattice by %g", t+1, j, now-row[j])
			}
		}
		rows[t] = row
	}
	return rows, nil
}

// deviations returns the plan's standard deviation of each coordinate's
// independent noise, in lattice units.
func (a *subject) deviations() []float64 {
	d := a.cfg.Columns
	sd := make([]float64, 0, d*(d+3)/2)
	for range d {
		sd = append(sd, math.Ldexp(a.plan.First, -a.plan.Lattice.Exp))
	}
	for i := range d {
		for j := i; j < d; j++ {
			v := a.plan.OffDiagonal
			if i == j {
				v = a.plan.Diagonal
			}
			sd = append(sd, math.Ldexp(v, -a.plan.SecondExp))
		}
	}
	return sd
}

// whiten returns Cx for the steps of x, and Σ (Cx)_t² over all later steps until
// the matrix ends, if it does. Later x are 0. scale[t] is 1/C_tt.
func (a *subject) whiten(x []float64) (white, scale []float64, later float64) {
	white, scale = make([]float64, len(x)), make([]float64, len(x))
	stored := a.plan.Factorization
	if stored.Kind == "sqrt" {
		c := kernelRoot(a.kernel, int(a.cfg.Horizon))
		for t := range c {
			var sum float64
			for j := range min(t+1, len(x)) {
				sum += c[t-j] * x[j]
			}
			if t < len(x) {
				white[t], scale[t] = sum, 1
			} else {
				later += sum * sum
			}
		}
		return white, scale, later
	}
	if banded(stored.Kind) {
		return a.whitenBands(x)
	}
	// (Cx)_t = x_t/r + Σ_j Σ_i Ω_i(j) Θ_i^(t−j−1) x_j, the inner sums by recursion.
	state := make([]float64, len(stored.Decay))
	decay := func(i int) float64 { return float64(stored.Decay[i]) * 0x1p-64 }
	gap := func(i int) float64 { return float64(-stored.Decay[i]) * 0x1p-64 }
	phase := 0
	for t, v := range x {
		for phase+1 < len(stored.Phases) && stored.Phases[phase+1].Start <= uint64(t)+1 {
			phase++
		}
		p := stored.Phases[phase]
		scale[t] = p.Scale
		white[t] = v / p.Scale
		for i := range state {
			white[t] += state[i]
			if state[i] *= decay(i); i < len(p.Weight) {
				state[i] += float64(p.Weight[i]) * 0x1p-64 * v
			}
		}
	}
	for i, s := range state {
		for k, u := range state {
			later += s * u / (gap(i) + gap(k)*decay(i)) // Σ_m (Θ_iΘ_k)^m
		}
	}
	return white, scale, later
}

// whitenBands is whiten for the first coefficients of the kernel's root, or of
// its inverse. (Cx)_t is followed until nothing is left of it.
func (a *subject) whitenBands(x []float64) (white, scale []float64, later float64) {
	p := len(a.plan.Factorization.Bands) + 1
	root := kernelRoot(a.kernel, p)
	if a.plan.Factorization.Kind == "bisr" { // x = q + Σ_k ĉ_k q_{t−k}
		root = inverse(root)
	}
	white, scale = make([]float64, len(x)), make([]float64, len(x))
	past := make([]float64, 0, 2*len(x)+p)
	quiet := 0 // the last values that were 0 for all purposes
	for t := 0; t < len(x) || quiet < p; t++ {
		var now, sum float64
		if t < len(x) {
			now = x[t]
		}
		for k := 1; k < p && k <= t; k++ {
			sum += root[k] * past[t-k]
		}
		if a.plan.Factorization.Kind == "bisr" {
			now -= sum
			past, sum = append(past, now), now
		} else {
			past, sum = append(past, now), now+sum
		}
		if t < len(x) {
			white[t], scale[t] = sum, 1
			continue
		}
		later += sum * sum
		if quiet++; math.Abs(sum) > 1e-12 {
			quiet = 0
		}
	}
	return white, scale, later
}

// kernelRoot returns n coefficients of the square root of a kernel, from
// Σ_i c_i c_{j−i} = a_j.
func kernelRoot(w matfact.Workload, n int) []float64 {
	c := make([]float64, n)
	c[0] = 1
	a := 1.0
	for j := 1; j < n; j++ {
		switch {
		case w.Kind == "exponential":
			a *= w.Decay
		case w.Kind == "window" && j >= int(w.Window):
			a = 0
		}
		sum := a
		for i := 1; i < j; i++ {
			sum -= c[i] * c[j-i]
		}
		c[j] = sum / 2
	}
	return c
}

// auditSensitivity returns the whitened distance between what two neighbouring
// streams release under the same noise: their part of μ. The noise must not
// depend on the data.
func (a *subject) auditSensitivity(x, y stream, noise func() func(t uint64) dp.Noise) (float64, error) {
	first, err := a.rows(x, noise())
	if err != nil {
		return 0, err
	}
	second, err := a.rows(y, noise())
	if err != nil {
		return 0, err
	}
	return a.distance(first, second), nil
}

func (a *subject) distance(x, y [][]float64) float64 {
	var sum float64
	difference := make([]float64, len(x))
	for j, sd := range a.deviations() {
		for t := range x {
			difference[t] = (y[t][j] - x[t][j]) / sd
		}
		white, _, later := a.whiten(difference)
		for _, v := range white {
			sum += v * v
		}
		sum += later
	}
	return math.Sqrt(sum)
}

// recorder passes noise on and keeps what it hid and what it was.
type recorder struct {
	dp.Noise
	hidden, z []float64 // of all arrays opened, one after the other
}

func (r *recorder) Row(array string, hidden []int64) dp.Row {
	row := r.Noise.Row(array, hidden)
	z := make([]float64, len(hidden))
	row.Fill(z)
	r.z = append(r.z, z...)
	for _, k := range hidden {
		r.hidden = append(r.hidden, float64(k))
	}
	return row
}

// noiseAudit is what a noise audit found.
type noiseAudit struct {
	white    [][]float64 // C(x̃−x)/σ of each step
	identity error       // it is not the noise that was drawn
	law      error       // it is not white
}

func (n *noiseAudit) err() error { return errors.Join(n.identity, n.law) }

// auditNoise runs the stream under noise(t). The whitened noise must be the noise
// that was drawn, rounded once: |C(x̃−x) − σZ| ≤ r⁻¹/2 lattice units; this is what
// makes the integers a function of the Gaussian mechanism's output. And it must
// be white: variance of each coordinate and of all, means, correlations between
// coordinates (of one moment and across both) and with the next 8 steps, alpha
// shared among all.
func (a *subject) auditNoise(s stream, noise func(t uint64) dp.Noise, alpha float64) (*noiseAudit, error) {
	recorders := make([]*recorder, len(s))
	rows, err := a.rows(s, func(t uint64) dp.Noise {
		recorders[t-1] = &recorder{Noise: noise(t)}
		return recorders[t-1]
	})
	if err != nil {
		return nil, err
	}
	n := &noiseAudit{white: make([][]float64, len(s))}
	for t := range n.white {
		n.white[t] = make([]float64, len(rows[t]))
	}
	var errs []error
	w := make([]float64, len(s))
	for j, sd := range a.deviations() {
		var reach float64
		for t := range w {
			w[t] = rows[t][j] - recorders[t].hidden[j]
			reach = max(reach, math.Abs(w[t]))
		}
		white, scale, _ := a.whiten(w)
		// The oracle's own rounding: a few units of 2⁻⁵² of the largest sum.
		slack := reach * 0x1p-45
		for t, v := range white {
			n.white[t][j] = v / sd
			if off := math.Abs(v - sd*recorders[t].z[j]); !(off <= 0.5/scale[t]+slack) {
				errs = append(errs, fmt.Errorf("step %d, coordinate %d: the noise is %g lattice units from the one drawn", t+1, j, off))
			}
		}
	}
	if len(errs) > 3 {
		errs = append(errs[:3], fmt.Errorf("and %d more", len(errs)-3))
	}
	n.identity, n.law = errors.Join(errs...), stattest.White(n.white, 8, alpha)
	return n, nil
}
