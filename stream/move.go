package stream

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"streamdp/internal/cluster"
)

// EntryMove says between which ledgers lines went. All lines of one import have the same random
// number, in the directory and in each shard.
type EntryMove struct {
	ID      string `json:"id"`             // 16 random bytes in hexadecimal
	Group   string `json:"group"`          // of instances
	Cluster string `json:"cluster"`        // Kafka's id of the cluster that the group is in
	Copy    bool   `json:"copy,omitempty"` // moved: the tasks go on there, and this is a copy for reading
}

// sound reports whether a line can say this.
func (m *EntryMove) sound() bool {
	if m == nil || m.Group == "" || m.Cluster == "" {
		return false
	}
	id, err := hex.DecodeString(m.ID)
	return err == nil && len(id) == 16
}

// moved returns the last line, if it says that others run the tasks, else nil. It does not lock.
func (l *ledger) moved() *Entry {
	if n := len(l.entries); n > 0 && l.entries[n-1].Kind == kindMoved {
		return &l.entries[n-1]
	}
	return nil
}

// refusal says why nothing is run or charged with a ledger that ends with this line.
func (e *Entry) refusal() error {
	on := e.Time.UTC().Format("2006-01-02 15:04Z")
	if e.Move.Copy {
		return fmt.Errorf("this directory is a copy of the ledgers of group %s, made %s, for reading only: its tasks run there", e.Move.Group, on)
	}
	return fmt.Errorf("the tasks of this directory were moved to group %s on %s, and run there: it is for reading only; no copy of it from before may run either", e.Move.Group, on)
}

// imported reports whether the ledger has the lines of an import.
func (l *ledger) imported(id string) bool {
	return slices.ContainsFunc(l.entries, func(e Entry) bool { return e.Kind == kindImported && e.Move.ID == id })
}

// collected is a holding whose updates wait: all of them are one later.
type collected struct {
	values map[string]cluster.Value
	lines  [][]byte
	put    map[string]cluster.Value
	added  [][]byte
}

func newCollected(values map[string]cluster.Value, lines [][]byte) *collected {
	return &collected{values: values, lines: lines, put: map[string]cluster.Value{}}
}

// Values implements holding.
func (g *collected) Values() map[string]cluster.Value { return g.values }

// Lines implements holding.
func (g *collected) Lines() [][]byte { return g.lines }

// Lost implements holding: it never is.
func (g *collected) Lost() <-chan struct{} { return nil }

// Affirm implements holding.
func (g *collected) Affirm(context.Context) error { return nil }

// Update implements holding.
func (g *collected) Update(_ context.Context, put map[string]cluster.Value, remove []string, lines [][]byte) error {
	for _, key := range remove {
		if _, there := g.put[key]; !there {
			return fmt.Errorf("internal: %s would be removed", key)
		}
		delete(g.put, key)
	}
	for key, v := range put {
		v.Data = slices.Clone(v.Data)
		g.put[key] = v
	}
	g.added = append(g.added, lines...)
	return nil
}

// all returns everything that the holding would have after one update with what was put.
func (g *collected) all() *collected {
	values := maps.Clone(g.values)
	if values == nil {
		values = map[string]cluster.Value{}
	}
	maps.Copy(values, g.put)
	return newCollected(values, slices.Concat(g.lines, g.added))
}

// bytes returns how many bytes the values have.
func (g *collected) bytes() (n int) {
	for _, v := range g.all().values {
		n += len(v.Data)
	}
	return n
}

// lineBytes returns how many bytes the lines have that were appended.
func (g *collected) lineBytes() (n int) {
	for _, line := range g.added {
		n += len(line)
	}
	return n
}

// copyLine appends a line that another ledger has: the same words, chained and sealed anew, with
// the time of then.
func (l *ledger) copyLine(e Entry) error {
	now := l.now
	defer func() { l.now = now }()
	at := e.Time
	l.now = func() time.Time { return at }
	e.Key, e.MAC, e.Sum = "", "", ""
	return l.append(e)
}
