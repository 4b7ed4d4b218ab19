package imports

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestDependencies compares the modules that go.mod requires directly with the table "Dependencies" of DESIGN.md.
func TestDependencies(t *testing.T) {
	root := cases.Root(t)
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	design, err := os.ReadFile(filepath.Join(root, "DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(design), "\n## Dependencies\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var named, required []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z][^|]*/[^|]*) \|`).FindAllStringSubmatch(section, -1) {
		named = append(named, strings.Split(row[1], ", ")...)
	}
	for line := range strings.Lines(string(gomod)) {
		if f := strings.Fields(line); len(f) == 2 && strings.Contains(f[0], "/") && strings.HasPrefix(f[1], "v") {
			required = append(required, f[0])
		}
	}
	slices.Sort(named)
	slices.Sort(required)
	if len(required) < 10 || !slices.Equal(named, required) {
		t.Errorf("DESIGN.md names\n\t%s\ngo.mod requires\n\t%s", strings.Join(named, "\n\t"),
			strings.Join(required, "\n\t"))
	}
}
