// Package imports tests that the import graph is the one that DESIGN.md describes. Imports go one way, and only a few
// packages import an outside library.
package imports

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// outside says, for some libraries, which packages may import them. Its keys are prefixes of import paths. Other
// libraries, mostly of the standard library, may be imported anywhere.
var outside = map[string]string{
	"crypto/rand": "dp internal/keys",
	// math/rand is for simulated data and identifiers of spans, never for noise.
	"math/rand":                          "examples/trainer internal/demo internal/trace",
	"github.com/BurntSushi/toml":         "internal/toml",
	"github.com/prometheus/":             "stream stream/httpapi stream/monitor",
	"github.com/segmentio/kafka-go":      "examples/trainer internal/kafka",
	"github.com/bufbuild/protocompile":   "internal/schema",
	"github.com/twmb/avro":               "internal/schema",
	"google.golang.org/protobuf":         "internal/schema internal/trace",
	"github.com/twmb/franz-go/pkg/kfake": "internal/kafka/embedded",
	"github.com/twmb/franz-go/pkg/sr":    "internal/registry",
	"github.com/twmb/franz-go/pkg/kgo":   "internal/kafka/group internal/kafka/embedded",
	"github.com/spf13/cobra":             "cmd/streamdp",
	"github.com/aws/":                    "internal/credentials",
	"golang.org/x/oauth2":                "internal/credentials",
	"go.opentelemetry.io/":               "internal/trace",
	"github.com/schollz/":                "cmd/streamdp",
	"gonum.org/v1/gonum/stat/distuv":     "internal/stattest",
	"gonum.org/v1/gonum/stat/distmv":     "",
	"gonum.org/v1/gonum/": "dp moments matfact sgd refit internal/audit internal/bounds " +
		"internal/optimise internal/shuffle internal/stattest",
	"golang.org/x/image": "internal/chart",
	"unsafe":             "internal/decimal internal/persons",
}

// never lists, for a package, the libraries that it must not import, including everything below their paths.
// stream/core is a function of keys, manifest and log: it has no clock, no randomness and no I/O.
var never = map[string]string{
	"stream/core": "context crypto/rand io/fs log math/rand net os runtime sync syscall time",
}

// module is the prefix of the import path of each package.
const module = "github.com/streamdp/streamdp/"

// forTests reports whether the package may be used by tests only: fixtures, and noise without keys.
func forTests(name string) bool {
	return strings.HasPrefix(name, "internal/testing/") || strings.HasPrefix(name, "internal/checks/")
}

// packages returns the imports of each package of the module, without those of its tests.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = cases.Root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
	return all
}

// TestDesign checks the table of packages in DESIGN.md. It must list every package with its imports, and a package
// below stream may import only packages above its own row.
func TestDesign(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	const header = "| package | owns | imports of ours |\n| --- | --- | --- |\n"
	_, table, found := strings.Cut(string(text), header)
	if !found {
		t.Fatalf("DESIGN.md has no table of packages: %q", header)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]string{}
	above := map[string]bool{}
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 3 || len(cells[1]) < 10 {
			t.Fatalf("a row of the table of packages: %q", row)
		}
		rows[cells[0]] = cells[2]
		for in := range strings.SplitSeq(cells[2], ", ") {
			if strings.HasPrefix(cells[0], "stream") && strings.HasPrefix(in, "stream") && !above[in] {
				t.Errorf("%s imports %s, whose row in DESIGN.md is not above its own", cells[0], in)
			}
		}
		above[cells[0]] = true
	}
	for name, imports := range packages(t) {
		if forTests(name) {
			continue
		}
		var ours []string
		for _, path := range imports {
			if in, ok := strings.CutPrefix(path, module); ok {
				ours = append(ours, in)
			}
		}
		slices.Sort(ours)
		want := cmp.Or(strings.Join(ours, ", "), "–")
		switch got, ok := rows[name]; {
		case !ok:
			t.Errorf("DESIGN.md has no row for package %s, which imports: %s", name, want)
		case got != want:
			t.Errorf("DESIGN.md says that %s imports\n%s\nbut it imports\n%s", name, got, want)
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("DESIGN.md has a row for %s, but there is no such package", name)
	}
}

// TestImports checks that no program contains a package for tests, and that only the listed packages import an outside
// library.
func TestImports(t *testing.T) {
	for name, imports := range packages(t) {
		for _, path := range imports {
			if in, ok := strings.CutPrefix(path, module); ok {
				if forTests(in) && !forTests(name) {
					t.Errorf("%s imports %s, which is for tests", name, in)
				}
				continue
			}
			for _, root := range strings.Fields(never[name]) {
				if path == root || strings.HasPrefix(path, root+"/") {
					t.Errorf("%s imports %s, which it must not", name, path)
				}
			}
			longest := ""
			for prefix := range outside {
				if strings.HasPrefix(path, prefix) && len(prefix) > len(longest) {
					longest = prefix
				}
			}
			if longest != "" && !forTests(name) && !slices.Contains(strings.Fields(outside[longest]), name) {
				t.Errorf("%s imports %s, which is for %q", name, path, outside[longest])
			}
		}
	}
}

// mostLines is the largest number of lines, without tests, of a package below one of the folders.
const mostLines = 4000

// TestSize checks that no package below stream, cmd or internal is too long to be read as a whole.
func TestSize(t *testing.T) {
	root := cases.Root(t)
	for name := range packages(t) {
		top, _, _ := strings.Cut(name, "/")
		if !slices.Contains([]string{"stream", "cmd", "internal"}, top) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines += strings.Count(string(text), "\n")
		}
		if most := map[string]int{"cmd/streamdp": 5000}[name]; lines > max(most, mostLines) {
			t.Errorf("package %s has %d lines outside its tests, at most %d are allowed: divide it", name, lines,
				max(most, mostLines))
		}
	}
}
