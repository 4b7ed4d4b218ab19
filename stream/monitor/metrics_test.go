package monitor_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestMetrics: in a daemon in which every event has occurred, names and kinds of metrics follow Prometheus' rules. A
// public daemon shows only the metrics that it may show.
func TestMetrics(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, exposure := range []string{"operator", "public"} {
		r := streamtest.NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 10"))
		r.Http = fmt.Sprintf("exposure = %q", exposure)
		r.Produce(0, 250)
		r.Send(fixtures.BadValues...)
		x := r.Start()
		x.Published(26)
		families, err := x.In.Process.Metrics.Registry.Gather()
		fixtures.Must(t, err)
		begun := 0
		for _, f := range families {
			if slices.Contains([]string{"commit_errors_total", "releases_republished_total"},
				strings.TrimPrefix(f.GetName(), monitor.Prefix)) {
				begun++
			}
		}
		if begun != 2 {
			t.Errorf("%s: %d of 2 counters exist before their first count", exposure, begun)
		}
		x.In.Process.Metrics.KafkaError(&kafka.Error{API: "fetch", Code: 7})
		x.In.Process.Metrics.Halt(fixtures.OrdersTask, failure.Gap)
		x.In.Process.Metrics.CommitFailed(fixtures.OrdersTask)
		x.In.Process.Metrics.Republished(fixtures.OrdersTask, 0)
		x.In.Process.Metrics.Shares(64)
		x.In.Process.Metrics.PatternTopics("orders", "taken", 1)
		x.In.Process.Metrics.Certificate("kafka.tls", time.Unix(1, 0))
		x.In.Process.Schemas.Reached(x.In.Process.Log, x.In.Process.Metrics.RegistryReachable, nil)
		x.In.Process.Metrics.BySchema(core.Task{Stream: "orders"},
			&codec.Batch{Schemas: []int32{1}, Reasons: make([]codec.Reason, 1)}, func(int32) bool { return true })
		x.In.Process.Metrics.TookOver(time.Second)
		x.In.Process.Metrics.Traced(1, 0)
		x.In.Process.Metrics.Restored(6)
		x.In.Process.Metrics.Transaction("committed")
		x.In.Process.Metrics.StateCommitted(time.Second, 6)
		x.In.Process.Metrics.LedgerLines(2)
		x.In.Process.Metrics.Generation(1, "key")
		families, err = x.In.Process.Metrics.Registry.Gather()
		fixtures.Must(t, err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		fixtures.Must(t, err)
		for _, p := range problems {
			t.Errorf("%s: %s: %s", exposure, p.Metric, p.Text)
		}
		for _, f := range families {
			name := strings.TrimPrefix(f.GetName(), monitor.Prefix)
			i := slices.IndexFunc(monitor.MetricTable, func(d monitor.MetricDef) bool { return d.Name == name })
			if exposure == "operator" {
				seen[name] = true
				continue
			}
			if strings.HasPrefix(name, "promhttp_") {
				continue // metrics of the scrapes themselves
			}
			if i < 0 || monitor.MetricTable[i].Class == "P" ||
				strings.HasPrefix(monitor.MetricTable[i].Help, "Not private") {
				t.Errorf("a public daemon shows %s", f.GetName())
			}
		}
		_, page := x.Get("/metrics")
		for _, private := range []string{
			"go_", "process_", "streamdp_read_bytes", "streamdp_diagnostic", "streamdp_checkpoint_bytes",
			"streamdp_fetch", "streamdp_commit_duration",
		} {
			if strings.Contains(page, "\n"+private) != (exposure == "operator") {
				t.Errorf("%s: %s is shown: %t", exposure, private, exposure == "public")
			}
		}
		x.End()
	}
	for _, d := range monitor.MetricTable {
		if !seen[d.Name] {
			t.Errorf("%s is in the reference and never shown", d.Name)
		}
		if (d.Class == "P") != strings.HasPrefix(d.Help, "Not private. ") {
			t.Errorf("%s is of class %s, its help says %q", d.Name, d.Class, d.Help)
		}
	}
}

// TestMetricValues: the values of the gauges are right.
func TestMetricValues(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 7\non_horizon = \"rollover\""))
	r.Produce(0, 1050)
	x := r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool {
		return s.Epoch == 2 && s.Step == 3 && s.NextOffset == 1050 && s.Outbox == 0
	})
	_, page := x.Get("/metrics")
	for _, line := range []string{
		`streamdp_records_read_total{partition="0",stream="orders"} 1`, // or more: some records are read twice
		`streamdp_steps_total{partition="0",stream="orders"} 10`,
		`streamdp_releases_total{partition="0",stream="orders"} 10`,
		`streamdp_epochs_total{partition="0",stream="orders"} 2`,
		`streamdp_next_offset{partition="0",stream="orders"} 1050`,
		`streamdp_log_end_offset{partition="0",stream="orders"} 1050`,
		`streamdp_lag_records{partition="0",stream="orders"} 0`,
		`streamdp_retention_headroom_records{partition="0",stream="orders"} 1050`,
		`streamdp_step{partition="0",stream="orders"} 3`,
		`streamdp_horizon_steps{partition="0",stream="orders"} 7`,
		`streamdp_outbox_releases{partition="0",stream="orders"} 0`,
		`streamdp_privacy_epsilon{partition="0",stream="orders"} 1`,
		`streamdp_privacy_limit_epsilon{partition="0",stream="orders"} 3`,
		`streamdp_privacy_charged_epsilon{partition="0",stream="orders"} 1`,
		`streamdp_insecure_noise 1`,
		`streamdp_task_info{adjacency="zero-out",epoch="2",factorization="blt",mechanism="moments",method="jme",partition="0",stream="orders"} 1`,
	} {
		if !strings.Contains(page, "\n"+line) {
			t.Errorf("no line %s", line)
		}
	}
	x.End()
}

// TestClippedRows: the exact number of shortened rows, including rows that scaling made infinite, is a metric for the
// operator only.
func TestClippedRows(t *testing.T) {
	t.Parallel()
	for _, exposure := range []string{"operator", "public"} {
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, "scale  = [80.0, 5.0, 2.0]", "scale = [80.0, 5.0, 1e-3]"))
		r.Http = fmt.Sprintf("exposure = %q", exposure)
		for range 10 {
			r.Send([]byte(`{"amount": 40, "items": 3, "weight": 1.2}`),
				[]byte(`{"amount": 140, "items": 3, "weight": 1.2}`),
				[]byte(`{"amount": 40, "items": 8, "weight": 1.2}`),
				[]byte(`{"amount": 40, "items": 3, "weight": 1e306}`),
				[]byte(`{"amount": 40, "items": 8.01, "weight": 1.2}`))
		}
		x := r.Start()
		x.Until("all is read", func(s monitor.TaskStatus) bool { return s.NextOffset == 50 })
		_, page := x.Get("/metrics")
		for _, line := range []string{
			`streamdp_diagnostic_records_clipped_total{partition="0",stream="orders"} 20`,
			`rejected_total{partition="0",reason="not-finite",stream="orders"} 10`,
		} {
			if strings.Contains(page, line+"\n") != (exposure == "operator") {
				t.Errorf("%s: line %s", exposure, line)
			}
		}
		if strings.Contains(page, "clipped") != (exposure == "operator") {
			t.Errorf("%s: says something of clipped rows", exposure)
		}
		x.End()
	}
}

// TestTicks: everything that anybody may see changes at ticks of the clock, and not when the work was done, because
// that depends on the records and on the noise.
func TestTicks(t *testing.T) {
	t.Parallel()
	const period = 1500 * time.Millisecond
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Commit = period.String()
	r.Http = `exposure = "public"`
	x := r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	counters := regexp.MustCompile(
		`(?m)^streamdp_(?:records_read_total|steps_total|releases_total|step|next_offset|log_end_offset|lag_records|outbox_releases|retention_headroom_records){.*`)
	look := func() string {
		_, body := x.Get("/metrics")
		s := x.D.Status()[0]
		return fmt.Sprint(s.Step, s.NextOffset, s.LogEnd, s.Outbox, counters.FindAllString(body, -1))
	}
	for round := range 3 {
		// The changes come some time after a tick, and all of them before the next.
		var was string
		var tick time.Duration
		for was = ""; was == "" || time.Since(x.In.Process.Started) >= tick; was = look() {
			phase := time.Since(x.In.Process.Started) % period
			time.Sleep((period + period/5 - phase) % period)
			tick = time.Since(x.In.Process.Started).Truncate(period) + period
		}
		r.Produce(250*round, 250)
		for look() == was {
			time.Sleep(5 * time.Millisecond)
		}
		if at := time.Since(x.In.Process.Started); at < tick {
			t.Errorf("round %d: changed %v before the tick: %s\n%s", round, tick-at, was, look())
		}
		x.Until("published",
			func(s monitor.TaskStatus) bool { return s.NextOffset == int64(250*(round+1)) && s.Outbox == 0 })
	}
	x.End()
}

// TestMetricsReference: docs/metrics.md is generated from the table of metrics.
func TestMetricsReference(t *testing.T) {
	fixtures.Golden(t, filepath.Join(fixtures.Root(), "docs", "metrics.md"), monitor.MetricsReference())
}

// TestMetricsAggregate: no task has its own series, and the sums cover all tasks.
func TestMetricsAggregate(t *testing.T) {
	t.Parallel()
	const n = 3
	for _, exposure := range []string{"operator", "public"} {
		r := streamtest.NewRig(t,
			fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1, 2]`))
		r.Http = fmt.Sprintf("metrics = \"aggregate\"\nexposure = %q\n", exposure)
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), "wide", n, nil))
		for p := range n {
			var list []kafka.Message
			for i := range 100 * (p + 1) {
				list = append(list, kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)})
			}
			_, err := r.Client.Produce(t.Context(), "wide", int32(p), list)
			fixtures.Must(t, err)
		}
		x := r.Start()
		x.Until("all are done", func(monitor.TaskStatus) bool {
			for i, s := range x.D.Status() {
				if s.Step != uint64(i+1) || s.Outbox > 0 {
					return false
				}
			}
			return true
		})
		_, page := x.Get("/metrics")
		for _, line := range []string{
			`streamdp_task_state{state="running"} 3`, `streamdp_task_state{state="halted"} 0`,
			`streamdp_step 6`, `streamdp_steps_total 6`, `streamdp_records_read_total 600`, `streamdp_next_offset 600`,
			`streamdp_lag_records 0`,
			`streamdp_retention_headroom_records 100`, `streamdp_privacy_epsilon 1`, `streamdp_privacy_limit_epsilon 3`,
			`streamdp_epochs_total 3`,
		} {
			if !strings.Contains(page, "\n"+line+"\n") {
				t.Errorf("%s: no line %q", exposure, line)
			}
		}
		for _, absent := range []string{"stream=", "partition=", "streamdp_task_info", "streamdp_horizon_steps"} {
			if strings.Contains(page, absent) {
				t.Errorf("%s: has %q", exposure, absent)
			}
		}
		// Check each metric that is shown and in the table.
		for _, d := range monitor.MetricTable {
			if d.Kind == "gauge" && d.OfTask() &&
				strings.Contains(page, "\n"+monitor.Prefix+d.Name+" ") != (d.Over != "" &&
					(exposure == "operator" || d.Class != "P")) {
				// these metrics have a label
				if d.Name != "task_state" && d.Name != "bounds_verdict" && d.Name != "noise_stddev" {
					t.Errorf("%s: %s", exposure, d.Name)
				}
			}
		}
		if t.Failed() {
			t.Log(page)
		}
		x.End()
	}
}
