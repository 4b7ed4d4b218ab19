package moments

import (
	"math"
	"slices"

	"streamdp/dp"
)

// Circumstances are the public numbers by which a method is chosen. Nothing in
// them depends on data.
type Circumstances struct {
	Mu        float64
	Clip      float64
	Dim       int
	Adjacency dp.Adjacency
	// Alpha and Beta are the column norms of both moments' matrices.
	Alpha, Beta float64
	// Gains are those of the releases whose errors are compared.
	Gains Gains
	// Squares allows post-processing: one record a step, and gains that say what
	// it costs. Combine allows its combination, which is worth its state for
	// C = I.
	Squares, Combine bool
	// Nu is the weight of joint estimation; Search lets the combination have
	// another one.
	Nu     float64
	Search bool
	// Weights are those of the squared errors of both moments.
	Weights [2]float64
}

// Alternative is a method with its expected root squared errors, of the
// Euclidean norm of the first moment and the Frobenius norm of the second; upper
// bounds where they depend on the rows.
type Alternative struct {
	Method string  `json:"method"`
	Nu     float64 `json:"nu,omitempty"`
	First  float64 `json:"rmse_first"`
	Second float64 `json:"rmse_second"`
}

// Choose returns what was compared and which of it has the smallest weighted sum
// of squared errors: joint estimation, post-processing with its bias removed, and
// the combination of both. Post-processing alone has less noise in the first
// moment where joint estimation pays for the second.
//
// Source: docs/theory/moments.md.
func (c *Circumstances) Choose() (all []Alternative, best int) {
	methods := []string{"jme"}
	if c.Squares {
		methods = append(methods, "pp_debiased")
		if c.Combine {
			methods = append(methods, "combined")
		}
	}
	least := math.Inf(1)
	for i, m := range methods {
		a, cost := c.best(m)
		if all = append(all, a); cost < least {
			least, best = cost, i
		}
	}
	return all, best
}

// best returns the errors of a method and their weighted sum of squares, at the
// combination's best ν.
func (c *Circumstances) best(method string) (Alternative, float64) {
	a, cost := c.try(method, c.Nu)
	if method == "combined" && c.Search {
		// A grid of products of roots of 2, so that every processor finds the
		// same.
		root := math.Sqrt(math.Sqrt(math.Sqrt2))
		for nu := 0x1p-10; nu < 0x1p10; nu *= root {
			if c.Adjacency == dp.Replace && nu < dp.FreeSquares(c.Dim) {
				continue
			}
			if b, lower := c.try(method, nu); lower < cost {
				a, cost = b, lower
			}
		}
	}
	return a, cost
}

// try returns the errors of a method and their weighted sum of squares.
func (c *Circumstances) try(method string, nu float64) (Alternative, float64) {
	t := Joint(nu, c.Dim, c.Adjacency)
	if method == "pp_debiased" {
		t, nu = Single(c.Adjacency), 0
	}
	first, second := ExpectedError(method, t.Noise(c.Mu, c.Clip, c.Alpha, c.Beta), c.Clip, c.Dim, c.Gains)
	return Alternative{method, nu, math.Sqrt(first), math.Sqrt(second)}, float64(c.Weights[0]*first) + float64(c.Weights[1]*second)
}

// Choice says how a method was chosen: by the errors of the release of Step, or
// of all releases up to it.
type Choice struct {
	Metric       string        `json:"metric"` // "last" or "sum"
	Step         uint64        `json:"step"`
	Alternatives []Alternative `json:"alternatives"`
}

// agrees reports whether two choices are the same, to within a relative
// tolerance of their errors.
func (c *Choice) agrees(other *Choice, tolerance float64) bool {
	if c == nil || other == nil {
		return c == other
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }
	return c.Metric == other.Metric && c.Step == other.Step &&
		slices.EqualFunc(c.Alternatives, other.Alternatives, func(a, b Alternative) bool {
			return a.Method == b.Method && near(a.Nu, b.Nu) && near(a.First, b.First) && near(a.Second, b.Second)
		})
}
