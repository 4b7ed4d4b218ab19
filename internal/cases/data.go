package cases

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"streamdp/internal/dataset"
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
		if square > 0 {
			for i := range x {
				x[i][j] /= math.Sqrt(square)
			}
		}
	}
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
	return x, y
}
