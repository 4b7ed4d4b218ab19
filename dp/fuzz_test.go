package dp

import (
	"encoding/binary"
	"math"
	"testing"
)

// FuzzAdjacency: two words parse, and are written again unchanged. All others are refused without changing the value.
func FuzzAdjacency(f *testing.F) {
	for _, s := range []string{"zero-out", "replace", "", "Replace", "replace ", "add-remove", "unset", "1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var a Adjacency
		if err := a.UnmarshalText(text); err != nil {
			if a != 0 {
				t.Fatalf("%q is refused, but sets %v", text, a)
			}
			if s := string(text); s == "zero-out" || s == "replace" {
				t.Fatalf("%q is refused: %v", text, err)
			}
			return
		}
		out, err := a.MarshalText()
		if err != nil || string(out) != string(text) || !a.Valid() || a.Factor() < 1 {
			t.Fatalf("%q becomes %q, %v", text, out, err)
		}
	})
}

// FuzzParams: for all numbers, there is an error or a budget that satisfies them; never NaN, and no budget without
// adjacency.
func FuzzParams(f *testing.F) {
	f.Add(1.0, 1e-8, 0.0, 1, 0)
	f.Add(0.0, 0.5, 0.0, 2, 30)
	f.Add(1e-300, 1e-300, 0.0, 2, 24)
	f.Add(1e300, 0.999999, 0.0, 1, 24)
	f.Add(math.Inf(1), 1e-9, 0.0, 1, 24)
	f.Add(math.NaN(), 1e-9, 0.0, 1, 24)
	f.Add(1.0, 0.0, -1.0, 1, 24)
	f.Add(1.0, 1e-9, 3.0, 3, 25)
	f.Add(-1.0, 2.0, math.NaN(), 0, 31)
	f.Fuzz(func(t *testing.T, eps, delta, given float64, adjacency, bits int) {
		p := Params{Epsilon: eps, Delta: delta, Mu: given, Adjacency: Adjacency(adjacency), LatticeBits: bits}
		mu, err := p.Budget()
		if err != nil {
			if mu != 0 {
				t.Fatalf("%+v: %v, and μ = %g", p, err, mu)
			}
			return
		}
		switch {
		case !(mu > 0) || math.IsInf(mu, 0):
			t.Fatalf("%+v: μ = %g", p, mu)
		case !p.Adjacency.Valid():
			t.Fatalf("%+v: a budget without adjacency", p)
		case p.Bits() < 24 || p.Bits() > 30:
			t.Fatalf("%+v: %d bits", p, p.Bits())
		case given != 0 && mu != given:
			t.Fatalf("%+v: μ = %g", p, mu)
		case given == 0 && !(LogDelta(eps, mu) <= math.Log(delta)+1e-12*(1+math.Abs(math.Log(delta)))):
			t.Fatalf("%+v: μ = %g has log δ = %g, above %g", p, mu, LogDelta(eps, mu), math.Log(delta))
		}
	})
}

// FuzzTranscript: two histories of steps have the same transcript and the same noise if and only if they are equal.
func FuzzTranscript(f *testing.F) {
	f.Add([]byte{}, []byte{0})
	f.Add([]byte{3, 1, 0, 0, 0, 0, 0, 0, 0, 7}, []byte{3, 1, 0, 0, 0, 0, 0, 0, 0, 8})
	f.Add([]byte{3, 0, 3, 0}, []byte{3, 0})
	f.Add([]byte{1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, []byte{1, 1, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		h1, w1, n1 := replay(t, a)
		h2, w2, n2 := replay(t, b)
		if same := n1 == n2; (h1 == h2) != same || w1 == w2 && !same {
			t.Fatalf("histories %x and %x: equal %v, transcripts equal %v, noise equal %v", a, b, same,
				h1 == h2, w1 == w2)
		}
	})
}

// replay reads steps (number of records, length of a row, its integers). It returns the transcript after them, the next
// step's first word, and a string that identifies the history.
func replay(t *testing.T, data []byte) (h Transcript, word uint64, history string) {
	e, err := NewEpoch(&[32]byte{1}, &[32]byte{2}, "fuzz", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	h = NewTranscript([32]byte{})
	step := uint64(0)
	for len(data) >= 2 {
		step++
		records, length := data[0], int(data[1]%4)
		data = data[2:]
		row := make([]int64, length)
		for j := range row {
			var x [8]byte
			data = data[copy(x[:], data):]
			row[j] = int64(binary.BigEndian.Uint64(x[:]))
		}
		h.AbsorbRecords(uint64(records))
		e.Step(step, &h).Row("fuzz", row)
		history = string(appendHistory([]byte(history), records, row))
	}
	after := h
	return h, e.Step(step+1, &after).Row("fuzz", nil).Word(0), history
}

func appendHistory(b []byte, records byte, row []int64) []byte {
	b = append(b, records, byte(len(row)))
	for _, v := range row {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}
