package moments

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
)

// circumstances are the public numbers by which a method is chosen. None depends on data.
type circumstances struct {
	Mu        float64
	Clip      float64
	Dim       int
	Adjacency dp.Adjacency
	// Joint is the number of columns to use in the formula for the joint sensitivity of both moments.
	Joint int
	// Alpha and Beta are the column norms of the matrices of the first and second moment. For persons they are P of
	// matfact.Sensitivity instead.
	Alpha, Beta float64
	// Gains are the gains of the releases whose errors are compared.
	Gains Gains
	// Squares allows post-processing, which needs steps of one record, and gains from which its error can be computed.
	// Combine allows the combination. Its larger state is worth it only if C = I.
	Squares, Combine bool
	// Nu is the weight ν of joint estimation. Search allows a different ν for the combination.
	Nu     float64
	Search bool
	// Weights are the weights of the squared errors of the two moments.
	Weights [2]float64
}

// Alternative is a method with the root of its expected squared error in each moment: in Euclidean norm for the first,
// in Frobenius norm for the second. If an error depends on the rows, the field is an upper bound.
type Alternative struct {
	Method string  `json:"method"`
	Nu     float64 `json:"nu,omitempty"`
	First  float64 `json:"rmse_first"`
	Second float64 `json:"rmse_second"`
}

// choose returns the methods that it compared, and the index of the one with the smallest weighted sum of squared
// errors. It compares joint estimation, post-processing with its bias removed, and the combination of both.
// Post-processing has less noise in the first moment if joint estimation has to spend budget on the second.
//
// Source: docs/theory/moments.md.
func (c *circumstances) choose() (all []Alternative, best int) {
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

// best returns the errors of a method and their weighted sum of squares. For the combination
// it uses the best ν.
func (c *circumstances) best(method string) (Alternative, float64) {
	a, cost := c.try(method, c.Nu)
	if method == "combined" && c.Search {
		// Try a grid of ν. The points are products of roots of 2, which every processor computes with the same bits.
		root := math.Sqrt(math.Sqrt(math.Sqrt2))
		for nu := 0x1p-10; nu < 0x1p10; nu *= root {
			if c.Adjacency == dp.Replace && nu < calibration.FreeSquares(c.Joint) {
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
func (c *circumstances) try(method string, nu float64) (Alternative, float64) {
	t := Joint(nu, c.Joint, c.Adjacency)
	if method == "pp_debiased" {
		t, nu = Single(c.Adjacency), 0
	}
	first, second := ExpectedError(method, t.Noise(c.Mu, c.Clip, c.Alpha, c.Beta), c.Clip, c.Dim, c.Gains)
	return Alternative{method, nu, math.Sqrt(first), math.Sqrt(second)}, float64(c.Weights[0]*first) +
		float64(c.Weights[1]*second)
}

// Choice records how a method was chosen: by the errors of the release of step Step, or by the sum of errors over all
// releases up to that step.
type Choice struct {
	Metric       string        `json:"metric"` // "last" or "sum"
	Step         uint64        `json:"step"`
	Alternatives []Alternative `json:"alternatives"`
}

// agrees reports whether two choices are equal. Their errors may differ by a relative tolerance.
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
