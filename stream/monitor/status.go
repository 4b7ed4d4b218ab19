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
	StateComparing = "comparing" // compares releases with those that the output holds already, and publishes none
	StateRetrying  = "retrying"
	StateHalted    = "halted"
	StateExhausted = "exhausted"
	StateClosed    = "closed"
)

var states = []string{StateStarting, StateRunning, StateComparing, StateRetrying, StateHalted, StateExhausted,
	StateClosed}

// TaskStatus is a task's state as status and metrics show it. Nothing in it but NotPrivate is
// a function of a record's content.
type TaskStatus struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`  // of a halt
	Message   string `json:"message,omitempty"` // in words
	Mechanism string `json:"mechanism"`
	Computes  string `json:"computes,omitempty"` // in one sentence
	Method    string `json:"method,omitempty"`   // what "auto" resolved to

	Factorization string `json:"factorization,omitempty"`

	Topic   string `json:"topic"`
	Output  string `json:"output"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Base    int64  `json:"base"`
	Step    uint64 `json:"step"`
	Horizon uint64 `json:"horizon,omitempty"`
	// Verdict is what the last release of this process says of bounds that a warm-up
	// found.
	Verdict    string `json:"verdict,omitempty"`
	NextOffset int64  `json:"next_offset"`
	LogEnd     int64  `json:"log_end_offset"`
	LogStart   int64  `json:"-"` // −1 while it is not known
	Warmup     int64  `json:"-"` // how many of the epoch's records are in its warm-up
	// Lag is how far the task is behind the end of the log; of a merged one, in the partition
	// where that is most.
	Lag int64 `json:"lag_records"`
	// Headroom is how much retention may delete before records are lost, of a merged task in
	// the partition where that is least; nil while it is not known.
	Headroom *int64 `json:"retention_headroom_records,omitempty"`
	// Outbox counts releases that are not acknowledged yet.
	Outbox int `json:"outbox_releases"`
	// Comparing says that the state is older than its output, so that the task repeats
	// releases and compares them.
	Comparing bool `json:"comparing,omitempty"`
	// FewValid says that hardly any record counts, according to published numbers; see census.
	FewValid bool `json:"few_valid,omitempty"`
	// Unread counts partitions of the input topic that no stream of the configuration
	// reads.
	Unread int `json:"unread_partitions"`

	// Schemas are the newest schemas of the stream's subjects, as of the last look at the registry.
	Schemas []connect.SchemaStatus `json:"schemas,omitempty"`

	// Unit is what Epsilon, ChargedEpsilon and the limit are about: "record",
	// "person" or "person-period".
	Unit string `json:"unit"`
	// Person says which records of a person count; nil for records, and before the first epoch.
	Person         *core.Protected    `json:"person,omitempty"`
	Epsilon        float64            `json:"epsilon"`
	Delta          float64            `json:"delta"`
	Mu             float64            `json:"mu,omitempty"`
	Adjacency      string             `json:"adjacency"`
	ChargedEpsilon float64            `json:"charged_epsilon"`
	LimitEpsilon   float64            `json:"limit_epsilon"`
	LimitDelta     float64            `json:"limit_delta"`
	NoiseStddev    map[string]float64 `json:"noise_stddev,omitempty"`
	// Guarantee says in words what the epoch promises and what it does not.
	Guarantee []string `json:"guarantee,omitempty"`
	// Warnings are about settings that are allowed and probably not meant, as of check.
	Warnings []string `json:"warnings,omitempty"`
	// Budget is how ChargedEpsilon came about: the newest of what the ledger says.
	Budget []ledger.BudgetEvent `json:"budget,omitempty"`
	// NotPrivate is absent where http.exposure is "public".
	NotPrivate  *NotPrivate `json:"not_private,omitempty"`
	LastCommit  *time.Time  `json:"last_commit,omitempty"`
	LastRelease *time.Time  `json:"last_release,omitempty"`
}

// NotPrivate counts what the process did since it began. It is an exact function of records.
type NotPrivate struct {
	// that gave no row, or do not count for their person, by reason
	Rejected map[string]uint64 `json:"rejected_records"`
	Clipped  uint64            `json:"clipped_records"` // of moments: rows that were shortened
}

// Progress is an owner's progress as status and metrics show it.
type Progress struct {
	Step      uint64
	Seen      int64
	Unsent    int // releases that are not acknowledged, committed or not
	Comparing bool
	Log       LogLag
	Verdict   string
}

// LogLag is what status and metrics show of the input log. Of a merged task start is such
// that the sum of its positions lies as far behind it as the position lies behind its log's
// start in the partition where that is least: so much may retention delete before a record
// is lost. end is the sum of the logs' ends, and lag that of the partition that is furthest
// behind. So a lag above the headroom is seen where it is that of a single partition.
type LogLag struct{ Start, End, Lag int64 }

// LogLagOf returns the view of the logs of a merged task's partitions, at these positions. It
// is unknown while the log of one of them is.
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
