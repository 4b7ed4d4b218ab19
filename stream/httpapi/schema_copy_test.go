package httpapi_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
)

// TestSchemaCopy: the Python package has a copy of this schema.
func TestSchemaCopy(t *testing.T) {
	t.Parallel()
	var copies [][]byte
	for _, path := range []string{
		"release.schema.json", filepath.Join(cases.Root(t), "python", "src", "streamdp", "release.schema.json"),
	} {
		text, err := os.ReadFile(path)
		fixtures.Must(t, err)
		copies = append(copies, text)
	}
	if !bytes.Equal(copies[0], copies[1]) {
		t.Error("copy stream/httpapi/release.schema.json to python/src/streamdp")
	}
}
