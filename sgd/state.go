package sgd

import (
	"errors"

	"github.com/streamdp/streamdp/internal/bin"
)

// floats reads n numbers.
func floats(r *bin.Reader, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.Float()
	}
	return x
}

var errDamaged = errors.New("sgd: the state is damaged")
