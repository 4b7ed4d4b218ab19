package recovery_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/recovery"
)

// FuzzExport: an exported epoch that parses is unchanged when it is written and read again. Queries on it, and inspect
// of any file, do not panic.
func FuzzExport(f *testing.F) {
	manifest, err := os.ReadFile(filepath.Join(fixtures.Root(), "stream", "core", "testdata", "manifest.json"))
	if err != nil {
		f.Fatal(err)
	}
	lines, err := os.ReadFile(filepath.Join(fixtures.Root(), "stream", "ledger", "testdata", "ledger-sealed.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	x := recovery.Export{
		Format: recovery.ExportFormat, Manifest: string(manifest),
		Ledger: strings.Split(strings.TrimSpace(string(lines)), "\n"),
		Secret: make([]byte, 32), Initial: []byte{1},
	}
	file, err := x.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(`{"format":"streamdp.epoch.v1"}`))
	f.Add(streamtest.GoldenCheckpoint().Encode(nil))
	f.Add(lines)
	f.Fuzz(func(t *testing.T, data []byte) {
		if fields, err := recovery.Inspect(data); err == nil && len(fields) == 0 {
			t.Fatal("nothing is said of a file that is known")
		}
		x, err := recovery.ParseExport(data)
		if err != nil {
			return
		}
		text, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := recovery.ParseExport(text)
		if err != nil || !reflect.DeepEqual(again, x) {
			t.Fatalf("%v\n%+v\n%+v", err, again, x)
		}
		for _, key := range []*ledger.Key{nil, ledger.NewKey(connect.InsecureKey(1))} {
			if e, err := x.Opening(key); err == nil && e.Kind != ledger.KindOpen {
				t.Fatalf("%+v is taken for an opening", e)
			}
		}
	})
}
