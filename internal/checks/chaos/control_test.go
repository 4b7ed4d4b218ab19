package chaos

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// alone removes the table [cluster] from a configuration.
func alone(_ int, text string) string {
	return regexp.MustCompile(`(?s)\[cluster\]\n.*?\n(\[stream)`).ReplaceAllString(text, "$1")
}

// fileLedger reads the ledger of an instance without [cluster].
func (s *site) fileLedger(i int) (lines []line) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprint("state-", i), "ledger.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	for raw := range bytes.Lines(data) {
		l, ok, err := parseLine(raw, time.Time{})
		if err != nil || !ok {
			s.t.Fatalf("%s: %v", raw, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestRealKafkaClusterControl is the control experiment. Two instances share outputs and key, but have separate states,
// and no log says which instance owns which task. Both open the first epochs, and the judge must find different noise
// over the same records. If it does not, the judge is useless.
func TestRealKafkaClusterControl(t *testing.T) {
	s := newSite(t, "control", 1, 2, alone)
	s.watch = newWatch(s)
	for _, x := range s.instances {
		x.start()
	}
	tasks := len(s.tasks())
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		opened := 0
		for _, x := range s.instances {
			data, _ := os.ReadFile(filepath.Join(s.dir, fmt.Sprint("state-", x.number), "ledger.jsonl"))
			opened += strings.Count(string(data), `"kind":"open"`)
		}
		if opened == 2*tasks {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d epochs are open", opened)
		}
		s.alive()
	}
	s.feed = newFeed(s)
	s.progress(time.Now())
	time.Sleep(2 * time.Second)
	for _, x := range s.instances {
		x.kill()
	}
	s.feed.end()
	e := evidence{releases: s.watch.all(), ledgers: [][]line{s.fileLedger(0)}, steps: stepsEpoch, length: stepLength}
	v := e.judge()
	t.Logf("%d releases, %d conflicts", v.releases, v.conflicts)
	if v.conflicts == 0 {
		t.Errorf("two owners without a fence published %d releases, and the judge found no key with two values",
			v.releases)
	}
}
