package audit

import (
	"math"

	"streamdp/matfact"
)

// Joint describes joint moment estimation of d columns: arrays jme/first, the
// rows, and jme/second, the upper triangle of their squares.
type Joint struct {
	Mechanism
	Mu       float64
	Workload matfact.Workload
	C        Matrix // of both arrays
	// First, Diagonal and OffDiagonal are the standard deviations of one step's
	// independent draws, in scaled units.
	First, Diagonal, OffDiagonal float64
	// Exp and SecondExp are the exponents of the two lattices' steps.
	Exp, SecondExp int
}

// Subject returns the mechanism in the form that is audited.
func (j Joint) Subject() *Subject {
	value := "mean"
	if j.Workload.Kind == "sum" {
		value = "sum"
	}
	var second []float64
	for i := range j.Columns() {
		for k := i; k < j.Columns(); k++ {
			sd := j.OffDiagonal
			if i == k {
				sd = j.Diagonal
			}
			second = append(second, math.Ldexp(sd, -j.SecondExp))
		}
	}
	return Running{Mechanism: j.Mechanism, Mu: j.Mu, Workload: j.Workload, Series: []Series{
		{Array: "jme/first", Value: value, Exp: j.Exp, Deviations: []float64{math.Ldexp(j.First, -j.Exp)}, C: j.C},
		{Array: "jme/second", Value: "second_moment", Exp: j.SecondExp, Deviations: second, C: j.C},
	}}.Subject()
}
