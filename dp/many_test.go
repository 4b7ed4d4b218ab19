package dp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// onProcessors runs f with 1 and with 5 processors, and fails unless the results are equal.
func onProcessors(t *testing.T, f func() []int64) []int64 {
	t.Helper()
	one := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(one)
	want := f()
	runtime.GOMAXPROCS(5)
	if !slices.Equal(f(), want) {
		t.Error("the result depends on the number of processors")
	}
	return want
}

// TestQuantiseLong quantises long rows. The result is inside the ball, and each coordinate is rounded to nearest or
// toward zero, independently of the number of processors. The test is not parallel, because it sets their number.
func TestQuantiseLong(t *testing.T) {
	const d = longRow + 777
	l, err := NewLattice(3.3, 1, 24)
	if err != nil {
		t.Fatal(err)
	}
	source := rand.New(rand.NewPCG(1, 2))
	row := func(scale float64) []float64 {
		x := make([]float64, d)
		for j := range x {
			x[j] = scale * source.NormFloat64()
		}
		return x
	}
	for _, scale := range []float64{0, 5e-324, 1e-150, 1e-9, 0.01, 1, 1e100, 1e160, 1e306} {
		x := row(scale)
		k := onProcessors(t, func() []int64 {
			k := make([]int64, d)
			if !l.QuantiseLong(k, x) {
				t.Errorf("scale %g: refused", scale)
			}
			return k
		})
		wantInside(t, l, k)
		norm, e, _ := norm2(x, sumOfSquares(x))
		f := math.Ldexp(1, e-l.Exp)
		if norm > math.Ldexp(float64(l.K), l.Exp-e) {
			f = float64(l.K) / norm
		}
		for j, v := range k {
			if off := math.Abs(float64(v) - math.Ldexp(x[j], -e)*f); !(off <= 1+1e-6) {
				t.Fatalf("scale %g: coordinate %d is off by %g steps", scale, j, off)
			}
		}
	}
	k := make([]int64, d)
	for _, bad := range []float64{math.NaN(), math.Inf(-1)} {
		x := row(1)
		x[d-1], k[3] = bad, 7
		if l.QuantiseLong(k, x) || slices.ContainsFunc(k, func(v int64) bool { return v != 0 }) {
			t.Errorf("a row with %g was accepted", bad)
		}
	}
	// The last coordinate alone is outside the ball.
	x := make([]float64, d)
	x[d-1] = 1e9
	if !l.QuantiseLong(k, x) || k[d-1] != l.K {
		t.Errorf("a long row with one coordinate: %d, want %d", k[d-1], l.K)
	}
}

// TestAbsorbPieces compares the transcript of long rows with its definition: one tag for each 2¹⁶ integers. It is not
// parallel, because it sets the number of processors.
func TestAbsorbPieces(t *testing.T) {
	for _, d := range []int{0, 1, absorbPiece, absorbPiece + 1, 5*absorbPiece - 3} {
		hidden := make([]int64, d)
		for j := range hidden {
			hidden[j] = int64(j*j) - 1000
		}
		e := benchEpoch(t)
		step := func(hidden []int64) (h Transcript) {
			h = NewTranscript([32]byte{7})
			e.Step(9, &h).Row("a", hidden)
			return h
		}
		words := onProcessors(t, func() []int64 {
			h := step(hidden)
			return []int64{int64(binary.BigEndian.Uint64(h[:])), int64(binary.BigEndian.Uint64(h[24:]))}
		})

		block, err := aes.NewCipher(e.derive("streamdp/absorb/v1\x00", lengthPrefixed("a")))
		if err != nil {
			t.Fatal(err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		want := NewTranscript([32]byte{7})
		for piece := 0; piece == 0 || piece*absorbPiece < d; piece++ {
			var data []byte
			for _, v := range hidden[piece*absorbPiece : min((piece+1)*absorbPiece, d)] {
				data = binary.LittleEndian.AppendUint64(data, uint64(v))
			}
			nonce := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(piece)), 9)
			var tag [32]byte
			gcm.Seal(tag[:0], nonce, nil, data)
			want.absorb(&tag)
		}
		if got := step(hidden); got != want || words[0] != int64(binary.BigEndian.Uint64(want[:])) {
			t.Errorf("%d integers: the transcript differs from its definition", d)
		}
		if d == 0 {
			continue
		}
		for _, j := range []int{0, d / 2, d - 1} {
			hidden[j]++
			if step(hidden) == want {
				t.Errorf("%d integers: a changed integer %d gives the same transcript", d, j)
			}
			hidden[j]--
		}
		if d > absorbPiece+1 { // exchange two pieces
			swapped := slices.Clone(hidden)
			copy(swapped, hidden[absorbPiece:2*absorbPiece])
			copy(swapped[absorbPiece:], hidden[:absorbPiece])
			if step(swapped) == want {
				t.Errorf("%d integers: exchanged pieces give the same transcript", d)
			}
		}
	}
}
