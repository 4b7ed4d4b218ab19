package monitor_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestCensus: a positive verdict is given only once released numbers allow it, and becomes negative when they do not
// allow it any more.
func TestCensus(t *testing.T) {
	t.Parallel()
	for _, workload := range []string{"mean", "exponential", "window"} {
		c := &monitor.ValidityCheck{Workload: workload, Decay: 0.9, Window: 10}
		share := []float64{}
		counted := func(step int) (v float64) {
			for i := range step {
				switch age := step - 1 - i; {
				case workload == "mean":
					v += 100 * share[i]
				case workload == "exponential":
					v += 100 * share[i] * math.Pow(0.9, float64(age))
				case age < 10:
					v += 100 * share[i]
				}
			}
			return v
		}
		take := func(n int, s float64) (few bool) {
			for range n {
				share = append(share, s)
				few = c.Take(uint64(len(share)),
					core.Shares{Rows: 100, Valid: &core.Count{Value: counted(len(share)), SE: 5}})
			}
			return few
		}
		for _, phase := range []struct {
			steps int
			share float64
			few   bool
		}{{1, 0, false}, {60, 0, true}, {60, 1, false}, {80, 0.05, true}, {80, 0.3, false}, {80, 0, true}} {
			if got := take(phase.steps, phase.share); got != phase.few {
				t.Errorf("%s: after %d steps in which a share of %g counts: %v", workload, phase.steps,
					phase.share, got)
			}
		}
	}
	// The steps of another process do not count against this one.
	c := &monitor.ValidityCheck{Workload: "mean"}
	for step := uint64(1000); step < 1100; step++ {
		if c.Take(step, core.Shares{Rows: 100, Valid: &core.Count{Value: float64(step * 100), SE: 5}}) {
			t.Fatal("few, though all count")
		}
	}
	full := func(v, se float64) bool {
		return new(monitor.ValidityCheck).Take(1, core.Shares{Full: &core.Count{Value: v, SE: se}})
	}
	for _, f := range []struct {
		v, se float64
		few   bool
	}{{0, 0.01, true}, {0, 0.1, false}, {0.2, 0.01, false}, {-0.01, 0.04, true}} {
		if full(f.v, f.se) != f.few {
			t.Errorf("full_share %g ± %g", f.v, f.se)
		}
	}
	// For persons, few records may legitimately count; the share under the weights shows whether none does.
	persons := monitor.NewValidityCheck(&config.Stream{User: new(config.User)})
	for _, f := range []struct {
		v, se float64
		few   bool
	}{{0, 0.01, false}, {0.001, 0.001, true}, {0.003, 0.0011, true}, {0.0041, 0.001, false}, {-0.001, 0.0005, true},
		{0.002, 0.0004, false}} {
		s := core.Shares{Rows: 100, Valid: &core.Count{}, Full: &core.Count{},
			Counted: &core.Count{Value: f.v, SE: f.se}}
		if persons.Take(1, s) != f.few {
			t.Errorf("counted_share %g ± %g", f.v, f.se)
		}
	}
	if s, _ := core.SharesOf(
		[]byte(
			`{"schema":"streamdp.release.v1","values":{"counted_share":{"shape":[1],"data":[0.5],"se":0.25}}}`)); s.Counted == nil || *s.Counted != (core.Count{Value: 0.5, SE: 0.25}) {
		t.Errorf("parsed %+v", s)
	}
	for _, value := range []string{
		`{}`, `null`, `{"schema":"streamdp.release.v1","rows":3,"values":{"valid_count":{"data":[1,2],"se":1}}}`,
		`{"schema":"streamdp.release.v1","values":{"valid_count":{"data":"AA","se":1}}}`,
	} {
		if s, _ := core.SharesOf([]byte(value)); s.Valid != nil {
			t.Errorf("%s has a valid_count", value)
		}
	}
	if s, ok := core.SharesOf(
		fmt.Append(nil,
			`{"schema":"streamdp.release.v1","rows":3,"values":{"full_share":{"shape":[1],"data":[0.5],"se":0.25}}}`)); !ok || s.Rows != 3 || *s.Full != (core.Count{Value: 0.5, SE: 0.25}) {
		t.Errorf("parsed %+v", s)
	}
}
