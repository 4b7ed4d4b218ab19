package stream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// autoStream is a stream that finds all bounds from 1500 offsets. With ε = 8 half of them suffice.
func autoStream(mode string) string {
	return fixtures.With(fixtures.OrdersStream, "centre = [40.0, 3.0, 1.2]", `centre = "auto"`,
		"scale  = [80.0, 5.0, 2.0]", `scale = "auto"`,
		"clip = 1.0", `clip = "auto"`, "epsilon = 1.0", "epsilon = 8.0", "limit_epsilon = 3.0", "limit_epsilon = 30.0",
		"step   = 100",
		fmt.Sprintf("step = 100\nwarmup = %d\nwarmup_mode = %q",
			map[string]int{"buffer": 1500, "split": 3000}[mode], mode))
}

// warm holds the parts of a release that tests read. A warm-up has found the stream's bounds.
type warm struct {
	fixtures.Release
	Centre []any
	Warmup []struct {
		Stage, Verdict, Reason string
		Records, Needed        float64
	}
	Bounds *struct {
		Verdict       string
		Centre, Scale []float64
		Clip          float64
	}
}

// TestWarmup: the warm-up's releases come first, in one step or in five. Later releases repeat the bounds that were
// found, and give values in original units. All conform to the published schema. A daemon that is killed again and
// again publishes the same bytes.
func TestWarmup(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"buffer", "split"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, autoStream(mode))
			r.Produce(0, 6050)
			steps, parts := uint64(1+45), uint64(1)
			if mode == "split" {
				steps, parts = 5+30, 5
			}
			kills := 6
			if os.Getenv("STREAMDP_SLOW") != "" {
				kills = 60
			}
			rng := rand.New(rand.NewPCG(61, parts))
			spec := specOf(r, "daemon", 16<<10)
			for range kills {
				p := streamtest.Spawn(t, spec).Up()
				// The kill comes at a random moment.
				time.Sleep(time.Duration(rng.IntN(60_000)) * time.Microsecond)
				p.Kill()
			}
			finish(r, steps)
			v := r.History("orders.dp")
			v.Equals(t, r.Uninterrupted(steps))
			if v.Steps != steps {
				t.Fatalf("%d steps, want %d", v.Steps, steps)
			}
			var stages []string
			for step := uint64(1); step <= steps; step++ {
				p := v.ByKey[fmt.Sprintf("orders/0/1/%d", step)]
				fixtures.Conforms(t, p.Value)
				var x warm
				if err := json.Unmarshal([]byte(p.Value), &x); err != nil {
					t.Fatal(err)
				}
				for _, s := range x.Warmup {
					stages = append(stages, s.Stage)
					if s.Verdict != "ok" {
						t.Fatalf("stage %+v", s)
					}
				}
				if (step <= parts) != (len(x.Warmup) > 0) || (step <= parts) != (len(x.Values) == 0) ||
					(step <= parts) != (x.Bounds == nil) {
					t.Fatalf("step %d: %s", step, p.Value)
				}
				if x.Centre[0] != "auto" {
					t.Errorf("centre %v", x.Centre)
				}
				if step < steps {
					continue
				}
				// Amounts are 20.25 … 79.25, items 1 … 7, all alike.
				mean := x.Values["mean_original"].Data
				if !(mean[0] > 35 && mean[0] < 65 && mean[1] > 3 && mean[1] < 5 && mean[2] > 0.3 && mean[2] < 0.6) {
					t.Errorf("means %v, bounds %+v", mean, x.Bounds)
				}
				if !(x.Bounds.Clip > 0.5 && x.Bounds.Clip < 10) {
					t.Errorf("bounds %+v", x.Bounds)
				}
			}
			if got := strings.Join(stages, " "); got != "A1 A2 A3 A4 B" {
				t.Errorf("stages %s", got)
			}
		})
	}
}

// TestWarmupFails: if a warm-up has too few valid records, the epoch ends, also if epochs roll over, and is charged
// only for its offsets. The warm-up's release says how many records it needed. A restart changes nothing.
func TestWarmupFails(t *testing.T) {
	t.Parallel()
	for mode, text := range map[string]string{
		"buffer": autoStream("buffer"),
		"split":  autoStream("split"),
		"refit":  autoRegressions["refit"],
		"adam":   autoRegressions["adam"],
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t,
				fixtures.With(text, "warmup = ", "horizon = 1000\non_horizon = \"rollover\"\nwarmup = "))
			values := make([][]byte, 5000)
			for i := range values {
				values[i] = []byte(`{"amount": 1}`)
			}
			r.Send(values...)
			x0 := r.Start()
			if err := x0.Ends(); !errors.Is(err, failure.ErrNothing) ||
				!strings.Contains(err.Error(), "the warm-up of epoch 1 of orders-0 found no bounds") {
				t.Errorf("the daemon ended with %v", err)
			}
			if s := x0.D.Status()[0]; s.Verdict != "fail" || s.State != monitor.StateClosed {
				t.Errorf("state %s, verdict %q", s.State, s.Verdict)
			}
			end := int64(1500)
			if mode == "split" {
				end = 360 // the records of stage A1
			}
			entries := r.Entries()
			if got := r.Kinds(); got != "open close key-destroyed" || entries[1].Reason != "warmup" ||
				entries[1].End != end {
				t.Errorf("ledger: %s, %+v", got, entries[1])
			}
			v := r.History("orders.dp")
			p := v.ByKey["orders/0/1/1"]
			fixtures.Conforms(t, p.Value)
			var x warm
			if err := json.Unmarshal([]byte(p.Value), &x); err != nil {
				t.Fatal(err)
			}
			if v.Steps != 1 || len(x.Warmup) != 1 || x.Warmup[0].Verdict != "fail" || x.Warmup[0].Stage != "A1" ||
				!(x.Warmup[0].Records < x.Warmup[0].Needed) || x.Offsets != [2]int64{0, end} {
				t.Errorf("%d releases, %s", v.Steps, p.Value)
			}
			if err := r.Start().Ends(); !errors.Is(err, failure.ErrNothing) {
				t.Errorf("a second run ended with %v", err)
			}
		})
	}
}

// TestWarmupStatus: while the warm-up waits for records, the status says how many are still to come.
func TestWarmupStatus(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, autoStream("buffer"))
	r.Produce(0, 1100)
	x := r.Start()
	x.Until("the warm-up waits", func(s monitor.TaskStatus) bool {
		return strings.HasPrefix(s.Message,
			"the warm-up takes the first 1500 records of the epoch; 400 are still to come")
	})
	r.Produce(1100, 500)
	x.Until("its end", func(s monitor.TaskStatus) bool { return s.NextOffset == 1600 && s.Message == "" })
	x.End()
}
