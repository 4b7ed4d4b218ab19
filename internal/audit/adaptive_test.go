package audit_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
)

// descent is a minimal adaptive mechanism: gradient descent towards the mean, with a clip norm that follows a noisy
// quantile of the gradients' norms. It finds the quantile by bisection in a histogram. Its computations depend on its
// releases.
type descent struct {
	state struct {
		Theta [2]float64
		Clip  float64
		Step  uint64
	}
	sum   []int64
	bins  []int64
	asked int // the rung of the bisection's current question
	fault string
}

const (
	descentK  = 1 << 24 // lattice units of a gradient with the clip norm
	rungs     = 8
	gradient  = 0.5 // shares of μ; the noise is K/gradient and 1/count
	count     = 0.4
	countUnit = 1 << 20
)

func newDescent(fault string) *audit.Subject {
	m := &descent{fault: fault, sum: make([]int64, 2), bins: make([]int64, rungs)}
	m.state.Clip = 1
	return &audit.Subject{
		Mechanism: m, Mu: math.Hypot(gradient, count),
		Array: func(name string, _ uint64) (audit.Array, bool) {
			switch name {
			case "descent/grad":
				return audit.Array{Deviations: []float64{descentK / gradient}}, true
			case "descent/count":
				// The array asks three questions, each about the bins up to one rung.
				return audit.Array{Deviations: []float64{countUnit * math.Sqrt(3) / count},
					Signal: func(_ int, hidden []int64) int64 {
						var n int64
						for _, b := range hidden[:m.asked] {
							n += b
						}
						return n * countUnit
					}}, true
			}
			return audit.Array{}, false
		},
	}
}

func (m *descent) Columns() int                       { return 2 }
func (m *descent) Range(t uint64) (first, end uint64) { return 4 * (t - 1), 4 * t }

func (m *descent) Add(_ uint64, x []float64) {
	if x == nil {
		return
	}
	g := []float64{m.state.Theta[0] - x[0], m.state.Theta[1] - x[1]}
	norm := math.Hypot(g[0], g[1])
	clip := m.state.Clip
	if m.fault == "clipped to twice the norm" {
		clip *= 2
	}
	scale := math.Min(1, clip/norm) / m.state.Clip
	for j := range g {
		m.sum[j] += int64(g[j] * scale * descentK)
	}
	rung := int(math.Max(0, math.Min(rungs-1, math.Ceil(math.Log2(norm)+4))))
	m.bins[rung]++
}

func (m *descent) Close(n dp.Noise) (*dp.Release, error) {
	m.state.Step++
	w := make([]int64, 2)
	dp.RoundRow(w, n.Row("descent/grad", m.sum), []float64{descentK / gradient}, nil, 1)
	total := int64(0)
	for _, b := range m.bins {
		total += b
	}
	step := 0.1 * m.state.Clip / 4
	if m.fault == "divided by the number of valid records" {
		step = 0.1 * m.state.Clip / math.Max(1, float64(total))
	}
	for j := range w {
		m.state.Theta[j] -= step * float64(m.sum[j]+w[j]) / descentK
	}
	row := n.Row("descent/count", m.bins)
	lo, hi := 0, rungs-1
	for k := 0; lo < hi; k++ {
		m.asked = (lo+hi)/2 + 1
		var below int64
		for _, b := range m.bins[:m.asked] {
			below += b
		}
		noisy := float64(below)
		if m.fault != "exact counts" {
			noisy += float64(dp.RoundAt(row, k, countUnit*math.Sqrt(3)/count)) / countUnit
		}
		if noisy >= 2 {
			hi = m.asked - 1
		} else {
			lo = m.asked
		}
	}
	m.state.Clip = math.Exp2(float64(lo) - 4)
	m.sum, m.bins = make([]int64, 2), make([]int64, rungs)
	return &dp.Release{Step: m.state.Step,
		Values: []dp.Value{{Name: "theta", Data: m.state.Theta[:]}, {Name: "clip", Data: []float64{m.state.Clip}}}}, nil
}

func (m *descent) AppendBinary(b []byte) ([]byte, error) {
	return binary.Append(b, binary.LittleEndian, m.state)
}

func (m *descent) UnmarshalBinary(b []byte) error {
	m.sum, m.bins = make([]int64, 2), make([]int64, rungs)
	return binary.Read(bytes.NewReader(b), binary.LittleEndian, &m.state)
}

// TestCouplingAdaptive audits an adaptive mechanism by coupling; under the same noise, the neighbour would behave
// differently. The distance must be at most the mechanism's μ, although computations after the differing record depend
// on it. Each planted fault must be detected.
func TestCouplingAdaptive(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 3))
	base := make(audit.Stream, 40)
	for t := range base {
		for range 4 {
			base[t] = append(base[t], []float64{3 + source.NormFloat64(), source.NormFloat64()})
		}
	}
	for _, c := range []struct{ fault, found string }{
		{"", ""},
		{"exact counts", "differ"},
		{"divided by the number of valid records", "differ"},
		{"clipped to twice the norm", "μ"},
	} {
		t.Run("fault="+c.fault, func(t *testing.T) {
			s := newDescent(c.fault)
			var top float64
			var errs error
			for at := range base {
				for _, x := range [][]float64{{1e3, 0}, {3, 0}, {3.01, -0.3}, {-5, 7}} {
					distance, err := s.Coupling(base.Replace(at, 1, x), base.Replace(at, 1, nil),
						audit.NewKeys([32]byte{byte(at)}))
					errs = errors.Join(errs, err)
					top = max(top, distance/s.Mu)
				}
			}
			switch {
			case c.fault == "" && (errs != nil || !(top <= 1+1e-9)):
				t.Errorf("%.9g of μ: %v", top, errs)
			case c.found == "μ" && !(top > 1.3):
				t.Errorf("only %.9g of μ", top)
			case c.found == "differ" && (errs == nil || !strings.Contains(errs.Error(), "differ")):
				t.Errorf("the releases are equal: %v", errs)
			}
			t.Logf("%.4f of μ", top)
		})
	}
}

// TestNullPairs: a quick audit uses only the first pairs, so a record compared with no record must be among them: only
// this pair reveals a count of null records.
func TestNullPairs(t *testing.T) {
	t.Parallel()
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		if p := audit.NullPairs(2, 3, a)[0]; len(p.X) != 3 || p.Y != nil {
			t.Errorf("%s: the first pair is %v and %v", a, p.X, p.Y)
		}
	}
}
