package stream

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"streamdp/config"
)

// EpochInfo is an epoch as the ledger has it.
type EpochInfo struct {
	Stream      string    `json:"stream"`
	Partition   int       `json:"partition"`
	Epoch       uint64    `json:"epoch"`
	State       string    `json:"state"` // open, closed
	Cluster     string    `json:"cluster"`
	Topic       string    `json:"topic"`
	Incarnation uint64    `json:"incarnation"`
	First       int64     `json:"first"`
	End         int64     `json:"end"` // −1: open end
	Mechanism   string    `json:"mechanism"`
	Epsilon     float64   `json:"epsilon"`
	Delta       float64   `json:"delta"`
	Mu          float64   `json:"mu"`
	Adjacency   string    `json:"adjacency"`
	Opened      time.Time `json:"opened"`
	Reason      string    `json:"reason"` // of its end, or of its opening while it is open
}

// readLedger reads the ledger of a state directory, which another process may
// be writing: a last line without an end is one that is being written.
func readLedger(dir string) (*ledger, error) {
	data, err := osDisk{}.ReadFile(dir + "/ledger.jsonl")
	if errors.Is(err, fs.ErrNotExist) {
		return &ledger{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	entries, heads, err := parseLedger(data[:whole(data)])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return &ledger{entries: entries, heads: heads}, nil
}

// ReadEpochs lists the epochs of a state directory, also while a daemon runs on
// it.
func ReadEpochs(dir string) ([]EpochInfo, error) {
	l, err := readLedger(dir)
	if err != nil {
		return nil, err
	}
	out := []EpochInfo{}
	for i := range l.entries {
		e := &l.entries[i]
		if e.Kind != kindOpen {
			continue
		}
		info := EpochInfo{
			Stream: e.Stream, Partition: e.Partition, Epoch: e.Epoch, State: "open",
			Cluster: e.Cluster, Topic: e.Topic, Incarnation: e.Incarnation, First: e.First, End: e.End,
			Mechanism: e.Mechanism, Epsilon: e.Epsilon, Delta: e.Delta, Mu: e.Cost.Mu, Adjacency: e.Cost.Adjacency.String(),
			Opened: e.Time, Reason: e.Reason,
		}
		if end := l.end(i); end != nil {
			if end.Kind == kindVoid {
				continue
			}
			info.State, info.End, info.Reason = "closed", end.End, end.Reason
		}
		out = append(out, info)
	}
	return out, nil
}

// ChargedEpsilon returns what the worst-off record of a stream's input
// partition has paid at the limit's δ, in any cluster that the ledger knows.
func ChargedEpsilon(dir string, s *config.Stream, partition int) (float64, error) {
	l, err := readLedger(dir)
	if err != nil {
		return 0, err
	}
	worst := 0.0
	for _, e := range l.entries {
		if e.Topic != s.Input.Topic || e.Partition != partition {
			continue
		}
		eps, err := l.chargedEpsilon(e.Source, s.Privacy.Adjacency, s.Privacy.LimitDelta)
		if err != nil {
			return 0, err
		}
		worst = max(worst, eps)
	}
	return worst, nil
}
