// Package docs tests that the documents hold what they point to.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks follows every relative link of every document, to the heading if it names one.
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
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			followed++
			to := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				to = path
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", strings.TrimPrefix(path, root), m[1])
			} else if anchor != "" && filepath.Ext(to) == ".md" && !slices.Contains(anchors(t, to), anchor) {
				t.Errorf("%s links to %s, which is no heading there", strings.TrimPrefix(path, root), m[1])
			}
		}
		return nil
	})
	if err != nil || followed < 20 {
		t.Errorf("%d links, %v", followed, err)
	}
}

// anchors returns the anchors of a document's headings.
func anchors(t *testing.T, path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		all = append(all, cases.Anchor(m[1]))
	}
	return all
}
