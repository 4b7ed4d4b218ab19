// Package imports holds the import graph to what DESIGN.md draws: arrows go one
// way, and each outside library is known to one package.
package imports

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"streamdp/internal/cases"
)

// ours is what each package may import of this module. A package that is not
// here is a new room, and belongs into DESIGN.md first.
var ours = map[string]string{
	"dp":                       "",
	"matfact":                  "",
	"moments":                  "dp matfact internal/bin internal/eigen internal/fault internal/gram",
	"sgd":                      "dp matfact internal/bin internal/clipgrad internal/fault internal/newton",
	"adam":                     "dp matfact internal/bin internal/fault",
	"config":                   "adam dp moments sgd sketch internal/column internal/fault",
	"stream":                   "adam config dp matfact moments sgd sketch internal/bin internal/column internal/decimal internal/fault internal/kafka",
	"cmd/streamdp":             "adam config dp matfact moments sgd sketch stream internal/audit internal/chart internal/column internal/decimal internal/fault internal/kafka internal/kafka/embedded",
	"examples/trainer":         "",
	"internal/audit":           "dp matfact internal/stattest",
	"internal/bin":             "",
	"internal/chart":           "",
	"internal/column":          "",
	"internal/decimal":         "",
	"internal/eigen":           "",
	"internal/fault":           "",
	"internal/clipgrad":        "dp",
	"internal/gram":            "",
	"internal/newton":          "dp internal/bin internal/eigen internal/gram",
	"internal/dataset":         "",
	"internal/wht":             "",
	"sketch":                   "dp sgd internal/bin internal/clipgrad internal/fault internal/gram internal/newton internal/wht",
	"internal/kafka":           "",
	"internal/kafka/embedded":  "",
	"internal/kafka/kafkatest": "",
	"internal/cases":           "internal/dataset",
	"internal/dptest":          "dp",
	"internal/reproduction":    "adam config dp matfact moments sgd sketch stream internal/chart internal/dataset internal/fault internal/kafka internal/kafka/embedded",
	"internal/race":            "",
	"internal/rival":           "",
	"internal/stattest":        "",
	"internal/imports":         "",
}

// testsOnly are packages that no program may contain: noise without keys,
// fixtures.
var testsOnly = []string{"internal/cases", "internal/dptest", "internal/race", "internal/rival", "internal/kafka/kafkatest", "internal/imports"}

// outside names the packages that may import a library, by the prefix of its
// path. What is missing is free: the standard library, mostly.
var outside = map[string]string{
	"crypto/rand":                        "dp internal/kafka/kafkatest",                                         // certificates
	"math/rand":                          "cmd/streamdp examples/trainer internal/dptest internal/reproduction", // made-up data, simulations
	"github.com/BurntSushi/toml":         "config",
	"github.com/prometheus/":             "stream",
	"github.com/segmentio/kafka-go":      "examples/trainer internal/kafka internal/kafka/kafkatest",
	"github.com/twmb/franz-go/pkg/kfake": "internal/kafka/embedded internal/kafka/kafkatest",
	"github.com/twmb/franz-go/pkg/kgo":   "internal/kafka/embedded internal/kafka/kafkatest",
	"github.com/spf13/cobra":             "cmd/streamdp",
	"github.com/schollz/":                "cmd/streamdp",
	"gonum.org/v1/gonum/stat/distuv":     "internal/stattest",
	"gonum.org/v1/gonum/stat/distmv":     "",
	"gonum.org/v1/gonum/":                "dp moments matfact sgd sketch internal/audit internal/reproduction internal/stattest",
	"gonum.org/v1/plot":                  "internal/chart",
	"unsafe":                             "stream internal/decimal",
}

func TestImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = cases.Root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "streamdp/"
	seen := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := ours[name]
		if !known {
			t.Errorf("package %s is not in the graph", name)
			continue
		}
		seen[name] = true
		for _, in := range strings.Fields(allowed) {
			if !slices.Contains(p.Imports, module+in) {
				t.Errorf("%s may import %s and does not: an arrow too many", name, in)
			}
		}
		for _, path := range p.Imports {
			if in, ok := strings.CutPrefix(path, module); ok {
				if !slices.Contains(strings.Fields(allowed), in) {
					t.Errorf("%s imports %s", name, in)
				}
				if slices.Contains(testsOnly, in) && !slices.Contains(testsOnly, name) {
					t.Errorf("%s imports %s, which is for tests", name, in)
				}
				continue
			}
			longest := ""
			for prefix := range outside {
				if strings.HasPrefix(path, prefix) && len(prefix) > len(longest) {
					longest = prefix
				}
			}
			if longest != "" && !slices.Contains(strings.Fields(outside[longest]), name) {
				t.Errorf("%s imports %s, which is for %q", name, path, outside[longest])
			}
		}
	}
	for name := range ours {
		if !seen[name] {
			t.Errorf("the graph has %s, and the tree has not", name)
		}
	}
}
