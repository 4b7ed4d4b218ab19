package adam

import (
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/fault"
)

// Model is a model whose gradients are computed for the examples of a stream. An example is a row of features x and a
// target y, in scaled units. Every unit has a bias b. The parameters are in this order, matrices row by row:
//
//	linear    w, b             loss ½(wᵀx + b − y)²
//	logistic  w, b             −log P(y), P(1) = σ(wᵀx + b); y > 0 is class 1
//	softmax   (w_k, b_k)_k     −log P(y), P(k) ∝ exp(w_kᵀx + b_k); y is a class, 0 …
//	mlp       (w_i, b_i)_i, then (v_k, c_k)_k over h_i = tanh(w_iᵀx + b_i): one
//	          linear output, or with classes a softmax over them
//
// To make two classes from a number, set the target's centre to a public threshold.
type Model struct {
	// Loss is "linear", "logistic", "softmax" or "mlp". Required.
	Loss string `json:"loss"`
	// Target is the column of the target. Required.
	Target string `json:"target"`
	// Classes is the number of classes, at least 2. It is required for "softmax". It is 0 for an "mlp" with a linear
	// output, and must be 0 for the other losses.
	Classes int `json:"classes,omitempty"`
	// Hidden is the number of hidden units. It is required for "mlp", and must be 0 otherwise.
	Hidden int `json:"hidden,omitempty"`
}

// Classifies reports whether the target is a class.
func (m *Model) Classifies() bool {
	return m.Loss == "logistic" || m.Loss == "softmax" || m.Loss == "mlp" && m.Classes > 0
}

// maxModel is the largest number of classes and the largest number of hidden units.
const maxModel = 1 << 20

// validate returns all violated rules, with keys of the model's table. target is the position of the target among the
// columns.
func (m *Model) validate(columns, target int) error {
	var l fault.List
	switch m.Loss {
	case "linear", "logistic", "softmax", "mlp":
	default:
		l.Add("model.loss", "must be "+fault.Quoted([]string{"linear", "logistic", "softmax", "mlp"}, "or"), m.Loss)
	}
	if target < 0 || target >= columns {
		l.Add("model.target", "must be one of the columns", m.Target)
	} else {
		l.Check(columns >= 2, "model.target", "must not be the only column: a feature is needed", m.Target)
	}
	switch m.Loss {
	case "softmax":
		l.Check(m.Classes >= 2 && m.Classes <= maxModel, "model.classes", "must be at least 2", m.Classes)
	case "mlp":
		l.Check(m.Classes == 0 ||
			m.Classes >= 2 && m.Classes <= maxModel, "model.classes",
			"must be at least 2, or 0 if the target is a number", m.Classes)
	default:
		l.Check(m.Classes == 0, "model.classes", "belongs to \"softmax\" and \"mlp\"", m.Classes)
	}
	if m.Loss == "mlp" {
		l.Check(m.Hidden >= 1 && m.Hidden <= maxModel, "model.hidden", "must be at least 1 unit", m.Hidden)
	} else {
		l.Check(m.Hidden == 0, "model.hidden", "belongs to \"mlp\"", m.Hidden)
	}
	return l.Err()
}

// outputs returns the number of units of the last layer.
func (m *Model) outputs() int { return max(1, m.Classes) }

// Parameters returns the number of parameters for rows of the given length.
func (m *Model) Parameters(columns int) int {
	if m.Loss == "mlp" {
		return m.Hidden*columns + m.outputs()*(m.Hidden+1)
	}
	return m.outputs() * columns
}

// initial returns the parameters before the first step; nil stands for zeros. A network does not learn from zeros, so
// its weights are uniform in ±√(6/(inputs + outputs)) of their layer. They are the same for every network of that
// shape, and biases are 0.
func (m *Model) initial(columns int) []float64 {
	if m.Loss != "mlp" {
		return nil
	}
	theta := make([]float64, m.Parameters(columns))
	state := uint64(1)
	layer := func(theta []float64, inputs, units int) {
		bound := math.Sqrt(6 / float64(inputs+units))
		for i := range units {
			for j := range inputs {
				// SplitMix64. The weights need no randomness; they must only differ.
				state += 0x9e3779b97f4a7c15
				z := state
				z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
				z = (z ^ z>>27) * 0x94d049bb133111eb
				u := float64((z^z>>31)>>11) * 0x1p-53
				theta[i*(inputs+1)+j] = bound * (2*u - 1)
			}
		}
	}
	hidden := m.Hidden * columns
	layer(theta[:hidden], columns-1, m.Hidden)
	layer(theta[hidden:], m.Hidden, m.outputs())
	return theta
}

// Predict returns the prediction of a model with parameters theta. features is a row without
// its target. The prediction is the linear output, the probability of class 1, or the
// probability of each class.
func (m *Model) Predict(theta, features []float64) ([]float64, error) {
	columns := len(features) + 1
	if err := m.validate(columns, 0); err != nil {
		return nil, err
	}
	if len(theta) != m.Parameters(columns) {
		return nil, errors.New("the number of parameters or features does not fit the model")
	}
	l := newLearner(m, columns, columns-1)
	l.forward(theta, append(slices.Clone(features), 0))
	return slices.Clone(l.output), nil
}

// learner computes gradients of a model, one example after the other.
type learner struct {
	m               *Model
	columns, target int
	x               []float64 // features and a 1 for the bias
	hidden          []float64 // outputs of the hidden units, and a 1
	output          []float64
	grad            []float64
	back            []float64 // derivatives with respect to the hidden units
}

func newLearner(m *Model, columns, target int) *learner {
	l := &learner{
		m: m, columns: columns, target: target,
		x: make([]float64, columns), output: make([]float64, m.outputs()), grad: make([]float64, m.Parameters(columns)),
	}
	if m.Loss == "mlp" {
		l.hidden, l.back = make([]float64, m.Hidden+1), make([]float64, m.Hidden)
	}
	return l
}

// forward sets x, hidden and output for a row.
func (l *learner) forward(theta, row []float64) {
	copy(l.x, row[:l.target])
	copy(l.x[l.target:], row[l.target+1:])
	l.x[l.columns-1] = 1
	last := l.x
	if l.hidden != nil {
		affine(l.hidden[:l.m.Hidden], theta, l.x)
		for i, z := range l.hidden[:l.m.Hidden] {
			l.hidden[i] = tanh(z)
		}
		l.hidden[l.m.Hidden] = 1
		theta, last = theta[l.m.Hidden*l.columns:], l.hidden
	}
	affine(l.output, theta, last)
	switch {
	case l.m.Loss == "logistic":
		l.output[0] = sigmoid(l.output[0])
	case l.m.Classes > 0:
		softmax(l.output)
	}
}

// affine writes the products of a matrix, row by row, with x.
func affine(dst, matrix, x []float64) {
	for i := range dst {
		row := matrix[i*len(x):][:len(x)]
		var sum float64
		for j, v := range x {
			sum += float64(row[j] * v)
		}
		dst[i] = sum
	}
}

// gradient returns the gradient of the row's loss, valid until the next call. It returns nil
// if the row's target is not a class.
func (l *learner) gradient(theta, row []float64) []float64 {
	y := row[l.target]
	class := 0
	if l.m.Classes > 0 {
		if !(y >= 0 && y < float64(l.m.Classes)) || y != math.Floor(y) {
			return nil
		}
		class = int(y)
	}
	l.forward(theta, row)
	// The derivatives with respect to the outputs before their link function, in place. For every loss this is the
	// prediction minus the truth.
	switch {
	case l.m.Classes > 0:
		l.output[class]--
	case l.m.Loss == "logistic":
		if y > 0 {
			l.output[0]--
		}
	default:
		l.output[0] -= y
	}
	if l.hidden == nil {
		outer(l.grad, l.output, l.x)
		return l.grad
	}
	first := l.m.Hidden * l.columns
	outer(l.grad[first:], l.output, l.hidden)
	clear(l.back)
	for k, e := range l.output {
		for i, w := range theta[first+k*len(l.hidden):][:l.m.Hidden] {
			l.back[i] += float64(e * w)
		}
	}
	for i, h := range l.hidden[:l.m.Hidden] {
		l.back[i] *= 1 - float64(h*h)
	}
	outer(l.grad, l.back, l.x)
	return l.grad
}

// outer writes the matrix abᵀ, row by row.
func outer(dst, a, b []float64) {
	for i, x := range a {
		row := dst[i*len(b):][:len(b)]
		for j, y := range b {
			row[j] = x * y
		}
	}
}

func sigmoid(z float64) float64 {
	if z < 0 {
		e := exp(z)
		return e / (1 + e)
	}
	return 1 / (1 + exp(-z))
}

func tanh(z float64) float64 {
	e := exp(-2 * math.Abs(z))
	return math.Copysign((1-e)/(1+e), z)
}

func softmax(z []float64) {
	top := slices.Max(z)
	var sum float64
	for i, x := range z {
		z[i] = exp(x - top)
		sum += z[i]
	}
	for i := range z {
		z[i] /= sum
	}
}

// exp returns eˣ for x ≤ 0 to 2 units in the last place, and NaN for NaN. It gives the same bits on every architecture;
// math.Exp does not. So a gradient is quantised to the same integers everywhere.
func exp(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01 // ln 2 with trailing zeros
		ln2Lo = 1.90821492927058770002e-10
		inv   = 1.44269504088896338700
	)
	switch {
	case x < -746:
		return 0
	case x != x:
		return x
	}
	k := math.Floor(float64(x*inv) + 0.5)
	r := x - float64(k*ln2Hi) - float64(k*ln2Lo) // |r| ≤ 0.35
	sum := 1.0
	for n := 14.0; n >= 1; n-- {
		sum = 1 + float64(float64(r/n)*sum)
	}
	return math.Ldexp(sum, int(k))
}
