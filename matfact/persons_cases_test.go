package matfact

import (
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestCasesPersons runs the reference cases for rows of persons that concern matrices. Package moments runs those that
// concern moments.
func TestCasesPersons(t *testing.T) {
	cases.Run(t, "persons", map[string]func(*testing.T, cases.Case){
		"persons_toeplitz": casePersonsToeplitz,
		"persons_matrix":   casePersonsMatrix,
		"persons_total":    casePersonsTotal,
		"persons_blt":      casePersonsBLT,
		"persons_optimum":  casePersonsOptimum,
		"persons_moments":  func(*testing.T, cases.Case) {}, // see TestCasesPersons of package moments
	})
}

// personCase has the inputs that all kinds share.
type personCase struct {
	Coefficients []float64
	N            int
	Separation   uint64
	Cap          uint64
	PerStep      uint64 `json:"per_step"`
}

func (c personCase) participation() Participation {
	return Participation{Count: c.Cap, Separation: c.Separation, PerStep: c.PerStep}
}

// toeplitzRows returns the matrix with these coefficients, followed by zeros.
func toeplitzRows(coefficients []float64, n int) [][]float64 {
	m := newMatrix(n)
	for i := range m {
		for j := range i + 1 {
			if i-j < len(coefficients) {
				m[i][j] = coefficients[i-j]
			}
		}
	}
	return m
}

// worstPattern returns the largest Σ_{i,j∈π} |X_ij| over all patterns of p, X = CᵀC.
func worstPattern(c [][]float64, p Participation) float64 {
	x := absGram(c)
	most := 0.0
	eachPattern(len(c), p, func(pattern []int) {
		var sum float64
		for _, i := range pattern {
			for _, j := range pattern {
				sum += x[i][j]
			}
		}
		most = max(most, sum)
	})
	return most
}

// casePersonsToeplitz tests the closed form where it holds, and otherwise the upper bound.
func casePersonsToeplitz(t *testing.T, c cases.Case) {
	var in personCase
	var want struct {
		Sensitivity, Closed float64
		Pattern             []int
		Exact               bool
	}
	c.Read(t, &in, &want)
	p := in.participation().Within(uint64(in.N))
	rows := toeplitzRows(in.Coefficients, in.N)
	per := float64(max(1, in.PerStep))
	c.Near(t, "largest over all patterns", per*math.Sqrt(worstPattern(rows, p)), want.Sensitivity)

	column := slices.Concat(in.Coefficients, make([]float64, in.N))[:in.N]
	closed := per * math.Sqrt(spacedColumns(column, p))
	switch {
	case closed > 0 && slices.Min(column) >= 0:
		c.Near(t, "closed form", closed, want.Sensitivity)
	case want.Exact:
		t.Error("no closed form")
	}
	if want.Closed > 0 && closed > 0 {
		c.Near(t, "closed form", closed, want.Closed)
	}
	if bound := per * math.Sqrt(patternBound(absGram(rows), p)); bound < want.Sensitivity*(1-1e-12) {
		t.Errorf("the bound for any matrix is %g, the sensitivity %g", bound, want.Sensitivity)
	}

	// Compute the same through a factorization, if a kind has these coefficients.
	bands := &Stored{Kind: "bsr"}
	for _, x := range in.Coefficients[1:] {
		if x > 0 {
			bands.Bands = append(bands.Bands, floorFixed(x))
		}
	}
	f, err := newBanded(bands)
	if err != nil || in.Coefficients[0] != 1 || len(bands.Bands) != len(in.Coefficients)-1 {
		return
	}
	got, err := Sensitivity(f, in.participation(), uint64(in.N))
	if err != nil {
		t.Fatal(err)
	}
	if got < want.Sensitivity*(1-1e-12) {
		t.Errorf("Sensitivity is %g, must be at least %g", got, want.Sensitivity)
	}
	if want.Exact {
		c.Near(t, "Sensitivity", got, want.Sensitivity)
	}
}

// casePersonsMatrix checks that the bound for any matrix holds, and is not much too large.
func casePersonsMatrix(t *testing.T, c cases.Case) {
	var in struct {
		personCase
		Matrix [][]float64
		Bound  float64
	}
	var want struct {
		Sensitivity float64
		Pattern     []int
	}
	c.Read(t, &in, &want)
	p := in.participation()
	per := float64(max(1, in.PerStep))
	exact := per * math.Sqrt(worstPattern(in.Matrix, p))
	nonNegative := true
	for _, row := range in.Matrix {
		nonNegative = nonNegative && slices.Min(row) >= 0
	}
	if nonNegative {
		c.Near(t, "largest over all patterns", exact, want.Sensitivity)
	}
	if in.Bound > 0 {
		c.Near(t, "largest over all patterns", exact, in.Bound)
	}
	bound := per * math.Sqrt(patternBound(absGram(in.Matrix), p))
	if bound < exact*(1-1e-12) || exact < want.Sensitivity*(1-1e-9) || bound > 1.5*exact {
		t.Errorf("the bound for any matrix is %g, the largest over all patterns %g, the sensitivity %g", bound, exact,
			want.Sensitivity)
	}
}

// casePersonsTotal limits the number of rows instead of the number of steps. Then the worst person has rows in as few
// steps as possible. Sensitivity counts steps, and must be an upper bound.
func casePersonsTotal(t *testing.T, c cases.Case) {
	var in struct {
		personCase
		Total uint64
	}
	var want struct {
		Sensitivity, Greedy float64
		Pattern             [2][]int
		BoundBySteps        float64 `json:"bound_by_steps"`
	}
	c.Read(t, &in, &want)
	rows := toeplitzRows(in.Coefficients, in.N)
	x := absGram(rows)
	steps := (in.Total + in.PerStep - 1) / in.PerStep
	square := func(pattern []int, times []float64) (sum float64) {
		for k, i := range pattern {
			for l, j := range pattern {
				sum += times[k] * times[l] * x[i][j]
			}
		}
		return sum
	}
	var most float64
	eachPattern(in.N, Participation{Count: in.Total, Separation: in.Separation}, func(pattern []int) {
		times := make([]float64, len(pattern))
		var fill func(k int, left uint64)
		fill = func(k int, left uint64) {
			if k == len(pattern) {
				most = max(most, square(pattern, times))
				return
			}
			for r := range min(left, in.PerStep) + 1 {
				times[k] = float64(r)
				fill(k+1, left-r)
			}
		}
		fill(0, in.Total)
	})
	c.Near(t, "largest over all patterns", math.Sqrt(most), want.Sensitivity)

	var pattern []int
	var times []float64
	left := in.Total
	for i := 0; i < in.N && left > 0; i += int(in.Separation) {
		r := min(left, in.PerStep)
		pattern, times, left = append(pattern, i), append(times, float64(r)), left-r
	}
	c.Near(t, "greedy", math.Sqrt(square(pattern, times)), want.Greedy)

	column := slices.Concat(in.Coefficients, make([]float64, in.N))[:in.N]
	p := Participation{Count: steps, Separation: in.Separation}.Within(uint64(in.N))
	bound := float64(in.PerStep) * math.Sqrt(spacedColumns(column, p))
	c.Near(t, "bound by steps", bound, want.BoundBySteps)
	if bound < math.Sqrt(most)*(1-1e-12) {
		t.Errorf("the bound by steps is %g, a person has %g", bound, math.Sqrt(most))
	}
}

func casePersonsBLT(t *testing.T, c cases.Case) {
	var in struct {
		personCase
		A     []float64
		Ahat  []float64 `json:"a_hat"`
		Omega []float64
	}
	var want struct{ Sensitivity float64 }
	c.Read(t, &in, &want)
	nearAll(t, "omega", residues(in.Ahat, in.A), in.Omega, 1e-9)
	f, err := newBuffered(storeBLT(in.A, in.Ahat))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Sensitivity(f, in.participation(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "Sensitivity", got, want.Sensitivity)
	p2, _, _ := personSensitivity(in.A, in.Ahat, float64(in.Cap), float64(in.Separation), false)
	c.Near(t, "P", float64(max(1, in.PerStep))*math.Sqrt(p2), want.Sensitivity)
}

// casePersonsOptimum checks that the factorization of New is worse by at most the tolerance, and that the given buffers
// have the given error.
func casePersonsOptimum(t *testing.T, c cases.Case) {
	var in struct {
		N, Separation, Cap uint64
		Buffers            int
	}
	var want struct {
		Error, Sensitivity float64
		A                  []float64
		Ahat               []float64 `json:"a_hat"`
		Omega              []float64
	}
	c.Read(t, &in, &want)
	tol, _ := c.Tolerance(t)
	p := Participation{Count: in.Cap, Separation: in.Separation}
	atMost(t, "error",
		personError(t, Config{Kind: "blt", Horizon: in.N, Buffers: in.Buffers, Participation: p}, Workload{Kind: "sum"},
			p, in.N), want.Error, tol)

	p2, _, _ := personSensitivity(want.A, want.Ahat, float64(in.Cap), float64(in.Separation), false)
	e, _, _ := squaredError(want.A, want.Ahat, 0, float64(in.N), 0, false)
	near(t, "P of the given buffers", math.Sqrt(p2), want.Sensitivity, 1e-6)
	near(t, "error of the given buffers", math.Sqrt(p2*e), want.Error, 1e-6)
}

// personError returns the error at step n of the factorization that New builds: its standard deviation at noise
// multiplier 1 for rows of norm 1, times the joint norm of a person's rows at infinite height.
func personError(t *testing.T, c Config, w Workload, p Participation, n uint64) float64 {
	t.Helper()
	f := mustNew(t, c, w)
	s, err := Sensitivity(f, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s * math.Sqrt(f.RowVar(w, n))
}
