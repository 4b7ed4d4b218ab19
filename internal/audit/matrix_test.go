package audit

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/matfact"
)

// TestWhiteners compares whiteners with dense products entry by entry, and Later with the sum of later squares.
func TestWhiteners(t *testing.T) {
	t.Parallel()
	const steps, end = 12, 4000
	root, err := KernelRoot(matfact.Workload{Kind: "window", Window: 5}, 40)
	if err != nil {
		t.Fatal(err)
	}
	phased, err := matfact.New(matfact.Config{Kind: "phased"}, matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	blt, err := matfact.New(matfact.Config{Kind: "blt", Horizon: 300},
		matfact.Workload{Kind: "exponential", Decay: 0.99})
	if err != nil {
		t.Fatal(err)
	}
	sums := matfact.Workload{Kind: "sum"}
	band := func(kind string) Matrix {
		f, err := matfact.New(matfact.Config{Kind: kind, Bands: 7, Horizon: 1000}, sums)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Stored(f.Stored(), sums, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	optimum, err := matfact.New(matfact.Config{Kind: "dense", Horizon: 30}, sums)
	if err != nil {
		t.Fatal(err)
	}
	optimal, err := matfact.New(matfact.Config{Kind: "banded", Bands: 5, Horizon: 100}, sums)
	if err != nil {
		t.Fatal(err)
	}
	normalised := func(kind string, w matfact.Workload) Matrix {
		c := matfact.Config{Kind: kind, Horizon: 40, Normalise: true}
		if strings.HasPrefix(kind, "b") && kind != "blt" {
			c.Bands = 5
		}
		f, err := matfact.New(c, w)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Stored(f.Stored(), w, 40)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 40 {
			unit := make([]float64, 40)
			unit[j] = 1
			white, _ := Whiten(m(), unit)
			var sum float64
			for _, x := range white {
				sum += x * x
			}
			if !(sum <= 1+1e-12 && sum >= 1-0x1p-18) {
				t.Errorf("normalised %s: column %d has norm %.12g", kind, j, math.Sqrt(sum))
			}
		}
		return m
	}
	stored := func(f matfact.Factorization) Matrix {
		m, err := Stored(f.Stored(), matfact.Workload{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	source := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		m    Matrix
		rows int
	}{
		"identity": {Identity, end},
		"Toeplitz": {Toeplitz(root), 40},
		"inverse":  {Inverse([]float64{2, -0.5, -0.3}, 40), 40},
		"phased":   {stored(phased), end},
		"bsr":      {band("bsr"), end},
		"bisr":     {band("bisr"), end},
		"blt":      {stored(blt), end},
		"banded":   {stored(optimal), end},
		"dense":    {stored(optimum), 30},

		"normalised sqrt":   {normalised("sqrt", matfact.Workload{Kind: "window", Window: 9}), 40},
		"normalised bsr":    {normalised("bsr", sums), 40},
		"normalised bisr":   {normalised("bisr", sums), 40},
		"normalised banded": {normalised("banded", sums), 40},
		"normalised blt":    {normalised("blt", sums), 40},
	} {
		column := func(j, n int) []float64 { // returns column j of C
			unit := make([]float64, n)
			unit[j] = 1
			white, _ := Whiten(c.m(), unit)
			return white
		}
		for _, zeros := range []int{0, 5, 11, 12} {
			x := make([]float64, steps)
			for i := zeros; i < steps; i++ {
				x[i] = source.NormFloat64()
			}
			w := c.m()
			white, diagonal := Whiten(w, x)
			want := make([]float64, c.rows)
			for j, v := range x {
				for i, k := range column(j, c.rows) {
					want[i] += k * v
				}
				if got := column(j, c.rows)[j]; diagonal[j] != got {
					t.Errorf("%s: the diagonal is %g, want %g", name, diagonal[j], got)
				}
			}
			var later float64
			for i, v := range want {
				if i >= steps {
					later += v * v
				} else if math.Abs(white[i]-v) > 1e-12 {
					t.Errorf("%s: entry %d is %g, want %g", name, i, white[i], v)
				}
			}
			got := w.Later()
			for range c.rows - steps {
				w.Push(0)
			}
			if got -= w.Later(); !(math.Abs(got-later) <= 1e-9*(1+later)) {
				t.Errorf("%s: the later energy is %.12g, want %.12g", name, got, later)
			}
		}
	}
	// C is the inverse of D, so D·C must be I.
	d := []float64{2, -0.5, -0.3}
	w := Inverse(d, 40)()
	c, _ := Whiten(w, append([]float64{1}, make([]float64, 39)...))
	for i := range c {
		var got float64
		for j, v := range d {
			if j <= i {
				got += v * c[i-j]
			}
		}
		if want := map[bool]float64{true: 1}[i == 0]; math.Abs(got-want) > 1e-14 {
			t.Errorf("D·C is %g at %d", got, i)
		}
	}
	if _, err := Stored(&matfact.Stored{Kind: "unheard-of"}, matfact.Workload{}, 0); err == nil ||
		!strings.Contains(err.Error(), "do not support") {
		t.Errorf("an unknown factorization: %v", err)
	}
}

func TestKernelRoot(t *testing.T) {
	t.Parallel()
	for _, w := range []matfact.Workload{
		{Kind: "sum"}, {Kind: "mean"}, {Kind: "exponential", Decay: 0.9}, {Kind: "exponential", Decay: 0.99999},
		{Kind: "window", Window: 1}, {Kind: "window", Window: 2}, {Kind: "window", Window: 7},
		{Kind: "window", Window: 5000},
	} {
		for _, n := range []int{1, 2, 3000} {
			c, err := KernelRoot(w, n)
			if err != nil {
				t.Fatal(err)
			}
			for j := range c {
				var got float64
				for i := range j + 1 {
					got += c[i] * c[j-i]
				}
				want := 1.0
				if w.Kind == "exponential" {
					want = math.Pow(w.Decay, float64(j))
				}
				if w.Kind == "window" && j >= int(w.Window) {
					want = 0
				}
				if math.Abs(got-want) > 1e-11 {
					t.Errorf("%+v: square at %d is %g, want %g", w, j, got, want)
				}
			}
		}
	}
	if _, err := KernelRoot(matfact.Workload{Kind: "x"}, 3); err == nil {
		t.Error("an unknown workload has a root")
	}
}
