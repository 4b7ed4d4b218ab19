package recovery

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Field is one fact about a file of a state directory.
type Field struct {
	Name  string
	Value any
}

// Inspect describes a file of a state directory, or an exported epoch. Its result may be shown to anybody, because no
// field depends on a record's content. So it omits the sums, noise, hashes and sizes in a checkpoint, and the secret of
// an exported epoch. For the file of a secret it returns an error.
func Inspect(data []byte) ([]Field, error) {
	if number, ok := state.SealedNumber(data); ok {
		return []Field{{"file", "encrypted"}, {"commit or epoch", number}}, nil
	}
	switch {
	case state.IsCheckpoint(data):
		return inspectCheckpoint(data)
	case state.IsArchive(data):
		return inspectArchive(data)
	case len(data) == 32:
		return nil, errors.New("the file has 32 bytes, like a master key or a secret: its content is not shown")
	}
	if x, err := ParseExport(data); err == nil {
		fields, err := inspectManifest([]byte(x.Manifest))
		if err != nil {
			return nil, err
		}
		fields = append(
			[]Field{{"file", "exported epoch"}, {"secret", len(x.Secret) > 0}, {"ledger lines", len(x.Ledger)}},
			fields[1:]...)
		return fields, nil
	}
	if fields, err := inspectManifest(data); err == nil {
		return fields, nil
	}
	if first, _, _ := bytes.Cut(data, []byte("\n")); json.Valid(first) && bytes.HasPrefix(first, []byte(`{"seq":`)) {
		return inspectLedger(data)
	}
	return nil, errors.New("the file is not a manifest, checkpoint, ledger, archive or exported epoch of this version")
}

func inspectCheckpoint(data []byte) ([]Field, error) {
	c, err := state.ParseCheckpoint(state.SlotContent(data))
	if err != nil {
		return nil, err
	}
	defer clear(c.State)
	f := []Field{
		{"file", "checkpoint"}, {"epoch", c.Epoch}, {"manifest sha-256", hex.EncodeToString(c.Manifest[:])},
		{"commit", c.Seq}, {"step", c.Step}, {"next offset", c.Position.Next}, {"leader epoch", c.Position.LeaderEpoch},
	}
	if a := c.Position.Anchor; a != nil {
		f = append(f, Field{"last record read", a.Offset})
	}
	for _, p := range c.Parts {
		f = append(f, Field{fmt.Sprintf("next offset of partition %d", p.Partition), p.Position.Next})
	}
	f = append(f, Field{"output", fmt.Sprintf("%s/%d", c.OutputTopic, c.OutputPartition)})
	switch {
	case c.Output == state.UnknownOutput:
		f = append(f, Field{"releases are looked for from", "the output's start"})
	case c.Acknowledged:
		f = append(f, Field{"last acknowledged release at", c.Output})
	default:
		f = append(f, Field{"releases are looked for from", c.Output})
	}
	var steps []uint64
	for i := range c.Outbox {
		steps = append(steps, c.Outbox[i].Step)
	}
	f = append(f, Field{"releases not acknowledged", len(slices.Compact(steps))})
	if len(steps) > 0 {
		f = append(f, Field{"of steps", [2]uint64{steps[0], steps[len(steps)-1]}})
	}
	return append(f, Field{"ledger head", hex.EncodeToString(c.Ledger[:])}, Field{"build", c.Build}), nil
}

func inspectManifest(data []byte) ([]Field, error) {
	m, err := core.ParseManifest(data)
	if err != nil {
		return nil, err
	}
	return []Field{
		{"file", "manifest"}, {"stream", m.Stream}, {"partition", m.Partition}, {"epoch", m.Epoch},
		{"cluster", m.Cluster}, {"topic", m.Topic}, {"log", m.Incarnation}, {"base offset", m.Base},
		{"partitions", m.Partitions},
		{"mechanism", m.Mechanism}, {"mu", m.Cost.Mu}, {"adjacency", m.Cost.Adjacency.String()},
		{"limit epsilon", m.LimitEpsilon}, {"limit delta", m.LimitDelta},
		{"charged epsilon at open", m.ChargedEpsilonAtOpen},
		{"key", m.KeyID}, {"epoch id", hex.EncodeToString(m.EpochID)}, {"nonce", hex.EncodeToString(m.Nonce)},
		{"digest", hex.EncodeToString(m.Digest)},
		{"versions", m.Versions}, {"configuration", m.Config}, {"insecure", m.Insecure}, {"version", m.Version},
	}, nil
}

func inspectLedger(data []byte) ([]Field, error) {
	lines := data[:ledger.CompleteLines(data)]
	l, err := ledger.Parse(lines, nil)
	if err != nil {
		return nil, err
	}
	entries := l.Entries
	f := []Field{{"file", "ledger"}, {"lines", len(entries)}, {"torn last line", len(lines) < len(data)}}
	kinds := map[string]int{}
	tasks := map[string]bool{}
	for i := range entries {
		kinds[entries[i].Kind]++
		tasks[entries[i].Task().String()] = true
	}
	var names []string
	for name := range tasks {
		names = append(names, name)
	}
	slices.Sort(names)
	f = append(f, Field{"entries", kinds}, Field{"tasks", strings.Join(names, ", ")})
	if n := len(entries); n > 0 {
		f = append(f, Field{"first", entries[0].Time}, Field{"last", entries[n-1].Time})
	}
	return f, nil
}

func inspectArchive(data []byte) ([]Field, error) {
	list, err := state.ParseArchive(data)
	if err != nil {
		return nil, err
	}
	f := []Field{{"file", "archive"}, {"messages", len(list)}}
	if n := len(list); n > 0 {
		f = append(f, Field{"first", string(list[0].Key)}, Field{"last", string(list[n-1].Key)})
	}
	return f, nil
}
