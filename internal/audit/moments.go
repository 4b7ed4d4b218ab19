package audit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Moments describes moment estimation of d columns by any method. Its arrays are jme/first with the rows; jme/second
// with the upper triangle of their squares, unless the second moment is computed from noisy rows; jme/count with the
// number of valid records; and jme/full with the number of rows that are not shortened.
type Moments struct {
	Mechanism
	Mu       float64
	Method   string // its name in package moments
	Workload matfact.Workload
	C        Matrix // used for all arrays, except a second moment with its own SecondC
	// Second and SecondC are workload and matrix of the second moment, if it has its own.
	Second  matfact.Workload
	SecondC Matrix
	// Clip bounds the norm of a row. First, Diagonal, OffDiagonal, Count and Full are the standard deviations of one
	// step's independent draws, in scaled units and in records; 0 for a missing array.
	Clip                                      float64
	First, Diagonal, OffDiagonal, Count, Full float64
	// Exp, SecondExp, CountExp and FullExp are the binary exponents of the lattices' spacings.
	Exp, SecondExp, CountExp, FullExp int
}

// Worst returns the pair of neighbouring records that is farthest apart. In general it is the pair of JointWorst for
// the weight that the deviations give the second moment. Under zero-out, it is a record and an invalid record. Under
// replace, it is that pair too if the number of valid records is released and this pair is then farther apart.
func (m Moments) Worst(adjacency dp.Adjacency) Pair {
	nu := 0.0
	if m.Diagonal > 0 {
		// The column norms of two different matrices are not known here. If both are 1 they are equal.
		nu = m.First * m.First / (m.Diagonal * m.Diagonal) * m.Clip * m.Clip
	}
	p := JointWorst(nu, m.Clip, m.Columns(), adjacency)
	switch {
	case adjacency == dp.ZeroOut:
		p.Y = nil // compares with no record, because a row of zeros counts as not shortened
		return p
	case m.Columns() == 1 && p.Y[0] == -m.Clip:
		p.Y[0] *= 1 - 1e-6 // makes this row count as not shortened, and the other as shortened
	}
	if m.Count == 0 {
		return p
	}
	var rows, squares float64
	for i, x := range p.X {
		rows += (x - p.Y[i]) * (x - p.Y[i])
		for j, y := range p.X {
			e := x*y - p.Y[i]*p.Y[j]
			squares += e * e
		}
	}
	ratio := m.First / (m.Count * m.Clip)
	if rows/(m.Clip*m.Clip)+nu*squares/math.Pow(m.Clip, 4) < 1+nu+ratio*ratio {
		p.Y = nil
		if m.Columns() == 1 {
			p.X[0] *= 1 - 1e-6
		}
	}
	return p
}

// Subject returns the mechanism in the form that is audited. The releases of "combined" determine its rows only with
// independent noise.
func (m Moments) Subject() *Subject {
	value := "mean"
	if m.Workload.Kind == "sum" {
		value = "sum"
	}
	first := Running{Mechanism: m.Mechanism, Mu: m.Mu, Workload: m.Workload, Series: []Series{
		{Array: "jme/first", Value: value, Exp: m.Exp, Deviations: []float64{math.Ldexp(m.First, -m.Exp)}, C: m.C},
	}}
	all := first
	if m.Diagonal > 0 {
		var sd []float64
		for i := range m.Columns() {
			for k := i; k < m.Columns(); k++ {
				v := m.OffDiagonal
				if i == k {
					v = m.Diagonal
				}
				sd = append(sd, math.Ldexp(v, -m.SecondExp))
			}
		}
		c := m.C
		if m.SecondC != nil {
			c = m.SecondC
		}
		all.Series = append(all.Series,
			Series{Array: "jme/second", Value: "second_moment", Exp: m.SecondExp, Deviations: sd, C: c,
				Workload: m.Second})
	}
	if m.Count > 0 {
		all.Series = append(all.Series, Series{
			Array: "jme/count", Value: "valid_count", Exp: m.CountExp,
			Deviations: []float64{math.Ldexp(m.Count, -m.CountExp)}, C: m.C, Undivided: true,
		})
	}
	if m.Full > 0 {
		all.Series = append(all.Series, Series{
			Array: "jme/full", Value: "full_share", Exp: m.FullExp,
			Deviations: []float64{math.Ldexp(m.Full, -m.FullExp)}, C: m.C, Divided: true,
		})
	}
	s := all.Subject()
	if m.Method != "combined" {
		return s
	}
	if m.C != nil {
		if _, independent := m.C().(identity); !independent {
			s.Recover = nil
			return s
		}
	}
	s.Recover = func(releases []*dp.Release) (map[string][][]float64, error) {
		rows, err := first.recover(releases)
		if err != nil {
			return nil, err
		}
		return all.recover(m.unmix(releases, rows["jme/first"]))
	}
	return s
}

// unmix subtracts the squares of noisy rows from the second moments of "combined". With independent noise, the weight
// of these squares is the same in every release, because both errors fall as Σa².
func (m Moments) unmix(releases []*dp.Release, rows [][]float64) []*dp.Release {
	d, tau2 := float64(m.Columns()), m.First*m.First
	joint := d * (d + 1) / 2 * m.Diagonal * m.Diagonal
	squares := d*(d+1)*tau2*tau2 + 2*(d+1)*tau2*m.Clip*m.Clip
	w := squares / (joint + squares)
	kernel := m.Workload.Kernel()
	out := make([]*dp.Release, len(releases))
	for t, r := range releases {
		out[t] = clone(r)
		var slots, records float64
		sum := make([]float64, m.Columns()*(m.Columns()+1)/2)
		for k := 0; k <= t; k++ {
			a := 1.0
			switch {
			case kernel.Kind == "exponential":
				a = math.Pow(kernel.Decay, float64(t-k))
			case kernel.Kind == "window" && t-k >= int(kernel.Window):
				continue
			}
			slots += a
			records += a * float64(releases[k].Rows)
			n := 0
			for i, x := range rows[k] {
				for _, y := range rows[k][i:] {
					sum[n] += a * math.Ldexp(x*y, 2*m.Exp)
					n++
				}
			}
		}
		divisor := max(1, records)
		if m.Workload.Kind == "sum" {
			divisor = 1
		}
		for _, v := range out[t].Values {
			if v.Name != "second_moment" {
				continue
			}
			n := 0
			for i := range m.Columns() {
				for j := i; j < m.Columns(); j++ {
					squared := sum[n] / divisor
					if i == j {
						squared -= tau2 * slots / divisor
					}
					v.Data[n] = (v.Data[n] - (1-w)*squared) / w
					n++
				}
			}
		}
	}
	return out
}
