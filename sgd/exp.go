package sgd

import "math"

// exp returns eˣ to within an ulp, by the same operations on every machine:
// math.Exp is assembly on some, with other last bits, and a threshold that
// depends on them would quantise the next record differently. It is the method
// of FreeBSD's e_exp.c.
func exp(x float64) float64 {
	const (
		ln2High = 6.93147180369123816490e-01
		ln2Low  = 1.90821492927058770002e-10
		p1      = 1.66666666666666657415e-01
		p2      = -2.77777777770155933842e-03
		p3      = 6.61375632143793436117e-05
		p4      = -1.65339022054652515390e-06
		p5      = 4.13813679705723846039e-08
	)
	switch {
	case x != x || x > 1000:
		return x + math.Inf(1)
	case x < -1000:
		return 0
	}
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	high, low := x-float64(k*ln2High), float64(k*ln2Low)
	r := high - low
	t := float64(r * r)
	c := r - float64(t*(p1+float64(t*(p2+float64(t*(p3+float64(t*(p4+float64(t*p5)))))))))
	y := 1 - ((low - float64(r*c)/(2-c)) - high)
	return math.Ldexp(y, int(k))
}
