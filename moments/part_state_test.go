package moments

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestPartMoved sums and encodes the parts of a step in another estimator, for every method. The release must be the
// same as if the step is summed in one estimator. Encoding a decoded part must give the same bytes.
func TestPartMoved(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"jme", "ime", "cs", "pp"} {
		t.Run(method, func(t *testing.T) {
			cfg := Config{Method: method, Clip: 1, Columns: []string{"a", "b", "c"}, Step: 64, ValidCount: new(true)}
			if method == "cs" || method == "pp" {
				cfg.Step = 1
			}
			if method == "cs" {
				cfg.Tau = 1
			}
			p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace}
			var all [3]*Estimator
			var parts [3][2]dp.Part
			for i := range all {
				e, err := New(cfg, p)
				if err != nil {
					t.Fatal(err)
				}
				all[i] = e
				for j := range parts[i] {
					if parts[i][j], err = e.NewPart(); err != nil {
						t.Fatal(err)
					}
				}
			}
			rng := rand.New(rand.NewPCG(6, 1))
			for step := range 3 {
				for i := range int(cfg.Step) {
					row := []float64{rng.NormFloat64(), rng.NormFloat64() / 2, rng.NormFloat64() / 4}
					switch i % 20 {
					case 7:
						row = nil
					case 9:
						row[1] = math.Inf(1)
					}
					parts[0][i%2].Add(uint64(i), row)
					parts[1][i%2].Add(uint64(i), row)
				}
				for j := range 2 {
					there, here := parts[1][j].(*Part), parts[2][j].(*Part)
					there.Add(0, nil) // Reset must remove this
					if there.Reset(); step == 0 {
						for i := j; i < int(cfg.Step); i += 2 {
							there.Add(uint64(i), []float64{float64(i), 1, 2})
						}
						there.Reset()
					}
					moved, err := parts[0][j].(*Part).AppendBinary([]byte("x"))
					if err != nil {
						t.Fatal(err)
					}
					if err := here.UnmarshalBinary(moved[1:]); err != nil {
						t.Fatal(err)
					}
					if again, err := here.AppendBinary(nil); err != nil || string(again) != string(moved[1:]) {
						t.Fatalf("encoded again the part differs: %v", err)
					}
					if err := there.UnmarshalBinary(moved[1:]); err != nil {
						t.Fatal(err)
					}
				}
				var releases [3]string
				for i, e := range all {
					for _, part := range parts[i] {
						if err := e.Merge(part); err != nil {
							t.Fatal(err)
						}
					}
					r, err := e.Close(dptest.Seeded(uint64(step)))
					if err != nil {
						t.Fatal(err)
					}
					releases[i] = fmt.Sprintf("%+v", r)
				}
				if releases[0] != releases[2] || releases[0] != releases[1] {
					t.Fatalf("step %d: releases differ\n%s\n%s", step, releases[0], releases[2])
				}
			}
			if a, b := all[0], all[2]; a.Clipped() != b.Clipped() || a.Refused() != b.Refused() ||
				cfg.Step > 1 && (a.Clipped() == 0 || a.Refused() == 0) {
				t.Errorf("%d, %d clipped; %d, %d refused", a.Clipped(), b.Clipped(), a.Refused(), b.Refused())
			}
		})
	}
}

// TestPartDamaged decodes a part that is cut, too long, or has sums that no rows can have. It must be refused, and the
// part must be empty afterwards.
func TestPartDamaged(t *testing.T) {
	t.Parallel()
	cfg := Config{Clip: 1, Columns: []string{"a", "b"}, Step: 5, ValidCount: new(true)}
	e, err := New(cfg, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
	if err != nil {
		t.Fatal(err)
	}
	made, err := e.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	p := made.(*Part)
	for i := range 4 {
		p.Add(uint64(i), []float64{1, 0})
	}
	sound, err := p.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Reset()
	empty, _ := p.AppendBinary(nil)
	try := func(name string, data []byte, want bool) {
		if err := p.UnmarshalBinary(data); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		} else if now, _ := p.AppendBinary(nil); !want && !reflect.DeepEqual(now, empty) {
			t.Errorf("%s: the part is not empty", name)
		}
	}
	try("as it was", sound, true)
	for n := range sound {
		try(fmt.Sprint("the first ", n), sound[:n], false)
	}
	try("longer", append(sound[:len(sound):len(sound)], 0), false)
	// the order of the words: rows, clipped, refused, first (2), count, full, squares (3 of 16 bytes, high words first)
	const first, count, full, squares = 3, 5, 6, 7
	k := e.plan.Lattice.K
	at := func(word int) int64 { return int64(binary.LittleEndian.Uint64(sound[8*word:])) }
	if at(first) != 4*k || at(count) != 4<<-e.plan.CountExp || at(squares+1) != 4*k*k {
		t.Fatal("the words do not have the expected order")
	}
	for name, c := range map[string]struct {
		word  int
		value int64
		ok    bool
	}{
		"all its slots":                {0, 5, true},
		"more records than slots":      {0, 6, false},
		"fewer records than sums":      {0, 3, false},
		"more clipped than records":    {1, 5, false},
		"more refused than records":    {2, 5, false},
		"as long as can be":            {first, -4 * k, true},
		"too long":                     {first, 4*k + 1, false},
		"too long, negative":           {first + 1, -4*k - 1, false},
		"more counted":                 {count, at(count) + 1, false},
		"less than none counted":       {count, -1, false},
		"more in full":                 {full, 1 << 62, false},
		"a negative square":            {squares, -1, false},
		"squares too large":            {squares + 1, 4*k*k + 1, false},
		"a product too large":          {squares + 3, 2*k*k + 1, false},
		"a product as large as can be": {squares + 3, 2 * k * k, true},
		"beyond 64 bits":               {squares + 4, 1, false},
	} {
		data := append([]byte(nil), sound...)
		binary.LittleEndian.PutUint64(data[8*c.word:], uint64(c.value))
		try(name, data, c.ok)
	}
}
