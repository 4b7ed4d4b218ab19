package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// regressionSet is a random split of a published data set, with the constants that a user would have to know. They are
// computed from the training rows, which no deployment may do.
type regressionSet struct {
	columns       []string
	centre, scale []float64   // means and deviations of the columns
	train, test   [][]float64 // rows, with the target last
	clipX, clipY  float64     // 99 % of scaled features are at most clipX long, 99.9 % of targets at most clipY
	curvature     float64     // largest eigenvalue of the clipped features' second moment
}

// openSet reads a split of a set from the folder STREAMDP_DATA.
func openSet(name string, split int) (*regressionSet, error) {
	rows := func(read func(string, string, int) ([][]float64, []float64, error)) ([][]float64, error) {
		x, y, err := read(dataset.Folder(), name, split)
		for i := range x {
			x[i] = append(slices.Clip(x[i]), y[i])
		}
		return x, err
	}
	train, err := rows(dataset.Read)
	if err != nil {
		return nil, err
	}
	test, err := rows(dataset.Test)
	if err != nil {
		return nil, err
	}
	source := rand.New(rand.NewPCG(11, uint64(split)))
	source.Shuffle(len(train), func(i, j int) { train[i], train[j] = train[j], train[i] })
	columns := len(train[0])
	s := &regressionSet{train: train, test: test, centre: make([]float64, columns), scale: make([]float64, columns)}
	n := float64(len(train))
	for j := range columns {
		s.columns = append(s.columns, fmt.Sprint("x", j))
		for _, row := range train {
			s.centre[j] += row[j] / n
		}
		for _, row := range train {
			s.scale[j] += (row[j] - s.centre[j]) * (row[j] - s.centre[j]) / n
		}
		if s.scale[j] = math.Sqrt(s.scale[j]); s.scale[j] == 0 {
			s.scale[j] = 1
		}
	}
	s.columns[columns-1] = "y"
	var norms, targets []float64
	for _, row := range train {
		z := s.scaled(row)
		norms = append(norms, length(z[:columns-1]))
		targets = append(targets, math.Abs(z[columns-1]))
	}
	slices.Sort(norms)
	slices.Sort(targets)
	s.clipX, s.clipY = norms[len(norms)*99/100], targets[len(targets)*999/1000]
	second := mat.NewSymDense(columns-1, nil)
	for _, row := range train {
		z := s.scaled(row)[:columns-1]
		clip := min(1, s.clipX/length(z))
		second.SymRankOne(second, clip*clip/n, mat.NewVecDense(columns-1, z))
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(second, false) {
		return nil, fmt.Errorf("data set %s: the eigenvalues did not converge", name)
	}
	s.curvature = slices.Max(eigen.Values(nil))
	return s, nil
}

func (s *regressionSet) scaled(row []float64) []float64 {
	z := make([]float64, len(row))
	for j, v := range row {
		z[j] = (v - s.centre[j]) / s.scale[j]
	}
	return z
}

// passage returns a run over the training rows, under zero-out and δ = 10⁻⁶. mechanism is the mechanism's table, from
// its name on; passage adds target, bounds and radius.
func (s *regressionSet) passage(seed uint64, epsilon float64, mechanism string) *passage {
	return &passage{columns: s.columns, centre: s.centre, scale: s.scale, seed: seed,
		tables: fmt.Sprintf(`[stream.data.privacy]
epsilon = %g
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = %g
[stream.data.%s
target = "y"
clip_x = %g
clip_y = %g
radius = 5.0
`, epsilon, epsilon, mechanism, s.clipX, s.clipY)}
}

// score returns the share of the held-out targets' variance that the coefficients explain. They are in original units,
// with the constant last.
func (s *regressionSet) score(theta []float64) float64 {
	last := len(s.columns) - 1
	var mean, errors, total float64
	for _, row := range s.test {
		mean += row[last] / float64(len(s.test))
	}
	for _, row := range s.test {
		e := row[last] - theta[last]
		for j := range last {
			e -= theta[j] * row[j]
		}
		errors += e * e
		total += (row[last] - mean) * (row[last] - mean)
	}
	return 1 - errors/total
}

// original returns a release's coefficients in original units, with the constant last: the average of an online
// regression, or the coefficients of a refit.
func original(r *release) []float64 {
	if theta := r.value("theta_average_original"); theta != nil {
		return theta
	}
	return slices.Concat(r.value("theta_original"), r.value("intercept_original"))
}

// ols returns the least-squares coefficients for the training rows, in original units, with the constant last.
func (s *regressionSet) ols() ([]float64, error) {
	last := len(s.columns) - 1
	x, y := mat.NewDense(len(s.train), last+1, nil), mat.NewDense(len(s.train), 1, nil)
	for i, row := range s.train {
		z := s.scaled(row)
		y.Set(i, 0, z[last])
		z[last] = 1
		x.SetRow(i, z)
	}
	var svd mat.SVD
	if !svd.Factorize(x, mat.SVDThin) {
		return nil, fmt.Errorf("the singular values did not converge")
	}
	var solution mat.Dense
	svd.SolveTo(&solution, y, svd.Rank(1e-10))
	theta := mat.Col(nil, 0, &solution)
	theta[last] = theta[last]*s.scale[last] + s.centre[last]
	for j := range last {
		theta[j] *= s.scale[last] / s.scale[j]
		theta[last] -= theta[j] * s.centre[j]
	}
	return theta, nil
}
