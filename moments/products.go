package moments

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/matfact"
)

// products applies a workload's kernel to the squares x̂x̂ᵀ of noisy rows. These squares are public. Sums over all
// steps and over windows are exact integers of 128 bits, so years of adding and subtracting cause no error. Decaying
// sums are float64.
type products struct {
	decay  float64
	window bool
	wide   []dp.Wide // upper triangle, row by row
	float  []float64 // instead of wide, for exponential weights
}

func newProducts(w matfact.Workload, d int) *products {
	if w.Kind == "exponential" {
		return &products{decay: w.Decay, float: make([]float64, d*(d+1)/2)}
	}
	return &products{window: w.Kind == "window", wide: make([]dp.Wide, d*(d+1)/2)}
}

// add adds a step's noisy row.
func (p *products) add(row []int64) {
	n := 0
	for i, x := range row {
		for _, y := range row[i:] {
			if p.float != nil {
				p.float[n] = float64(p.decay*p.float[n]) + float64(float64(x)*float64(y))
			} else {
				p.wide[n].AddProduct(x, y)
			}
			n++
		}
	}
}

// remove subtracts a row that has left the window.
func (p *products) remove(row []int64) {
	n := 0
	for i, x := range row {
		for _, y := range row[i:] {
			p.wide[n].AddProduct(-x, y)
			n++
		}
	}
}

// value returns the sums divided by divisor. The rows are in units of 2^exp.
func (p *products) value(exp int, divisor float64) []float64 {
	x := make([]float64, max(len(p.float), len(p.wide)))
	for i := range x {
		if p.float != nil {
			x[i] = math.Ldexp(p.float[i], 2*exp) / divisor
		} else {
			x[i] = p.wide[i].Float(2*exp) / divisor
		}
	}
	return x
}

// fit reports whether sums of squares over this number of steps fit their integers, if entries of rows are at most
// `most`. 127 bits must hold the sums, and a float64 each product.
func fit(most, steps float64) bool { return most < 1<<53 && most*most*steps < 0x1p126 }

func (p *products) appendTo(w *bin.Writer) {
	if p.window {
		return // the sums follow from the rows of the window
	}
	for _, v := range p.float {
		w.Float(v)
	}
	for _, v := range p.wide {
		w.Uint(v.Lo)
		w.Int(v.Hi)
	}
}

// restore reads the format of appendTo. rows is the accumulator of the noisy rows.
func (p *products) restore(r *bin.Reader, rows accumulator, d int) {
	if p.window {
		clear(p.wide)
		ring := rows.(*windowed).ring
		for i := 0; i < len(ring); i += d {
			p.add(ring[i : i+d])
		}
		return
	}
	for i := range p.float {
		p.float[i] = r.Float()
	}
	for i := range p.wide {
		p.wide[i] = dp.Wide{Lo: r.Uint(), Hi: r.Int()}
	}
}
