// Package monitor makes tasks observable: it has their metrics, status, published values over time, offsets committed
// to a consumer group, and the attributes of traces.
package monitor

//go:generate go test -run ^TestMetricsReference$ -update

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

// metricDef defines a metric. Both the metric and its row in docs/metrics.md are generated from it.
type metricDef struct {
	Name   string // name without the prefix "streamdp_"
	Kind   string // Counter, gauge, histogram
	Class  string // "–": safe to show anybody; "P": an exact function of records, absent when http.exposure is "public"
	labels []string
	Help   string
	// Over says how http.metrics = "aggregate" combines a gauge of all tasks: it shows the "sum", "largest" or "least"
	// value. "": it shows nothing.
	Over string
}

// OfTask reports whether the metric has a series for each task.
func (d *metricDef) OfTask() bool { return len(d.labels) > 1 && d.labels[0] == "stream" }

var task = []string{"stream", "partition"}

var metricTable = []metricDef{
	{"build_info", "gauge", "–", []string{"version", "goversion", "goarch"}, "1, with the version of this build as " +
		"labels.", ""},
	{"config_last_load_successful", "gauge", "–", nil,
		"1 if the configuration was accepted when it was last read, at start or by a reload; 0 if it was refused, " +
			"so that the previous one stays in force.", ""},
	{"config_last_load_timestamp_seconds", "gauge", "–", nil, "Time at which a configuration was last accepted, in " +
		"seconds since 1970.", ""},
	{"certificate_expiry_timestamp_seconds", "gauge", "–", []string{"table"},
		"Time at which the certificate in force expires, in seconds since 1970, for `[kafka.tls]`, `[http.tls]`, " +
			"`[registry.tls]` or `[trace.tls]`. Absent if none is configured.", ""},
	{"insecure_noise", "gauge", "–", nil, "1 if the noise is computed from a published seed and protects nothing.", ""},
	{"task_state", "gauge", "–", []string{"stream", "partition", "state"},
		"1 for the current state of the task, 0 for all others.", "sum"},
	{"task_info", "gauge", "–",
		[]string{"stream", "partition", "mechanism", "method", "factorization", "adjacency", "epoch"},
		"1, with the mechanism and epoch of the task as labels.", ""},
	{"bounds_verdict", "gauge", "–", []string{"stream", "partition", "verdict"},
		"1 for the verdict of the last release of this process on bounds found by a warm-up: ok, partial, stale, " +
			"biased or fail; all 0 if there is no verdict. As public as the release.", "sum"},
	{"records_read_total", "counter", "–", task, "Committed records read, valid or not.", ""},
	{"steps_total", "counter", "–", task, "Steps closed.", ""},
	{"releases_total", "counter", "–", task, "Releases built.", ""},
	{"releases_republished_total", "counter", "–", task,
		"Releases published again after a restart, with the same bytes.", ""},
	{"epochs_total", "counter", "–", task, "Epochs that this process opened.", ""},
	{"halts_total", "counter", "–", []string{"stream", "partition", "reason"},
		"Times that the task halted, so that an operator must act.", ""},
	{"kafka_errors_total", "counter", "–", []string{"api", "code"},
		"Calls to the cluster that failed and are repeated, by call and the broker's error code.", ""},
	{"commit_errors_total", "counter", "–", task,
		"Commits that failed because the disk is full, and are repeated.", ""},
	{"takeover_seconds", "histogram", "–", nil,
		"Time from the assignment of a shard to this instance until the shard's tasks run.", ""},
	{"state_transactions_total", "counter", "–", []string{"outcome"},
		"Transactions of shards: committed, refused (nothing was sent, for example because the transaction is too " +
			"large), lost (the outcome is unknown, or another instance owns the shard).", ""},
	{"ledger_lines", "gauge", "–", nil, "Lines of the ledgers of the shards that this instance runs.", ""},
	{"group_shards", "gauge", "–", nil, "Shards of the group, as configured.", ""},
	{"pattern_topics", "gauge", "–", []string{"pattern", "state"},
		"Topics that match `input.topics` of a pattern, by result: taken, beyond (`input.max_topics` topics are " +
			"already taken), refused (for example because another pattern has the topic). Alert on beyond and " +
			"refused.", ""},
	{"next_offset", "gauge", "–", task, "Offset of the next input record that the task will apply.", "sum"},
	{"log_end_offset", "gauge", "–", task, "Last stable offset of the input partition.", "sum"},
	{"lag_records", "gauge", "–", task,
		"Offsets from next_offset to log_end_offset. For a merged stream, of the partition that is furthest " +
			"behind.", "largest"},
	{"retention_headroom_records", "gauge", "–", task,
		"Offsets from the start of the input log to next_offset: how many retention may delete before unread " +
			"records are lost. For a merged stream, of the partition with the fewest.", "least"},
	{"step", "gauge", "–", task, "Last closed step of the epoch.", "sum"},
	{"horizon_steps", "gauge", "–", task, "Steps after which the epoch ends; 0: never.", ""},
	{"few_valid", "gauge", "–", task,
		"1 if the published valid_count or full_share shows that at most a tenth of recent records count or, for " +
			"streams that protect persons, if counted_share shows that possibly none counts; always 0 if a stream " +
			"publishes none of these.", "sum"},
	{"unread_partitions", "gauge", "–", task,
		"Partitions of the input topic that no stream of this configuration reads.", "largest"},
	{"registry_reachable", "gauge", "–", nil,
		"1 if the last request to the schema registry succeeded; absent if no registry is configured.", ""},
	{"schema_faults", "gauge", "–", task,
		"Columns that the newest schemas in the registry cannot provide, over all subjects of the stream; 1 for a " +
			"schema that cannot be used. As public as the registry.", "largest"},
	{"outbox_releases", "gauge", "–", task, "Releases not yet acknowledged by the brokers.", "sum"},
	{"last_commit_timestamp_seconds", "gauge", "–", task,
		"Time of the last commit of this process, in seconds since 1970.", "least"},
	{"last_release_timestamp_seconds", "gauge", "–", task,
		"Time of the last acknowledged release of this process, in seconds since 1970.", "least"},
	{"noise_stddev", "gauge", "–", []string{"stream", "partition", "value"},
		"Standard deviation of one step's independent noise, in scaled units. For regressions, the unit is the clip " +
			"norm (value gradient) or one record (all other values).", "largest"},
	{"privacy_mu", "gauge", "–", task, "Privacy parameter μ of the epoch (Gaussian differential privacy).", "largest"},
	{"privacy_epsilon", "gauge", "–", task, "Epsilon of the epoch at privacy_delta.", "largest"},
	{"privacy_delta", "gauge", "–", task, "Delta of the epoch.", "largest"},
	{"privacy_charged_epsilon", "gauge", "–", task,
		"Epsilon charged to the worst-off record of the input partition, or to the worst-off person of the " +
			"population, over all epochs and streams, at the limit's delta.", "largest"},
	{"privacy_limit_epsilon", "gauge", "–", task, "Limit of privacy_charged_epsilon.", "least"},
	{"shards_owned", "gauge", "–", nil,
		"Shards whose tasks this instance runs. Alert if the sum over all instances of the group differs from " +
			"group_shards for a minute.", ""},
	{"shard_acquisitions_total", "counter", "–", []string{"outcome"},
		"Attempts to acquire a shard: acquired, moved (the group meanwhile gave it to another instance), failed " +
			"(will be repeated), halted (an operator must act).", ""},
	{"shards_lost_total", "counter", "–", []string{"reason"},
		"Shards that this instance stopped running: given (the group gave it to another instance, or this one " +
			"stops), unknown (a transaction's outcome is unknown, or another instance acquired the shard), failed " +
			"(the whole shard failed).", ""},
	{"group_generation", "gauge", "–", nil,
		"Number of the newest rebalance of the group that this instance knows.", ""},
	{"group_standby", "gauge", "–", []string{"reason"},
		"1 for the reason why this instance has no shards: key, configuration, format or unreadable. All 0 if it " +
			"may have shards.", ""},
	{"publish_duration_seconds", "histogram", "–", task, "Time until a produce request with releases was " +
		"acknowledged.", ""},
	{"read_bytes_total", "counter", "P", task, "Not private. Bytes of keys and values read.", ""},
	{"checkpoint_bytes", "gauge", "P", task, "Not private. Size of the estimator's state in the last commit.", "sum"},
	{"fetch_duration_seconds", "histogram", "P", task,
		"Not private. Duration of a fetch, including the wait for records.", ""},
	{"commit_duration_seconds", "histogram", "P", task, "Not private. Duration of a durable commit.", ""},
	{"restored_bytes_total", "counter", "P", nil,
		"Not private. Bytes of states and ledgers read to acquire shards.", ""},
	{"state_commit_seconds", "histogram", "P", nil, "Not private. Duration of a shard's transaction.", ""},
	{"state_bytes_total", "counter", "P", nil,
		"Not private. Bytes of values and ledger lines committed in shards' transactions.", ""},
	{"trace_spans_total", "counter", "P", []string{"outcome"},
		"Not private. Spans of traces: sent, dropped (the collector did not accept them in time). Their number " +
			"depends on the sizes of records.", ""},
	{"dead_letters_total", "counter", "P", task, "Not private. Dead letters written.", ""},
	{"dead_letter_errors_total", "counter", "P", task,
		"Not private. Attempts to write dead letters that failed and are repeated.", ""},
	{"diagnostic_records_rejected_total", "counter", "P", []string{"stream", "partition", "reason"},
		"Not private. Records that gave no row and count as the zero row; for streams that protect persons, also " +
			"records that do not count for their person (no-user, over-cap, foreign, full).", ""},
	{"diagnostic_schema_records_total", "counter", "P", []string{"stream", "partition", "schema", "reason"},
		"Not private. Records by the id of their schema in the registry and by result: the reason why they gave no " +
			"row, or decoded. Schema unknown: no subject of the stream has the id; other: ids after the first 100.",
		""},
	{"diagnostic_records_clipped_total", "counter", "P", task,
		"Not private. Rows that were shortened to the clip norm (mechanism moments).", ""},
}

const prefix = "streamdp_"

// Metrics are the daemon's metrics, in their own registry.
type Metrics struct {
	Registry *prometheus.Registry
	counters map[string]*prometheus.CounterVec
	gauges   map[string]*prometheus.GaugeVec
	times    map[string]*prometheus.HistogramVec
	descs    map[string]*prometheus.Desc // descriptions of the metrics that are computed at each scrape
	Public   bool                        // whether metrics of class P are left out

	aggregate bool
	over      map[string]string // metricDef.Over of each gauge of tasks
	mu        sync.Mutex
	last      map[string]map[core.Task]float64 // aggregate only: values of gauges that tasks set, by task
	schemaIDs map[int32]bool                   // schema ids that have their own series
	exact     map[core.Task]*NotPrivate        // aggregate only: counts for the status of each task
	begun     map[core.Task]bool               // tasks whose series exist
}

// scraped are the gauges that are computed from the tasks' status at each scrape.
var scraped = map[string]func(TaskStatus) float64{
	"next_offset":       func(s TaskStatus) float64 { return float64(s.NextOffset) },
	"log_end_offset":    func(s TaskStatus) float64 { return float64(s.LogEnd) },
	"lag_records":       func(s TaskStatus) float64 { return float64(s.Lag) },
	"step":              func(s TaskStatus) float64 { return float64(s.Step) },
	"horizon_steps":     func(s TaskStatus) float64 { return float64(s.Horizon) },
	"unread_partitions": func(s TaskStatus) float64 { return float64(s.Unread) },
	"few_valid": func(s TaskStatus) float64 {
		if s.FewValid {
			return 1
		}
		return 0
	},
	"schema_faults": func(s TaskStatus) float64 {
		n := 0
		for _, of := range s.Schemas {
			n += len(of.Faults)
		}
		return float64(n)
	},
	"outbox_releases":         func(s TaskStatus) float64 { return float64(s.Outbox) },
	"privacy_mu":              func(s TaskStatus) float64 { return s.Mu },
	"privacy_epsilon":         func(s TaskStatus) float64 { return s.Epsilon },
	"privacy_delta":           func(s TaskStatus) float64 { return s.Delta },
	"privacy_charged_epsilon": func(s TaskStatus) float64 { return s.ChargedEpsilon },
	"privacy_limit_epsilon":   func(s TaskStatus) float64 { return s.LimitEpsilon },
}

// NewMetrics returns the metrics of a process. If public, metrics of class P are left out. If aggregate, all tasks
// share one series.
func NewMetrics(public, aggregate bool, version string, insecure bool) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{},
		times: map[string]*prometheus.HistogramVec{}, descs: map[string]*prometheus.Desc{}, Public: public,
		aggregate: aggregate, over: map[string]string{}, last: map[string]map[core.Task]float64{},
		exact: map[core.Task]*NotPrivate{}, schemaIDs: map[int32]bool{}, begun: map[core.Task]bool{},
	}
	for _, d := range metricTable {
		name := prefix + d.Name
		if aggregate && d.OfTask() {
			d.labels = slices.DeleteFunc(slices.Clone(d.labels),
				func(l string) bool { return l == "stream" || l == "partition" })
			if d.Kind == "gauge" {
				// Aggregated gauges are computed at each scrape, even those that tasks set.
				if m.over[d.Name] = d.Over; d.Over != "" && !(public && d.Class == "P") {
					m.descs[d.Name] = prometheus.NewDesc(name, fmt.Sprintf("The %s over all tasks: %s", d.Over, d.Help),
						d.labels, nil)
				}
				continue
			}
		}
		switch {
		case scraped[d.Name] != nil || d.Name == "task_state" || d.Name == "task_info" || d.Name == "bounds_verdict" ||
			d.Name == "noise_stddev" || d.Name == "retention_headroom_records":
			m.descs[d.Name] = prometheus.NewDesc(name, d.Help, d.labels, nil)
			continue
		case d.Kind == "counter":
			m.counters[d.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: d.Help}, d.labels)
		case d.Kind == "gauge":
			m.gauges[d.Name] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: d.Help}, d.labels)
		default:
			// The histogram has both classic and native buckets, for old and new Prometheus servers.
			m.times[d.Name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: name, Help: d.Help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
				NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			}, d.labels)
		}
		if public && d.Class == "P" {
			continue // the metric is counted but not exported
		}
		var c prometheus.Collector
		switch {
		case m.counters[d.Name] != nil:
			c = m.counters[d.Name]
		case m.gauges[d.Name] != nil:
			c = m.gauges[d.Name]
		default:
			c = m.times[d.Name]
		}
		m.Registry.MustRegister(c)
	}
	if !public {
		m.Registry.MustRegister(collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	m.gauges["build_info"].WithLabelValues(version, runtime.Version(), runtime.GOARCH).Set(1)
	m.Reloaded(true, time.Now())
	on := 0.0
	if insecure {
		on = 1
	}
	m.gauges["insecure_noise"].WithLabelValues().Set(on)
	return m
}

// Reloaded shows whether the configuration just read was accepted.
func (m *Metrics) Reloaded(taken bool, at time.Time) {
	if !taken {
		m.gauges["config_last_load_successful"].WithLabelValues().Set(0)
		return
	}
	m.gauges["config_last_load_successful"].WithLabelValues().Set(1)
	m.gauges["config_last_load_timestamp_seconds"].WithLabelValues().Set(float64(at.UnixMilli()) / 1000)
}

// Watch adds the gauges that are computed at each scrape.
func (m *Metrics) Watch(tasks func() []TaskStatus) {
	m.Registry.MustRegister(&statusCollector{m, tasks})
}

// verdicts are the possible verdicts of a release on its bounds.
var verdicts = []string{"ok", "partial", "stale", "biased", "fail"}

type statusCollector struct {
	m     *Metrics
	tasks func() []TaskStatus
}

// Describe implements prometheus.Collector.
func (c *statusCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.m.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(out chan<- prometheus.Metric) {
	all := overall{m: c.m, of: map[string]*oneGauge{}}
	for _, s := range c.tasks() {
		t := core.Task{Stream: s.Stream, Partition: s.Partition}
		gauge := func(name string, v float64, more ...string) {
			if c.m.aggregate {
				all.add(name, v, more...)
				return
			}
			out <- prometheus.MustNewConstMetric(c.m.descs[name], prometheus.GaugeValue, v,
				append(labels(t), more...)...)
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
		for _, verdict := range verdicts {
			on := 0.0
			if s.Verdict == verdict {
				on = 1
			}
			gauge("bounds_verdict", on, verdict)
		}
		for name, v := range s.NoiseStddev {
			gauge("noise_stddev", v, name)
		}
		if s.LogStart >= 0 {
			gauge("retention_headroom_records", float64(s.NextOffset-s.LogStart))
		}
	}
	c.m.mu.Lock()
	for name, tasks := range c.m.last {
		for _, v := range tasks {
			all.add(name, v)
		}
	}
	c.m.mu.Unlock()
	for _, x := range all.of {
		out <- prometheus.MustNewConstMetric(c.m.descs[x.name], prometheus.GaugeValue, x.v, x.labels...)
	}
}

// overall combines the gauges of all tasks into one value for each gauge.
type overall struct {
	m  *Metrics
	of map[string]*oneGauge
}

type oneGauge struct {
	name   string
	labels []string
	v      float64
}

func (o *overall) add(name string, v float64, labels ...string) {
	if o.m.descs[name] == nil {
		return
	}
	key := name + " " + strings.Join(labels, " ")
	x := o.of[key]
	if x == nil {
		o.of[key] = &oneGauge{name, labels, v}
		return
	}
	switch o.m.over[name] {
	case "largest":
		x.v = max(x.v, v)
	case "least":
		x.v = min(x.v, v)
	default:
		x.v += v
	}
}

func labels(t core.Task) []string { return []string{t.Stream, core.PartitionName(t.Partition)} }

// labels returns the label values with which a task's series begin.
func (m *Metrics) labels(t core.Task) []string {
	if m.aggregate {
		return nil
	}
	return labels(t)
}

// set sets a task's gauge.
func (m *Metrics) set(name string, t core.Task, v float64) {
	if !m.aggregate {
		m.gauges[name].WithLabelValues(labels(t)...).Set(v)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last[name] == nil {
		m.last[name] = map[core.Task]float64{}
	}
	m.last[name][t] = v
}

// Begin creates a task's counters at 0, because a counter that first appears at 1 shows no increase.
func (m *Metrics) Begin(t core.Task) {
	m.mu.Lock()
	m.begun[t] = true
	m.mu.Unlock()
	for _, d := range metricTable {
		if d.Kind == "counter" && slices.Equal(d.labels, task) {
			m.add(d.Name, t, 0)
		}
	}
	for r := codec.Decoded + 1; r < codec.Reasons; r++ {
		m.add("diagnostic_records_rejected_total", t, 0, r.String())
	}
}

// End removes the series of a task. Its counts stay in the sums over all tasks.
func (m *Metrics) End(t core.Task) {
	of := prometheus.Labels{"stream": t.Stream, "partition": core.PartitionName(t.Partition)}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.begun, t)
	for _, d := range metricTable {
		if !d.OfTask() || m.aggregate {
			continue
		}
		switch {
		case m.counters[d.Name] != nil:
			m.counters[d.Name].DeletePartialMatch(of)
		case m.gauges[d.Name] != nil:
			m.gauges[d.Name].DeletePartialMatch(of)
		case m.times[d.Name] != nil:
			m.times[d.Name].DeletePartialMatch(of)
		}
	}
	for _, of := range m.last {
		delete(of, t)
	}
	delete(m.exact, t)
}

func (m *Metrics) add(name string, t core.Task, n float64, more ...string) {
	m.counters[name].WithLabelValues(append(m.labels(t), more...)...).Add(n)
}

// Worked adds a task's counts since the last call.
func (m *Metrics) Worked(t core.Task, w *Counts) {
	m.add("records_read_total", t, float64(w.Records))
	m.add("steps_total", t, float64(w.Steps))
	m.add("releases_total", t, float64(w.Releases))
	m.add("diagnostic_records_clipped_total", t, float64(w.Clipped))
	for r := codec.Decoded + 1; r < codec.Reasons; r++ {
		if n := w.Rejected[r]; n > 0 {
			m.add("diagnostic_records_rejected_total", t, float64(n), r.String())
		}
	}
	if m.aggregate {
		found := m.NotPrivate(t)
		found.Clipped += uint64(w.Clipped)
		for r := codec.Decoded + 1; r < codec.Reasons; r++ {
			found.Rejected[r.String()] += uint64(w.Rejected[r])
		}
		m.mu.Lock()
		m.exact[t] = found
		m.mu.Unlock()
	}
}

// NotPrivate returns the exact counts of a task's records.
func (m *Metrics) NotPrivate(t core.Task) *NotPrivate {
	if m.aggregate {
		found := &NotPrivate{Rejected: make(map[string]uint64, codec.Reasons)}
		for r := codec.Decoded + 1; r < codec.Reasons; r++ {
			found.Rejected[r.String()] = 0
		}
		m.mu.Lock()
		was := m.exact[t] // Replace the value and do not modify it: others may be reading it.
		m.mu.Unlock()
		if was != nil {
			found.Clipped = was.Clipped
			maps.Copy(found.Rejected, was.Rejected)
		}
		return found
	}
	m.mu.Lock() // Hold the lock: looking up a series creates it.
	defer m.mu.Unlock()
	count := func(name string, more ...string) uint64 {
		var x dto.Metric
		if !m.begun[t] || m.counters[name].WithLabelValues(append(labels(t), more...)...).Write(&x) != nil {
			return 0
		}
		return uint64(x.GetCounter().GetValue())
	}
	found := &NotPrivate{Rejected: map[string]uint64{}, Clipped: count("diagnostic_records_clipped_total")}
	for r := codec.Decoded + 1; r < codec.Reasons; r++ {
		found.Rejected[r.String()] = count("diagnostic_records_rejected_total", r.String())
	}
	return found
}

// maxSchemaIDs is the maximum number of schema ids that have their own series.
const maxSchemaIDs = 100

// BySchema counts the records of a batch by the ids of their schemas. known reports whether the registry has an id. Ids
// that are not in the registry were invented by the record's writer.
func (m *Metrics) BySchema(t core.Task, b *codec.Batch, known func(id int32) bool) {
	if b.Schemas == nil {
		return
	}
	var counts [codec.Reasons]int
	flush := func(id int32) {
		found := false // whether the registry had the schema of a record with this id
		for why, n := range counts {
			found = found || n > 0 && codec.Reason(why) != codec.NoSchema
		}
		name := m.schemaName(id, id >= 0 && (found || known(id)))
		for why, n := range counts {
			if n > 0 {
				m.add("diagnostic_schema_records_total", t, float64(n), name, codec.Reason(why).String())
			}
		}
		counts = [codec.Reasons]int{}
	}
	for i, id := range b.Schemas {
		if i > 0 && id != b.Schemas[i-1] {
			flush(b.Schemas[i-1])
		}
		counts[b.Reasons[i]]++
	}
	if n := len(b.Schemas); n > 0 {
		flush(b.Schemas[n-1])
	}
}

// schemaName returns the label for a schema id.
func (m *Metrics) schemaName(id int32, known bool) string {
	if !known {
		return "unknown"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.schemaIDs[id] && len(m.schemaIDs) == maxSchemaIDs {
		return "other"
	}
	m.schemaIDs[id] = true
	return strconv.Itoa(int(id))
}

// Republished counts releases that a task published again.
func (m *Metrics) Republished(t core.Task, n int) { m.add("releases_republished_total", t, float64(n)) }

// DeadLetters counts records that a task wrote to its dead-letter topic.
func (m *Metrics) DeadLetters(t core.Task, n int) { m.add("dead_letters_total", t, float64(n)) }

// DeadLetterFailed counts a failure to write dead letters.
func (m *Metrics) DeadLetterFailed(t core.Task) { m.add("dead_letter_errors_total", t, 1) }

// Opened counts an epoch that a task opened.
func (m *Metrics) Opened(t core.Task) { m.add("epochs_total", t, 1) }

// Halt counts a halt of a task.
func (m *Metrics) Halt(t core.Task, reason string) { m.add("halts_total", t, 1, reason) }

// CommitFailed counts a commit of a task that failed.
func (m *Metrics) CommitFailed(t core.Task) { m.add("commit_errors_total", t, 1) }

// Fetched counts a fetch of a task.
func (m *Metrics) Fetched(t core.Task, took time.Duration, bytes int) {
	m.times["fetch_duration_seconds"].WithLabelValues(m.labels(t)...).Observe(took.Seconds())
	m.add("read_bytes_total", t, float64(bytes))
}

// Traced counts spans that were sent to the collector, and spans that were dropped.
func (m *Metrics) Traced(sent, dropped int) {
	m.counters["trace_spans_total"].WithLabelValues("sent").Add(float64(sent))
	m.counters["trace_spans_total"].WithLabelValues("dropped").Add(float64(dropped))
}

// Committed records a task's commit: its duration, the size of the checkpoint, and the time.
func (m *Metrics) Committed(t core.Task, took time.Duration, bytes int, at time.Time) {
	m.times["commit_duration_seconds"].WithLabelValues(m.labels(t)...).Observe(took.Seconds())
	m.set("checkpoint_bytes", t, float64(bytes))
	m.set("last_commit_timestamp_seconds", t, float64(at.UnixMilli())/1000)
}

// Published records that releases of a task were acknowledged: how long it took, and when.
func (m *Metrics) Published(t core.Task, took time.Duration, at time.Time) {
	m.times["publish_duration_seconds"].WithLabelValues(m.labels(t)...).Observe(took.Seconds())
	m.set("last_release_timestamp_seconds", t, float64(at.UnixMilli())/1000)
}

// Shares creates the metrics of a group, even on an instance that has no shard yet. A counter that first appears above
// 0 would hide its first count from alerts.
func (m *Metrics) Shares(shards int) {
	m.gauges["group_shards"].WithLabelValues().Set(float64(shards))
	m.Owns(0)
	for _, outcome := range []string{OutcomeAcquired, OutcomeMoved, OutcomeFailed, OutcomeHalted} {
		m.counters["shard_acquisitions_total"].WithLabelValues(outcome)
	}
	for _, reason := range []string{ReasonGiven, ReasonUnknown, ReasonFailed} {
		m.counters["shards_lost_total"].WithLabelValues(reason)
	}
}

// TookOver records the time from the assignment of a shard to this instance until its tasks ran.
func (m *Metrics) TookOver(took time.Duration) {
	m.times["takeover_seconds"].WithLabelValues().Observe(took.Seconds())
}

// Owns adds n to the number of shards that this instance owns.
func (m *Metrics) Owns(n float64) { m.gauges["shards_owned"].WithLabelValues().Add(n) }

// The outcomes are labels of shard_acquisitions_total and shards_lost_total.
const (
	OutcomeAcquired = "acquired"
	OutcomeMoved    = "moved"
	OutcomeFailed   = "failed"
	OutcomeHalted   = "halted"

	ReasonGiven   = "given"
	ReasonUnknown = "unknown"
	ReasonFailed  = "failed"
)

// Acquired counts an attempt to acquire a shard, by its outcome.
func (m *Metrics) Acquired(outcome string) {
	m.counters["shard_acquisitions_total"].WithLabelValues(outcome).Inc()
}

// Lost counts a shard that this instance stopped owning, by reason.
func (m *Metrics) Lost(reason string) { m.counters["shards_lost_total"].WithLabelValues(reason).Inc() }

// Generation records the group's newest rebalance, as far as this instance knows it.
func (m *Metrics) Generation(number int32, standby string) {
	m.gauges["group_generation"].WithLabelValues().Set(float64(number))
	m.gauges["group_standby"].Reset()
	if standby != "" {
		m.gauges["group_standby"].WithLabelValues(standby).Set(1)
	}
}

// KafkaError counts an error that a broker returned. It ignores other errors.
func (m *Metrics) KafkaError(err error) {
	var e *kafka.Error
	if errors.As(err, &e) {
		m.counters["kafka_errors_total"].WithLabelValues(e.API, e.Label()).Inc()
	}
}

// MetricsReference returns the content of docs/metrics.md.
func MetricsReference() []byte {
	var b strings.Builder
	b.WriteString(
		"# Metrics\n\n<!-- Generated from stream/monitor/metrics.go by `go generate ./stream/monitor`. -->\n\n" +
			"`GET /metrics` in Prometheus' text format. All names but those of the Go runtime and the process " +
			"begin with `" + prefix +
			"`. In brackets are the kind " +
			"and the labels; *task* means `stream` and `partition`.\n\n" +
			"The number of records, offsets and commits is public under both adjacency relations. The time that work " +
			"took is not, so progress is shown at multiples of `state.commit_interval`.\n\n" +
			"A task's counters start at 0 when it starts; `halts_total` and `kafka_errors_total` appear with " +
			"their first " +
			"count.\n\n" +
			"With `http.metrics = \"aggregate\"` no metric has the labels `stream` and `partition`. Counters and " +
			"histograms are then those of all tasks together. A gauge is the *sum* over all tasks, the " +
			"*largest* or the " +
			"*least*, as its brackets say; a task's gauge without such a word is absent.\n")
	for _, part := range []struct{ class, about string }{
		{"–", "## Class –\n\nAnybody may see these.\n"},
		{"P", "## Class P\n\n" +
			"Exact functions of record values or of their lengths, so that one record changes them. They are for the " +
			"operator, who may see the records anyway. With `http.exposure = \"public\"` they are absent, and so are " +
			"the metrics of the Go runtime and the process, because memory and CPU follow record sizes.\n"},
	} {
		fmt.Fprintf(&b, "\n%s\n", part.about)
		for _, d := range metricTable {
			if d.Class == part.class {
				fmt.Fprintf(&b, "- `%s` (%s): %s\n", d.Name, d.summary(), strings.TrimPrefix(d.Help, "Not private. "))
			}
		}
	}
	return []byte(b.String())
}

// summary returns the kind, the labels and the aggregate of a metric, as docs/metrics.md shows them.
func (d *metricDef) summary() string {
	parts, labels := []string{d.Kind}, d.labels
	if d.OfTask() {
		labels = append([]string{"task"}, labels[len(task):]...)
	}
	if len(labels) > 0 {
		parts = append(parts, strings.Join(labels, ", "))
	}
	if d.Over != "" {
		parts = append(parts, d.Over)
	}
	return strings.Join(parts, "; ")
}

// Counts has the counts of a task's work since the metrics were last updated.
type Counts struct {
	Records, Steps, Releases int
	Rejected                 [codec.Reasons]int
	Clipped                  uint64
}

// Read counts a batch.
func (w *Counts) Read(b *codec.Batch) {
	w.Records += len(b.Records)
	for _, r := range b.Reasons {
		w.Rejected[r]++
	}
}

// notCounted maps each answer of the table of persons to the reason why a record with a row does not count.
var notCounted = [persons.Answers]codec.Reason{
	persons.NoUser: codec.NoUser, persons.OverCap: codec.OverCap, persons.Foreign: codec.Foreign,
	persons.Full: codec.Full,
}

// Uncounted counts a record that does not count for its person, unless it was already counted as a record without a
// row.
func (w *Counts) Uncounted(decoded codec.Reason, why persons.Answer) {
	if decoded == codec.Decoded {
		w.Rejected[notCounted[why]]++
	}
}

// Add adds the counts of another part of the task.
func (w *Counts) Add(o *Counts) {
	w.Records += o.Records
	for r, n := range o.Rejected {
		w.Rejected[r] += n
	}
}

// Certificate records when the certificate of a configuration table expires.
func (m *Metrics) Certificate(table string, until time.Time) {
	if g := m.gauges["certificate_expiry_timestamp_seconds"]; until.IsZero() {
		g.DeleteLabelValues(table)
	} else {
		g.WithLabelValues(table).Set(float64(until.Unix()))
	}
}

// RegistryReachable records whether the schema registry answers: 1 if it does, 0 if not.
func (m *Metrics) RegistryReachable(on float64) {
	m.gauges["registry_reachable"].WithLabelValues().Set(on)
}

// Restored counts the bytes of state and ledger that this instance read to acquire a shard.
func (m *Metrics) Restored(bytes int) {
	m.counters["restored_bytes_total"].WithLabelValues().Add(float64(bytes))
}

// Transaction counts an update of a shard's state by its outcome: committed, lost or refused.
func (m *Metrics) Transaction(outcome string) {
	m.counters["state_transactions_total"].WithLabelValues(outcome).Inc()
}

// StateCommitted counts a committed update of a shard's state and ledger.
func (m *Metrics) StateCommitted(took time.Duration, bytes int) {
	m.times["state_commit_seconds"].WithLabelValues().Observe(took.Seconds())
	m.counters["state_bytes_total"].WithLabelValues().Add(float64(bytes))
}

// LedgerLines adds n to the number of lines in the ledgers of this instance's shards.
func (m *Metrics) LedgerLines(n int) { m.gauges["ledger_lines"].WithLabelValues().Add(float64(n)) }

// PatternTopics sets the number of a pattern's topics with a given state.
func (m *Metrics) PatternTopics(pattern, state string, n int) {
	m.gauges["pattern_topics"].WithLabelValues(pattern, state).Set(float64(n))
}

// ForgetPatterns removes the numbers of all patterns.
func (m *Metrics) ForgetPatterns() { m.gauges["pattern_topics"].Reset() }

// Tasks returns the number of tasks for which metrics are kept.
func (m *Metrics) Tasks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.exact) + len(m.last["checkpoint_bytes"])
}
