package matfact

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// TestShaperLayout checks that a coordinate's noise does not depend on other coordinates, at dimensions around the
// block size.
func TestShaperLayout(t *testing.T) {
	for _, f := range factorizations(t, 50) {
		s, w := []float64{0}, []int64{0}
		for _, dim := range []int{1, 2, block - 1, block, block + 1, 2*block + 1} {
			alone := f.NewShaper(1)
			all, row, noise := f.NewShaper(dim), make([]float64, dim), make([]int64, dim)
			for step := range 50 {
				r, rAll := alone.Predict(s), all.Predict(row)
				if s[0] != row[dim-1] || r != rAll {
					t.Fatalf("%s: dimension %d, step %d: s = %g, alone %g", f.name, dim, step+1, row[dim-1], s[0])
				}
				for i := range noise {
					noise[i] = int64(1e9 * math.Sin(float64(step*dim+i)))
				}
				w[0] = noise[dim-1]
				alone.Push(w)
				all.Push(noise)
			}
		}
	}
}

// TestShaperRestore interrupts a run at every step, and requires the same bits from there on.
func TestShaperRestore(t *testing.T) {
	const n, dim, sd = 300, 3, 1 << 30
	for _, f := range factorizations(t, n) {
		source := rand.New(rand.NewPCG(7, 8))
		shaper := f.NewShaper(dim)
		s, other, z, w := make([]float64, dim), make([]float64, dim), make([]float64, dim), make([]int64, dim)
		for step := range n {
			state, err := shaper.AppendBinary([]byte("prefix"))
			if err != nil {
				t.Fatal(err)
			}
			restored := f.NewShaper(dim)
			if want := shaperHeader + dim*int(f.Stored().StateBytes(uint64(step))); len(state) != len("prefix")+want {
				t.Fatalf("%s: step %d: %d bytes of state, want %d", f.name, step+1, len(state)-len("prefix"), want)
			}
			if err := restored.UnmarshalBinary(state[len("prefix"):]); err != nil {
				t.Fatalf("%s: step %d: %v", f.name, step+1, err)
			}
			r, rOther := shaper.Predict(s), restored.Predict(other)
			for i := range s {
				if math.Float64bits(s[i]) != math.Float64bits(other[i]) || r != rOther {
					t.Fatalf("%s: step %d: s = %v, restored %v", f.name, step+1, s, other)
				}
				z[i] = source.NormFloat64()
			}
			draw(w, z, s, sd, r)
			shaper.Push(w)
			restored.Push(w)
			a, _ := shaper.AppendBinary(nil)
			b, _ := restored.AppendBinary(nil)
			if !bytes.Equal(a, b) {
				t.Fatalf("%s: states differ after step %d", f.name, step+1)
			}
		}
	}
}

// TestShaperFar starts beyond 2³² steps and crosses a border of phases.
func TestShaperFar(t *testing.T) {
	f := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"}).(*buffered)
	for _, border := range []uint64{1 << 33, 1 << 39, 1 << 40} {
		phase := f.phase(border - 1)
		buffers := len(f.stored.Phases[phase].Weight)
		state := appendHeader(nil, shaperVersion, f.stored.fingerprint(), 1, border-3, buffers)
		for i := range buffers {
			state = binary.BigEndian.AppendUint64(state, uint64(int64(1000*(i-2))))
			state = binary.BigEndian.AppendUint64(state, uint64(i)<<60)
		}
		shaper, s := f.NewShaper(1), []float64{0}
		if err := shaper.UnmarshalBinary(state); err != nil {
			t.Fatal(err)
		}
		for step := border - 2; step < border+3; step++ {
			r := shaper.Predict(s)
			if want := f.stored.Phases[f.phase(step)].Scale; r != want {
				t.Errorf("step %d has r = %g, want %g", step, r, want)
			}
			shaper.Push([]int64{1 << 30})
		}
		if end, _ := shaper.AppendBinary(nil); binary.BigEndian.Uint64(end[17:]) != border+2 {
			t.Errorf("%d steps, want %d", binary.BigEndian.Uint64(end[17:]), border+2)
		}
	}
}

// TestShaperMalformed checks that a Shaper refuses data that is not a state of its matrix and dimension, and is
// unchanged afterwards.
func TestShaperMalformed(t *testing.T) {
	for _, f := range factorizations(t, 50) {
		shaper := f.NewShaper(2)
		for i := range 10 {
			shaper.Push([]int64{int64(i) << 30, -int64(i) << 20})
		}
		good, _ := shaper.AppendBinary(nil)
		bad := map[string][]byte{"empty": nil, "cut": good[:len(good)-1], "longer": append(bytes.Clone(good), 0)}
		flip := func(name string, at int) {
			b := bytes.Clone(good)
			b[at] ^= 0x55
			bad[name] = b
		}
		flip("version", 0)
		flip("fingerprint", 5)
		flip("dimension", 16)
		flip("steps", 17)
		flip("rows", 32)
		if len(good) > shaperHeader {
			flip("size", shaperHeader)
		}
		for name, data := range bad {
			if err := shaper.UnmarshalBinary(data); err == nil {
				t.Errorf("%s: a state with wrong %s is accepted", f.name, name)
			}
			if now, _ := shaper.AppendBinary(nil); !bytes.Equal(now, good) {
				t.Fatalf("%s: a state with wrong %s changed the Shaper", f.name, name)
			}
		}
	}
}

func FuzzShaperState(f *testing.F) {
	list := factorizations(f, 20)
	for _, x := range list {
		shaper := x.NewShaper(2)
		for i := range 9 {
			state, _ := shaper.AppendBinary(nil)
			f.Add(state)
			shaper.Push([]int64{int64(i) << 33, -5})
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, x := range list {
			shaper, s := x.NewShaper(2), []float64{0, 0}
			if shaper.UnmarshalBinary(data) != nil {
				continue
			}
			again, _ := shaper.AppendBinary(nil)
			if !bytes.Equal(again, data) {
				t.Fatalf("%s: a state of %x is written back as %x", x.name, data, again)
			}
			r := shaper.Predict(s)
			if !(r >= 1) || math.IsNaN(s[0]) || math.Abs(s[0]) > 0x1p62 {
				t.Fatalf("%s: r = %g, s = %v", x.name, r, s)
			}
			if n := x.Horizon(); n == 0 || binary.BigEndian.Uint64(data[17:]) < n {
				shaper.Push([]int64{1, -1})
			}
		}
	})
}
