package sgd

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestGains checks the gains. Before the first matrix there are none. After it, a step without noise goes as far as the
// ridge in the matrix requires, and a step that may be mere noise goes half of the way. In between, each gain has the
// smallest expected error of all gains near it.
func TestGains(t *testing.T) {
	t.Parallel()
	e := eventfulNewton(t, dp.ZeroOut, true)
	log := eventful(true)
	step := make([]float64, len(e.w))
	for e.epoch < 2 || e.done < 3 {
		e.feed(t, log, dptest.Seeded(5))
		if gains := e.gains(e.recent(true)); e.phase == descent && e.epoch == 0 && gains != nil {
			t.Fatal("gains without a matrix")
		}
	}
	e.white.Share = []float64{0.3, 0.7, 0.95}
	recent := e.recent(true)
	slots := recent.slots()
	// give sets the whitened step to v, along the eigenvectors.
	give := func(v []float64) []float64 {
		for j := range step {
			step[j] = 0
			for k, x := range v {
				step[j] += e.white.Vectors[j*len(v)+k] * x * slots
			}
		}
		for i := range recent {
			clear(recent[i].u)
		}
		e.white.Unapply(recent[0].u, step)
		return e.gains(recent)
	}
	noise := 0.0
	{
		p := &e.plan
		b := p.batch(e.epoch)
		steps := int(slots / float64(b))
		privacy := p.GradientNoise / p.One * e.zeta / slots
		scatter := countedPart * e.zeta
		noise = privacy*privacy*windowNoise(p.Factorization.Bands, steps) + scatter*scatter/slots/float64(len(e.w))
	}
	for _, f := range give([]float64{0, 0, 0}) {
		if f != 0.5 {
			t.Errorf("without signal a gain is %g", f)
		}
	}
	for _, size := range []float64{1e6, 30, 3} {
		v := size * math.Sqrt(noise)
		gains := give([]float64{v, -v, v})
		var shares float64
		for _, h := range e.white.Share {
			shares += h * h
		}
		missed := 3 * (v*v - noise) / shares // δ² of each coordinate
		for i, h := range e.white.Share {
			r := 0.3 * math.Sqrt(3/e.weight) / (e.white.Scale[i] * e.white.Scale[i])
			risk := func(f float64) float64 { return (1-f*h)*(1-f*h)*missed + f*f*(r*r*missed+noise) }
			if f := gains[i]; f < 0.5 || f > 0.5 && (risk(f) > risk(f*1.001) || risk(f) > risk(f*0.999)) ||
				f == 0.5 && risk(f) > risk(0.501) {
				t.Errorf("a step of %g deviations, h = %g: the gain is %g", size, h, f)
			}
		}
	}
}
