package newton

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// matrices returns symmetric matrices of every kind, as upper triangles.
func matrices(d int) map[string][]float64 {
	source := rand.New(rand.NewPCG(9, uint64(d)))
	all := map[string][]float64{}
	each := func(name string, f func(i, j int) float64) {
		for i := range d {
			for j := i; j < d; j++ {
				all[name] = append(all[name], f(i, j))
			}
		}
	}
	each("zero", func(i, j int) float64 { return 0 })
	each("identity", func(i, j int) float64 { return map[bool]float64{true: 1}[i == j] })
	each("ones", func(i, j int) float64 { return 1 })
	each("random", func(i, j int) float64 { return source.NormFloat64() })
	each("graded", func(i, j int) float64 { return math.Ldexp(source.NormFloat64(), -3*(i+j)) })
	each("Hilbert", func(i, j int) float64 { return 1e6 / float64(i+j+1) })
	return all
}

// TestEigen checks A = VΛVᵀ and VVᵀ = I, and compares the values with gonum's.
func TestEigen(t *testing.T) {
	for _, d := range []int{1, 2, 3, 10, 40} {
		for name, upper := range matrices(d) {
			values, v := Eigen(upper, d)
			a := mat.NewSymDense(d, nil)
			n := 0
			var norm float64
			for i := range d {
				for j := i; j < d; j++ {
					a.SetSym(i, j, upper[n])
					norm = max(norm, math.Abs(upper[n]))
					n++
				}
			}
			tol := 1e-14 * norm * float64(d)
			for i := range d {
				for j := range d {
					var sum, unit float64
					for k, l := range values {
						sum += v[i*d+k] * l * v[j*d+k]
						unit += v[i*d+k] * v[j*d+k]
					}
					if i == j {
						unit--
					}
					if math.Abs(sum-a.At(i, j)) > tol || math.Abs(unit) > 1e-13 {
						t.Fatalf("%s, d = %d: entry (%d, %d) is off by %g, of VVᵀ by %g", name, d, i, j,
							sum-a.At(i, j), unit)
					}
				}
			}
			var eigen mat.EigenSym
			if !eigen.Factorize(a, false) {
				t.Fatal("gonum did not converge")
			}
			slices.Sort(values)
			for i, want := range eigen.Values(nil) {
				if math.Abs(values[i]-want) > tol {
					t.Errorf("%s, d = %d: value %d is %g, want %g", name, d, i, values[i], want)
				}
			}
		}
	}
}

// TestWhiten checks that W(G + ρI)W = I where the cap does not apply, that all of H is in [ρ, tr], that shares are in
// [0, 1], and that the map of rows equals that of vectors.
func TestWhiten(t *testing.T) {
	for _, d := range []int{1, 3, 10} {
		for name, upper := range matrices(d) {
			values, _ := Eigen(upper, d)
			for _, ridge := range []float64{0.1, 3} {
				for _, trace := range []float64{4, 1e9} {
					w := Whiten(upper, d, ridge, trace)
					var signal float64
					for i, s := range w.Scale {
						if h := s * s; h < ridge*(1-1e-12) || h > trace*(1+1e-12) {
							t.Fatalf("%s: H is %g", name, h)
						}
						if w.Share[i] < 0 || w.Share[i] > 1+1e-12 {
							t.Fatalf("%s: share %g", name, w.Share[i])
						}
						signal += w.Share[i] * s * s
					}
					if signal > trace*(1+1e-12) {
						t.Fatalf("%s: Σℓ is %g, the cap %g", name, signal, trace)
					}
					x := make([]float64, 7*d)
					source := rand.New(rand.NewPCG(1, 1))
					for i := range x {
						x[i] = source.NormFloat64()
					}
					rows := slices.Clone(x)
					w.ApplyRows(rows, d)
					one := make([]float64, d)
					for r := range 7 {
						w.Apply(one, x[r*d:(r+1)*d])
						if !slices.Equal(one, rows[r*d:(r+1)*d]) {
							t.Fatalf("%s: row %d is %v, alone %v", name, r, rows[r*d:(r+1)*d], one)
						}
					}
					if trace < 1e9 || slices.Min(values) < 0 {
						continue
					}
					// Apply G + ρI between the two W.
					for k := range d {
						e, f := make([]float64, d), make([]float64, d)
						copy(e, w.Root[k*d:(k+1)*d])
						n := 0
						for i := range d {
							for j := i; j < d; j++ {
								f[i] += upper[n] * e[j]
								if i != j {
									f[j] += upper[n] * e[i]
								}
								n++
							}
							f[i] += ridge * e[i]
						}
						w.Apply(one, f)
						one[k]--
						for _, v := range one {
							if math.Abs(v) > 1e-9 {
								t.Fatalf("%s, ρ = %g: W(G+ρI)W is off by %g", name, ridge, v)
							}
						}
					}
				}
			}
		}
	}
}

// TestWhitening checks uniform maps, inverses, restored maps, and four rows at once.
func TestWhitening(t *testing.T) {
	source := rand.New(rand.NewPCG(5, 6))
	for _, d := range []int{1, 2, 5, 8} {
		x, y, z := make([]float64, 4*d), make([]float64, d), make([]float64, d)
		for i := range x {
			x[i] = source.NormFloat64()
		}
		u := Uniform(d, 4)
		u.Apply(y, x[:d])
		for j, v := range y {
			if v != x[j]/4 {
				t.Errorf("d = %d: coordinate %d is %g, want %g", d, j, v, x[j]/4)
			}
		}
		upper := make([]float64, 0, d*(d+1)/2)
		for i := range d {
			for j := i; j < d; j++ {
				upper = append(upper, source.NormFloat64())
			}
		}
		w := Whiten(upper, d, 0.1, 50)
		w.Apply(y, x[:d])
		w.Unapply(z, y)
		for j, v := range z {
			if math.Abs(v-x[j]) > 1e-12 {
				t.Errorf("d = %d: W⁻¹W is off by %g", d, v-x[j])
			}
		}
		if r := Restore(slices.Clone(w.Vectors), slices.Clone(w.Scale)); !slices.Equal(r.Root, w.Root) {
			t.Errorf("d = %d: a map has other bits when it is restored", d)
		}
		four := make([]float64, 4*d)
		w.ApplyFour(four, x)
		for i := range 4 {
			if w.Apply(y, x[i*d:][:d]); !slices.Equal(y, four[i*d:][:d]) {
				t.Errorf("d = %d: row %d has other bits among four", d, i)
			}
		}
	}
}
