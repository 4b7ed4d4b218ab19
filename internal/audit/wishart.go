package audit

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
)

// Squares describes an array of noise from which the square X̃ᵀX̃ of a Gaussian sketch is drawn, by Bartlett's
// decomposition: it is L·A·Aᵀ·Lᵀ, where Σ = LLᵀ is the rows' covariance. The array hides the float64 bits of Σ, row by
// row. It has Rows·d draws. For i = 0 … d−1 they are: Rows−i draws whose squares add up to A_ii², then the i draws A_i0
// … A_i,i−1.
type Squares struct {
	Rows int
	// Gamma is a lower bound on the eigenvalues of Σ, in units of the records' largest squared norm.
	Gamma float64
}

// spectrum is what coupled runs have found about sketches.
type spectrum struct {
	// far is the largest value of γ(1 − min(λ, 1/λ)), where λ runs over the eigenvalues of Σ⁻¹Σ' for the neighbour's
	// covariance Σ'.
	far float64
	// rows is the largest number of sketch rows in one step of a run.
	rows int
}

// square opens an array from which a sketch's square is drawn. The second run gets draws that give the first run's
// square, so that the two runs differ only in the covariance of the rows.
func (c *coupling) square(name string, t uint64, desc *Squares, hidden []int64, before, row *coupledRow) dp.Row {
	d := int(math.Sqrt(float64(len(hidden))))
	zero := newGiven(c.err, len(hidden), func(int) float64 { return 0 })
	if d*d != len(hidden) || d == 0 || desc.Rows < d {
		fail(c.err, fmt.Errorf("step %d: %s hides %d numbers for %d rows", t, name, len(hidden), desc.Rows))
		return zero
	}
	c.sketched[t] += desc.Rows
	found := &c.subject.sketches
	found.rows = max(found.rows, c.sketched[t])
	row.covariance = mat.NewSymDense(d, nil)
	for i := range d {
		for j := i; j < d; j++ {
			row.covariance.SetSym(i, j, math.Float64frombits(uint64(hidden[i*d+j])))
		}
	}
	draws := func(z []float64) dp.Row {
		return newGiven(c.err, len(z), func(j int) float64 {
			if j >= len(z) {
				fail(c.err, fmt.Errorf("step %d: %s draws more numbers than %d rows need", t, name, desc.Rows))
				return 0
			}
			return z[j]
		})
	}
	if before == nil {
		var z []float64
		if c.still { // uses the expected square
			z = even(d, desc.Rows)
		} else {
			z = c.keys.row(name, t, desc.Rows*d)[:desc.Rows*d]
		}
		row.bartlett = bartlett(z, d, desc.Rows)
		return draws(z)
	}
	z, far, err := transport(before, row, desc)
	if err != nil {
		fail(c.err, fmt.Errorf("step %d: %s: %w", t, name, err))
		return zero
	}
	found.far = max(found.far, far)
	return draws(z)
}

// bartlett returns the matrix A of Bartlett's decomposition for an array's draws.
func bartlett(z []float64, d, rows int) *mat.TriDense {
	a := mat.NewTriDense(d, mat.Lower, nil)
	for i := range d {
		var square float64
		for _, v := range z[:rows-i] {
			square += v * v
		}
		z = z[rows-i:]
		a.SetTri(i, i, math.Sqrt(square))
		for j, v := range z[:i] {
			a.SetTri(i, j, v)
		}
		z = z[i:]
	}
	return a
}

// even returns the draws for which A = √rows·I.
func even(d, rows int) []float64 {
	z, at := make([]float64, rows*d), 0
	for range d {
		z[at] = math.Sqrt(float64(rows))
		at += rows
	}
	return z
}

// transport returns draws with which the neighbour's array gives the square of the first run, and γ(1 − min(λ, 1/λ))
// for the eigenvalue λ of Σ⁻¹Σ' that is farthest from 1.
func transport(first, second *coupledRow, desc *Squares) (z []float64, far float64, err error) {
	d := first.covariance.SymmetricDim()
	if second.covariance.SymmetricDim() != d {
		return nil, 0, errors.New("the neighbours' sketches have different widths")
	}
	_, lambda, err := extreme(first.covariance, second.covariance)
	if err != nil {
		return nil, 0, err
	}
	// With Σ ⪰ γ, a record contributes at most 1/γ of the variance in its direction. If the neighbour lacks the record,
	// λ is the share that remains without it; if the neighbour has one record more, 1/λ is that share.
	far = desc.Gamma * (1 - min(lambda, 1/lambda))
	lower := func(s *mat.SymDense) *mat.TriDense {
		var c mat.Cholesky
		var l mat.TriDense
		c.Factorize(s) // cannot fail: extreme has factorized it
		c.LTo(&l)
		return &l
	}
	var whole, a mat.Dense
	whole.Mul(lower(first.covariance), first.bartlett)
	if err := a.Solve(lower(second.covariance), &whole); err != nil {
		return nil, 0, err
	}
	for i := range d {
		if !(a.At(i, i) > 0) {
			return nil, 0, errors.New("no draw gives the neighbour the square of the first run")
		}
		part := make([]float64, desc.Rows-i)
		part[0] = a.At(i, i)
		z = append(z, part...)
		for j := range i {
			z = append(z, a.At(i, j))
		}
	}
	return z, far, nil
}
