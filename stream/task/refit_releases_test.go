package task

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
)

// TestRefitReleases checks the releases of refits: values, guarantee, solver, accounting, and the window's offsets
// without the records between windows.
func TestRefitReleases(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	log, _ := fixtures.RandomLog(rng, 200)
	m := newMachine(t, fixtures.MachineRefits[1], 1).all(log, 200)
	for step, first := range map[uint64]int64{1: 0, 2: 45, 4: 135} {
		p := fixtures.Published{Key: "k", Value: string(m.releases[step].Value)}
		rel := p.Parse(t)
		in := uint64(0)
		for _, rec := range log {
			if rec.Offset >= first && rec.Offset < first+30 {
				in++
			}
		}
		if rel.Offsets != [2]int64{first, first + 30} || rel.Rows != in {
			t.Errorf("step %d: %d rows of %v, want %d of [%d, %d)", step, rel.Rows, rel.Offsets, in, first, first+30)
		}
		if theta := rel.Values["theta"]; len(theta.Data) != 2 || len(rel.Values) != 2 ||
			len(rel.Values["theta_original"].Data) != 2 {
			t.Errorf("step %d: values %v", step, rel.Values)
		}
	}
	said := func(toml string, words ...string) {
		t.Helper()
		m := newMachine(t, toml, 1).all(log, 200)
		for _, w := range words {
			if text := string(m.releases[1].Value); !strings.Contains(text, w) {
				t.Errorf("a release without %s: %s", w, text)
			}
		}
	}
	said(fixtures.MachineRefits[0],
		`"mechanism":{"name":"refit","method":"newton","target":"b","intercept":true,"clip_y":4,"window":20}`,
		`"accounting":"exact"`,
		`"finite_precision":"exact"`, `Finite precision: exact (lattice).`, `"intercept":{"shape":[1]`,
		"Standard errors are approximate")
	said(fixtures.MachineRefits[2], `"method":"ihm"`, `"iterations":3`, `"gamma":`, `"finite_precision":"not proven"`,
		`not proven (sketch)`, `"eta":`)
	said(fixtures.MachineRefits[4], `"accounting":"rdp"`, `"transforms":1`,
		`with respect to replacing one record by a null record`)

	// If a window has no record, its release says so, and the next release is normal.
	var late []kafka.Record
	for _, rec := range log {
		if rec.Offset >= 20 {
			late = append(late, rec)
		}
	}
	m = newMachine(t, fixtures.MachineRefits[0], 1).all(late, 200)
	first, second := string(m.releases[1].Value), string(m.releases[2].Value)
	if !strings.Contains(first, `"rows":0,"offsets":[0,20]`) ||
		!strings.Contains(first, `"failed":"no solution was found","values":{}`) {
		t.Errorf("a window without a record: %s", first)
	}
	if strings.Contains(second, "failed") || !strings.Contains(second, `"theta":`) {
		t.Errorf("the window after it: %s", second)
	}
	fixtures.Conforms(t, first)
}

// TestRefitTruth feeds a linear relation with little noise: every window must give the coefficients in original units.
func TestRefitTruth(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.RefitOf("window = 3000"), "epsilon = 1.0", "epsilon = 20", "limit_epsilon = 3.0",
		"limit_epsilon = 50")
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 9000
	var log []kafka.Record
	for i := range n {
		rec := kafka.Record{Offset: int64(i)}
		if i%10 == 3 {
			rec.Value = fixtures.BadValues[i/10%len(fixtures.BadValues)]
		} else {
			a, c := 1+rng.NormFloat64()/2, -2+1.5*rng.NormFloat64()
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, a, 2*a-c-3.5+0.4*rng.NormFloat64(), c)
		}
		log = append(log, rec)
	}
	m := newMachine(t, toml, 1).all(log, n)
	for step := uint64(1); step <= 3; step++ {
		p := fixtures.Published{Key: "k", Value: string(m.releases[step].Value)}
		rel := p.Parse(t)
		got := append(slices.Clone(rel.Values["theta_original"].Data), rel.Values["intercept_original"].Data...)
		for j, want := range []float64{2, -1, -3.5} {
			if len(got) != 3 || math.Abs(got[j]-want) > 0.1 {
				t.Errorf("window %d: coefficients %.3g, want 2, -1, -3.5", step, got)
				break
			}
		}
	}
}
