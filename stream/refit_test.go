package stream

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// refitOf is machineStream with a refit for its mechanism.
func refitOf(keys string) string {
	return with(machineStream, "step   = 7\n", "", "[stream.m.moments]\nclip = 1.0\n",
		"[stream.m.refit]\ntarget = \"b\"\nclip_x = 3.0\nclip_y = 4.0\n"+keys+"\n")
}

// machineRefits are small streams with refits of several kinds.
var machineRefits = []string{
	refitOf("window = 20"),
	refitOf("window = 30\nstride = 45\nintercept = false"),
	refitOf("window = 40\nsolver = \"ihm\""),
	refitOf("window = 25\nsolver = \"linmix\""),
	with(refitOf("window = 50\nsolver = \"fast-ihm\""), `adjacency = "replace"`, `adjacency = "zero-out"`),
	with(refitOf("window = 33\nsolver = \"adassp\"\neigen_test = true"), "limit_epsilon", "limit_delta = 1e-7\nlimit_epsilon"),
	refitOf("window = 28\nsolver = \"dp-gd\""),
}

// TestRefitReleases checks what releases of refits say: values, guarantee, solver,
// accounting, and the window's offsets, records between windows left out.
func TestRefitReleases(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	log, _ := randomLog(rng, 200)
	m := newMachine(t, machineRefits[1], 1).all(log, 200)
	for step, first := range map[uint64]int64{1: 0, 2: 45, 4: 135} {
		p := published{key: "k", value: string(m.releases[step].Value)}
		rel := p.parse(t)
		in := uint64(0)
		for _, rec := range log {
			if rec.Offset >= first && rec.Offset < first+30 {
				in++
			}
		}
		if rel.Offsets != [2]int64{first, first + 30} || rel.Rows != in {
			t.Errorf("step %d: %d rows of %v, want %d of [%d, %d)", step, rel.Rows, rel.Offsets, in, first, first+30)
		}
		if theta := rel.Values["theta"]; len(theta.Data) != 2 || len(rel.Values) != 2 || len(rel.Values["theta_original"].Data) != 2 {
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
	said(machineRefits[0], `"mechanism":{"name":"refit","method":"newton","target":"b","intercept":true,"clip_y":4,"window":20}`, `"accounting":"exact"`,
		`"finite_precision":"exact"`, `Finite precision: exact (lattice).`, `"intercept":{"shape":[1]`, "Standard errors are approximate")
	said(machineRefits[2], `"method":"ihm"`, `"iterations":3`, `"gamma":`, `"finite_precision":"not proven"`, `not proven (sketch)`, `"eta":`)
	said(machineRefits[4], `"accounting":"rdp"`, `"transforms":1`, `with respect to replacing one record by a null record`)

	// A window without a record: a release that says so, and the next one.
	var late []kafka.Record
	for _, rec := range log {
		if rec.Offset >= 20 {
			late = append(late, rec)
		}
	}
	m = newMachine(t, machineRefits[0], 1).all(late, 200)
	first, second := string(m.releases[1].Value), string(m.releases[2].Value)
	if !strings.Contains(first, `"rows":0,"offsets":[0,20]`) || !strings.Contains(first, `"failed":"no solution was found","values":{}`) {
		t.Errorf("a window without a record: %s", first)
	}
	if strings.Contains(second, "failed") || !strings.Contains(second, `"theta":`) {
		t.Errorf("the window after it: %s", second)
	}
	conforms(t, first)
}

// TestRefitTruth feeds a linear relation with little noise through the machine:
// coefficients in original units come out of every window.
func TestRefitTruth(t *testing.T) {
	t.Parallel()
	toml := with(refitOf("window = 3000"), "epsilon = 1.0", "epsilon = 20", "limit_epsilon = 3.0", "limit_epsilon = 50")
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 9000
	var log []kafka.Record
	for i := range n {
		rec := kafka.Record{Offset: int64(i)}
		if i%10 == 3 {
			rec.Value = badValues[i/10%len(badValues)]
		} else {
			a, c := 1+rng.NormFloat64()/2, -2+1.5*rng.NormFloat64()
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, a, 2*a-c-3.5+0.4*rng.NormFloat64(), c)
		}
		log = append(log, rec)
	}
	m := newMachine(t, toml, 1).all(log, n)
	for step := uint64(1); step <= 3; step++ {
		p := published{key: "k", value: string(m.releases[step].Value)}
		rel := p.parse(t)
		got := append(slices.Clone(rel.Values["theta_original"].Data), rel.Values["intercept_original"].Data...)
		for j, want := range []float64{2, -1, -3.5} {
			if len(got) != 3 || math.Abs(got[j]-want) > 0.1 {
				t.Errorf("window %d: coefficients %.3g, want 2, -1, -3.5", step, got)
				break
			}
		}
	}
}

// killRefit is killStream with refits, whose windows are re-read after a kill.
var killRefit = with(ordersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
	"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 1.0\nwindow = 100\n")

// TestKillRefit kills a daemon in the middle of windows and of their refits: every
// window has the release of a run without interruption, and one only.
func TestKillRefit(t *testing.T) {
	t.Parallel()
	const seed = 26
	kills := killsOf(8, 40)
	r := newRig(t, killRefit)
	f := r.feed()
	killLoop(t, r, r.spec("daemon", 16<<10), rand.New(rand.NewPCG(seed, 0)), kills, nil)
	f.end()
	steps := r.steps(100)
	r.finish(steps)
	v := r.history("orders.dp")
	v.equals(t, r.uninterrupted(steps))
	t.Logf("%d kills, %d windows, %d releases published again", kills, v.steps, v.duplicates)
	if v.steps != steps || steps < 20 {
		t.Errorf("%d releases of %d windows", len(v.bytes), steps)
	}
}

// TestRefitShowsProgress: status and metrics say how far the records of an open window have
// been read, also after a pause; and a window that is not full is no part of a commit.
func TestRefitShowsProgress(t *testing.T) {
	t.Parallel()
	for _, commit := range []string{"20ms", "0s"} {
		t.Run(commit, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, with(killRefit, "window = 100\n", "window = 1000\n"))
			r.commit = commit
			x := r.start()
			for sent := int64(0); sent < 750; sent += 250 {
				r.produce(int(sent), 250)
				x.until("the records are read", func(s TaskStatus) bool { return s.NextOffset == sent+250 })
				if s := x.d.Status()[0]; s.Step != 0 || s.Lag != 0 {
					t.Errorf("step %d, lag %d after %d records of a window of 1000", s.Step, s.Lag, sent+250)
				}
				time.Sleep(20 * time.Millisecond) // until the owner sleeps
			}
			_, page := x.get("/metrics")
			if !strings.Contains(page, "\nstreamdp_records_read_total{partition=\"0\",stream=\"orders\"} 750\n") {
				t.Errorf("metrics do not say that 750 records were read:\n%s", page)
			}
			r.produce(750, 300)
			x.published(1)
			x.until("the rest is read", func(s TaskStatus) bool { return s.NextOffset == 1050 })
			x.end()
			x = r.start() // from the last window's end on
			x.until("the open window is read again", func(s TaskStatus) bool { return s.NextOffset == 1050 && s.Step == 1 })
			x.end()
		})
	}
}

// beside is a stream of moments and two of refits, on one topic.
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
		return stream(name, fmt.Sprintf("[stream.%s.refit]\ntarget = %q\nclip_x = 1.0\nclip_y = 1.0\nwindow = %d\nsolver = %q\n", name, target, window, solver))
	}
	return stream("orders", "[stream.orders.moments]\nclip = 1.5\n") + refit("first", "newton") + refit("second", "ihm")
}

// runBeside feeds rows to the three streams, and returns each refit's releases. The
// ledger adds the three charges.
func runBeside(t *testing.T, columns []string, target string, rows [][]float64, window int) map[string][]release {
	t.Helper()
	r := newRig(t, beside(columns, target, window))
	var values [][]byte
	for _, row := range rows {
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, text)
	}
	r.send(values...)
	x := r.start()
	windows, steps := uint64(len(rows)/window), uint64(len(rows)/500)
	x.until("all is published", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
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
	x.end()
	// Three streams read every record: what it pays is more than any of them costs and
	// less than their sum.
	var costs []dp.Cost
	for _, e := range r.entries() {
		if !e.Cost.Empty() {
			costs = append(costs, e.Cost)
		}
	}
	if len(costs) != 3 {
		t.Fatalf("%d charges", len(costs))
	}
	total, err := dp.Compose(costs...).Epsilon(3e-8)
	if err != nil || !(total > 1.2 && total < 2.5) {
		t.Errorf("a record pays %g: %v", total, err)
	}
	all := map[string][]release{}
	for _, name := range []string{"first", "second"} {
		v := r.history(name + ".dp")
		for step := uint64(1); step <= windows; step++ {
			p := v.byKey[fmt.Sprintf("%s/0/1/%d", name, step)]
			all[name] = append(all[name], p.parse(t))
		}
	}
	return all
}

// TestRefitsBeside runs two refits and moments on one topic, in one ledger.
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

// TestRefitStallsNone: moments of the topic release all their steps while a refit that
// takes long is at work.
func TestRefitStallsNone(t *testing.T) {
	t.Parallel()
	toml := with(beside([]string{"a", "b"}, "b", 500), `solver = "ihm"`, "solver = \"ihm\"\nrows = 65536\niterations = 100")
	rng := rand.New(rand.NewPCG(9, 10))
	var values [][]byte
	for range 5000 {
		values = append(values, fmt.Appendf(nil, "[%g,%g]", rng.NormFloat64()/4, rng.NormFloat64()/4))
	}
	r := newRig(t, toml)
	r.send(values...)
	x := r.start()
	x.until("the moments are published", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
			if s.Stream == "orders" {
				return s.Step == 10 && s.Outbox == 0
			}
		}
		return false
	})
	for _, s := range x.d.Status() {
		if s.Stream == "second" && s.Step == 10 {
			t.Error("the refit was done before the moments: it took no time")
		}
	}
	x.end()
}

// TestRefitData runs windows of 5000 records of two data sets, prepared as the papers
// do, through the broker, and compares each window's error with that of no coefficients.
func TestRefitData(t *testing.T) {
	for _, name := range []string{"pol", "elevators"} {
		t.Run(name, func(t *testing.T) {
			x, y := cases.DataSet(t, name, 0)
			d := len(x[0])
			for j := range d { // standardised, which is not private
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
					t.Logf("%s, stream %s, window %d: mean square error %.4g, variance %.4g", name, solver, i+1, errors, null)
					if solver == "first" && !(errors < 0.95*null) {
						t.Errorf("newton learned nothing of window %d", i+1)
					}
				}
			}
		})
	}
}

// TestFewRecordsWarn: windows of too few records for their noise are warned of where the daemon
// shows its state, for as long as the epoch runs; others are not.
func TestFewRecordsWarn(t *testing.T) {
	t.Parallel()
	for window, warned := range map[string]bool{"window = 10\n": true, "window = 100\n": false} {
		r := newRig(t, with(killRefit, "window = 100\n", window))
		r.produce(0, 250)
		x := r.start()
		x.published(2)
		if got := x.d.Status()[0].Warnings; (len(got) == 1 && strings.Contains(got[0], "windows of 10 records")) != warned || len(got) > 1 {
			t.Errorf("%s: warnings %q", window, got)
		}
		x.end()
	}
}
