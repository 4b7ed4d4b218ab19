// Package dataset reads public regression data sets, which are not part of the project, from a
// folder.
package dataset

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Folder returns the folder of data sets, "" if STREAMDP_DATA is not set.
func Folder() string { return os.Getenv("STREAMDP_DATA") }

// Read returns the training rows of a split: the features, and the target, which is the
// file's last column. It reads NAME/data.csv.gz and NAME/test_mask.csv.gz.
func Read(folder, name string, split int) (x [][]float64, y []float64, err error) {
	return read(folder, name, split, false)
}

// Test returns the test rows of a split, which Read leaves out.
func Test(folder, name string, split int) (x [][]float64, y []float64, err error) {
	return read(folder, name, split, true)
}

func read(folder, name string, split int, held bool) (x [][]float64, y []float64, err error) {
	rows, err := table(filepath.Join(folder, name, "data.csv.gz"))
	if err != nil {
		return nil, nil, err
	}
	mask, err := table(filepath.Join(folder, name, "test_mask.csv.gz"))
	if err != nil {
		return nil, nil, err
	}
	if len(rows) != len(mask) {
		return nil, nil, fmt.Errorf("data set %s: %d rows, but %d entries in the mask", name, len(rows), len(mask))
	}
	for i, row := range rows {
		mark := mask[i][split]
		if test := mark != "0" && mark != "False" && mark != "false"; test != held {
			continue
		}
		values := make([]float64, len(row))
		for j, cell := range row {
			if values[j], err = strconv.ParseFloat(cell, 64); err != nil {
				return nil, nil, fmt.Errorf("data set %s, line %d: %w", name, i+1, err)
			}
		}
		last := len(row) - 1
		x, y = append(x, values[:last]), append(y, values[last])
	}
	return x, y, nil
}

func table(path string) ([][]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}
