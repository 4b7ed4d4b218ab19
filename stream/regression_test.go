package stream_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/sgd"
	"github.com/streamdp/streamdp/stream/failure"
)

// killRegression is killStream with a regression, whose steps have the same offsets; the first step is a search.
var killRegression = fixtures.With(fixtures.OrdersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"weight\"\nclip_x = 2.0\nradius = 5.0\n"+
		"amb = { curvature = 1.0, batch = 20, bootstrap = 20 }\n")

// TestKillRegression kills a daemon whose mechanism adapts to its releases. If a step were repeated with other noise,
// all later releases would change.
func TestKillRegression(t *testing.T) {
	t.Parallel()
	const seed = 25
	kills := killsOf(10, 60)
	r := streamtest.NewRig(t, killRegression)
	f := feedOn(r)
	killLoop(t, r, specOf(r, "daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.History("orders.dp")
	v.Equals(t, r.Uninterrupted(steps))
	t.Logf("%d kills, %d steps, %d releases published again", kills, v.Steps, v.Duplicates)
	if v.Steps != steps || steps < 100 || len(v.Bytes) != int(steps)-1 {
		t.Errorf("%d releases of %d steps", len(v.Bytes), steps)
	}
}

// killNewton is killRegression with the default method, and a budget that keeps its steps short.
var killNewton = fixtures.With(fixtures.OrdersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.sgd]\ntarget = \"weight\"\nclip_x = 2.0\n",
	"epsilon = 1.0", "epsilon = 40.0", "limit_epsilon = 3.0", "limit_epsilon = 50.0")

// TestKillNewton is TestKillRegression with steps of different lengths, searches before them, and ends of epochs in
// between.
func TestKillNewton(t *testing.T) {
	t.Parallel()
	const seed = 26
	kills := killsOf(12, 60)
	r := streamtest.NewRig(t, killNewton)
	f := feedOn(r)
	killLoop(t, r, specOf(r, "daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	s := r.Options().Config.Stream("orders")
	e, err := sgd.NewNewton(*s.SGD, s.Params())
	if err != nil {
		t.Fatal(err)
	}
	p, end := e.Plan(), stepsOf(r, 1)
	iterations := uint64(0)
	for p.Course(iterations+1).Slots <= end {
		iterations++
	}
	steps := iterations + p.Searches()
	finish(r, steps)
	v := r.History("orders.dp")
	v.Equals(t, r.Uninterrupted(steps))
	t.Logf("%d kills, %d releases, to epoch %d; %d releases published again", kills, len(v.Bytes),
		p.Course(iterations).Epoch, v.Duplicates)
	if v.Steps != steps || len(v.Bytes) != int(iterations) || p.Course(iterations).Epoch < 2 {
		t.Errorf("%d releases of %d steps, want %d", len(v.Bytes), v.Steps, iterations)
	}
}

// TestRegressionDiverges: a task halts if its targets are unbounded. The reason says what to change, and reveals
// nothing about the records.
func TestRegressionDiverges(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.With(killRegression, "batch = 20,", "batch = 200,"))
	var values [][]byte
	for range 25_000 {
		values = append(values, []byte(`{"amount": 41, "items": 5, "weight": 7.16283e99}`))
	}
	r.Send(values...)
	x := r.Start()
	status := x.Halts(failure.Mechanism, "the clip norm has been near its upper bound for 64 steps", "curvature")
	if strings.Contains(fmt.Sprint(status), "7.16") {
		t.Errorf("the status reveals a record: %+v", status)
	}
	x.End()
}
