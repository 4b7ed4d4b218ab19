package refit

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// extremes returns windows that are hard for floating-point arithmetic.
func extremes() map[string][][]float64 {
	const huge, tiny = math.MaxFloat64, 5e-324
	inf, nan, zero := math.Inf(1), math.NaN(), math.Copysign(0, -1)
	source := rand.New(rand.NewPCG(18, 19))
	mixed := make([][]float64, 120)
	for i := range mixed {
		row := make([]float64, 3)
		for j := range row {
			row[j] = math.Ldexp(2*source.Float64()-1, source.IntN(2098)-1074)
		}
		mixed[i] = row
	}
	return map[string][][]float64{
		"one record":          {{1, 2, 3}},
		"nulls":               slices.Repeat([][]float64{nil}, 120),
		"no numbers":          slices.Repeat([][]float64{{inf, 1, 2}, {1, nan, 2}, {1, 2, -inf}, {1, 2}, nil}, 24),
		"zeros":               slices.Repeat([][]float64{{0, 0, 0}, {zero, zero, zero}}, 60),
		"a target alone":      slices.Repeat([][]float64{{0, 1, 0}}, 120),
		"equal records":       slices.Repeat([][]float64{{huge, -huge, huge}}, 120),
		"equal columns":       slices.Repeat([][]float64{{1, 1, 1}, {-1, -1, -1}}, 60),
		"denormals":           slices.Repeat([][]float64{{tiny, -tiny, tiny}, {tiny, tiny, 0}}, 60),
		"a hair and a rock":   slices.Repeat([][]float64{{tiny, huge, 0}, {0, -huge, tiny}, {huge, tiny, 0}}, 40),
		"all sizes":           mixed,
		"one among the nulls": append([][]float64{{huge, huge, -huge}}, slices.Repeat([][]float64{nil}, 119)...),
	}
}

// TestExtremeWindows closes windows that are hard for arithmetic, with large noise and with almost none. None may cause
// a panic or an error, which would stop the daemon. Only the empty window may lack a finite solution.
func TestExtremeWindows(t *testing.T) {
	t.Parallel()
	windows := extremes()
	for name, c := range configs() {
		for _, eps := range []float64{0.05, 50} {
			p := generous
			p.Epsilon = eps
			r, err := New(c, p)
			if err != nil {
				t.Logf("%s at %g: %v", name, eps, err)
				continue
			}
			e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, name, 1, [16]byte{}, [32]byte{})
			if err != nil {
				t.Fatal(err)
			}
			h := dp.NewTranscript([32]byte{})
			step := uint64(0)
			for _, what := range slices.Sorted(maps.Keys(windows)) {
				step++
				for i, row := range windows[what] {
					r.Add((step-1)*c.Window+uint64(i), row)
				}
				h.AbsorbRecords(uint64(len(windows[what])))
				release, err := r.Close(e.Step(step, &h))
				if err != nil || release.Failed != "" {
					t.Errorf("%s at %g, %s: %v %v", name, eps, what, release, err)
					continue
				}
				for _, v := range release.Values {
					if !vector.Finite(v.Data) {
						t.Errorf("%s at %g, %s: %s is %g", name, eps, what, v.Name, v.Data)
					}
				}
			}
		}
	}
}

// TestProcessors checks that releases have the same bits on any number of processors.
func TestProcessors(t *testing.T) {
	const n, d = 9000, 6
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	rows := make([][]float64, n)
	source := rand.New(rand.NewPCG(20, 21))
	for i := range rows {
		rows[i] = make([]float64, d)
		for j := range rows[i] {
			rows[i][j] = source.NormFloat64()
		}
	}
	columns := make([]string, d)
	for j := range columns {
		columns[j] = fmt.Sprint(j)
	}
	for name, c := range configs() {
		c.Columns, c.Target, c.Window, c.Centre, c.Scale = columns, "1", n, nil, nil
		var first *dp.Release
		for _, processors := range []int{1, 2, 7} {
			runtime.GOMAXPROCS(processors)
			r := mustRefit(t, c, dp.Params{Epsilon: 2, Delta: 1e-5, Adjacency: dp.ZeroOut})
			e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, name, 1, [16]byte{}, [32]byte{})
			if err != nil {
				t.Fatal(err)
			}
			h := dp.NewTranscript([32]byte{})
			release := closeWindow(t, r, rows, e.Step(1, &h))
			if first == nil {
				first = release
			}
			if !reflect.DeepEqual(first, release) {
				t.Errorf("%s: %d processors release %v, one %v", name, processors, release, first)
			}
		}
	}
}
