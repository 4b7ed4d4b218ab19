// Package imports holds the import graph to what DESIGN.md draws: arrows go one
// way, and each outside library is known to one package.
package imports

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// ours is what each package may import of this module. A package that is not
// here is a new room, and belongs into DESIGN.md first.
var ours = map[string]string{
	"dp":                             "",
	"matfact":                        "",
	"moments":                        "dp matfact internal/bin internal/bounds internal/calibration internal/eigen internal/fault internal/gram",
	"sgd":                            "dp matfact internal/bin internal/calibration internal/clipgrad internal/fault internal/newton",
	"adam":                           "dp matfact internal/bin internal/calibration internal/fault",
	"config":                         "adam dp matfact moments sgd refit internal/bounds internal/column internal/fault internal/persons internal/toml",
	"stream":                         "config dp stream/codec stream/core stream/page internal/credentials internal/bin internal/shardlog internal/kafka internal/osfile internal/persons internal/kafka/group internal/registry internal/schema internal/trace",
	"stream/page":                    "",
	"stream/core":                    "adam config dp matfact moments sgd refit stream/codec internal/bin internal/bounds internal/decimal internal/persons",
	"stream/codec":                   "internal/column internal/decimal internal/fault internal/kafka internal/persons internal/schema",
	"deploy/sbom":                    "",
	"cmd/streamdp":                   "config dp stream stream/codec stream/core internal/audit internal/audit/suites internal/chart internal/exit internal/fault internal/fit internal/kafka internal/kafka/embedded internal/plan internal/table internal/words",
	"examples/band":                  "internal/chart",
	"examples/trainer":               "",
	"internal/credentials":           "internal/osfile",
	"internal/audit":                 "dp matfact internal/stattest",
	"internal/audit/suites":          "adam config dp matfact moments sgd refit internal/audit internal/exit",
	"internal/bin":                   "",
	"internal/bounds":                "dp matfact internal/bin internal/calibration internal/fault internal/vector",
	"internal/calibration":           "dp matfact",
	"internal/chart":                 "",
	"internal/column":                "internal/decimal internal/fault",
	"internal/decimal":               "",
	"internal/eigen":                 "",
	"internal/exit":                  "",
	"internal/fault":                 "",
	"internal/fit":                   "dp refit sgd internal/bounds internal/exit internal/table",
	"internal/clipgrad":              "dp",
	"internal/gram":                  "",
	"internal/ladder":                "dp",
	"internal/newton":                "dp internal/bin internal/eigen internal/gram",
	"internal/testing/dataset":       "",
	"internal/vector":                "",
	"internal/wht":                   "",
	"internal/words":                 "",
	"refit":                          "dp sgd internal/bin internal/calibration internal/clipgrad internal/fault internal/gram internal/newton internal/wht matfact",
	"internal/kafka":                 "",
	"internal/kafka/group":           "internal/shardlog internal/kafka",
	"internal/kafka/embedded":        "",
	"internal/kafka/signedlog":       "internal/kafka",
	"internal/testing/kafkatest":     "",
	"internal/testing/browser":       "",
	"internal/testing/cases":         "internal/testing/dataset",
	"internal/testing/dptest":        "dp",
	"internal/testing/estimatortest": "dp internal/persons",
	"internal/performance":           "",
	"internal/persons":               "internal/bin",
	"internal/plan":                  "adam config dp matfact moments sgd stream stream/core internal/audit/suites internal/chart internal/fault internal/words",
	"internal/checks/chaos":          "",
	"internal/shardlog":              "dp internal/seal",
	"internal/testing/race":          "",
	"internal/testing/rival":         "",
	"internal/registry":              "internal/schema",
	"internal/schema":                "internal/column internal/decimal",
	"internal/notify":                "",
	"internal/seal":                  "",
	"internal/shuffle":               "dp",
	"internal/stattest":              "",
	"internal/table":                 "internal/decimal internal/exit",
	"internal/checks/docs":           "",
	"internal/optimise":              "",
	"internal/osfile":                "",
	"internal/checks/imports":        "",
	"internal/trace":                 "",
	"internal/testing/tracetest":     "",
	"internal/toml":                  "internal/fault",
}

// testsOnly are packages that no program may contain: noise without keys,
// fixtures.
var testsOnly = []string{"internal/testing/browser", "internal/testing/cases", "internal/checks/chaos", "internal/testing/dptest", "internal/testing/estimatortest", "internal/testing/race", "internal/testing/rival", "internal/testing/kafkatest", "internal/testing/tracetest", "internal/checks/imports", "internal/checks/docs"}

// outside names the packages that may import a library, by the prefix of its
// path. What is missing is free: the standard library, mostly.
var outside = map[string]string{
	"crypto/rand":                        "dp internal/testing/kafkatest",                                                                       // certificates
	"math/rand":                          "cmd/streamdp examples/trainer internal/testing/dptest internal/testing/estimatortest internal/trace", // made-up data, simulations, identifiers of spans
	"github.com/BurntSushi/toml":         "internal/toml",
	"github.com/prometheus/":             "stream",
	"github.com/segmentio/kafka-go":      "examples/trainer internal/kafka internal/testing/kafkatest",
	"github.com/bufbuild/protocompile":   "internal/schema",
	"github.com/twmb/avro":               "internal/schema",
	"google.golang.org/protobuf":         "internal/schema internal/trace internal/testing/tracetest",
	"github.com/twmb/franz-go/pkg/kfake": "internal/kafka/embedded internal/testing/kafkatest",
	"github.com/twmb/franz-go/pkg/sr":    "internal/registry",
	"github.com/twmb/franz-go/pkg/kgo":   "internal/kafka/group internal/kafka/embedded internal/testing/kafkatest",
	"github.com/spf13/cobra":             "cmd/streamdp",
	"github.com/aws/":                    "internal/credentials",
	"golang.org/x/oauth2":                "internal/credentials",
	"go.opentelemetry.io/":               "internal/trace internal/testing/tracetest",
	"github.com/schollz/":                "cmd/streamdp",
	"gonum.org/v1/gonum/stat/distuv":     "internal/stattest",
	"gonum.org/v1/gonum/stat/distmv":     "",
	"gonum.org/v1/gonum/":                "dp moments matfact sgd refit internal/audit internal/bounds internal/stattest",
	"golang.org/x/image":                 "internal/chart",
	"unsafe":                             "internal/decimal internal/persons",
}

// never names what a package must not import, a library with all below it. What
// stream/core returns is a function of keys, manifest and log: it has no clock, no
// randomness and no way out.
var never = map[string]string{
	"stream/core": "context crypto/rand io/fs log math/rand net os runtime sync syscall time",
}

func TestImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = cases.Root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/streamdp/streamdp/"
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
