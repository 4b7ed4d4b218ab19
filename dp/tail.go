package dp

import (
	"math/big"
	"sync"
)

// upperTail returns Q(b) = P(Z > b) of a standard Gaussian for 0 ≤ b ≤ 14, with an absolute error below 2^−prec:
//
//	Q(b) = ½ − φ(b) Σ_k b^(2k+1)/(1·3·5⋯(2k+1))
//
// Every term of the sum is positive, so only the final difference loses digits, which does not matter for an absolute
// bound. The computation has 64 guard bits; the roundings of at most 2¹² operations and of exp use fewer than 40 of
// them.
func upperTail(b *big.Rat, prec uint) *big.Float {
	p := prec + 64
	x := new(big.Float).SetPrec(p).SetRat(b)
	x2 := newFloat(p).Mul(x, x)

	sum, term := newFloat(p).Set(x), newFloat(p).Set(x)
	odd := newFloat(p)
	for k := int64(1); ; k++ {
		term.Quo(term.Mul(term, x2), odd.SetInt64(2*k+1))
		sum.Add(sum, term)
		// From here on the ratio of consecutive terms is below ½, so the rest of the sum is less than term.
		if term.Sign() == 0 ||
			term.MantExp(nil) < sum.MantExp(nil)-int(p) && x2.Cmp(odd.SetFloat64(float64(k)+0.5)) < 0 {
			break
		}
	}
	density := expNeg(newFloat(p).Quo(x2, newFloat(p).SetInt64(2)))
	sum.Mul(sum, density)
	sum.Quo(sum, sqrt2Pi(p))
	return newFloat(p).Sub(newFloat(p).SetFloat64(0.5), sum)
}

func newFloat(prec uint) *big.Float { return new(big.Float).SetPrec(prec) }

// expNeg returns e^−x for 0 ≤ x ≤ 2⁷ with a relative error below 2⁻²⁰·2^−(prec−64).
func expNeg(x *big.Float) *big.Float {
	p := x.Prec() + 32
	// e^−x = 1/(e^(x/2^k))^(2^k), with x/2^k < 2⁻⁸. The inner power e^(x/2^k) comes from a Taylor series.
	k := 0
	r := newFloat(p).Set(x)
	if e := r.MantExp(nil); r.Sign() > 0 && e > -8 {
		k = e + 8
		r.SetMantExp(r, -k)
	}
	sum, term := newFloat(p).SetInt64(1), newFloat(p).SetInt64(1)
	n := newFloat(p)
	for i := int64(1); ; i++ {
		term.Quo(term.Mul(term, r), n.SetInt64(i))
		if term.Sign() == 0 || term.MantExp(nil) < -int(p) {
			break
		}
		sum.Add(sum, term)
	}
	for range k {
		sum.Mul(sum, sum)
	}
	return newFloat(x.Prec()).Quo(n.SetInt64(1), sum)
}

var rootCache sync.Map // precision → *big.Float

// sqrt2Pi returns √(2π). It computes π by Machin's formula, 16 arctan(1/5) − 4 arctan(1/239).
func sqrt2Pi(prec uint) *big.Float {
	if v, ok := rootCache.Load(prec); ok {
		return v.(*big.Float)
	}
	p := prec + 32
	arctanInverse := func(q int64) *big.Float {
		q2 := newFloat(p).SetInt64(q * q)
		power := newFloat(p).Quo(newFloat(p).SetInt64(1), newFloat(p).SetInt64(q))
		sum := newFloat(p).Set(power)
		term := newFloat(p)
		for k := int64(1); ; k++ {
			power.Quo(power, q2)
			term.Quo(power, newFloat(p).SetInt64(2*k+1))
			if term.MantExp(nil) < -int(p) {
				return sum
			}
			if k%2 == 1 {
				sum.Sub(sum, term)
			} else {
				sum.Add(sum, term)
			}
		}
	}
	pi := newFloat(p).Mul(newFloat(p).SetInt64(16), arctanInverse(5))
	pi.Sub(pi, newFloat(p).Mul(newFloat(p).SetInt64(4), arctanInverse(239)))
	root := newFloat(prec).Sqrt(pi.Add(pi, pi))
	rootCache.Store(prec, root)
	return root
}
