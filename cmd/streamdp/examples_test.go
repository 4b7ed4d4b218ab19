package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"streamdp/internal/cases"
)

// TestExamples checks and plans every configuration of examples/, with this
// machine's paths.
func TestExamples(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	want(t, exitDone, "", "keygen", key)
	n := 0
	err := filepath.WalkDir(filepath.Join(cases.Root(t), "examples"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".toml" {
			return err
		}
		n++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, fmt.Sprint(n, ".toml"))
		own := strings.NewReplacer("/etc/streamdp/key", key, "/var/lib/streamdp", filepath.Join(dir, "state")).Replace(string(text))
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			return err
		}
		for _, command := range []string{"check", "plan"} {
			if out := want(t, exitDone, "", command, "-c", file); !strings.Contains(out, "differential privacy for all releases") {
				t.Errorf("%s %s prints\n%s", command, path, out)
			}
		}
		return nil
	})
	if err != nil || n < 5 {
		t.Errorf("%d examples: %v", n, err)
	}
}
