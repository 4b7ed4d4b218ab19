package core

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// measured holds further streams whose states TestStateSizes compares, in addition to those in protecting.
var measured = map[string]string{
	"moments": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
step = 4
moments = { clip = 1.0 }`,
	"moments, window": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
step = 4
moments = { clip = 1.0, workload = "window", window = 3 }`,
	"moments, exponential": `input = { topic = "orders", codec = "float64", columns = ["a", "b"] }
step = 4
moments = { clip = 1.0, workload = "exponential", decay = 0.5 }`,
}

// TestStateSizes: the size of a state, which anyone with access to the instances' logs can see, depends on the
// configuration and the number of steps, but not on the content of records. States of newton are left out, because
// their content follows from its releases.
func TestStateSizes(t *testing.T) {
	t.Parallel()
	all := maps.Clone(measured)
	maps.Copy(all, protecting)
	delete(all, "sgd, newton")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sizes := func(row func(i int) []float64) (all []int) {
			s := protected(t, tableOf(name), "replace", "")
			mech, err := NewMechanism(s, nil, nil)
			must(t, err)
			keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "orders", 1, [16]byte{3}, [32]byte{4})
			must(t, err)
			m := &Manifest{Format: ManifestFormat, Stream: "orders", Epoch: 1, Source: Source{"cluster", "orders", 0},
				Cost: mech.Cost(), Mechanism: mech.Name}
			c, err := New(s, m, []byte("manifest"), mech, keys)
			must(t, err)
			for i := int64(0); i < 24; i++ {
				c.Add(i, row(int(i)))
				if i+1 == c.End() {
					_, err := c.Close()
					must(t, err)
				}
				state, err := c.AppendState(nil)
				must(t, err)
				all = append(all, len(state))
			}
			return all
		}
		width := 2
		if name == "adam, gradients" {
			width = 1
		}
		some := sizes(func(i int) []float64 { return slices.Repeat([]float64{math.Sin(float64(i))}, width) })
		for _, other := range []func(int) []float64{
			func(int) []float64 { return nil },
			func(int) []float64 { return slices.Repeat([]float64{math.NaN()}, width) },
			func(int) []float64 { return slices.Repeat([]float64{1e300}, width) },
		} {
			if got := sizes(other); !slices.Equal(got, some) {
				t.Errorf("%s: states of %v bytes, but of %v bytes with other records", name, some, got)
			}
		}
	}
}

func tableOf(name string) string {
	if t, ok := measured[name]; ok {
		return t
	}
	return protecting[name]
}
