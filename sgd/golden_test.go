package sgd

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestGolden pins every bit of plans, releases and states, on every architecture and permanently: another version must
// be able to continue an epoch that one version began. Numbers of the plan that come from logarithms and quantiles are
// replaced, because their last bits differ on other processors, and an epoch keeps the numbers of its plan.
func TestGolden(t *testing.T) {
	t.Parallel()
	h := sha256.New()
	number := func(x float64) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], math.Float64bits(x))
		h.Write(b[:])
	}
	all := variants()
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		c := all[name]
		c.Defaults()
		p := params(dp.Adjacency(1 + i%2))
		plan, factor, err := resolveAMB(&c, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Jump > 0 {
			plan.Jump = 1.75
		}
		for n := range plan.Student {
			if plan.Student[n] > 0 {
				plan.Student[n] = 2 + 4/float64(n)
			}
		}
		e, err := buildAMB(c, p, *plan, factor)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(e.Plan())
		if err != nil {
			t.Fatal(err)
		}
		h.Write(text)
		noise := keyed(t, byte(i))
		rows := records(uint64(i), 40000)
		for step := uint64(1); step <= 500; step++ {
			r := closeStep(t, e, rows, noise(step))
			if r == nil {
				continue
			}
			for _, v := range r.Values {
				h.Write([]byte(v.Name))
				for _, x := range slices.Concat(v.Data, v.SE) {
					number(x)
				}
			}
		}
		h.Write(estimatortest.State(t, e))
	}
	const want = "732d26e18c48a4a3c688067ca91ba026"
	if got := hex.EncodeToString(h.Sum(nil)[:16]); got != want {
		t.Errorf("the hash is %s, want %s", got, want)
	}
}

// TestNewtonGolden pins every bit of releases and states of Newton, like TestGolden.
func TestNewtonGolden(t *testing.T) {
	t.Parallel()
	states := sha256.New()
	for i, name := range slices.Sorted(maps.Keys(newtonLogs(false))) {
		intercept := i%2 == 0
		log := newtonLogs(intercept)[name]
		c := Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept, Radius: 50}
		c.Defaults()
		p := dp.Params{Mu: newtonMu, Adjacency: dp.Adjacency(1 + i%2)}
		plan, factor, err := resolveNewton(&c, p)
		if err != nil {
			t.Fatal(err)
		}
		// Numbers from logarithms, powers and quantiles have different last bits on other processors.
		for k := range plan.Jumps {
			plan.Jumps[k] = 1.5
		}
		for n := range plan.Student {
			if plan.Student[n] > 0 {
				plan.Student[n] = 2 + 4/float64(n)
			}
		}
		e, err := buildNewton(c, p, *plan, factor)
		if err != nil {
			t.Fatal(err)
		}
		noise, h := keyed(t, byte(i)), sha256.New()
		for e.slots < 11000 {
			r := e.feed(t, log, noise(e.step+1))
			if r == nil {
				continue
			}
			for _, v := range r.Values {
				h.Write([]byte(v.Name))
				for _, x := range slices.Concat(v.Data, v.SE) {
					var b [8]byte
					binary.LittleEndian.PutUint64(b[:], math.Float64bits(x))
					h.Write(b[:])
				}
			}
		}
		if got := hex.EncodeToString(h.Sum(nil)[:8]); got != newtonGolden[name] {
			t.Errorf("intercept %t, %q: %q,", intercept, name, got)
		}
		states.Write(estimatortest.State(t, e))
	}
	if got := hex.EncodeToString(states.Sum(nil)[:16]); got != newtonGolden["states"] {
		t.Errorf("\"states\": %q,", got)
	}
}

// newtonGolden holds the first bytes of hashes: one of the releases for each log, and one of all states.
var newtonGolden = map[string]string{
	"drift":               "556c15e412caef4d",
	"few records":         "7b197ab52f7e10ae",
	"hard restart":        "c21ff225d0293301",
	"none":                "650607d7baffb2ed",
	"one target for most": "9bb31d3c1ef7d40e",
	"records later":       "7c9fe222897743f4",
	"states":              "337b211ac260343b6698b83826e4779b",
}
