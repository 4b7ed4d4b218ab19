package core

import (
	"bytes"
	"math"
	"testing"
)

// FuzzParameters: a file of parameters holds finite numbers and nothing else.
func FuzzParameters(f *testing.F) {
	f.Add(PackParameters([]float64{1, -2.5}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := ParseParameters(data)
		if err != nil {
			return
		}
		if !bytes.Equal(PackParameters(x), data) {
			t.Fatalf("%x is parsed as %g", data, x)
		}
		for _, v := range x {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("%g is accepted", x)
			}
		}
	})
}
