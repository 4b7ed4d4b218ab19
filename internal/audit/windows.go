package audit

import (
	"math"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/dp"
)

// Windows describes a regression at the end of each window. Its releases have additive Gaussian noise, or are computed
// from squares of Gaussian sketches. The audit uses its own formulas for the noise.
type Windows struct {
	Mechanism
	Mu        float64
	Adjacency dp.Adjacency
	Bits      int // resolution of the lattices, in bits
	Features  int // number of features d, including the constant
	// Centred is true if the solver newton has an intercept and centres its rows.
	Centred bool
	// Solver is "newton", "adassp", "dp-gd", "dp-gd-residual", "ihm" or "linmix". Any other solver is a NoneError.
	Solver string
	// Budget is the μ of newton and dp-gd. Noise has two meanings: for adassp, the deviation of a release divided by
	// its sensitivity; for dp-gd-residual and ihm, the deviation of a gradient divided by its clip norm.
	Budget, Noise float64
	// Test is the deviation of the least eigenvalue, divided by its sensitivity, in ihm and linmix. Rows and Gamma
	// describe the sketches of these solvers. Radius is used by ihm only.
	Test, Gamma, Radius float64
	Rows                int
	// Course returns values that follow from newton's earlier releases of the open window: the number of steps, the
	// number of steps before averaging starts, c and R².
	Course func() (steps, start int, counted, squared float64)
}

// Subject returns the mechanism in the form that Coupling audits. Other audits do not apply: the questions depend on
// releases, and the solution does not determine them.
func (w Windows) Subject() (*Subject, error) {
	open := &counted{Mechanism: w.Mechanism}
	s := &Subject{Mechanism: open, Mu: w.Mu}
	factor := w.Adjacency.Factor()
	unit := math.Exp2(float64(w.Bits))
	arrays := map[string]func(array string, t int) (Array, bool){
		"newton": func(array string, t int) (Array, bool) {
			steps, start, c, squared := w.Course()
			weight := math.Sqrt(1 - c*c)
			if w.Adjacency == dp.Replace {
				weight = math.Sqrt(4 - (1+c)*(1+c))
			}
			histogram, matrix, rest, d := 0.06, 0.12, 0.82, w.Features
			if w.Centred {
				histogram, matrix, rest, d = 0.05, 0.11, 0.74, d-1
			}
			m := w.Budget * math.Sqrt(rest*0.6/float64(steps-start))
			if t < start {
				m = w.Budget * math.Sqrt(rest*0.4/float64(start))
			}
			switch array {
			case "hist0":
				return Array{Deviations: []float64{math.Sqrt(factor/0.02) / w.Budget * unit / 16}}, w.Centred
			case "mean":
				sd := factor / math.Sqrt(0.05) / w.Budget
				return Array{Deviations: []float64{sd * w.finest(sd)}}, w.Centred
			case "meany":
				return Array{Deviations: []float64{factor / math.Sqrt(0.03) / w.Budget * unit}}, w.Centred
			case "hist":
				return Array{Deviations: []float64{math.Sqrt(factor/histogram) / w.Budget * unit / 16}}, true
			case "gram":
				sd := math.Sqrt(factor/matrix) * squared / w.Budget
				return matrixArray(d, w.Bits, squared, sd, sd/math.Sqrt2), true
			case "grad":
				sd, units := w.gradient(factor / m)
				return Array{Deviations: []float64{sd * units}}, true
			case "count":
				sd, _ := w.gradient(factor / m)
				return Array{Deviations: []float64{sd / weight * unit / 16}}, true
			}
			return Array{}, false
		},
		"adassp": func(array string, _ int) (Array, bool) {
			switch array {
			case "lambda":
				return w.vector(1, w.Noise, 1), true
			case "gram":
				sd := w.Noise * math.Sqrt(factor)
				return matrixArray(w.Features, w.Bits, 1, sd, sd), true
			case "xty":
				sd, units := w.gradient(w.Noise * factor)
				return Array{Deviations: []float64{sd * units}}, true
			}
			return Array{}, false
		},
		"dp-gd-residual": func(array string, _ int) (Array, bool) {
			sd, units := w.gradient(w.Noise)
			return Array{Deviations: []float64{sd * units}}, array == "grad"
		},
		"ihm": func(array string, _ int) (Array, bool) {
			switch array {
			case "lambda":
				return w.eigenvalue(1), w.Test > 0
			case "grad":
				if w.Radius > 0 { // then the sums themselves are released
					bound := 1 + w.Radius
					return w.vector(factor*bound, bound*w.Noise, w.Features), true
				}
				sd, units := w.gradient(w.Noise)
				return Array{Deviations: []float64{sd * units}}, true
			case "wishart":
				return Array{Squares: &Squares{w.Rows, w.Gamma}}, true
			}
			return Array{}, false
		},
		"linmix": func(array string, _ int) (Array, bool) {
			const bound = 2 // upper bound on the squared norm of features and target together
			switch array {
			case "lambda":
				return w.eigenvalue(bound), true
			case "wishart":
				return Array{Squares: &Squares{w.Rows, w.Gamma}}, true
			}
			return Array{}, false
		},
		"dp-gd": func(array string, _ int) (Array, bool) {
			// A tenth of μ² pays for the curvature, and a tenth of the rest for the counts.
			rest := w.Budget * math.Sqrt(0.9)
			half := float64(open.n) * rest * math.Sqrt(0.1) / 2
			step := rest / math.Sqrt(math.Floor(min(200, max(10, half*half))))
			switch array {
			case "lambda":
				return Array{Deviations: []float64{(1<<20 + 1) / (w.Budget * math.Sqrt(0.1))}}, true
			case "grad":
				sd := factor / (step * math.Sqrt(0.9))
				return Array{
					Deviations: []float64{sd * math.Exp2(float64(w.Bits)-math.Floor(math.Log2(min(1, sd))))}}, true
			case "clip":
				return Array{Deviations: []float64{unit / 16 / (step * math.Sqrt(0.1))}}, true
			}
			return Array{}, false
		},
	}
	of := arrays[w.Solver]
	if of == nil {
		return nil, NoneError("solver " + w.Solver)
	}
	s.Array = func(name string, _ uint64) (Array, bool) {
		array, number, _ := strings.Cut(strings.TrimPrefix(name, w.Solver+"/"), "/")
		t, _ := strconv.Atoi(number)
		return of(array, t)
	}
	return s, nil
}

// counted is a mechanism that counts the records of the open window.
type counted struct {
	Mechanism
	n int
}

func (c *counted) Add(slot uint64, row []float64) {
	c.n++
	c.Mechanism.Add(slot, row)
}

func (c *counted) Close(n dp.Noise) (*dp.Release, error) {
	r, err := c.Mechanism.Close(n)
	c.n = 0
	return r, err
}

// finest returns the number of lattice units that represent the norm 1, for noise of deviation sd.
func (w Windows) finest(sd float64) float64 {
	_, e := math.Frexp(min(1, sd))
	units := math.Exp2(float64(w.Bits + 1 - e))
	for bits := w.Bits; units > 1<<30 && bits > 24; bits-- {
		units /= 2
	}
	return units
}

// vector describes d numbers with noise sd, whose vector moves by a norm of at most `moves`.
func (w Windows) vector(moves, sd float64, d int) Array {
	step := math.Exp2(math.Floor(math.Log2(min(moves, sd))) - float64(w.Bits))
	return Array{Deviations: []float64{sd * (1 + math.Sqrt(float64(d))*step/moves) / step}}
}

// eigenvalue describes the least eigenvalue of a Gram matrix whose rows have squared norms of at most `bound`.
func (w Windows) eigenvalue(bound float64) Array { return w.vector(bound, bound*w.Test, 1) }

// matrixArray describes the upper triangle of a Gram matrix with the given number of features. The rows have squared
// norms of at most `bound`. The noise's deviation is `sd` on the diagonal and `off` elsewhere.
func matrixArray(features, bits int, bound, sd, off float64) Array {
	step := math.Exp2(math.Floor(math.Log2(min(bound, sd/math.Sqrt2))) - float64(bits))
	scale := (bound + float64(features)*step) / bound / step
	var all []float64
	for i := range features {
		all = append(all, sd*scale)
		for range features - i - 1 {
			all = append(all, off*scale)
		}
	}
	return Array{Deviations: all}
}

// gradient describes a sum of gradients. It returns the noise's deviation in clip norms, and the number of lattice
// units in a clip norm. sd is the deviation without the part that pays for rounding.
func (w Windows) gradient(sd float64) (deviation, units float64) {
	out := float64(w.Bits)
	if sd < 1 {
		out -= math.Floor(math.Log2(sd))
	}
	return sd * (1 + math.Sqrt(float64(w.Features))*math.Exp2(-out)/w.Adjacency.Factor()), math.Exp2(out)
}
