package dp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// BenchmarkRow measures secure lattice noise of an opened row: keystream, Gaussians and exact rounding. The rival is
// NormFloat64 on ChaCha8 for the same number of coordinates. BenchmarkStep includes opening the row.
func BenchmarkRow(b *testing.B) {
	for _, d := range []int{1024, 1_000_000} {
		b.Run(fmt.Sprintf("D=%d", d), func(b *testing.B) {
			var h Transcript
			row, w, sd := benchEpoch(b).array("bench").row(1, &h, d), make([]int64, d), []float64{1 << 24}
			rival.Compare(b, d, func() { RoundRow(w, row, sd, nil, 1) }, "NormFloat64", normals(d))
		})
	}
}

// BenchmarkStep measures all noise of a step, including absorbing the record count and the integer row.
func BenchmarkStep(b *testing.B) {
	for _, d := range []int{10, 65, 1024} {
		b.Run(fmt.Sprintf("D=%d", d), func(b *testing.B) {
			e, hidden, w, sd := benchEpoch(b), make([]int64, d), make([]int64, d), []float64{1 << 24}
			var h Transcript
			var step uint64
			rival.Compare(b, d, func() {
				step++
				h.AbsorbRecords(1)
				RoundRow(w, e.Step(step, &h).Row("bench", hidden), sd, nil, 1)
			}, "NormFloat64", normals(d))
		})
	}
}

func benchEpoch(b testing.TB) *Epoch {
	var secret [32]byte
	e, err := NewEpoch(&secret, &secret, "bench", 1, [16]byte{}, [32]byte{})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// normals returns the rival: d draws without any protection.
func normals(d int) func() {
	source := rand.New(rand.NewChaCha8([32]byte{}))
	return func() {
		for range d {
			benchSink += source.NormFloat64()
		}
	}
}

var benchSink float64

// BenchmarkQuantise measures the conversion of one record to integers.
func BenchmarkQuantise(b *testing.B) {
	for _, d := range []int{3, 16, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			l, err := NewLattice(1, 1, 24)
			if err != nil {
				b.Fatal(err)
			}
			x, k := make([]float64, d), make([]int64, d)
			source := rand.New(rand.NewPCG(1, 2))
			for j := range x {
				x[j] = source.NormFloat64()
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Quantise(k, x)
			}
		})
	}
}
