package stream

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// TestEpochOfAnotherVersion: an epoch that an older version of a mechanism opened is not
// gone on with. The daemon halts and names both versions, and releases nothing; a new
// epoch begins after the records of the old one.
func TestEpochOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		toml, was, now string
		records        int // of seven releases
	}{
		"newton": {killNewton, "newton/v2", "newton/v3", 1050},
		"refit": {with(ordersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
			"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 2.0\nwindow = 100\n"), "refit/v2", "refit/v3", 1050},
		"moments": {autoStream("buffer"), "jme/v2", "jme/v2 clip/v2", 2250},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.toml)
			r.produce(0, c.records)
			x := r.start()
			x.published(7)
			x.end()

			file := r.file(manifestName(1))
			text, err := os.ReadFile(file)
			must(t, err)
			m, err := core.ParseManifest(text)
			must(t, err)
			if m.Versions["mechanism"] != c.now {
				t.Fatalf("the version is %s", m.Versions["mechanism"])
			}
			was := hex.EncodeToString(m.Digest)
			m.Versions["mechanism"] = c.was
			digest := config.DigestOf(m.Config, m.Versions)
			m.Digest = digest[:]
			text, err = m.Encode()
			must(t, err)
			must(t, os.WriteFile(file, text, 0o600))
			ledger, err := os.ReadFile(r.ledgerFile())
			must(t, err)
			if bytes.Count(ledger, []byte("\n")) != 1 || !bytes.Contains(ledger, []byte(was)) {
				t.Fatal("the ledger has more than the epoch's first line")
			}
			must(t, os.WriteFile(r.ledgerFile(), r.sealedAnew(bytes.ReplaceAll(ledger, []byte(was), []byte(hex.EncodeToString(digest[:])))), 0o600))
			l, err := openLedger(osDisk{}, filepath.Dir(r.ledgerFile()), nil)
			must(t, err)
			data, err := os.ReadFile(r.file(checkpointName))
			must(t, err)
			cp, err := parseCheckpoint(data)
			must(t, err)
			cp.ledger = l.headHash()
			must(t, os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600))

			before := len(r.output("orders.dp"))
			err = r.start().ends()
			if !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "version of mechanism: "+c.was+" → "+c.now) || !strings.Contains(err.Error(), "epoch open orders") {
				t.Fatalf("ended with %v", err)
			}
			if after := len(r.output("orders.dp")); after != before {
				t.Errorf("%d releases came out", after-before)
			}
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
			r.produce(c.records, c.records)
			x = r.start()
			x.until("a release of the new epoch", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 7 && s.Outbox == 0 })
			x.end()
			if got := r.kinds(); !strings.HasPrefix(got, "open close") {
				t.Errorf("ledger: %s", got)
			}
			for _, e := range r.entries() {
				if e.Kind == kindOpen && e.Epoch == 2 && e.First < 700 {
					t.Errorf("the new epoch begins with offset %d, inside of the old one", e.First)
				}
			}
		})
	}
}
