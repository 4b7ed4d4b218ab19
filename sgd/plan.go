package sgd

import (
	"reflect"
	"sync"

	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// students returns the quantiles of a plan. It caches them, because they take most of the time of a plan, and every
// restart of a daemon needs the quantiles of the same few levels.
func students(level float64) []float64 {
	if q, ok := quantiles.Load(level); ok {
		return q.([]float64)
	}
	q := make([]float64, batchesMost)
	for n := intervalsLeast; n < batchesMost; n++ {
		q[n] = StudentQuantile((1+level)/2, float64(n-1))
	}
	quantiles.Store(level, q)
	return q
}

var quantiles sync.Map // by level; entries never change

// intervalsLeast is the smallest number of means for which intervals are published.
const intervalsLeast = 5

// factorize builds the factorization with the given number of bands.
func factorize(bands int, stored *matfact.Stored) (matfact.Factorization, error) {
	c := matfact.Config{Kind: "bisr", Bands: bands, Stored: stored}
	if bands == 1 {
		c = matfact.Config{Kind: "identity", Stored: stored}
	}
	return matfact.New(c, matfact.Workload{Kind: "sum"})
}

// alike reports whether two plans are equal, except for the last bits of their float64 numbers. Last bits matter less
// than the margin that a plan adds to the noise.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Float64:
		x, y := a.Float(), b.Float()
		return x == y || calibration.Near(x, y, calibration.LastBits)
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || alike(a.Elem(), b.Elem()))
	}
	return a.Equal(b)
}
