package refit

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestPartMoved checks that a window whose rows came as bytes from another refit has the same release as a window whose
// rows were added here. Encoding the part again gives the same bytes.
func TestPartMoved(t *testing.T) {
	t.Parallel()
	no := false
	for name, set := range map[string]func(*Config){
		"newton":                    func(c *Config) { c.Solver = "newton" },
		"newton without a constant": func(c *Config) { c.Solver, c.Intercept = "newton", &no },
		"adassp":                    func(c *Config) { c.Solver = "adassp" },
		"dp-gd-residual":            func(c *Config) { c.Solver = "dp-gd-residual" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const window = 600
			c := Config{Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3}
			set(&c)
			p := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace}
			var releases [2]string
			there, here := mustRefit(t, merged(c, 2, window), p), mustRefit(t, merged(c, 2, window), p)
			rows := records(window, 5)
			rows[3], rows[4] = nil, []float64{math.NaN(), 1, 1}
			for j := range 2 {
				from, err := there.NewPart()
				if err != nil {
					t.Fatal(err)
				}
				to, err := here.NewPart()
				if err != nil {
					t.Fatal(err)
				}
				to.Add(0, rows[0]) // will be overwritten
				for i := j; i < window; i += 2 {
					from.Add(uint64(i/2), rows[i])
				}
				moved, err := from.(*Part).AppendBinary([]byte("x"))
				if err != nil {
					t.Fatal(err)
				}
				if err := to.(*Part).UnmarshalBinary(moved[1:]); err != nil {
					t.Fatal(err)
				}
				if again, err := to.(*Part).AppendBinary(nil); err != nil || string(again) != string(moved[1:]) {
					t.Fatalf("encoding the part again gives other bytes: %v", err)
				}
				if err := there.Merge(from); err != nil {
					t.Fatal(err)
				}
				if err := here.Merge(to); err != nil {
					t.Fatal(err)
				}
			}
			for i, r := range []*Refit{there, here} {
				release, err := r.Close(dptest.Seeded(9))
				if err != nil {
					t.Fatal(err)
				}
				releases[i] = fmt.Sprintf("%+v", release)
			}
			if releases[0] != releases[1] {
				t.Errorf("the releases differ\n%s\n%s", releases[0], releases[1])
			}
		})
	}
}

// TestPartDamaged checks that a part that is cut, too long, or has rows that no record can produce is refused, and the
// receiving part is then empty.
func TestPartDamaged(t *testing.T) {
	t.Parallel()
	c := merged(Config{Solver: "newton", Target: "y", Columns: []string{"a", "y"}, ClipX: 2, ClipY: 3}, 2, 600)
	r := mustRefit(t, c, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
	made, err := r.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	p := made.(*Part)
	p.Add(0, []float64{5, 1})
	p.Add(1, nil)
	sound, err := p.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, data []byte, want bool) {
		if err := p.UnmarshalBinary(data); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		} else if !want && (p.e.rows != 0 || p.e.data.Len() != 0) {
			t.Errorf("%s: the part is not empty", name)
		}
	}
	try("as it was", sound, true)
	for n := range sound {
		try(fmt.Sprint("the first ", n), sound[:n], false)
	}
	try("longer", append(sound[:len(sound):len(sound)], 0), false)
	bits := func(x float64) uint64 { return math.Float64bits(x) }
	// The numbers are: records, rows, then (feature, constant, target) of two rows.
	for name, c := range map[string]struct {
		word  int
		value uint64
		ok    bool
	}{
		"more records than rows":  {0, 3, false},
		"more rows than records":  {1, 3, false},
		"another feature":         {2, bits(-0.5), true},
		"a feature that is long":  {2, bits(1.001), false},
		"a feature without value": {2, bits(math.NaN()), false},
		"another constant":        {3, bits(0.25), false},
		"another target":          {4, bits(-1), true},
		"a target beyond":         {4, bits(-1.0000001), false},
		"infinite":                {4, bits(math.Inf(1)), false},
	} {
		data := append([]byte(nil), sound...)
		binary.LittleEndian.PutUint64(data[8*c.word:], c.value)
		try(name, data, c.ok)
	}
	// More rows than in a window.
	data := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 601), 601)
	try("too many", append(data, make([]byte, 601*24)...), false)
}
