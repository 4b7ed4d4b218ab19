package matfact

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// TestColNorm compares ColNorm with the norms of columns at infinite height, computed in 300-bit arithmetic from the
// stored integers. ColNorm must not be below them. If the entries of a column end early enough, it also compares with
// sums of entries.
func TestColNorm(t *testing.T) {
	for _, f := range factorizations(t, 3000) {
		colNorm := f.ColNorm()
		if r, ok := f.Factorization.(*root); ok {
			sum := bigFloat(0)
			for _, k := range r.coef {
				c := bigFloat(float64(k) * 0x1p-62)
				sum.Add(sum, c.Mul(c, c))
			}
			checkColNorm(t, f.name, colNorm, sum)
			continue
		}
		if x, ok := f.Factorization.(*normalised); ok {
			largest := bigFloat(0)
			coef := denseMatrix(x.inner, x.n)
			below := bigFloat(0) // Σ_{1≤j≤n−t} c_j²
			for t := x.n - 1; t >= 0; t-- {
				if j := x.n - 1 - t; j > 0 {
					c := bigFloat(coef[j][0])
					below.Add(below, c.Mul(c, c))
				}
				m, r := bigFloat(float64(x.factor[t])*0x1p-20), bigFloat(x.scale[t])
				sum := bigFloat(0).Mul(below, m.Mul(m, m))
				sum.Add(sum, bigFloat(0).Quo(bigFloat(1), r.Mul(r, r)))
				if sum.Cmp(largest) > 0 {
					largest = sum
				}
			}
			checkColNorm(t, f.name, colNorm, largest)
			continue
		}
		if d, ok := f.Factorization.(*dense); ok {
			largest := bigFloat(0)
			for j := 1; j <= d.n; j++ {
				_, scale := d.row(j)
				sum := bigFloat(0).Quo(bigFloat(1), bigFloat(0).Mul(bigFloat(scale), bigFloat(scale)))
				for t := j + 1; t <= d.n; t++ {
					before, _ := d.row(t)
					c := bigFloat(0).SetInt64(before[j-1])
					c.SetMantExp(c, -62)
					sum.Add(sum, c.Mul(c, c))
				}
				if sum.Cmp(largest) > 0 {
					largest = sum
				}
			}
			checkColNorm(t, f.name, colNorm, largest)
			continue
		}
		s := f.Stored()
		if _, ok := f.Factorization.(*banded); ok {
			checkColNorm(t, f.name, colNorm, bandNorm2(s, 3000))
			continue
		}
		largest := bigFloat(0)
		for p, ph := range s.Phases {
			exact := exactColNorm2(s, ph)
			if exact.Cmp(largest) > 0 {
				largest = exact
			}
			norm, _ := exact.Float64()
			if s.Kind == "phased" && f.name != "odd phases" && math.Abs(norm-1) > 3e-8 {
				t.Errorf("%s: columns of phase %d have norm² %.17g, want 1", f.name, p, norm)
			}
			if k := len(ph.Weight); k > 0 && s.Decay[k-1].gap() < 1e-5 {
				continue
			}
			v := make([]float64, len(ph.Weight))
			for i, w := range ph.Weight {
				v[i] = w.float()
			}
			sum := 1 / ph.Scale / ph.Scale
			for c := 1.0; c > 1e-10; {
				c = 0
				for i, d := range s.Decay[:len(v)] {
					c += v[i]
					v[i] -= v[i] * d.gap()
				}
				sum += c * c
			}
			near(t, fmt.Sprintf("%s: norm² of phase %d by entries", f.name, p), sum, norm, 1e-10)
		}
		checkColNorm(t, f.name, colNorm, largest)
	}
}

// bandNorm2 returns Σ_{j<n} c_j² of a matrix with bands.
func bandNorm2(s *Stored, n int) *big.Float {
	c, sum := make([]*big.Float, n), bigFloat(0)
	for t := range c {
		c[t] = bigFloat(0)
		if t == 0 {
			c[t] = bigFloat(1)
		}
		for k, m := range s.Bands[:min(t, len(s.Bands))] {
			x := bigFloat(0).SetUint64(uint64(m))
			x.SetMantExp(x, -64)
			if s.Kind == "bisr" {
				c[t].Add(c[t], x.Mul(x, c[t-k-1]))
			} else if k == t-1 {
				c[t] = x
			}
		}
		sum.Add(sum, bigFloat(0).Mul(c[t], c[t]))
	}
	return sum
}

func bigFloat(x float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(x) }

// exactColNorm2 returns 1/r² + Σ_ik Ω_iΩ_k/(1−Θ_iΘ_k).
func exactColNorm2(s *Stored, ph Phase) *big.Float {
	fixed := func(f Fixed) *big.Float {
		x := bigFloat(0).SetUint64(uint64(f))
		return x.SetMantExp(x, -64)
	}
	r := bigFloat(ph.Scale)
	sum := bigFloat(0).Quo(bigFloat(1), r.Mul(r, r))
	for i, wi := range ph.Weight {
		for k, wk := range ph.Weight {
			num := bigFloat(0).Mul(fixed(wi), fixed(wk))
			den := bigFloat(0).Sub(bigFloat(1), bigFloat(0).Mul(fixed(s.Decay[i]), fixed(s.Decay[k])))
			sum.Add(sum, num.Quo(num, den))
		}
	}
	return sum
}

func checkColNorm(t *testing.T, name string, got float64, square *big.Float) {
	t.Helper()
	norm := bigFloat(0).Sqrt(square)
	ratio, _ := bigFloat(0).Quo(bigFloat(got), norm).Float64()
	if bigFloat(got).Cmp(norm) < 0 || ratio > 1+0x1p-39 {
		t.Errorf("%s: ColNorm is %g times the largest norm, must be 1 to 1+2⁻³⁹", name, ratio)
	}
}

// TestPhasedBorders evaluates columns on both sides of each phase border with the Shaper, down to a finite height. A
// column that began before a border must not change at the border, and no column may have a norm above 1.
func TestPhasedBorders(t *testing.T) {
	f := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"})
	const height, unit = 9000, 1 << 50
	var largest float64
	for border := 2; border <= 4096; border *= 2 {
		for j := border - 2; j <= border+1; j++ {
			if j < 1 {
				continue
			}
			shaper, s, w := f.NewShaper(1), []float64{0}, []int64{0}
			var sum float64
			for i := 1; i <= height; i++ {
				r := shaper.Predict(s)
				w[0] = 0
				c := s[0] / unit
				if i == j {
					c, w[0] = 1/r, unit
				}
				shaper.Push(w)
				sum += c * c
			}
			largest = max(largest, sum)
			if sum > f.ColNorm()*f.ColNorm() {
				t.Errorf("column %d has norm² %.17g", j, sum)
			}
		}
	}
	t.Logf("largest norm² %.10f at height %d", largest, height)
}
