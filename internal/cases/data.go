package cases

import (
	"errors"
	"io/fs"
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
