package fit

import (
	"fmt"
	"math"
	"strings"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/sgd"
)

// solver is a way to fit. To add one, add a line to solvers.
type solver struct {
	name    string
	about   string
	private bool
	// gaussian says that the budget is a μ, so that a part of it can pay for bounds.
	gaussian bool
	fit      func(*data) (*Result, error)
}

// solvers lists the solvers in the order in which they are compared.
var solvers = []solver{
	{"newton", "noisy gradient steps in a space whitened by a noisy Gram matrix; nearly always the most accurate", true,
		true, byRefit("newton")},
	{"dp-gd", "gradient descent with a tracked clip norm, averaged; needs only bounds", true, true, byDescent},
	{"dp-gd-paper", "gradient descent as published: 10 steps of size 1/4, clip norm 5√d, for unit variances", true,
		false, asPublished},
	{"dp-ssgd", "one pass in secret order, with amplification by shuffling", true, false, shuffled},
	{"ihm", "iterations with Gaussian sketches", true, false, byRefit("ihm")},
	{"fast-ihm", "like ihm with one fast transform, as published; only for adjacency zero-out", true, false,
		byRefit("fast-ihm")},
	{"linmix", "one Gaussian sketch of features and target", true, false, byRefit("linmix")},
	{"adassp", "noisy sums of squares and products, with a ridge", true, false, byRefit("adassp")},
	{"dp-gd-residual", "gradient descent with clipped residuals, as published", true, false, byRefit("dp-gd-residual")},
	{"newton-online", "the stream's estimator of method newton, once over the file in order", true, true, byNewton},
	{"ambssgd", "the stream's estimator of method amb, once over the file in order", true, true, byAMB},
	{"ols", "least squares, not private", false, false, leastSquares},
}

// Solvers returns the names of all solvers, in the order in which they are compared.
func Solvers() []string {
	var names []string
	for _, s := range solvers {
		names = append(names, s.name)
	}
	return names
}

// Help lists the solvers, one per line, each with a description.
func Help() string {
	var b strings.Builder
	for _, s := range solvers {
		fmt.Fprintf(&b, "  %-14s %s\n", s.name, s.about)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sample returns the rows with a constant feature of the given value.
func (d *data) sample(constant float64) (*sgd.Sample, error) {
	return sgd.NewSample(d.rows, len(d.names), d.target, sgd.Bounds{X: d.clipX, Y: d.clipY}, constant)
}

// constant returns the value of the constant feature, 0 if there is none. It is √curvature. Without a curvature it is
// clip_x/√d for d features: one feature's share of the bound.
func (d *data) constant() float64 {
	switch {
	case !d.intercept:
		return 0
	case d.curvature > 0:
		return math.Sqrt(d.curvature)
	}
	return d.clipX / math.Sqrt(float64(max(1, len(d.names)-1)))
}

// result returns the coefficients of the features and, if the fit has one, of a constant of 1.
func (d *data) result(theta []float64, accounting string) *Result {
	r := &Result{Theta: theta, Account: accounting}
	if last := len(theta) - 1; d.intercept {
		r.Theta, r.Intercept = theta[:last], theta[last]
	}
	return r
}

func byDescent(d *data) (*Result, error) {
	s, err := d.sample(d.constant())
	if err != nil {
		return nil, err
	}
	theta, _, err := sgd.Refit(s, d.radius, d.params, d.noise(1))
	if err != nil {
		return nil, err
	}
	return d.result(theta, "exact"), nil
}

func asPublished(d *data) (*Result, error) {
	constant := 0.0
	if d.intercept {
		constant = min(1, d.clipX)
	}
	s, err := d.sample(constant)
	if err != nil {
		return nil, err
	}
	path, err := sgd.GradientDescent(s, sgd.Descent{Steps: 10, Rate: 0.25, Clip: 5 * math.Sqrt(float64(s.D))},
		d.params, d.noise(1))
	if err != nil {
		return nil, err
	}
	return d.result(s.Coefficients(path.Iterates[len(path.Iterates)-1]), "exact"), nil
}

func shuffled(d *data) (*Result, error) {
	s, err := d.sample(d.constant())
	if err != nil {
		return nil, err
	}
	sigma, err := sgd.CalibrateSSGD(s.Len(), d.params.Epsilon, d.params.Delta, d.params.Adjacency)
	if err != nil {
		return nil, err
	}
	// The best step size and clip norm are unknown. These are guesses: a quarter of the largest stable step size, and a
	// clip norm for residuals of about a tenth of their bound.
	square := s.Bound.X*s.Bound.X + s.Constant*s.Constant
	if d.curvature > 0 {
		square = d.curvature * float64(s.D)
	}
	path, err := sgd.ShuffledSGD(s,
		sgd.ShuffledDescent{Clip: 0.1 * math.Sqrt(square) * d.clipY, Rate: 1 / (4 * square), Noise: sigma},
		d.params.Adjacency, d.noise(1), nil)
	if err != nil {
		return nil, err
	}
	return d.result(s.Coefficients(path.Average()), "shuffle"), nil
}

func byAMB(d *data) (*Result, error) {
	e, err := sgd.NewAMB(sgd.Config{
		Method: "amb", Columns: d.names, Target: d.names[d.target], ClipX: d.clipX, ClipY: d.clipY,
		Intercept: &d.intercept,
		Curvature: d.curvature, Radius: d.radius,
	}, d.params)
	if err != nil {
		return nil, err
	}
	return d.stream(e)
}

func byNewton(d *data) (*Result, error) {
	e, err := sgd.NewNewton(sgd.Config{
		Columns: d.names, Target: d.names[d.target], ClipX: d.clipX, ClipY: d.clipY, Intercept: &d.intercept,
	}, d.params)
	if err != nil {
		return nil, err
	}
	r, err := d.stream(e)
	if err == nil && r.steps < sgd.UsefulSteps {
		r.Note = fmt.Sprintf("only %d gradient steps, fewer than %d: the coefficients are mostly noise", r.steps,
			sgd.UsefulSteps)
	}
	return r, err
}

// online is the estimator of a stream. The second value of its release is the estimate.
type online interface {
	Range(step uint64) (first, end uint64)
	Add(slot uint64, row []float64)
	Close(n dp.Noise) (*dp.Release, error)
	Warnings() []string
}

// stream runs the estimator of a stream over the rows.
func (d *data) stream(e online) (*Result, error) {
	var last *dp.Release
	first := uint64(0) // slots until the first release; if there is none, more than the file has rows
	slot, steps := uint64(0), 0
	for step := uint64(1); ; step++ {
		_, end := e.Range(step)
		if last == nil {
			first = end
		}
		if end > uint64(len(d.rows)) {
			break // the rest of the file does not fill a step
		}
		for ; slot < end; slot++ {
			e.Add(slot, d.rows[slot])
		}
		r, err := e.Close(d.noise(step))
		if err != nil {
			return nil, err
		}
		if r != nil {
			last = r
			steps++
		}
	}
	if last == nil {
		return nil, fmt.Errorf("%w: the first estimate needs at least %d rows", errTooFew, first)
	}
	r := d.result(last.Values[1].Data, "exact")
	r.SE, r.steps = last.Values[1].SE, steps
	if w := e.Warnings(); len(w) > 0 {
		r.Note = strings.Join(w, "\n")
	}
	return r, nil
}

func leastSquares(d *data) (*Result, error) {
	constant := 0.0
	if d.intercept {
		constant = 1
	}
	const unbounded = 1e150
	s, err := sgd.NewSample(d.rows, len(d.names), d.target, sgd.Bounds{X: unbounded, Y: unbounded}, constant)
	if err != nil {
		return nil, err
	}
	theta, err := sgd.LeastSquares(s)
	if err != nil {
		return nil, err
	}
	return d.result(theta, "none"), nil
}
