package sgd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// TestChargePerson searches for a person whose gradients and counts together are farther apart than is charged. It
// tries persons who should be worst, and random ones.
func TestChargePerson(t *testing.T) {
	const steps, share, q = 9, 0.05, 0.9
	source := rand.New(rand.NewPCG(51, 52))
	for _, bands := range []int{1, 4} {
		f, err := factorize(bands, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := []float64{1} // a column of C
		for t := 1; t < 400; t++ {
			var x float64
			for k, m := range f.Stored().Bands {
				if t > k {
					x += float64(m) * 0x1p-64 * c[t-1-k]
				}
			}
			c = append(c, x)
		}
		square := func(g []float64) (sum float64) { // ‖Cg‖²
			for t := range c {
				var x float64
				for i, v := range g {
					if t >= i {
						x += c[t-i] * v
					}
				}
				sum += x * x
			}
			return sum
		}
		p := matfact.Participation{Count: 3, Separation: 4, PerStep: 2}
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			charge, err := ChargePerson(share, q, f, p, adjacency)
			if err != nil {
				t.Fatal(err)
			}
			top := 0.0
			// A record's noise has the deviation factor·α for gradients of norm 1.
			try := func(gradient, count []float64) {
				moved := 0.0
				for _, x := range count {
					moved += x * x
				}
				scale := adjacency.Factor() * f.ColNorm()
				top = max(top, math.Sqrt((1-share)*square(gradient)/(scale*scale)+share*moved)/charge.Ratio)
			}
			// sides returns the contribution of a person: gradients up to 1, and counts of 0 or 1, minus the q of the
			// null record that is there otherwise.
			sides := func(sign, counted float64, at ...int) (gradient, count []float64) {
				gradient, count = make([]float64, steps), make([]float64, steps)
				for _, t := range at {
					gradient[t], count[t] = 2*sign, 2*(counted-q)
				}
				return gradient, count
			}
			less := func(x, y []float64) []float64 {
				d := make([]float64, len(x))
				for i := range x {
					d[i] = x[i] - y[i]
				}
				return d
			}
			none := make([]float64, steps)
			for _, counted := range []float64{0, 1} {
				g, n := sides(1, counted, 0, 4, 8)
				try(g, n)
				if adjacency == dp.Replace {
					for _, at := range [][]int{{0, 4, 8}, {1, 5}, {2, 6}, {3, 7}} {
						h, o := sides(-1, 1-counted, at...)
						try(less(g, h), less(n, o))
						h, o = sides(1, counted, at...)
						try(less(g, h), less(n, o))
					}
				}
			}
			for range 2000 {
				random := func() (gradient, count []float64) {
					gradient, count = make([]float64, steps), make([]float64, steps)
					for t, k := source.IntN(4), 0; t < steps && k < 3; t, k = t+4+source.IntN(3), k+1 {
						for range 1 + source.IntN(2) {
							gradient[t] += 2*source.Float64() - 1
							count[t] += float64(source.IntN(2)) - q
						}
					}
					return gradient, count
				}
				g, n := random()
				h, o := none, none
				if adjacency == dp.Replace {
					h, o = random()
				}
				try(less(g, h), less(n, o))
			}
			if top > 1 || top < 0.9 {
				t.Errorf("%d bands, %s: the worst person found is %.6g of the charge", bands, adjacency, top)
			}
		}
	}
}

// TestChargePersonForms checks the cases in which the charge has a simple form, and the refused arguments.
func TestChargePersonForms(t *testing.T) {
	f, err := factorize(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	of := func(share, q float64, k, m uint64, adjacency dp.Adjacency) PersonCharge {
		c, err := ChargePerson(share, q, f, matfact.Participation{Count: k, Separation: 2, PerStep: m}, adjacency)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct {
		got  PersonCharge
		want PersonCharge
	}{
		{of(0.05, 0.6, 1, 1, dp.ZeroOut), PersonCharge{1, 1}},
		{of(0.05, 0.95, 9, 2, dp.ZeroOut), PersonCharge{6, 1}},
		{of(0.05, 0.6, 9, 2, dp.Replace), PersonCharge{6, math.Sqrt2}},
		{of(0.1, 0.9, 9, 2, dp.Replace), PersonCharge{6 * math.Sqrt(0.9+0.1*1.62), math.Sqrt2}},
		{of(0.1, 0.1, 9, 2, dp.Replace), PersonCharge{6 * math.Sqrt(0.9+0.1*1.62), math.Sqrt2}},
	} {
		if c.got.Ratio < c.want.Ratio*(1-1e-14) || c.got.Ratio > c.want.Ratio*(1+1e-9) ||
			c.got.Search != c.want.Search {
			t.Errorf("%+v, want %+v", c.got, c.want)
		}
	}
	dense, err := matfact.New(matfact.Config{Kind: "dense", Horizon: 5}, matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	one := matfact.Participation{Count: 1, Separation: 1}
	for _, x := range []struct {
		share, q float64
		f        matfact.Factorization
		p        matfact.Participation
	}{{1, 0.5, f, one}, {0.1, 0, f, one}, {0.1, 0.5, dense, one}, {0.1, 0.5, f, matfact.Participation{}}} {
		if c, err := ChargePerson(x.share, x.q, x.f, x.p, dp.ZeroOut); err == nil {
			t.Errorf("%+v: %+v", x, c)
		}
	}
}
