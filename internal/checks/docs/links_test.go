// Package docs tests that the documents hold what they point to.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks follows every relative link of every document.
func TestLinks(t *testing.T) {
	root := cases.Root(t)
	followed := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			if file == "" || strings.Contains(file, "://") {
				continue
			}
			followed++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), file)); err != nil {
				t.Errorf("%s links to %s, which is not there", strings.TrimPrefix(path, root), m[1])
			}
		}
		return nil
	})
	if err != nil || followed < 20 {
		t.Errorf("%d links, %v", followed, err)
	}
}
