package stream

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"streamdp/internal/kafka"
)

// metricDef is a line of the metrics reference, from which both the metric and
// docs/metrics.md are made.
type metricDef struct {
	name   string // without the prefix
	kind   string // counter, gauge, histogram
	class  string // "–": safe to show anybody; "P": an exact function of records, absent when http.exposure is "public"
	labels []string
	help   string
}

var task = []string{"stream", "partition"}

var metricTable = []metricDef{
	{"build_info", "gauge", "–", []string{"version", "goversion", "goarch"}, "1, with what was built."},
	{"config_last_load_successful", "gauge", "–", nil, "1 if the configuration was loaded; there is no reload."},
	{"insecure_noise", "gauge", "–", nil, "1 if the noise follows from a published number and protects nothing."},
	{"task_state", "gauge", "–", []string{"stream", "partition", "state"}, "1 for the state that the task is in."},
	{"task_info", "gauge", "–", []string{"stream", "partition", "mechanism", "method", "factorization", "adjacency", "epoch"}, "1, with what the task runs."},
	{"records_read_total", "counter", "–", task, "Committed records read, valid or not."},
	{"steps_total", "counter", "–", task, "Steps closed."},
	{"releases_total", "counter", "–", task, "Releases built."},
	{"releases_republished_total", "counter", "–", task, "Releases published again after a restart, the same bytes."},
	{"epochs_total", "counter", "–", task, "Epochs opened by this process."},
	{"halts_total", "counter", "–", []string{"stream", "partition", "reason"}, "Times that the task stopped and needs an operator."},
	{"kafka_errors_total", "counter", "–", []string{"api", "code"}, "Failed calls of the cluster that are repeated, by call and broker's error code."},
	{"commit_errors_total", "counter", "–", task, "Commits that failed and are repeated, for want of room on the disk."},
	{"next_offset", "gauge", "–", task, "Next input offset to apply."},
	{"log_end_offset", "gauge", "–", task, "Last stable offset of the input partition."},
	{"lag_records", "gauge", "–", task, "Offsets between the two."},
	{"retention_headroom_records", "gauge", "–", task, "Offsets between the start of the input log and the next offset: how much retention may delete before records are lost."},
	{"step", "gauge", "–", task, "Last closed step of the epoch."},
	{"horizon_steps", "gauge", "–", task, "Steps after which the epoch ends; 0: never."},
	{"outbox_releases", "gauge", "–", task, "Releases that are not acknowledged yet."},
	{"last_commit_timestamp_seconds", "gauge", "–", task, "Time of the last commit of this process, since 1970."},
	{"last_release_timestamp_seconds", "gauge", "–", task, "Time of the last acknowledged release of this process, since 1970."},
	{"noise_stddev", "gauge", "–", []string{"stream", "partition", "value"}, "Standard deviation of one step's independent noise, in scaled units; for regressions in clip norms (gradient) and records (all others)."},
	{"privacy_mu", "gauge", "–", task, "Gaussian privacy parameter of the epoch."},
	{"privacy_epsilon", "gauge", "–", task, "Epsilon of the epoch at privacy_delta."},
	{"privacy_delta", "gauge", "–", task, "Delta of the epoch."},
	{"privacy_charged_epsilon", "gauge", "–", task, "What the worst-off record of the input partition is charged over all epochs and streams, at the limit's delta."},
	{"privacy_limit_epsilon", "gauge", "–", task, "What it may be charged at most."},
	{"publish_duration_seconds", "histogram", "–", task, "Time until a request of releases was acknowledged."},
	{"read_bytes_total", "counter", "P", task, "Not private. Bytes of keys and values read."},
	{"checkpoint_bytes", "gauge", "P", task, "Not private. Size of the estimator's state in the last commit."},
	{"fetch_duration_seconds", "histogram", "P", task, "Not private. Time of a fetch, waiting for records included."},
	{"commit_duration_seconds", "histogram", "P", task, "Not private. Time of a durable commit."},
	{"diagnostic_records_rejected_total", "counter", "P", []string{"stream", "partition", "reason"}, "Not private. Records that gave no row and count as the zero row."},
}

const prefix = "streamdp_"

// metrics are the daemon's own: one registry, nothing global.
type metrics struct {
	registry *prometheus.Registry
	counters map[string]*prometheus.CounterVec
	gauges   map[string]*prometheus.GaugeVec
	times    map[string]*prometheus.HistogramVec
	descs    map[string]*prometheus.Desc // of what is read at each scrape
	public   bool
}

// scraped are the gauges that follow from the status of the tasks.
var scraped = map[string]func(TaskStatus) float64{
	"next_offset":             func(s TaskStatus) float64 { return float64(s.NextOffset) },
	"log_end_offset":          func(s TaskStatus) float64 { return float64(s.LogEnd) },
	"lag_records":             func(s TaskStatus) float64 { return float64(s.Lag) },
	"step":                    func(s TaskStatus) float64 { return float64(s.Step) },
	"horizon_steps":           func(s TaskStatus) float64 { return float64(s.Horizon) },
	"outbox_releases":         func(s TaskStatus) float64 { return float64(s.Outbox) },
	"privacy_mu":              func(s TaskStatus) float64 { return s.Mu },
	"privacy_epsilon":         func(s TaskStatus) float64 { return s.Epsilon },
	"privacy_delta":           func(s TaskStatus) float64 { return s.Delta },
	"privacy_charged_epsilon": func(s TaskStatus) float64 { return s.ChargedEpsilon },
	"privacy_limit_epsilon":   func(s TaskStatus) float64 { return s.LimitEpsilon },
}

func newMetrics(public bool, version string, insecure bool) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{},
		times: map[string]*prometheus.HistogramVec{}, descs: map[string]*prometheus.Desc{}, public: public,
	}
	for _, d := range metricTable {
		name := prefix + d.name
		switch {
		case scraped[d.name] != nil || d.name == "task_state" || d.name == "task_info" || d.name == "noise_stddev" || d.name == "retention_headroom_records":
			m.descs[d.name] = prometheus.NewDesc(name, d.help, d.labels, nil)
			continue
		case d.kind == "counter":
			m.counters[d.name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: d.help}, d.labels)
		case d.kind == "gauge":
			m.gauges[d.name] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: d.help}, d.labels)
		default:
			// Classic and native buckets at once: old and new servers.
			m.times[d.name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: name, Help: d.help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
				NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			}, d.labels)
		}
		if public && d.class == "P" {
			continue // counted, and shown to nobody
		}
		var c prometheus.Collector
		switch {
		case m.counters[d.name] != nil:
			c = m.counters[d.name]
		case m.gauges[d.name] != nil:
			c = m.gauges[d.name]
		default:
			c = m.times[d.name]
		}
		m.registry.MustRegister(c)
	}
	if !public {
		m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m.gauges["build_info"].WithLabelValues(version, runtime.Version(), runtime.GOARCH).Set(1)
	m.gauges["config_last_load_successful"].WithLabelValues().Set(1)
	on := 0.0
	if insecure {
		on = 1
	}
	m.gauges["insecure_noise"].WithLabelValues().Set(on)
	return m
}

// watch adds the gauges that are read from the tasks at each scrape.
func (m *metrics) watch(runners func() []*runner) {
	m.registry.MustRegister(&statusCollector{m, runners})
}

type statusCollector struct {
	m       *metrics
	runners func() []*runner
}

// Describe implements prometheus.Collector.
func (c *statusCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.m.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.runners() {
		s := r.Status()
		l := labels(r.task)
		gauge := func(name string, v float64, more ...string) {
			out <- prometheus.MustNewConstMetric(c.m.descs[name], prometheus.GaugeValue, v, append(l[:2:2], more...)...)
		}
		for name, f := range scraped {
			gauge(name, f(s))
		}
		for _, state := range states {
			on := 0.0
			if s.State == state {
				on = 1
			}
			gauge("task_state", on, state)
		}
		gauge("task_info", 1, s.Mechanism, s.Method, s.Factorization, s.Adjacency, strconv.FormatUint(s.Epoch, 10))
		for name, v := range s.NoiseStddev {
			gauge("noise_stddev", v, name)
		}
		if s.logStart >= 0 {
			gauge("retention_headroom_records", float64(s.NextOffset-s.logStart))
		}
	}
}

func labels(t Task) []string { return []string{t.Stream, strconv.Itoa(t.Partition)} }

// begin shows a task's counters at 0: what first appears at 1 has no increase.
func (m *metrics) begin(t Task) {
	for _, d := range metricTable {
		if d.kind == "counter" && slices.Equal(d.labels, task) {
			m.add(d.name, t, 0)
		}
	}
	for r := Decoded + 1; r < reasons; r++ {
		m.add("diagnostic_records_rejected_total", t, 0, r.String())
	}
}

func (m *metrics) add(name string, t Task, n float64, more ...string) {
	m.counters[name].WithLabelValues(append(labels(t), more...)...).Add(n)
}

func (m *metrics) worked(t Task, w *work) {
	m.add("records_read_total", t, float64(w.records))
	m.add("steps_total", t, float64(w.steps))
	m.add("releases_total", t, float64(w.releases))
	for r := Decoded + 1; r < reasons; r++ {
		if n := w.rejected[r]; n > 0 {
			m.add("diagnostic_records_rejected_total", t, float64(n), r.String())
		}
	}
}

func (m *metrics) republished(t Task, n int)    { m.add("releases_republished_total", t, float64(n)) }
func (m *metrics) opened(t Task)                { m.add("epochs_total", t, 1) }
func (m *metrics) halted(t Task, reason string) { m.add("halts_total", t, 1, reason) }
func (m *metrics) commitFailed(t Task)          { m.add("commit_errors_total", t, 1) }
func (m *metrics) fetched(t Task, took time.Duration, bytes int) {
	m.times["fetch_duration_seconds"].WithLabelValues(labels(t)...).Observe(took.Seconds())
	m.add("read_bytes_total", t, float64(bytes))
}

func (m *metrics) committed(t Task, took time.Duration, bytes int, at time.Time) {
	l := labels(t)
	m.times["commit_duration_seconds"].WithLabelValues(l...).Observe(took.Seconds())
	m.gauges["checkpoint_bytes"].WithLabelValues(l...).Set(float64(bytes))
	m.gauges["last_commit_timestamp_seconds"].WithLabelValues(l...).Set(float64(at.UnixMilli()) / 1000)
}

func (m *metrics) published(t Task, took time.Duration, at time.Time) {
	l := labels(t)
	m.times["publish_duration_seconds"].WithLabelValues(l...).Observe(took.Seconds())
	m.gauges["last_release_timestamp_seconds"].WithLabelValues(l...).Set(float64(at.UnixMilli()) / 1000)
}

func (m *metrics) kafkaError(err error) {
	var e *kafka.Error
	if errors.As(err, &e) {
		m.counters["kafka_errors_total"].WithLabelValues(e.API, e.Label()).Inc()
	}
}

// MetricsReference returns docs/metrics.md.
func MetricsReference() []byte {
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Made from stream/metrics.go by `go generate ./stream`. -->\n\n" +
		"`GET /metrics` in Prometheus' text format. All names begin with `" + prefix + "`.\n\n" +
		"Class P is whatever is an exact function of record values or of their lengths, so that one record changes it. " +
		"It is for the operator, who may see the records anyway, and absent where `http.exposure = \"public\"`; " +
		"so are then the metrics of the Go runtime and the process, because memory and CPU follow record sizes. " +
		"The number of records, offsets and commits is public under both adjacency relations. " +
		"How long work took is not, so progress is shown at multiples of `state.commit_interval`.\n\nA task's counters are there from its start, at 0; `halts_total` and `kafka_errors_total` from their first count on.\n\n" +
		"| metric | type | labels | class | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, d := range metricTable {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.name, d.kind, strings.Join(d.labels, ", "), d.class, d.help)
	}
	return []byte(b.String())
}
