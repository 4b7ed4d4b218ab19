package chart

import (
	"fmt"
	"math"
	"strconv"
)

// tick is a mark on an axis, with or without a label.
type tick struct {
	value float64
	label string
}

// linear returns three to six ticks, at multiples of 1, 2 or 5 times a power of ten.
func linear(low, high float64) []tick {
	least := (high - low) / 5
	power := math.Floor(math.Log10(least))
	step := math.Pow(10, power)
	for _, k := range []float64{1, 2, 5, 10} {
		if k*math.Pow(10, power) >= least*(1-1e-9) {
			step = k * math.Pow(10, power)
			break
		}
	}
	places := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	var ticks []tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high+1e-9*step; i++ {
		v := i*step + 0 // no -0
		label := strconv.FormatFloat(v, 'f', places, 64)
		if places > 6 || math.Abs(v) >= 1e7 {
			label = fmt.Sprintf("%.6g", v)
		}
		ticks = append(ticks, tick{v, label})
	}
	return ticks
}

// decades returns ticks at powers of ten. On an axis with few powers it also labels 2 and 5 times a power; with about
// one power it labels all digits; with many powers it labels only some of them. If the largest number of the axis is
// less than twice the smallest, decades returns the ticks of linear.
func decades(low, high float64) []tick {
	if high < 2*low {
		return linear(low, high)
	}
	var ticks []tick
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	every := math.Ceil((last - first) / 10)
	for e := first; e <= last; e++ {
		for k := 1.0; k < 10; k++ {
			v := k * math.Pow(10, e)
			if v < low*(1-1e-9) || v > high*(1+1e-9) {
				continue
			}
			label := ""
			switch {
			case k == 1 && math.Mod(e-first, every) == 0, (k == 2 || k == 5) && high/low < 300, high/low < 5:
				label = fmt.Sprintf("%.6g", v)
			}
			ticks = append(ticks, tick{v, label})
		}
	}
	return ticks
}
