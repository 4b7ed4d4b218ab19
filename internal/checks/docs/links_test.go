// Package docs tests that everything to which documents refer exists.
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

// TestLinks follows every relative link of every document, to the heading if the link names one.
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
				t.Errorf("%s links to %s, which does not exist", strings.TrimPrefix(path, root), m[1])
			} else if anchor != "" && filepath.Ext(to) == ".md" && !slices.Contains(anchors(t, to), anchor) {
				t.Errorf("%s links to %s, but that document has no such heading", strings.TrimPrefix(path, root), m[1])
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

// named finds the paths in documents: Go files of the module, and everything below internal.
var named = regexp.MustCompile(
	"(?:^|[\\s`(])((?:adam|cmd|config|dp|matfact|moments|refit|sgd|stream)/[a-z0-9_/]+\\.go|internal/[a-z0-9_/]+(?:\\.[a-z.]+)?)")

// TestPaths: the files and folders that documents name exist.
func TestPaths(t *testing.T) {
	root := cases.Root(t)
	docs, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, doc := range slices.Concat(docs, more, top) {
		if filepath.Base(doc) == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, err := os.Stat(filepath.Join(root, strings.TrimRight(m[1], "/."))); err != nil {
				t.Errorf("%s names %s, which does not exist", strings.TrimPrefix(doc, root+"/"), m[1])
			}
		}
	}
	if found < 30 {
		t.Errorf("documents name only %d files and folders", found)
	}
}
