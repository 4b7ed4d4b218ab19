package ledger

import (
	"encoding/hex"
	"fmt"
	"slices"
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

// Moved returns the last line, if it says that others run the tasks, else nil. It does not lock.
func (l *Ledger) Moved() *Entry {
	if n := len(l.Entries); n > 0 && l.Entries[n-1].Kind == KindMoved {
		return &l.Entries[n-1]
	}
	return nil
}

// Refusal says why nothing is run or charged with a ledger that ends with this line.
func (e *Entry) Refusal() error {
	on := e.Time.UTC().Format("2006-01-02 15:04Z")
	if e.Move.Copy {
		return fmt.Errorf(
			"this directory is a copy of the ledgers of group %s, made %s, for reading only: its tasks run there",
			e.Move.Group, on)
	}
	return fmt.Errorf(
		"the tasks of this directory were moved to group %s on %s, and run there: it is for reading only; no copy of "+
			"it from before may run either", e.Move.Group, on)
}

// Imported reports whether the ledger has the lines of an import.
func (l *Ledger) Imported(id string) bool {
	return slices.ContainsFunc(l.Entries, func(e Entry) bool { return e.Kind == KindImported && e.Move.ID == id })
}
