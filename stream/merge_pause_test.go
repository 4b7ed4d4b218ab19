package stream

import (
	"fmt"
	"testing"

	"github.com/streamdp/streamdp/internal/persons"
)

// TestMergedUsersPause: only a leaf whose snapshot is written goes on. Another one that got the word would
// not wait for its own snapshot later.
func TestMergedUsersPause(t *testing.T) {
	t.Parallel()
	m := &merger{}
	var users journals
	for i := range 2 {
		own, err := persons.NewMap(persons.Rule{Cap: 2, Separation: 1, PerStep: 1, Users: 9})
		must(t, err)
		j, err := persons.OpenJournal(userFiles{newSimDisk("/s")}, "/s", fmt.Sprintf("users-1.p%d.", i), own, persons.Position{})
		must(t, err)
		must(t, own.Open(1))
		for range 5 + 40*i { // a snapshot is due after 30 records
			own.Take(persons.Tag{1})
		}
		own.Close()
		users = append(users, j)
		m.leaves = append(m.leaves, &leafReader{written: make(chan struct{}, 1)})
	}
	if m.pause(users); !m.paused() || !users.snapshotDue() {
		t.Fatal("no leaf waits")
	}
	if _, err := users.append(); err != nil || users.snapshotDue() {
		t.Fatalf("snapshots are due after they are written: %v", err)
	}
	if !m.paused() {
		t.Error("a leaf that was not told goes on")
	}
	if m.unpause(); m.paused() || len(m.leaves[0].written) != 0 || len(m.leaves[1].written) != 1 {
		t.Errorf("%d and %d words", len(m.leaves[0].written), len(m.leaves[1].written))
	}
}
