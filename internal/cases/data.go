package cases

import (
	"compress/gzip"
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// DataSet reads the training rows of a data set for a split: features and the
// target, which is the file's last column. It reads $STREAMDP_DATA/NAME/data.csv.gz
// and test_mask.csv.gz, and skips the test where that folder is not named or does
// not have the set: data of others is no part of the project.
func DataSet(t testing.TB, name string, split int) (x [][]float64, y []float64) {
	t.Helper()
	dir := os.Getenv("STREAMDP_DATA")
	if dir == "" {
		t.Skip("STREAMDP_DATA names no folder of data sets")
	}
	read := func(file string) [][]string {
		path := filepath.Join(dir, name, file)
		f, err := os.Open(path)
		if err != nil {
			t.Skipf("data set %s: %v", name, err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rows, err := csv.NewReader(z).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return rows
	}
	rows, mask := read("data.csv.gz"), read("test_mask.csv.gz")
	if len(rows) != len(mask) {
		t.Fatalf("data set %s: %d rows and %d of the mask", name, len(rows), len(mask))
	}
	for i, row := range rows {
		if test := mask[i][split]; test != "0" && test != "False" && test != "false" {
			continue
		}
		values := make([]float64, len(row))
		for j, cell := range row {
			v, err := strconv.ParseFloat(cell, 64)
			if err != nil {
				t.Fatalf("data set %s, line %d: %v", name, i+1, err)
			}
			values[j] = v
		}
		x, y = append(x, values[:len(row)-1]), append(y, values[len(row)-1])
	}
	return x, y
}
