package monitor

import (
	"math"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

// The states of a task.
const (
	StateStarting  = "starting"
	StateRunning   = "running"
	StateComparing = "comparing" // the task compares its releases with those already in the output, and publishes none
	StateRetrying  = "retrying"
	StateHalted    = "halted"
	StateExhausted = "exhausted"
	StateClosed    = "closed"
)

var states = []string{StateStarting, StateRunning, StateComparing, StateRetrying, StateHalted, StateExhausted,
	StateClosed}

// TaskStatus is a task's state, as status pages and metrics show it. Only the field NotPrivate depends on the content
// of records.
type TaskStatus struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`  // reason of a halt
	Message   string `json:"message,omitempty"` // explains the state
	Mechanism string `json:"mechanism"`
	Computes  string `json:"computes,omitempty"` // what the task computes, in one sentence
	Method    string `json:"method,omitempty"`   // the method that "auto" was resolved to

	Factorization string `json:"factorization,omitempty"`

	Topic   string `json:"topic"`
	Output  string `json:"output"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Base    int64  `json:"base"`
	Step    uint64 `json:"step"`
	Horizon uint64 `json:"horizon,omitempty"`
	// Verdict is the verdict of the last release of this process on bounds found by a warm-up.
	Verdict    string `json:"verdict,omitempty"`
	NextOffset int64  `json:"next_offset"`
	LogEnd     int64  `json:"log_end_offset"`
	LogStart   int64  `json:"-"` // −1: unknown
	Warmup     int64  `json:"-"` // number of the epoch's records in its warm-up
	// Lag is the number of records between the task's position and the end of the log. For a merged task it is the
	// largest such number of any partition.
	Lag int64 `json:"lag_records"`
	// Headroom is the number of records that retention may delete before unread records are lost. For a merged task it
	// is the smallest number of any partition. nil: unknown.
	Headroom *int64 `json:"retention_headroom_records,omitempty"`
	// Outbox is the number of releases that are not acknowledged yet.
	Outbox int `json:"outbox_releases"`
	// Comparing is true if the state is older than its output. The task then repeats releases and compares them with
	// the output.
	Comparing bool `json:"comparing,omitempty"`
	// FewValid is true if published numbers show that almost no record counts; see ValidityCheck.
	FewValid bool `json:"few_valid,omitempty"`
	// Unread is the number of partitions of the input topic that no stream of the configuration reads.
	Unread int `json:"unread_partitions"`

	// Schemas describes the newest schemas of the stream's subjects, as of the last request to the registry.
	Schemas []connect.SchemaStatus `json:"schemas,omitempty"`

	// Unit is the unit that Epsilon, ChargedEpsilon and the limit protect: "record", "person" or "person-period".
	Unit string `json:"unit"`
	// Person says which records of a person count. nil for streams that protect records, and before the first epoch.
	Person         *core.Protected    `json:"person,omitempty"`
	Epsilon        float64            `json:"epsilon"`
	Delta          float64            `json:"delta"`
	Mu             float64            `json:"mu,omitempty"`
	Adjacency      string             `json:"adjacency"`
	ChargedEpsilon float64            `json:"charged_epsilon"`
	LimitEpsilon   float64            `json:"limit_epsilon"`
	LimitDelta     float64            `json:"limit_delta"`
	NoiseStddev    map[string]float64 `json:"noise_stddev,omitempty"`
	// Guarantee says in words what the epoch guarantees and what it does not.
	Guarantee []string `json:"guarantee,omitempty"`
	// Warnings are about settings that are allowed but probably unintended. The check command shows the same ones.
	Warnings []string `json:"warnings,omitempty"`
	// Budget is the recent history of ChargedEpsilon: the newest events in the ledger.
	Budget []ledger.BudgetEvent `json:"budget,omitempty"`
	// NotPrivate is absent if http.exposure is "public".
	NotPrivate  *NotPrivate `json:"not_private,omitempty"`
	LastCommit  *time.Time  `json:"last_commit,omitempty"`
	LastRelease *time.Time  `json:"last_release,omitempty"`
}

// NotPrivate has counts since the start of the process. They are an exact function of records, without noise.
type NotPrivate struct {
	// Rejected counts, by reason, records that gave no row or do not count for their person.
	Rejected map[string]uint64 `json:"rejected_records"`
	// Clipped is the number of rows that the mechanism "moments" shortened to the clip norm.
	Clipped uint64 `json:"clipped_records"`
}

// Progress is an owner's progress, for status and metrics.
type Progress struct {
	Step      uint64
	Seen      int64
	Unsent    int // number of releases that are not acknowledged yet, whether committed or not
	Comparing bool
	Log       LogLag
	Verdict   string
}

// LogLag is a task's position relative to the input log, for status and metrics. End is the sum of the logs' ends. Lag
// is the lag of the partition that is furthest behind. Start is not a sum: it is chosen so that the sum of the task's
// positions minus Start is the smallest headroom of any partition. A partition's headroom is the distance of the task's
// position from the start of the log: the number of records that retention may delete before an unread record is lost.
// So status and metrics show when a single partition's lag exceeds its headroom.
type LogLag struct{ Start, End, Lag int64 }

// LogLagOf returns the LogLag of a merged task whose partitions are at these positions. It is unknown while the offsets
// of one of the logs are unknown.
func LogLagOf(at []int64, logs []kafka.Offsets) LogLag {
	v, next, headroom := LogLag{}, int64(0), int64(math.MaxInt64)
	for i, log := range logs {
		if log.Start < 0 || log.Stable < 0 {
			return LogLag{-1, -1, 0}
		}
		next, v.End = next+at[i], v.End+log.Stable
		headroom, v.Lag = min(headroom, at[i]-log.Start), max(v.Lag, log.Stable-at[i])
	}
	v.Start = max(0, next-headroom)
	return v
}
