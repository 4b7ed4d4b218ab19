package moments

import (
	"errors"
	"math"
)

// Density is a Gaussian density, estimated from a released mean and covariance.
type Density struct {
	mean   []float64
	factor []float64 // lower Cholesky factor of the covariance, row by row
}

// NewDensity returns the Gaussian of the given mean and covariance. covariance is an upper triangle, row by row. Its
// eigenvalues are raised to floor > 0, because the noisy covariance of few rows has small and negative eigenvalues, and
// a density needs positive ones.
//
// Privacy: the density is a function of releases, so it costs nothing. The floor must be a public constant. A good
// choice is about the standard error of a covariance: then the inverse does not amplify noise.
// Cost: O(d³) once, O(d²) a point.
func NewDensity(mean, covariance []float64, floor float64) (*Density, error) {
	if !(floor > 0) {
		return nil, errors.New("floor must be positive: a density needs the inverse of the covariance")
	}
	d := len(mean)
	upper, err := ProjectPSD(covariance, d, floor)
	if err != nil {
		return nil, err
	}
	g := &Density{mean: append([]float64(nil), mean...), factor: make([]float64, d*d)}
	at := func(i, j int) float64 { // i ≤ j
		return upper[i*d-i*(i-1)/2+j-i]
	}
	for i := range d {
		for j := range i + 1 {
			sum := at(j, i)
			for k := range j {
				sum -= g.factor[i*d+k] * g.factor[j*d+k]
			}
			switch {
			case i > j:
				g.factor[i*d+j] = sum / g.factor[j*d+j]
			case sum > 0:
				g.factor[i*d+i] = math.Sqrt(sum)
			default:
				return nil, errors.New("covariance is not positive definite: raise the floor")
			}
		}
	}
	return g, nil
}

// white returns L⁻¹(x − mean).
func (g *Density) white(x []float64) []float64 {
	d := len(g.mean)
	z := make([]float64, d)
	for i := range z {
		sum := x[i] - g.mean[i]
		for k := range i {
			sum -= g.factor[i*d+k] * z[k]
		}
		z[i] = sum / g.factor[i*d+i]
	}
	return z
}

// logDet returns the log of the covariance's determinant.
func (g *Density) logDet() (sum float64) {
	for i := range g.mean {
		sum += 2 * math.Log(g.factor[i*len(g.mean)+i])
	}
	return sum
}

// Log returns the log density at x.
func (g *Density) Log(x []float64) float64 {
	sum := g.logDet() + float64(len(x))*math.Log(2*math.Pi)
	for _, z := range g.white(x) {
		sum += z * z
	}
	return -sum / 2
}

// Divergence returns the Kullback–Leibler divergence KL(g‖h) in nats:
//
//	½·(tr(Σ_h⁻¹Σ_g) + (μ_g−μ_h)ᵀΣ_h⁻¹(μ_g−μ_h) − d + log det Σ_h/det Σ_g)
func (g *Density) Divergence(h *Density) float64 {
	d := len(g.mean)
	sum := h.logDet() - g.logDet() - float64(d)
	for _, z := range h.white(g.mean) {
		sum += z * z
	}
	column := make([]float64, d)
	for j := range d {
		for i := range d {
			column[i] = g.factor[i*d+j] + h.mean[i]
		}
		for _, z := range h.white(column) {
			sum += z * z
		}
	}
	return sum / 2
}
