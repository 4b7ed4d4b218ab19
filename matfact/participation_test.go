package matfact

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestSensitivity enumerates all patterns and all signs for rows of one coordinate: no combination may have a larger
// norm than Sensitivity. If C is a non-negative, non-increasing Toeplitz matrix, one must attain it.
func TestSensitivity(t *testing.T) {
	const n = 11
	for _, f := range factorizations(t, n) {
		if f.Kind() == "sqrt" || f.Kind() == "dense" {
			if f.Horizon() != n {
				t.Fatal("wrong horizon")
			}
		}
		c := denseMatrix(f.Factorization, n)
		_, isToeplitz := f.Factorization.(toeplitz)
		exact := isToeplitz && f.name != "sqrt window" && !strings.Contains(f.name, "phase")
		for _, p := range []Participation{{1, 1, false, 0}, {2, 1, false, 0}, {2, 4, false, 0}, {3, 1, false, 0},
			{3, 2, false, 0}, {4, 3, false, 0}, {9, 5, false, 0}, {3, 2, true, 0}, {20, 3, true, 0}} {
			got, err := Sensitivity(f.Factorization, p, n)
			if err != nil {
				t.Fatal(err)
			}
			most := 0.0
			eachPattern(n, p, func(pattern []int) {
				for signs := range 1 << (len(pattern) - 1) {
					v := make([]float64, n)
					for k, j := range pattern {
						sign := float64(1 - 2*(signs>>k&1))
						for i := range v {
							v[i] += sign * c[i][j]
						}
					}
					most = max(most, math.Sqrt(dot(v, v)))
				}
			})
			name := fmt.Sprintf("%s, %+v", f.name, p)
			if got < most*(1-1e-12) {
				t.Errorf("%s: sensitivity %.12g, a pattern has %.12g", name, got, most)
			}
			if exact && got > most*(1+1e-9) {
				t.Errorf("%s: sensitivity %.12g, no pattern has more than %.12g", name, got, most)
			}
			if got > float64(p.Count)*f.ColNorm()*(1+1e-12) {
				t.Errorf("%s: sensitivity %.12g for %d rows of norm %.12g", name, got, p.Count, f.ColNorm())
			}
			if f.Horizon() == 0 {
				endless, err := Sensitivity(f.Factorization, p, 0)
				if err != nil {
					t.Fatal(err)
				}
				if endless < got*(1-1e-12) {
					t.Errorf("%s: sensitivity %g without end, %g for %d steps", name, endless, got, n)
				}
			}
		}
	}
}

// eachPattern calls f with all sets of at most p.Count of n steps with the separation of p.
func eachPattern(n int, p Participation, f func(pattern []int)) {
	var extend func(pattern []int, from int)
	extend = func(pattern []int, from int) {
		if len(pattern) > 0 {
			f(pattern)
		}
		if uint64(len(pattern)) == p.Count {
			return
		}
		for j := from; j < n; j++ {
			extend(append(pattern, j), j+int(p.Separation))
			if p.Fixed && len(pattern) > 0 {
				break
			}
		}
	}
	extend(nil, 0)
}

// TestSensitivityEndless tests the formulas for streams without end, and for more rows than the double sum handles.
// They must agree with the formulas for many steps.
func TestSensitivityEndless(t *testing.T) {
	for _, f := range factorizations(t, 11) {
		if f.Horizon() > 0 {
			continue
		}
		for _, p := range []Participation{{2, 1, false, 0}, {5, 7, false, 0}, {40, 3, false, 0}, {7, 100, false, 0}} {
			got, err := Sensitivity(f.Factorization, p, 0)
			if err != nil {
				t.Fatal(err)
			}
			long, err := Sensitivity(f.Factorization, p, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got/long-1) > 1e-9 {
				t.Errorf("%s, %+v: %.12g without end, %.12g for 2⁴⁰ steps", f.name, p, got, long)
			}
		}
		for _, p := range []Participation{{1 << 40, 1, false, 0}, {5000, 3, false, 0}, {5000, 1 << 30, false, 0}} {
			got, err := Sensitivity(f.Factorization, p, 0)
			if err != nil || !(got >= math.Sqrt(float64(p.Count))*f.ColNorm()*(1-1e-6)) && f.name != "odd phases" {
				t.Errorf("%s, %+v: %g, %v", f.name, p, got, err)
			}
		}
	}
	f := mustNew(t, Config{Kind: "sqrt", Horizon: 10}, Workload{Kind: "sum"})
	for _, c := range []struct {
		p Participation
		n uint64
	}{{Participation{0, 1, false, 0}, 5}, {Participation{1, 0, false, 0}, 5}, {Participation{1, 1, false, 0}, 11}} {
		if s, err := Sensitivity(f, c.p, c.n); err == nil {
			t.Errorf("%+v over %d steps: %g", c.p, c.n, s)
		}
	}
}
