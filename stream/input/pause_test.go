package input_test

import (
	"fmt"
	"testing"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/state"
)

// TestMergedUsersPause: only a leaf whose snapshot is written continues. If another leaf got the signal, it would not
// wait for its own snapshot later.
func TestMergedUsersPause(t *testing.T) {
	t.Parallel()
	m := &input.Merger{}
	var users state.Journals
	for i := range 2 {
		own, err := persons.NewMap(persons.Rule{Cap: 2, Separation: 1, PerStep: 1, Users: 9})
		fixtures.Must(t, err)
		j, err := persons.OpenJournal(state.UserFiles{Disk: simdisk.NewSimDisk("/s")}, "/s",
			fmt.Sprintf("users-1.p%d.", i), own, persons.Position{})
		fixtures.Must(t, err)
		fixtures.Must(t, own.Open(1))
		for range 5 + 40*i { // a snapshot is due after 30 records
			own.Take(persons.Tag{1})
		}
		own.Close()
		users = append(users, j)
		m.Leaves = append(m.Leaves, &input.PartitionSummer{Written: make(chan struct{}, 1)})
	}
	if m.Pause(users); !m.Paused() || !users.SnapshotDue() {
		t.Fatal("no leaf waits")
	}
	if _, err := users.Append(); err != nil || users.SnapshotDue() {
		t.Fatalf("snapshots are still due after they are written: %v", err)
	}
	if !m.Paused() {
		t.Error("a leaf that did not wait got a signal")
	}
	if m.Unpause(); m.Paused() || len(m.Leaves[0].Written) != 0 || len(m.Leaves[1].Written) != 1 {
		t.Errorf("%d and %d signals", len(m.Leaves[0].Written), len(m.Leaves[1].Written))
	}
}
