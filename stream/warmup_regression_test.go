package stream_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/sgd"
	"github.com/streamdp/streamdp/stream/core"
)

// autoRegression is a regression of amount that finds its bounds from 1500 offsets.
func autoRegression(table string, replace ...string) string {
	return fixtures.With(
		fixtures.With(autoStream("buffer"), "step = 100\n", "", "epsilon = 8.0", "epsilon = 40.0",
			"limit_epsilon = 30.0", "limit_epsilon = 90.0",
			"[stream.orders.moments]\nclip = \"auto\"\n",
			"[stream.orders."+table+"\ntarget = \"amount\"\nclip_x = \"auto\"\n"), replace...)
}

var autoRegressions = map[string]string{
	"sgd":   autoRegression("sgd]"),
	"refit": autoRegression("refit]\nwindow = 250\nclip_y = \"auto\""),
	"adam": fixtures.With(autoStream("buffer"), "step = 100\n", "step = 250\n",
		"[stream.orders.moments]\nclip = \"auto\"\n",
		"[stream.orders.adam]\nmode = \"model\"\nclip = 1.0\nrate = 0.01\n"+
			"model = { loss = \"linear\", target = \"amount\" }\n"),
}

// warmRegression holds the parts of a regression's release that tests read. A warm-up has found the bounds.
type warmRegression struct {
	fixtures.Release
	Warmup []struct{ Stage, Verdict, Reason string }
	Bounds *core.Bounds
}

// TestWarmupRegression: a daemon that is killed again and again, in the warm-up and after it, publishes the same bytes.
// The warm-up's release comes first, and later releases repeat the bounds that it found. All conform to the published
// schema.
func TestWarmupRegression(t *testing.T) {
	t.Parallel()
	for name, text := range autoRegressions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, text)
			r.Produce(0, 4010)
			steps := uint64(1 + 10)
			if name == "sgd" {
				s := r.Options().Config.Stream("orders").Standing()
				e, err := sgd.NewNewton(*s.SGD, s.Params())
				if err != nil {
					t.Fatal(err)
				}
				p := e.Plan()
				for steps = 0; p.Course(steps+1).Slots <= 4010-1500; steps++ {
				}
				steps += 1 + p.Searches()
			}
			kills := 6
			if os.Getenv("STREAMDP_SLOW") != "" {
				kills = 60
			}
			rng := rand.New(rand.NewPCG(62, uint64(len(name))))
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
			for step := uint64(1); step <= steps; step++ {
				p, ok := v.ByKey[fmt.Sprintf("orders/0/1/%d", step)]
				if !ok && name == "sgd" && step > 1 && step <= 4 {
					continue
				}
				fixtures.Conforms(t, p.Value)
				var x warmRegression
				if err := json.Unmarshal([]byte(p.Value), &x); err != nil {
					t.Fatal(err)
				}
				stages := 5
				if name == "adam" {
					stages = 4 // no stage finds bounds of rows
				}
				if (step == 1) != (len(x.Warmup) == stages) || (step == 1) != (x.Bounds == nil) ||
					(step == 1) != (len(x.Values) == 0) {
					t.Fatalf("step %d: %s", step, p.Value)
				}
				if step == 1 {
					continue
				}
				// Amounts are 20.25 … 79.25, items 1 … 7, weights about as far from 0 as from 1.
				if b := x.Bounds; !(b.Centre[0] > 35 && b.Centre[0] < 65 && b.Scale[0] > 10 && b.Scale[0] < 30 &&
					(b.ClipX > 1 && b.ClipX < 20 || name == "adam" && b.ClipX == 0) && b.Verdict == "ok") {
					t.Errorf("bounds %+v", b)
				}
			}
		})
	}
}
