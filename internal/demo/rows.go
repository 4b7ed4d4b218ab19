package demo

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
)

// open prepares the rows: those of the file, or synthetic ones.
func (d *demonstration) open() {
	if f := d.o.File; f != nil {
		d.names, d.centre, d.scale, d.rows = f.Columns, f.Centre, f.Scale, f.Next
		return
	}
	if d.o.Clip == 0 {
		d.o.Clip = 1.5
	}
	d.synthetic()
}

// synthetic makes rows with mean j in column j and correlation 0.6^|i−j|. The last column is heavy-tailed: it has
// Student's t distribution with 2.5 degrees of freedom, so only two finite moments. Without Once the means swing, and y
// is added as one more column.
func (d *demonstration) synthetic() {
	const columns, rho = 9, 0.6
	source := rand.New(rand.NewPCG(d.o.seed(), 1))
	for j := range columns {
		d.names = append(d.names, fmt.Sprintf("v%d", j+1))
		d.centre = append(d.centre, float64(j+1))
		d.scale = append(d.scale, 3)
	}
	d.total = madeUpRows
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
				z /= math.Sqrt(chiSquared(source, 5) / 5) // makes the tail heavy
			}
			row[j] = float64(j+1) + z
			if d.live() {
				row[j] += liveMean(n-1, j)
			}
			cells[j] = strconv.FormatFloat(row[j], 'f', 6, 64)
		}
		if d.live() {
			cells = append(cells,
				strconv.FormatFloat(liveExpectation(n-1, row)+liveNoise*source.NormFloat64(), 'f', 6, 64))
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
