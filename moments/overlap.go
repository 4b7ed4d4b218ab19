package moments

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/matfact"
)

// Gains say how large the errors of a release are if the noise has variance 1 before it is correlated. To add up
// squared errors over several releases, add their gains.
//
// a is the release's row of the workload, and Q = (CᵀC)⁻¹ is the covariance of the noise before the workload. The last
// three gains are for post-processing, which squares noisy rows; they are 0 for other methods.
type Gains struct {
	First  float64 // aᵀQa of the first moment
	Second float64 // aᵀQa of the second moment
	Fourth float64 // Σ_kl a_k a_l Q_kl²
	Cross  float64 // Σ_kl |a_k a_l Q_kl|
	Bias   float64 // (Σ_k a_k Q_kk)²
}

// Plus returns the sum of the gains g and h, field by field.
func (g Gains) Plus(h Gains) Gains {
	return Gains{g.First + h.First, g.Second + h.Second, g.Fourth + h.Fourth, g.Cross + h.Cross, g.Bias + h.Bias}
}

// over returns the gains of a release that is divided by divisor.
func (g Gains) over(divisor float64) Gains {
	s := divisor * divisor
	return Gains{g.First / s, g.Second / s, g.Fourth / s, g.Cross / s, g.Bias / s}
}

// longestSquares is the largest number of steps for post-processing over correlated noise, which takes O(t) time at
// step t. Planning n steps takes O(n²).
const longestSquares = 1 << 14

// overlap computes, step by step, the sums on which post-processing over correlated noise depends: Σ_k a_k Q_kk, Σ_kl
// a_k a_l Q_kl² and Σ_kl |a_k a_l Q_kl| for the rows a of a kernel. If C is Toeplitz and its inverse has the
// coefficients c′,
//
//	Q_{t,t−m} = Q_{t−1,t−1−m} + c′_{t−1}c′_{t−1−m},   m < t.
//
// Cost: O(t) time and memory at step t, O(W) time for a window. For C = I it takes O(1), because all three sums follow
// from Σa and Σa².
// Source: as for ExpectedError.
type overlap struct {
	kernel  matfact.Workload
	factor  matfact.Factorization
	inverse []float64 // the coefficients c′ computed so far; nil for C = I

	step                uint64
	q                   []float64 // Q_{t,t−m} by m
	bias, fourth, cross float64
	// leaving is for a window of W steps. Entry k mod W is what the pairs of step k with itself and with later steps
	// have added. It is subtracted when step k leaves the window.
	leaving []Gains
}

// newOverlap returns an overlap before the first step. It panics if checkSquares refuses the
// factorization.
func newOverlap(f matfact.Factorization, kernel matfact.Workload) *overlap {
	g := &overlap{kernel: kernel, factor: f}
	if f.Kind() != "identity" {
		g.inverse = []float64{}
		if kernel.Kind == "window" {
			g.leaving = make([]Gains, min(kernel.Window, longestSquares))
		}
	}
	return g
}

// checkSquares returns "" if rows can be squared when this factorization correlates their noise, otherwise the reason
// why not. horizon is the number of steps; normalised says whether the columns are normalised.
func checkSquares(kind string, normalised bool, horizon uint64) string {
	switch {
	case kind == "identity":
		return ""
	case normalised:
		return "post-processing cannot compute its error for noise of normalised columns"
	case kind != "sqrt" && kind != "blt":
		return fmt.Sprintf("post-processing cannot compute its error for noise of the factorization %q", kind)
	case horizon == 0 || horizon > longestSquares:
		return fmt.Sprintf(
			"post-processing of correlated noise needs a horizon of at most %d steps, and gains nothing from the "+
				"correlation: use \"identity\"", longestSquares)
	}
	return ""
}

// at returns Σ_k a_k Q_kk and the gains of post-processing in row t of the kernel. Calls with increasing t are fast; a
// smaller t starts again from row 1.
func (g *overlap) at(t uint64) (bias, fourth, cross float64) {
	if g.inverse == nil {
		square := g.factor.RowVar(g.kernel, t)
		return weights(g.kernel, t), square, square
	}
	if t < g.step {
		*g = *newOverlap(g.factor, g.kernel)
	}
	for g.step < t {
		g.next()
	}
	return g.bias, g.fourth, g.cross
}

// next advances to the next step.
func (g *overlap) next() {
	g.step++
	t := g.step
	one := matfact.Workload{Kind: "window", Window: 1}
	if t == 1 {
		g.inverse = append(g.inverse, math.Sqrt(g.factor.CinvVar(1)))
	} else {
		// Q_1t = c′_0c′_{t−1}.
		g.inverse = append(g.inverse, g.factor.Cov(one, 1, t)/g.inverse[0])
	}
	g.q = append(g.q, 0)
	last := g.inverse[t-1]
	for m := range g.q {
		g.q[m] += float64(last * g.inverse[int(t)-1-m])
	}
	own := g.q[0]
	switch g.kernel.Kind {
	case "exponential":
		beta, weight := g.kernel.Decay, 1.0
		var fourth, cross float64
		for _, x := range g.q[1:] {
			weight *= beta
			fourth += float64(weight * float64(x*x))
			cross += float64(weight * math.Abs(x))
		}
		g.bias = float64(beta*g.bias) + own
		g.fourth = float64(float64(beta*beta)*g.fourth) + float64(own*own) + 2*fourth
		g.cross = float64(float64(beta*beta)*g.cross) + own + 2*cross
	case "window":
		w := len(g.leaving)
		place := int((t - 1) % uint64(w))
		old := g.leaving[place] // of step t−W, zeros if there was none
		g.leaving[place] = Gains{Fourth: float64(own * own), Cross: own, Bias: own}
		fourth, cross := float64(own*own), own
		for m := 1; m < min(w, len(g.q)); m++ {
			x := g.q[m]
			f, c := 2*float64(x*x), 2*math.Abs(x)
			fourth += f
			cross += c
			earlier := &g.leaving[(place+w-m)%w]
			earlier.Fourth += f
			earlier.Cross += c
		}
		g.bias += own - old.Bias
		g.fourth += fourth - old.Fourth
		g.cross += cross - old.Cross
	default:
		var fourth, cross float64
		for _, x := range g.q[1:] {
			fourth += float64(x * x)
			cross += math.Abs(x)
		}
		g.bias += own
		g.fourth += float64(own*own) + 2*fourth
		g.cross += own + 2*cross
	}
}

// weights returns the sum of row t of a kernel.
func weights(kernel matfact.Workload, t uint64) float64 {
	switch kernel.Kind {
	case "exponential":
		return geometric(kernel.Decay, t)
	case "window":
		return float64(min(t, kernel.Window))
	}
	return float64(t)
}

// geometric returns 1 + β + … + β^(t−1). It only multiplies and adds, so that every architecture gets the same bits.
func geometric(beta float64, t uint64) float64 {
	// S(2m) = S(m)(1+β^m), S(m+1) = 1 + βS(m), from the highest bit of t down.
	sum, power := 0.0, 1.0
	for bit := 63; bit >= 0; bit-- {
		sum *= 1 + power
		power *= power
		if t>>bit&1 == 1 {
			sum = 1 + float64(beta*sum)
			power *= beta
		}
	}
	return sum
}
