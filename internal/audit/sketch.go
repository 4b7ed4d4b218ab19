package audit

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/stattest"
)

// Sketch is a released sketch of one data set. Given the earlier releases, its rows are independent Gaussian vectors.
type Sketch interface {
	// Covariance returns the claimed covariance of one row: symmetric and positive definite.
	Covariance() *mat.SymDense
	// Along draws a sketch under fresh keys and returns Σ⟨row, v⟩² and the number of rows. If only the Gram matrix W of
	// the rows is released, the sum is vᵀWv.
	Along(v []float64, run uint64) (sum float64, rows int, err error)
}

// SketchReport is the result of an audit of sketches.
type SketchReport struct {
	// Rows is the number of rows in each of the two sums of squares.
	Rows int
	// Claimed is the variance, along v, of the neighbour's rows divided by that of the stream's rows, as computed from
	// the two claimed covariances.
	Claimed float64
	// Ratio is the quotient of the two sums of squares. Its numerator is the sum that is larger according to the
	// claimed covariances. If γ is as claimed, Ratio exceeds High with probability at most alpha/3.
	Ratio, High float64
	// X and Y are the checks that the rows of the two data sets have the claimed covariances.
	X, Y stattest.Check
	// Repeated is the error that two runs gave the same sum, which means that a sketch was used twice.
	Repeated error
	// Finds is a multiple of 1/γ: if 1/γ is that large, Ratio shows it with probability Power.
	Finds float64
}

// Err returns all faults that were found.
func (r *SketchReport) Err() error {
	var far error
	if !(r.Ratio <= r.High) {
		far = fmt.Errorf("the neighbours' rows differ by a factor %.6g in variance, must be at most %.6g",
			r.Ratio, r.High)
	}
	return errors.Join(far, r.X.Err(), r.Y.Err(), r.Repeated)
}

// Sketches draws sketches of two neighbouring data sets and tells them apart as well as rows N(0, Σ) and N(0, Σ')
// allow. It compares R = Σ⟨row, v⟩² along the direction v with vᵀΣv = 1 for which |ln λ| is largest, where λ = vᵀΣ'v.
// This v is the extreme eigenvector of Σ⁻¹Σ'. Then R ~ χ²_N and R' ~ λχ²_N, where N is the number of rows of all runs.
// If every row is as private as γ says, λ is in [1−1/γ, 1+1/γ]. Hence
//
//	R/R' ≤ F/(1−1/γ)  for λ < 1,   R'/R ≤ F·(1+1/γ)  for λ > 1
//
// except with probability alpha/3. F is the upper quantile of the ratio of two χ²_N. In addition R and R'/λ must each
// be χ²_N, which detects noise that is missing in both. No sum may occur twice.
//
// A pair in which one record, with row x, is removed has λ = 1 − xᵀΣ⁻¹x. So remove the record with the largest xᵀΣ⁻¹x:
// see Leverage.
func Sketches(x, y Sketch, gamma float64, runs int, alpha float64) (*SketchReport, error) {
	if !(gamma > 1) {
		return nil, fmt.Errorf("gamma is %g, must be above 1", gamma)
	}
	v, lambda, err := extreme(x.Covariance(), y.Covariance())
	if err != nil {
		return nil, err
	}
	var sums [2]float64
	var rows [2]int
	var repeated error
	for side, s := range []Sketch{x, y} {
		seen := map[float64]bool{}
		for run := range runs {
			sum, k, err := s.Along(v, uint64(2*run+side))
			if err != nil {
				return nil, err
			}
			if seen[sum] {
				repeated = errors.New("two runs give the same sketch")
			}
			seen[sum] = true
			sums[side] += sum
			rows[side] += k
		}
	}
	if rows[0] != rows[1] {
		return nil, fmt.Errorf("one sketch has %d rows and the other %d: the number of rows tells the neighbours "+
			"apart", rows[0], rows[1])
	}
	n := rows[0]
	f := stattest.Ratio(n, alpha/3)
	r := &SketchReport{
		Rows: n, Claimed: lambda, Repeated: repeated,
		X: stattest.SquaresCheck(sums[0], n, alpha/3),
		Y: stattest.SquaresCheck(sums[1]/lambda, n, alpha/3),
	}
	// With probability 1 − Power the ratio is below `miss`.
	miss := 1 / stattest.Ratio(n, 1-Power)
	if lambda < 1 {
		r.Ratio, r.High = sums[0]/sums[1], f/(1-1/gamma)
		r.Finds = gamma * (1 - miss/r.High)
	} else {
		r.Ratio, r.High = sums[1]/sums[0], f*(1+1/gamma)
		r.Finds = gamma * (r.High/miss - 1)
	}
	return r, nil
}

// extreme returns the v with vᵀav = 1 for which |ln vᵀbv| is largest, and the value vᵀbv.
func extreme(a, b *mat.SymDense) (v []float64, lambda float64, err error) {
	var chol mat.Cholesky
	if !chol.Factorize(a) {
		return nil, 0, errors.New("the rows' covariance is not positive definite")
	}
	var l mat.TriDense
	chol.LTo(&l)
	// half becomes L⁻¹b, and whole becomes L⁻¹bL⁻ᵀ, which is then made symmetric.
	var half, whole mat.Dense
	if err := half.Solve(&l, b); err != nil {
		return nil, 0, err
	}
	if err := whole.Solve(&l, half.T()); err != nil {
		return nil, 0, err
	}
	d := a.SymmetricDim()
	w := mat.NewSymDense(d, nil)
	for i := range d {
		for j := i; j < d; j++ {
			w.SetSym(i, j, (whole.At(i, j)+whole.At(j, i))/2)
		}
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(w, true) {
		return nil, 0, errors.New("cannot compute the eigenvalues of the covariances: the iteration does not converge")
	}
	values := eigen.Values(nil)
	at := 0
	for i, x := range values {
		if !(x > 0) {
			return nil, 0, errors.New("the neighbour's covariance is not positive definite")
		}
		if math.Abs(math.Log(x)) > math.Abs(math.Log(values[at])) {
			at = i
		}
	}
	var vectors mat.Dense
	eigen.VectorsTo(&vectors)
	var back mat.VecDense
	if err := back.SolveVec(l.T(), vectors.ColView(at)); err != nil {
		return nil, 0, err
	}
	return back.RawVector().Data, values[at], nil
}

// Leverage returns the index of the record of X with the largest xᵀ(XᵀX + ηI)⁻¹x, and that maximum. It is the record
// that a sketch with noise η² = eta2 reveals most.
func Leverage(x *mat.Dense, eta2 float64) (record int, s float64, err error) {
	n, _ := x.Dims()
	var chol mat.Cholesky
	if !chol.Factorize(Gram(x, eta2)) {
		return 0, 0, errors.New("XᵀX + η²I is not positive definite")
	}
	for i := range n {
		var y mat.VecDense
		row := x.RowView(i)
		if err := chol.SolveVecTo(&y, row); err != nil {
			return 0, 0, err
		}
		if q := mat.Dot(row, &y); q > s {
			record, s = i, q
		}
	}
	return record, s, nil
}

// Gram returns XᵀX + eta2·I, the covariance of a row of a Gaussian sketch.
func Gram(x *mat.Dense, eta2 float64) *mat.SymDense {
	_, d := x.Dims()
	g := mat.NewSymDense(d, nil)
	g.SymOuterK(1, x.T())
	for i := range d {
		g.SetSym(i, i, g.At(i, i)+eta2)
	}
	return g
}
