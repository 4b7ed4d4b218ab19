package state_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/state"
)

// TestArchiveTorn: after a crash at any byte of an append, all messages archived before can still be read.
func TestArchiveTorn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &state.Archive{Disk: state.OS{}, Dir: dir}
	var list []state.Message
	for step := range uint64(3) {
		p := state.Message{Time: time.UnixMilli(5)}
		p.Step, p.Key, p.Value = step+1, fmt.Appendf(nil, "orders/0/1/%d", step+1), []byte("{}")
		fixtures.Must(t, a.Append(1, []state.Message{p}))
		list = append(list, p)
	}
	a.Close()
	name := filepath.Join(dir, "archive-1.1")
	data, err := os.ReadFile(name)
	fixtures.Must(t, err)
	frame := (len(data) - len(state.ArchiveMagic)) / 3
	for n := range len(data) {
		got, err := state.ParseArchive(data[:n])
		fixtures.Must(t, err)
		if want := max(0, n-len(state.ArchiveMagic)) / frame; len(got) != want {
			t.Fatalf("%d of %d bytes: %d messages, want %d", n, len(data), len(got), want)
		}
	}
	data[len(state.ArchiveMagic)+20] ^= 1
	if got, err := state.ParseArchive(data); err == nil {
		t.Errorf("a damaged frame among others: %d messages", len(got))
	}
	// Messages after a failure go to another file.
	fixtures.Must(t, a.Append(1, list[2:]))
	if names, err := a.Files(1); err != nil || len(names) != 2 || names[1] != "archive-1.2" {
		t.Errorf("files %v %v", names, err)
	}
}
