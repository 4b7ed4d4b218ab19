package stream_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/monitor"
)

// killRefit is killStream with refits. After a kill, the open window is read again.
var killRefit = fixtures.With(fixtures.OrdersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 1.0\nwindow = 100\n")

// TestKillRefit kills a daemon in the middle of windows and of their refits. Every window has one release, which equals
// that of an uninterrupted run.
func TestKillRefit(t *testing.T) {
	t.Parallel()
	const seed = 26
	kills := killsOf(8, 40)
	r := streamtest.NewRig(t, killRefit)
	f := feedOn(r)
	killLoop(t, r, specOf(r, "daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	steps := stepsOf(r, 100)
	finish(r, steps)
	v := r.History("orders.dp")
	v.Equals(t, r.Uninterrupted(steps))
	t.Logf("%d kills, %d windows, %d releases published again", kills, v.Steps, v.Duplicates)
	if v.Steps != steps || steps < 20 {
		t.Errorf("%d releases of %d windows", len(v.Bytes), steps)
	}
}

// TestRefitShowsProgress: status and metrics show how far an open window has been read, also after a pause. An
// incomplete window is not part of a commit.
func TestRefitShowsProgress(t *testing.T) {
	t.Parallel()
	for _, commit := range []string{"20ms", "0s"} {
		t.Run(commit, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.With(killRefit, "window = 100\n", "window = 1000\n"))
			r.Commit = commit
			x := r.Start()
			for sent := int64(0); sent < 750; sent += 250 {
				r.Produce(int(sent), 250)
				x.Until("the records are read", func(s monitor.TaskStatus) bool { return s.NextOffset == sent+250 })
				if s := x.D.Status()[0]; s.Step != 0 || s.Lag != 0 {
					t.Errorf("step %d, lag %d after %d records of a window of 1000", s.Step, s.Lag, sent+250)
				}
				time.Sleep(20 * time.Millisecond) // until the owner sleeps
			}
			_, page := x.Get("/metrics")
			if !strings.Contains(page, "\nstreamdp_records_read_total{partition=\"0\",stream=\"orders\"} 750\n") {
				t.Errorf("metrics do not say that 750 records were read:\n%s", page)
			}
			r.Produce(750, 300)
			x.Published(1)
			x.Until("the rest is read", func(s monitor.TaskStatus) bool { return s.NextOffset == 1050 })
			x.End()
			x = r.Start() // from the last window's end
			x.Until("the open window is read again",
				func(s monitor.TaskStatus) bool { return s.NextOffset == 1050 && s.Step == 1 })
			x.End()
		})
	}
}

// beside returns a stream of moments and two streams of refits on one topic.
func beside(columns []string, target string, window int) string {
	list, err := json.Marshal(columns)
	if err != nil {
		panic(err)
	}
	stream := func(name, table string) string {
		return fmt.Sprintf(`
[stream.%s]
input  = { topic = "orders", codec = "json-array", columns = %s }
output = { topic = "%s.dp" }
%s[stream.%s.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 2.5
limit_delta = 1e-7
%s`, name, list, name, map[bool]string{true: "step = 500\n"}[name == "orders"], name, table)
	}
	refit := func(name, solver string) string {
		return stream(name,
			fmt.Sprintf("[stream.%s.refit]\ntarget = %q\nclip_x = 1.0\nclip_y = 1.0\nwindow = %d\nsolver = %q\n", name,
				target, window, solver))
	}
	return stream("orders", "[stream.orders.moments]\nclip = 1.5\n") + refit("first", "newton") + refit("second", "ihm")
}

// runBeside feeds rows to the three streams, and returns each refit's releases. The ledger adds the three charges.
func runBeside(t *testing.T, columns []string, target string, rows [][]float64,
	window int) map[string][]fixtures.Release {
	t.Helper()
	r := streamtest.NewRig(t, beside(columns, target, window))
	var values [][]byte
	for _, row := range rows {
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, text)
	}
	r.Send(values...)
	x := r.Start()
	windows, steps := uint64(len(rows)/window), uint64(len(rows)/500)
	x.Until("all is published", func(monitor.TaskStatus) bool {
		for _, s := range x.D.Status() {
			want := windows
			if s.Stream == "orders" {
				want = steps
			}
			if s.Step < want || s.Outbox > 0 {
				return false
			}
		}
		return true
	})
	x.End()
	// Three streams read every record. A record's charge exceeds each stream's cost, and is below the sum of the costs.
	var costs []dp.Cost
	for _, e := range r.Entries() {
		if !e.Cost.Empty() {
			costs = append(costs, e.Cost)
		}
	}
	if len(costs) != 3 {
		t.Fatalf("%d charges", len(costs))
	}
	total, err := dp.Compose(costs...).Epsilon(3e-8)
	if err != nil || !(total > 1.2 && total < 2.5) {
		t.Errorf("a record is charged %g: %v", total, err)
	}
	all := map[string][]fixtures.Release{}
	for _, name := range []string{"first", "second"} {
		v := r.History(name + ".dp")
		for step := uint64(1); step <= windows; step++ {
			p := v.ByKey[fmt.Sprintf("%s/0/1/%d", name, step)]
			all[name] = append(all[name], p.Parse(t))
		}
	}
	return all
}

// TestRefitsBeside runs two refits and moments on one topic, with one ledger.
func TestRefitsBeside(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 8))
	rows := make([][]float64, 6200)
	for i := range rows {
		a := rng.NormFloat64() / 4
		rows[i] = []float64{a, a/2 + 0.1 + rng.NormFloat64()/50}
	}
	for name, list := range runBeside(t, []string{"a", "b"}, "b", rows, 2000) {
		if len(list) != 3 {
			t.Errorf("%s: %d windows", name, len(list))
		}
		for i, rel := range list {
			if rel.Offsets != [2]int64{int64(2000 * i), int64(2000*i + 2000)} || rel.Rows != 2000 {
				t.Errorf("%s: window %d is %v with %d rows", name, i+1, rel.Offsets, rel.Rows)
			}
			if theta := rel.Values["theta"].Data; name == "first" && math.Abs(theta[0]-0.5) > 0.1 {
				t.Errorf("%s: window %d has θ = %g", name, i+1, theta)
			}
		}
	}
}

// TestRefitStallsNone: a stream of moments on the same topic releases all its steps while a slow refit is being solved.
func TestRefitStallsNone(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(beside([]string{"a", "b"}, "b", 500), `solver = "ihm"`,
		"solver = \"ihm\"\nrows = 65536\niterations = 100")
	rng := rand.New(rand.NewPCG(9, 10))
	var values [][]byte
	for range 5000 {
		values = append(values, fmt.Appendf(nil, "[%g,%g]", rng.NormFloat64()/4, rng.NormFloat64()/4))
	}
	r := streamtest.NewRig(t, toml)
	r.Send(values...)
	x := r.Start()
	x.Until("the moments are published", func(monitor.TaskStatus) bool {
		for _, s := range x.D.Status() {
			if s.Stream == "orders" {
				return s.Step == 10 && s.Outbox == 0
			}
		}
		return false
	})
	for _, s := range x.D.Status() {
		if s.Stream == "second" && s.Step == 10 {
			t.Error("the refit ended before the moments: it was not slow")
		}
	}
	x.End()
}

// TestRefitData runs windows of 5000 records of two data sets, prepared as in the papers, through the broker, and
// compares each window's error with that of zero coefficients.
func TestRefitData(t *testing.T) {
	for _, name := range []string{"pol", "elevators"} {
		t.Run(name, func(t *testing.T) {
			x, y := cases.DataSet(t, name, 0)
			d := len(x[0])
			for j := range d { // standardising is not private
				var mean, square float64
				for i := range x {
					mean += x[i][j] / float64(len(x))
				}
				for i := range x {
					x[i][j] -= mean
					square += x[i][j] * x[i][j] / float64(len(x))
				}
				for i := range x {
					if square > 0 {
						x[i][j] /= math.Sqrt(square)
					}
				}
			}
			var largest, target float64
			for i := range x {
				var norm float64
				for _, v := range x[i] {
					norm += v * v
				}
				largest, target = max(largest, math.Sqrt(norm)), max(target, math.Abs(y[i]))
			}
			rows := make([][]float64, len(x))
			for i := range x {
				for _, v := range x[i] {
					rows[i] = append(rows[i], v/largest)
				}
				rows[i] = append(rows[i], y[i]/target)
			}
			var columns []string
			for j := range d {
				columns = append(columns, fmt.Sprint("x", j))
			}
			for solver, list := range runBeside(t, append(columns, "y"), "y", rows, 5000) {
				for i, rel := range list {
					var errors, null, mean float64
					window := rows[5000*i : 5000*i+5000]
					for _, row := range window {
						mean += row[d] / 5000
					}
					for _, row := range window {
						r := row[d] - rel.Values["intercept"].Data[0]
						for j, v := range rel.Values["theta"].Data {
							r -= v * row[j]
						}
						errors += r * r / 5000
						null += (row[d] - mean) * (row[d] - mean) / 5000
					}
					t.Logf("%s, stream %s, window %d: mean square error %.4g, variance %.4g", name, solver, i+1,
						errors, null)
					if solver == "first" && !(errors < 0.95*null) {
						t.Errorf("newton learned nothing of window %d", i+1)
					}
				}
			}
		})
	}
}

// TestFewRecordsWarn: if windows have too few records for their noise, the status shows a warning as long as the epoch
// runs. With larger windows there is no warning.
func TestFewRecordsWarn(t *testing.T) {
	t.Parallel()
	for window, warned := range map[string]bool{"window = 10\n": true, "window = 100\n": false} {
		r := streamtest.NewRig(t, fixtures.With(killRefit, "window = 100\n", window))
		r.Produce(0, 250)
		x := r.Start()
		x.Published(2)
		if got := x.D.Status()[0].Warnings; (len(got) == 1 &&
			strings.Contains(got[0], "windows of 10 records")) != warned || len(got) > 1 {
			t.Errorf("%s: warnings %q", window, got)
		}
		x.End()
	}
}
