package dp

import (
	"errors"
	"fmt"
	"math"
)

// Kind names a mechanism whose Rényi curve is known.
type Kind string

// The kinds of terms of a [Curve]. Curves of rows hold for rows x of norm at
// most 1 and for every data set whose regularised Gram matrix XᵀX + η²I has all
// eigenvalues at least γ.
const (
	// KindGaussian is a Gaussian mechanism with ratio Mu.
	KindGaussian Kind = "gaussian"
	// KindPure is any mechanism that is (Epsilon, 0)-private.
	KindPure Kind = "pure"
	// KindLaplace is Laplace noise, whose scale divided by the ℓ₁ sensitivity is Scale.
	KindLaplace Kind = "laplace"
	// KindSketchRow is a row N(0, XᵀX + η²I) of a dense Gaussian sketch, under
	// ZeroOut.
	KindSketchRow Kind = "sketch-row"
	// KindSketchRowReplace is the same row under Replace.
	KindSketchRowReplace Kind = "sketch-row-replace"
	// KindFastMixRow is a row of a Gaussian sketch under ZeroOut. The sketch is applied to another, fixed sketch with
	// unit columns. γ is the least eigenvalue divided by C².
	KindFastMixRow Kind = "fastmix-row"
)

// Term stands for Count uses of one kind of mechanism. Kind decides which parameters the term has; the others are zero.
type Term struct {
	Kind  Kind `json:"kind"`
	Count int  `json:"count"` // at least 1
	// Mu is the sensitivity of a Gaussian mechanism divided by σ.
	Mu float64 `json:"mu,omitempty"`
	// Epsilon is the ε of a mechanism that is (ε, 0)-private.
	Epsilon float64 `json:"epsilon,omitempty"`
	// Scale is the noise scale of a Laplace mechanism divided by its ℓ₁ sensitivity.
	Scale float64 `json:"scale,omitempty"`
	// Gamma is the γ of sketch rows. It is above 1, for FastMix rows above (1+√(1+4κ))/2.
	Gamma float64 `json:"gamma,omitempty"`
	// C2 is the C² ≥ 1 of FastMix rows, if the releases show it. 0 means unknown.
	C2 float64 `json:"c2,omitempty"`
}

// maxCount is the largest count of rows or uses. All smaller counts are exact in float64, and an int can hold a sum of
// a thousand of them.
const maxCount = 1 << 53

// Validate returns all faults of the term, joined, or nil.
func (t Term) Validate() error {
	var errs []error
	if t.Count < 1 || t.Count > maxCount {
		errs = append(errs, fmt.Errorf("count is %d, must be 1 to 2^53", t.Count))
	}
	// Check the parameters that the kind has, and clear them in rest. Any parameter that remains does not belong to the
	// kind.
	rest := t
	rest.Kind, rest.Count = "", 0
	switch t.Kind {
	case KindGaussian:
		if !(t.Mu > 0 && t.Mu <= maxMu) {
			errs = append(errs, fmt.Errorf("mu is %g, must be in (0, %g]", t.Mu, float64(maxMu)))
		}
		rest.Mu = 0
	case KindPure:
		if !(t.Epsilon > 0 && t.Epsilon <= maxPure) {
			errs = append(errs, fmt.Errorf("epsilon is %g, must be in (0, %g]", t.Epsilon, float64(maxPure)))
		}
		rest.Epsilon = 0
	case KindLaplace:
		if !(t.Scale >= 1/maxPure) || math.IsInf(t.Scale, 0) {
			errs = append(errs, fmt.Errorf("scale is %g, must be finite and at least %g", t.Scale, 1/maxPure))
		}
		rest.Scale = 0
	case KindSketchRow, KindSketchRowReplace:
		if err := checkGamma(t.Gamma); err != nil {
			errs = append(errs, err)
		}
		rest.Gamma = 0
	case KindFastMixRow:
		if t.C2 != 0 && !(t.C2 >= 1) || math.IsInf(t.C2, 0) {
			errs = append(errs, fmt.Errorf("c2 is %g, must be at least 1, or 0 if it is unknown", t.C2))
		} else if !(t.limit() > 1) || math.IsInf(t.Gamma, 0) {
			errs = append(errs,
				fmt.Errorf("gamma is %g, must be finite and above %g", t.Gamma, (1+math.Sqrt(1+4*t.kappa()))/2))
		}
		rest.Gamma, rest.C2 = 0, 0
	default:
		return fmt.Errorf("unknown kind of curve: %q", t.Kind)
	}
	if rest != (Term{}) {
		errs = append(errs, fmt.Errorf("a term of kind %q has parameters that belong to another kind", t.Kind))
	}
	return errors.Join(errs...)
}

const (
	maxMu   = 1e6 // larger values protect nothing, and their squares overflow
	maxPure = 1e9
)

func checkGamma(gamma float64) error {
	if !(gamma > 1) || math.IsInf(gamma, 0) {
		return fmt.Errorf("gamma is %g, must be finite and above 1", gamma)
	}
	return nil
}

// limit returns the supremum of the orders α at which the curve is finite.
func (t Term) limit() float64 {
	switch t.Kind {
	case KindSketchRow, KindSketchRowReplace:
		return t.Gamma
	case KindFastMixRow:
		return 2 * t.Gamma / (1 + math.Sqrt(1+4*t.kappa()))
	}
	return math.Inf(1)
}

// kappa returns κ = ¼((C²−1)/C²)², or ¼ if C² is unknown.
func (t Term) kappa() float64 {
	if t.C2 == 0 {
		return 0.25
	}
	k := (t.C2 - 1) / t.C2
	return k * k / 4
}

// divergence returns r(1+x) of one use, or +Inf outside the domain. Every formula is a sum of positive terms, or of two
// terms whose difference is accurate, for all x > 0, however small x, 1/γ or 1/scale are: the relative error is below
// 2⁻⁴⁸. At the largest orders, and for FastMix rows already near them, the error is upwards only. lost(z) = z −
// log(1+z) replaces the logarithms.
func (t Term) divergence(x float64) float64 {
	switch t.Kind {
	case KindGaussian:
		return (1 + x) * t.Mu * t.Mu / 2
	case KindPure:
		return min(t.Epsilon, (1+x)*t.Epsilon*t.Epsilon/2)
	case KindLaplace:
		z := 1 / t.Scale
		n := 1 + 2*x
		w := n * z
		y := -x * math.Expm1(-w) / n
		return expLost(w)/n - lost(-y)/x
	case KindSketchRow:
		return removedRow(x, t.Gamma)
	case KindSketchRowReplace:
		return removedRow(x, t.Gamma) + addedRow(x, t.Gamma)
	case KindFastMixRow:
		u, k := 1/t.Gamma, t.kappa()
		v := u + k*u*u
		q := (u + 2*k*u*u + k*x*u*u) / (1 - v)
		if !(v < 1) {
			return math.Inf(1)
		}
		a := (k*(1+x)*u*u + v*v) / (1 - v)
		return (a*(1+sixteenRoundings/(1-v)) - lost(-v) + pole(x*q, 1/(1-v))/x) / 2
	}
	return math.Inf(1)
}

// pole returns lost(−z), rounded up. z has an error of `condition` units in the last place. Near z = 1, where the valid
// orders end, few digits of the logarithm are right. If no digit is right, and for larger z, the result is +Inf.
func pole(z, condition float64) float64 {
	rest := 1 - z
	if !(rest > sixteenRoundings*condition) {
		return math.Inf(1)
	}
	return lost(-z) + eightRoundings*condition*z*z/rest
}

// removedRow returns the divergence of order 1+x of N(0, 1) from N(0, 1−1/γ).
func removedRow(x, gamma float64) float64 {
	u, q := 1/gamma, 1/(gamma-1)
	return (u*q - lost(-u) + pole(x*q, 1)/x) / 2
}

// addedRow returns the divergence of order 1+x of N(0, 1) from N(0, 1+1/γ).
func addedRow(x, gamma float64) float64 {
	u, q := 1/gamma, 1/(gamma+1)
	return (u*q - lost(u) + lost(x*q)/x) / 2
}

// lost returns z − log(1+z) ≥ 0 for z > −1, accurately also near 0.
func lost(z float64) float64 {
	if math.Abs(z) > 0.25 {
		return z - math.Log1p(z)
	}
	// log(1+z) = 2 artanh r, r = z/(2+z), and z − 2r = zr.
	r := z / (2 + z)
	s, sum := r*r, 0.0
	for k := 21.0; k >= 3; k -= 2 {
		sum = sum*s + 1/k
	}
	return r * (z - 2*s*sum)
}

// expLost returns w − 1 + e^−w ≥ 0 for w ≥ 0, accurately also near 0.
func expLost(w float64) float64 {
	if w > 0.25 {
		return w + math.Expm1(-w)
	}
	sum := 1.0
	for k := 12.0; k >= 3; k-- {
		sum = 1 - sum*w/k
	}
	return sum * w * w / 2
}

// Curve bounds the Rényi divergence between the outputs on neighbouring streams, as a function of the order α > 1:
//
//	r(α) = Σ count·r_term(α)
//
// with, for one use, u = 1/γ and κ = ¼((C²−1)/C²)² (¼ if C² is unknown),
//
//	gaussian            αμ²/2
//	pure                min(ε₀, αε₀²/2)
//	laplace             1/(α−1)·log[α/(2α−1)·e^{(α−1)/b} + (α−1)/(2α−1)·e^{−α/b}]
//	sketch-row          [α log(1−u) − log(1−αu)]/(2(α−1)),                  α < γ
//	sketch-row-replace  the same + [α log(1+u) − log(1+αu)]/(2(α−1)),       α < γ
//	fastmix-row         [α log(1−u−κu²) − log(1−αu−κα²u²)]/(2(α−1)),        α < 2γ/(1+√(1+4κ))
//
// Curves add under composition, also if a mechanism was chosen after seeing the releases of earlier ones. A curve
// without terms belongs to a mechanism that releases nothing.
//
// Privacy: all terms must be stated for the same adjacency; the results hold for that adjacency. Converting a sum to ε
// once is never worse, and usually far better, than adding the ε of its terms.
//
// Source: Mironov (2017) for composition, Gaussian and Laplace; Bun and Steinke (2016) for pure. The row curves are
// those of "The Fast Mixing Mechanism for Differential Privacy". The paper's closed form 25α/(32γ²) is not used,
// because it is up to twice as large and valid only on a third of the range. The paper's condition α < 4γ/5 is widened
// to all α for which the curve is finite. Replace rows and the evaluation are derived in docs/theory/accounting.md.
type Curve []Term

// Add returns the curve of the composition with further terms.
func (c Curve) Add(terms ...Term) Curve { return append(c[:len(c):len(c)], terms...) }

// rowCurve returns the curve of Gaussians and dense sketch rows under a.
func rowCurve(mu float64, rows int, gamma float64, a Adjacency) Curve {
	var c Curve
	if mu > 0 {
		c = c.Add(Term{Kind: KindGaussian, Count: 1, Mu: mu})
	}
	if rows > 0 {
		kind := KindSketchRow
		if a == Replace {
			kind = KindSketchRowReplace
		}
		c = c.Add(Term{Kind: kind, Count: rows, Gamma: gamma})
	}
	return c
}

// Range returns the supremum of the valid orders, which are those in (1, limit).
//
// Errors: an invalid term.
func (c Curve) Range() (limit float64, err error) {
	limit = math.Inf(1)
	for i, t := range c {
		if err := t.Validate(); err != nil {
			return 0, fmt.Errorf("term %d of the curve: %w", i, err)
		}
		limit = min(limit, t.limit())
	}
	return limit, nil
}

// At returns r(α), rounded up. The result is finite.
//
// Errors: an order outside the range, or NaN; an order so close to the end of the range that no digit of the result is
// right; an invalid term.
func (c Curve) At(alpha float64) (float64, error) {
	limit, err := c.Range()
	if err != nil {
		return 0, err
	}
	var r float64
	if alpha > 1 && alpha < limit {
		r = c.divergence(alpha - 1)
	} else {
		r = math.Inf(1)
	}
	if math.IsInf(r, 1) {
		return 0, fmt.Errorf("order is %g, must be above 1 and below %g", alpha, limit)
	}
	return r, nil
}

// divergence returns r(1+x), rounded up, or +Inf outside the range.
func (c Curve) divergence(x float64) float64 {
	var r float64
	for _, t := range c {
		r += float64(t.Count) * t.divergence(x)
	}
	return r * (1 + 0x1p-47 + float64(len(c))*0x1p-53)
}

// Epsilon returns the smallest ε ≥ 0 that the curve gives at δ, rounded up:
//
//	ε = min over real α of r(α) + log(1−1/α) − log(αδ)/(α−1)
//
// Cost: about 500 evaluations of the curve.
// Errors: δ outside (0, 1); an invalid term.
// Source: Canonne, Kamath and Steinke (2020), Proposition 12. Every order gives a valid ε, so an imperfect search for
// the best order makes ε larger, but never wrong.
func (c Curve) Epsilon(delta float64) (float64, error) {
	if err := checkEpsDelta(0, delta); err != nil {
		return 0, err
	}
	if len(c) == 0 {
		return 0, nil
	}
	l := math.Log(delta)
	eps, err := c.minimise(func(x float64) float64 {
		r, a, b := c.divergence(x), -math.Log1p(1/x), -(math.Log1p(x)+l)/x
		return r + a + b + sixteenRoundings*(r-a+(math.Log1p(x)-l)/x)
	})
	return max(0, eps), err
}

// Delta returns the smallest δ ≤ 1 that the curve gives at ε, rounded up:
//
//	δ = min over real α of exp((α−1)(r(α)−ε))·(1−1/α)^α/(α−1)
//
// Cost and source: as for Epsilon.
// Errors: ε negative, NaN or infinite; an invalid term.
func (c Curve) Delta(eps float64) (float64, error) {
	if err := checkEpsDelta(eps, 0.5); err != nil {
		return 0, err
	}
	l, err := c.logDelta(eps)
	return expUp(l), err
}

func (c Curve) logDelta(eps float64) (float64, error) {
	return c.minimise(func(x float64) float64 {
		r, a, b := c.divergence(x), x*math.Log1p(1/x), math.Log1p(x)
		return x*(r-eps) - a - b + sixteenRoundings*(x*(r+eps)+a+b)
	})
}

// minimise searches for the minimum of f over x = α−1. It tries 400 points equidistant in log x, then searches by
// golden section around the best one. It returns the least value found.
func (c Curve) minimise(f func(x float64) float64) (float64, error) {
	limit, err := c.Range()
	if err != nil {
		return 0, err
	}
	hi := min(40, math.Log(limit-1))
	lo := min(-30, hi-30)
	const points = 400
	step := (hi - lo) / points
	best, at := math.Inf(1), lo
	for i := range points {
		t := lo + float64(i)*step
		if v := f(math.Exp(t)); v < best {
			best, at = v, t
		}
	}
	a, b := at-step, at+step
	golden := (math.Sqrt(5) - 1) / 2
	t1, t2 := b-golden*(b-a), a+golden*(b-a)
	f1, f2 := f(math.Exp(t1)), f(math.Exp(t2))
	for b-a > 1e-10 {
		if f1 < f2 {
			b, t2, f2 = t2, t1, f1
			t1 = b - golden*(b-a)
			f1 = f(math.Exp(t1))
		} else {
			a, t1, f1 = t1, t2, f2
			t2 = a + golden*(b-a)
			f2 = f(math.Exp(t2))
		}
		best = min(best, f1, f2)
	}
	return best, nil
}

// expUp returns e^l rounded up, at most 1.
func expUp(l float64) float64 {
	switch {
	case l >= 0:
		return 1
	case math.IsInf(l, -1):
		return 0
	}
	return min(1, max(math.SmallestNonzeroFloat64, math.Exp(l)*(1+0x1p-51)))
}
