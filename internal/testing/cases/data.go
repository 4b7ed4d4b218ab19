package cases

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// DataSet reads the training rows of a data set for a split: features and the
// target. It skips the test where STREAMDP_DATA names no folder, or one that does
// not have the set: data of others is no part of the project.
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

// Published is DataSet prepared as papers do, which is not private: features
// standardised and divided by the largest norm, the target divided by its largest size,
// everything by loose.
func Published(t testing.TB, name string, split int, loose float64) (x [][]float64, y []float64) {
	t.Helper()
	x, y = DataSet(t, name, split)
	standardise(x, 0)
	bound(x, y, loose)
	return x, y
}

// Shifted is Published with the target standardised too, and with everything shifted by
// so many standard deviations before it is divided.
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

// standardise gives each column mean shift and, if it has any, variance 1.
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

// bound divides features by their largest norm, targets by the largest size, and both
// by loose.
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
