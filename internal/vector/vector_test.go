package vector

import (
	"math"
	"math/rand/v2"
	"testing"
)

func random(source *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = source.NormFloat64()
	}
	return x
}

// TestOrder checks the order of additions in each sum, bit for bit.
func TestOrder(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	// inSums adds up the products in n interleaved sums. The products of an incomplete last group belong to the first
	// sum.
	inSums := func(x, y []float64, n int) []float64 {
		sums := make([]float64, n)
		whole := len(x) / n * n
		for i := range x {
			at := i % n
			if i >= whole {
				at = 0
			}
			sums[at] += float64(x[i] * y[i])
		}
		return sums
	}
	apart := 0
	for n := range 40 {
		x, y := random(source, n), random(source, n)
		two, four := inSums(x, y, 2), inSums(x, y, 4)
		if got, want := Dot2(x, y), two[0]+two[1]; got != want {
			t.Errorf("%d: Dot2 %v, want %v", n, got, want)
		}
		if got, want := Dot4(x, y), (four[0]+four[1])+(four[2]+four[3]); got != want {
			t.Errorf("%d: Dot4 %v, want %v", n, got, want)
		}
		if Dot2(x, y) != Dot4(x, y) {
			apart++
		}
		if dot, square := DotSquare(x, y); dot != Dot2(x, y) || square != Dot2(y, y) {
			t.Errorf("%d: DotSquare %v %v, want %v %v", n, dot, square, Dot2(x, y), Dot2(y, y))
		}
		sum := append([]float64(nil), y...)
		Axpy(sum, 3.7, x)
		for i := range sum {
			if want := y[i] + float64(3.7*x[i]); sum[i] != want {
				t.Errorf("%d: Axpy %v, want %v", n, sum[i], want)
			}
		}
	}
	if apart < 10 {
		t.Errorf("%d lengths tell Dot2 from Dot4", apart)
	}
}

func TestShorten(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	for n := 1; n < 20; n++ {
		for _, size := range []float64{0, 1e-300, 1e-3, 1, 1e300} {
			x := random(source, n)
			var square float64
			for i, v := range x {
				square += v * v
				x[i] = v * size
			}
			before := append([]float64(nil), x...)
			bound := 0.7
			Shorten(x, bound)
			norm := math.Sqrt(square) * size
			for i, v := range x {
				want := before[i]
				if norm > bound {
					want = before[i] / size * (bound / math.Sqrt(square))
				}
				if !(math.Abs(v-want) <= 1e-14*max(math.Abs(want), 0)) {
					t.Errorf("n %d, size %g: %v, want %v", n, size, v, want)
				}
			}
		}
	}
}

func TestFinite(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if Finite([]float64{1, v, 2}) || Positive(v) {
			t.Errorf("Finite or Positive is true for %v", v)
		}
	}
	for _, v := range []float64{0, math.Copysign(0, -1), math.MaxFloat64, -math.MaxFloat64, 5e-324} {
		if !Finite([]float64{v}) || Positive(v) != (v > 0) {
			t.Errorf("Finite or Positive is wrong for %v", v)
		}
	}
	if !Finite(nil) {
		t.Error("Finite is false for an empty vector")
	}
}
