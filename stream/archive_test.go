package stream

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestArchiveTorn: a crash at any byte of an append leaves what was archived before.
func TestArchiveTorn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &archive{disk: osDisk{}, dir: dir}
	var list []pending
	for step := range uint64(3) {
		p := pending{time: time.UnixMilli(5)}
		p.Step, p.Key, p.Value = step+1, fmt.Appendf(nil, "orders/0/1/%d", step+1), []byte("{}")
		must(t, a.append(1, []pending{p}))
		list = append(list, p)
	}
	a.close()
	name := filepath.Join(dir, "archive-1.1")
	data, err := os.ReadFile(name)
	must(t, err)
	frame := (len(data) - len(archiveMagic)) / 3
	for n := range len(data) {
		got, err := parseArchive(data[:n])
		must(t, err)
		if want := max(0, n-len(archiveMagic)) / frame; len(got) != want {
			t.Fatalf("%d of %d bytes: %d messages, want %d", n, len(data), len(got), want)
		}
	}
	data[len(archiveMagic)+20] ^= 1
	if got, err := parseArchive(data); err == nil {
		t.Errorf("a damaged frame among others: %d messages", len(got))
	}
	// What is appended after a failure goes to another file.
	must(t, a.append(1, list[2:]))
	if names, err := a.files(1); err != nil || len(names) != 2 || names[1] != "archive-1.2" {
		t.Errorf("files %v %v", names, err)
	}
}
