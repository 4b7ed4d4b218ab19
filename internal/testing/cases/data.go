package cases

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// DataSet reads the training rows of a data set for a split: the features and the target. It skips the test if
// STREAMDP_DATA is not set or its folder lacks the data set, because the data sets are not part of the project.
func DataSet(t testing.TB, name string, split int) (x [][]float64, y []float64) {
	t.Helper()
	if dataset.Folder() == "" {
		t.Skip("STREAMDP_DATA names no folder of data sets")
	}
	x, y, err := dataset.Read(dataset.Folder(), name, split)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("data set %s: %v", name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return x, y
}

// Published does what DataSet does, and then prepares the data as papers do, which is not private. It standardises
// features and divides them by their largest norm. It divides the target by its largest absolute value. Both are also
// divided by `loose`.
func Published(t testing.TB, name string, split int, loose float64) (x [][]float64, y []float64) {
	t.Helper()
	x, y = DataSet(t, name, split)
	standardise(x, 0)
	bound(x, y, loose)
	return x, y
}

// Shifted does what Published does, but standardises the target too. Before the divisions it shifts features and target
// by the given numbers of standard deviations.
func Shifted(t testing.TB, name string, split int, features, target, loose float64) (x [][]float64, y []float64) {
	t.Helper()
	x, y = DataSet(t, name, split)
	standardise(x, features)
	column := make([][]float64, len(y))
	for i := range y {
		column[i] = y[i : i+1]
	}
	standardise(column, target)
	bound(x, y, loose)
	return x, y
}

// standardise changes each column to have the mean `shift` and, unless it is constant, variance 1.
func standardise(x [][]float64, shift float64) {
	n := float64(len(x))
	for j := range x[0] {
		var mean, square float64
		for i := range x {
			mean += x[i][j] / n
		}
		for i := range x {
			x[i][j] -= mean
			square += x[i][j] * x[i][j] / n
		}
		scale := 1.0
		if square > 0 {
			scale = math.Sqrt(square)
		}
		for i := range x {
			x[i][j] = x[i][j]/scale + shift
		}
	}
}

// bound divides features by loose times their largest norm, and targets by loose times their largest absolute value.
func bound(x [][]float64, y []float64, loose float64) {
	var largest, target float64
	for i := range x {
		var square float64
		for _, v := range x[i] {
			square += v * v
		}
		largest = max(largest, math.Sqrt(square))
		target = max(target, math.Abs(y[i]))
	}
	for i := range x {
		for j := range x[i] {
			x[i][j] /= largest * loose
		}
		y[i] /= target * loose
	}
}
