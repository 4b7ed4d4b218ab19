package ledger

import (
	"encoding/hex"
	"fmt"
	"slices"
)

// EntryMove names the ledgers between which lines were moved. All EntryMoves of one import have the same random ID, in
// the state directory and in each shard.
type EntryMove struct {
	ID      string `json:"id"`      // 16 random bytes in hexadecimal
	Group   string `json:"group"`   // name of the group of instances
	Cluster string `json:"cluster"` // id of the Kafka cluster of the group
	// Copy is set in an entry of kind "moved" if this ledger is a read-only copy and the tasks run in the group.
	Copy bool `json:"copy,omitempty"`
}

// sound reports whether m is valid in a line.
func (m *EntryMove) sound() bool {
	if m == nil || m.Group == "" || m.Cluster == "" {
		return false
	}
	id, err := hex.DecodeString(m.ID)
	return err == nil && len(id) == 16
}

// Moved returns the last line if it says that other instances run the tasks, otherwise nil. It takes no lock.
func (l *Ledger) Moved() *Entry {
	if n := len(l.Entries); n > 0 && l.Entries[n-1].Kind == KindMoved {
		return &l.Entries[n-1]
	}
	return nil
}

// Refusal returns the error for a ledger that ends with this line: nothing may run or be charged with it.
func (e *Entry) Refusal() error {
	on := e.Time.UTC().Format("2006-01-02 15:04Z")
	if e.Move.Copy {
		return fmt.Errorf(
			"this directory is a copy of the ledgers of group %s, made %s, and read-only: run and charge its tasks "+
				"in the group",
			e.Move.Group, on)
	}
	return fmt.Errorf(
		"this directory is read-only, because its tasks were moved to group %s on %s and run there; do not run an "+
			"older copy of the directory either", e.Move.Group, on)
}

// Imported reports whether the ledger has the lines of the import with this ID.
func (l *Ledger) Imported(id string) bool {
	return slices.ContainsFunc(l.Entries, func(e Entry) bool { return e.Kind == KindImported && e.Move.ID == id })
}
