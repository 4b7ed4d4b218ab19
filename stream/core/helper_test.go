package core

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamdp/streamdp/config"
)

var update = flag.Bool("update", false, "write the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// golden compares with a file of testdata, or writes it.
func golden(t testing.TB, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if string(got) != string(want) {
		t.Errorf("%s differs from the code's output; go test ./stream/core -update writes it\n%s", path, got)
	}
}

// parsed returns the stream that a configuration table describes.
func parsed(t testing.TB, table string) *config.Stream {
	t.Helper()
	c, err := config.Parse("t.toml",
		[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+table))
	must(t, err)
	return c.Streams[0]
}
