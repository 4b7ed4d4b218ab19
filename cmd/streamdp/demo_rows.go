package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/streamdp/streamdp/internal/table"
)

// open readies the rows: those of the file, or the synthetic ones.
func (d *demo) open() (done func() error, err error) {
	f := d.f
	if err := table.CheckHeader(f.header); err != nil {
		return nil, err
	}
	if f.csv == "" {
		if f.clip == 0 {
			f.clip = 1.5
		}
		d.synthetic()
		return func() error { return nil }, nil
	}
	if !(f.clip > 0) {
		return nil, usagef("--clip is needed: a public bound on a row's norm after scaling")
	}
	t, err := table.Open(f.csv, f.header, f.columns)
	if err != nil {
		return nil, err
	}
	d.names = make([]string, len(t.Names))
	for i := range t.Names {
		d.names[i] = fmt.Sprintf("v%d", i+1) // names of a file may hold dots
	}
	if d.centre, err = table.Numbers("--centre", f.centre, len(d.names)); err == nil {
		d.scale, err = table.Numbers("--scale", f.scale, len(d.names))
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	d.names = t.Names
	d.rows = func() ([]string, error) {
		line, err := t.Next()
		if err != nil {
			return nil, err
		}
		return t.Picked(line), nil
	}
	return t.Close, nil
}

// synthetic makes rows with mean j in column j and correlation 0.6^|i−j|; the
// last column has a tail of two moments (Student's t with 2.5 degrees). Without --once the
// means swing, and y is behind them.
func (d *demo) synthetic() {
	const columns, rho = 9, 0.6
	seed := d.f.seed
	if !d.f.seeded {
		seed = rand.Uint64()
	}
	source := rand.New(rand.NewPCG(seed, 1))
	for j := range columns {
		d.names = append(d.names, fmt.Sprintf("v%d", j+1))
		d.centre = append(d.centre, float64(j+1))
		d.scale = append(d.scale, 3)
	}
	d.total = demoRecords
	if d.live() {
		d.total = liveRows
	}
	n, row := int64(0), make([]float64, columns)
	d.rows = func() ([]string, error) {
		if n++; n > d.total {
			return nil, io.EOF
		}
		cells := make([]string, columns)
		var z float64
		for j := range columns {
			e := source.NormFloat64()
			if j > 0 {
				e = rho*z + math.Sqrt(1-rho*rho)*e
			}
			z = e
			if j == columns-1 {
				z /= math.Sqrt(chiSquared(source, 5) / 5) // heavy tail
			}
			row[j] = float64(j+1) + z
			if d.live() {
				row[j] += liveMean(n-1, j)
			}
			cells[j] = strconv.FormatFloat(row[j], 'f', 6, 64)
		}
		if d.live() {
			cells = append(cells, strconv.FormatFloat(liveExpectation(n-1, row)+liveNoise*source.NormFloat64(), 'f', 6, 64))
		}
		return cells, nil
	}
}

func chiSquared(source *rand.Rand, degrees int) (sum float64) {
	for range degrees {
		z := source.NormFloat64()
		sum += z * z
	}
	return sum
}
