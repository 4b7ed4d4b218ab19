package sgd

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// Sample is a table of records for the batch solvers. Each record has d features and a target. A
// record whose features are all 0 is a null record.
type Sample struct {
	D int
	X []float64 // row by row
	Y []float64
	// Constant is the value of the last feature in all records except null ones. If it is 0, the last feature is an
	// ordinary one.
	Constant float64
	// Bound holds public bounds of every record, without its constant feature. Only Refit needs them.
	Bound Bounds
}

// Bounds are bounds of records: X bounds the Euclidean norm of the features, Y the absolute value of the target.
type Bounds struct{ X, Y float64 }

// NewSample makes a sample from rows of the given number of columns, one of which is the target. It shortens features
// longer than b.X to that norm, and cuts targets to ±b.Y. It appends a constant feature of the given value, unless that
// is 0. A row of another length, in particular nil, and a row with a number that is not finite are null records.
func NewSample(rows [][]float64, columns, target int, b Bounds, constant float64) (*Sample, error) {
	d := columns - 1
	if constant != 0 {
		d++
	}
	switch {
	case len(rows) == 0:
		return nil, errors.New("there are no records")
	case target < 0 || target >= columns:
		return nil, fmt.Errorf("target is column %d, must be one of %d", target, columns)
	case !vector.Positive(b.X) || !vector.Positive(b.Y):
		return nil, fmt.Errorf("bounds are %g and %g, must be positive and finite", b.X, b.Y)
	case !(constant >= 0 && constant <= b.X):
		return nil, fmt.Errorf("constant is %g, must be at least 0 and at most the features' bound", constant)
	case d == 0:
		return nil, errors.New("there are no features")
	}
	s := &Sample{D: d, X: make([]float64, d*len(rows)), Y: make([]float64, len(rows)), Constant: constant, Bound: b}
	for i, row := range rows {
		x := s.X[i*d : (i+1)*d]
		if len(row) != columns || !vector.Finite(row) {
			continue
		}
		copy(x, row[:target])
		copy(x[target:], row[target+1:])
		vector.Shorten(x[:columns-1], b.X)
		if constant != 0 {
			x[d-1] = constant
		}
		s.Y[i] = min(max(row[target], -b.Y), b.Y)
	}
	return s, nil
}

// withConstant returns the sample with another value for its constant feature.
func (s *Sample) withConstant(value float64) *Sample {
	c := *s
	c.X, c.Constant = slices.Clone(s.X), value
	for i := range s.Len() {
		if last := &c.row(i)[s.D-1]; *last != 0 {
			*last = value
		}
	}
	return &c
}

// Coefficients returns θ as coefficients of the features and of a constant of 1.
func (s *Sample) Coefficients(theta []float64) []float64 {
	c := slices.Clone(theta)
	if s.Constant != 0 {
		c[s.D-1] = float64(c[s.D-1] * s.Constant)
	}
	return c
}

// Len returns the number of records.
func (s *Sample) Len() int { return len(s.Y) }

// squares returns ‖x_i‖² for each record, and a negative number for null records.
func (s *Sample) squares() []float64 {
	out := make([]float64, s.Len())
	for i := range out {
		x := s.row(i)
		_, out[i] = vector.DotSquare(x, x)
		null := true
		for _, v := range x {
			null = null && v == 0
		}
		if null {
			out[i] = -1
		}
	}
	return out
}

func (s *Sample) row(i int) []float64 { return s.X[i*s.D : (i+1)*s.D] }

func (s *Sample) validate() error {
	if s.D < 1 || len(s.Y) < 1 || len(s.X) != s.D*len(s.Y) {
		return fmt.Errorf("a sample of %d features has %d numbers for %d targets", s.D, len(s.X), len(s.Y))
	}
	if !vector.Finite(s.X) || !vector.Finite(s.Y) {
		return errors.New("a sample must hold finite numbers: make other records null records, with features of 0")
	}
	return nil
}

// unitLattice returns the lattice for vectors of norm at most 1 in d dimensions with noise of standard deviation sd,
// and the number of lattice steps of norm 1.
func unitLattice(d int, sd float64, bits int) (l dp.Lattice, one float64, err error) {
	if l, err = dp.NewLattice(1, sd, bits); err != nil {
		return l, 0, err
	}
	if one = l.Radius(d); !(one >= float64(l.K)/2) {
		err = fmt.Errorf("%d features are too many for a lattice of %d steps", d, l.K)
	}
	return l, one, err
}

// numbered returns the name of a solver's noise array i.
func numbered(name string, i int) string { return name + "/" + strconv.Itoa(i) }
