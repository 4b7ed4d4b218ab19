package toml

import (
	"os"
	"reflect"
	"strings"
	"testing"

	burnt "github.com/BurntSushi/toml"
)

// FuzzPositions: for any file, the scanner finds the same keys as the TOML package.
func FuzzPositions(f *testing.F) {
	for _, path := range []string{"../../examples/orders.toml", "../../config/testdata/faults.toml"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
		f.Add(strings.ReplaceAll(string(data), "\n", "\r\n"))
	}
	f.Add("\xef\xbb\xbfstream.a = { privacy.epsilon = 1 } # x\n'stream' = 2")
	f.Add("x = \"\"\"\\\r\"\"\"\ny = '''\n'''\n[[z]]\n\"a.b\".c = [{d = 1}, [\n]]")
	f.Fuzz(comparePositions)
}

// comparePositions compares the scanner's keys in src with those of the TOML package.
func comparePositions(t *testing.T, src string) {
	defer func() {
		if recover() != nil {
			scan(src) // src is not TOML, but scan must return
		}
	}()
	var tree map[string]any
	md, err := burnt.Decode(src, &tree)
	p := scan(src)
	if err == nil && !reflect.DeepEqual(p.order, md.Keys()) && len(p.order)+len(md.Keys()) > 0 {
		t.Errorf("keys %q, want %q", p.order, md.Keys())
	}
}
