package audit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// Pair is two records, one of which replaces the other. Under zero-out, Y is an invalid record or a row of zeros.
type Pair struct{ X, Y []float64 }

// JointWorst returns two records of norm at most clip, in d dimensions, whose distance is the largest. The squared
// distance is
//
//	‖x−y‖² + (ν/clip²)‖xxᵀ−yyᵀ‖²_F
//
// Under zero-out the pair is a record and the zero record. Under replacement it is two opposite records for ν ≤ ½, and
// two records whose angle has cosine −1/(2ν) for larger ν. For d = 1 and ν ≥ (11+5√5)/8, it is two records of opposite
// sign and unequal size.
func JointWorst(nu, clip float64, d int, adjacency dp.Adjacency) Pair {
	x, y := make([]float64, d), make([]float64, d)
	x[0] = clip
	switch {
	case adjacency == dp.ZeroOut:
	case d == 1 && nu > (11+5*math.Sqrt(5))/8:
		y[0] = clip * (math.Sqrt(1-2/nu) - 1) / 2
	case d == 1 || nu <= 0.5:
		y[0] = -clip
	default:
		y[0], y[1] = -clip/(2*nu), clip*math.Sqrt(1-1/(4*nu*nu))
	}
	return Pair{x, y}
}

// SquaresWorst does what JointWorst does, with the squares of the coordinates in place of the matrices xxᵀ. The largest
// distance is the same. The two records have the same angle between them, and lie symmetric about the diagonal of the
// first two axes, where the difference of the matrices is diagonal.
func SquaresWorst(nu, clip float64, d int, adjacency dp.Adjacency) Pair {
	if adjacency == dp.ZeroOut || d == 1 || nu <= 0.5 {
		return JointWorst(nu, clip, d, adjacency)
	}
	x, y := make([]float64, d), make([]float64, d)
	half := math.Acos(-1/(2*nu)) / 2
	x[0], x[1] = clip*math.Cos(math.Pi/4+half), clip*math.Sin(math.Pi/4+half)
	y[0], y[1] = clip*math.Cos(math.Pi/4-half), clip*math.Sin(math.Pi/4-half)
	return Pair{x, y}
}

// Pairs returns neighbouring records of every kind for a mechanism that clips rows of d numbers to the norm clip:
// records at all angles and of all sizes, and rows that are not valid records.
func Pairs(clip float64, d int, adjacency dp.Adjacency) []Pair {
	unit := func(scale float64, angle float64) []float64 {
		x := make([]float64, d)
		x[0] = scale * math.Cos(angle)
		if d > 1 {
			x[d-1] = scale * math.Sin(angle)
		}
		return x
	}
	special := [][]float64{
		nil, make([]float64, d), unit(5e-324, 0), unit(clip/2, 1), unit(1e6*clip, 2), unit(clip, 0),
		unit(math.Inf(1), 0), unit(math.NaN(), 0), unit(1e308, 4), make([]float64, d+1),
	}
	for i := range special[9] {
		special[9][i] = clip
	}
	var all []Pair
	if adjacency == dp.ZeroOut {
		for i, x := range special {
			all = append(all, Pair{x, special[i%2]}) // Y is in turn nil and a row of zeros
		}
		for i := range 12 {
			all = append(all, Pair{unit(clip, float64(i)*math.Pi/6), special[i%2]})
		}
		return all
	}
	for i := range 13 {
		angle := float64(i) * math.Pi / 12
		for _, size := range []float64{1, 0.6, 1e6} {
			all = append(all, Pair{unit(clip, 0), unit(clip*size, angle)})
		}
		// Two records symmetric about an axis differ, in their squares, only off the diagonal.
		all = append(all, Pair{unit(clip, angle/2), unit(clip, -angle/2)})
	}
	for i, x := range special {
		all = append(all, Pair{x, special[(i+3)%len(special)]}, Pair{x, unit(-clip, 0)})
	}
	return all
}

// NullPairs returns pairs like those of Pairs, for a mechanism in which a row of zeros is an ordinary record. Under
// zero-out, Y is never a valid record. A record compared with no record comes first, because counts of null records
// steer some mechanisms.
func NullPairs(clip float64, d int, adjacency dp.Adjacency) []Pair {
	row := make([]float64, d)
	row[0] = clip
	all := append([]Pair{{X: row}}, Pairs(clip, d, adjacency)...)
	if adjacency == dp.ZeroOut {
		for i := range all {
			all[i].Y = nil
		}
	}
	return all
}
