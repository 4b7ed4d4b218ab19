package main

import (
	"encoding/binary"
	"hash/fnv"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/refit"
)

// window is rows of features and their targets.
type window struct {
	x [][]float64
	y []float64
}

// standardise gives every column mean 0 and variance 1.
func (w *window) standardise() {
	n := float64(len(w.y))
	for j := range w.x[0] {
		var mean, square float64
		for _, x := range w.x {
			mean += x[j] / n
		}
		for _, x := range w.x {
			x[j] -= mean
			square += x[j] * x[j] / n
		}
		if square == 0 {
			continue
		}
		for _, x := range w.x {
			x[j] /= math.Sqrt(square)
		}
	}
}

// normalise divides features by the largest norm and the target by its largest absolute value, as the papers do. Both
// are exact functions of the data.
func (w *window) normalise() {
	var norm, target float64
	for i, x := range w.x {
		norm, target = max(norm, length(x)), max(target, math.Abs(w.y[i]))
	}
	w.scale(1/norm, 1/target)
}

func (w *window) scale(x, y float64) {
	for i, row := range w.x {
		for j := range row {
			row[j] *= x
		}
		w.y[i] *= y
	}
}

// best returns the least squares solution.
func (w *window) best() ([]float64, error) {
	data := refit.NewData(len(w.x[0]), len(w.y))
	for i, x := range w.x {
		data.Add(x, w.y[i])
	}
	s, err := refit.LeastSquares(data)
	return s.Theta, err
}

// error returns the mean squared error of coefficients over the window. If there is an intercept, it is the last
// coefficient.
func (w *window) error(theta []float64) float64 {
	var sum, constant float64
	if d := len(w.x[0]); len(theta) > d {
		constant = theta[d]
	}
	for i, x := range w.x {
		r := w.y[i] - inner(x, theta) - constant
		sum += r * r
	}
	return sum / float64(len(w.y))
}

func inner(x, y []float64) (sum float64) {
	for j, v := range x {
		sum += v * y[j]
	}
	return sum
}

// fitter fits windows with one solver, as a stream does, with keys that depend on a name.
type fitter struct {
	refit *refit.Refit
	keys  *dp.Epoch
	hash  dp.Transcript
	step  uint64
	row   []float64
	rows  uint64
}

// newFitter returns the fitter for windows of n rows of d features, clipped to 1, without an intercept.
func newFitter(c refit.Config, p dp.Params, n, d int, name string) (*fitter, error) {
	return newFitterWith(c, p, n, d, name, false)
}

// newFitterWith is newFitter with or without an intercept, which is the last coefficient.
func newFitterWith(c refit.Config, p dp.Params, n, d int, name string, intercept bool) (*fitter, error) {
	c.Intercept, c.Window, c.ClipX, c.ClipY, c.Target = &intercept, uint64(n), 1, 1, "y"
	c.Columns = append(make([]string, d), "y")
	r, err := refit.New(c, p)
	if err != nil {
		return nil, err
	}
	var master [32]byte
	h := fnv.New64a()
	h.Write([]byte(name))
	binary.BigEndian.PutUint64(master[:], h.Sum64())
	keys, err := dp.NewEpoch(&master, &[32]byte{1}, "offline/reproduction", 1, [16]byte{}, [32]byte{})
	return &fitter{refit: r, keys: keys, hash: dp.NewTranscript([32]byte{}), row: make([]float64, d+1),
		rows: uint64(n)}, err
}

// add sends a window to the solver.
func (f *fitter) add(w *window) {
	first, _ := f.refit.Range(f.step + 1)
	for i, x := range w.x {
		f.row[copy(f.row, x)] = w.y[i]
		f.refit.Add(first+uint64(i), f.row)
	}
}

// release ends the window.
func (f *fitter) release() (*dp.Release, error) {
	f.step++
	f.hash.AbsorbRecords(f.rows)
	return f.refit.Close(f.keys.Step(f.step, &f.hash))
}

// close ends the window and returns its coefficients, nil if there are none.
func (f *fitter) close() ([]float64, error) {
	r, err := f.release()
	if err != nil || r.Failed != "" {
		return nil, err
	}
	theta := r.Values[0].Data
	if len(r.Values) > 1 && r.Values[1].Name == "intercept" {
		theta = append(theta, r.Values[1].Data[0])
	}
	return theta, nil
}

// trials fits the window n times and collects a measure of the coefficients.
func (f *fitter) trials(w *window, n int, measure func(theta []float64) float64) (sample, error) {
	var s sample
	for range n {
		f.add(w)
		theta, err := f.close()
		if err != nil {
			return s, err
		}
		if theta == nil {
			s.failed++
			continue
		}
		s.add(measure(theta))
	}
	return s, nil
}
