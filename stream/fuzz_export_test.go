package stream

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzExport: an exported epoch that is read says the same when it is written and read
// again, and what is asked of it, and of any file by inspect, does not panic.
func FuzzExport(f *testing.F) {
	manifest, err := os.ReadFile(filepath.Join(root(), "stream", "core", "testdata", "manifest.json"))
	if err != nil {
		f.Fatal(err)
	}
	ledger, err := os.ReadFile(goldenPath("ledger-sealed.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	x := Export{Format: exportFormat, Manifest: string(manifest), Ledger: strings.Split(strings.TrimSpace(string(ledger)), "\n"), Secret: make([]byte, 32), Initial: []byte{1}}
	file, err := x.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(`{"format":"streamdp.epoch.v1"}`))
	f.Add(goldenCheckpoint().encode(nil))
	f.Add(ledger)
	f.Fuzz(func(t *testing.T, data []byte) {
		if fields, err := Inspect(data); err == nil && len(fields) == 0 {
			t.Fatal("nothing is said of a file that is known")
		}
		x, err := ParseExport(data)
		if err != nil {
			return
		}
		text, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseExport(text)
		if err != nil || !reflect.DeepEqual(again, x) {
			t.Fatalf("%v\n%+v\n%+v", err, again, x)
		}
		for _, key := range []*ledgerKey{nil, newLedgerKey(InsecureKey(1))} {
			if e, err := x.opening(key); err == nil && e.Kind != kindOpen {
				t.Fatalf("%+v is taken for an opening", e)
			}
		}
	})
}
