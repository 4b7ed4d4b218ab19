package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// TestEpochOfAnotherVersion: an epoch opened with an older version of a mechanism is not continued. The daemon halts,
// names both versions, and releases nothing. A new epoch begins after the records of the old one.
func TestEpochOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		toml, was, now string
		records        int // in seven releases
	}{
		"newton": {killNewton, "newton/v2", "newton/v3", 1050},
		"refit": {fixtures.With(fixtures.OrdersStream, "step   = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
			"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 2.0\nwindow = 100\n"), "refit/v2",
			"refit/v3", 1050},
		"moments": {autoStream("buffer"), "jme/v2", "jme/v2 clip/v2", 2250},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, c.toml)
			r.Produce(0, c.records)
			x := r.Start()
			x.Published(7)
			x.End()

			file := r.File(state.ManifestName(1))
			text, err := os.ReadFile(file)
			fixtures.Must(t, err)
			m, err := core.ParseManifest(text)
			fixtures.Must(t, err)
			if m.Versions["mechanism"] != c.now {
				t.Fatalf("the version is %s", m.Versions["mechanism"])
			}
			was := hex.EncodeToString(m.Digest)
			m.Versions["mechanism"] = c.was
			digest := config.DigestOf(m.Config, m.Versions)
			m.Digest = digest[:]
			text, err = m.Encode()
			fixtures.Must(t, err)
			fixtures.Must(t, os.WriteFile(file, text, 0o600))
			le, err := os.ReadFile(r.LedgerFile())
			fixtures.Must(t, err)
			if bytes.Count(le, []byte("\n")) != 1 || !bytes.Contains(le, []byte(was)) {
				t.Fatal("the ledger has more than the epoch's first line")
			}
			fixtures.Must(t,
				os.WriteFile(r.LedgerFile(),
					r.SealedAnew(bytes.ReplaceAll(le, []byte(was), []byte(hex.EncodeToString(digest[:])))), 0o600))
			l, err := ledger.Open(state.OS{}, filepath.Dir(r.LedgerFile()), nil)
			fixtures.Must(t, err)
			data, err := os.ReadFile(r.File(state.CheckpointName))
			fixtures.Must(t, err)
			cp, err := state.ParseCheckpoint(data)
			fixtures.Must(t, err)
			cp.Ledger = l.HeadHash()
			fixtures.Must(t, os.WriteFile(r.File(state.CheckpointName), cp.Encode(nil), 0o600))

			before := len(r.Output("orders.dp"))
			err = r.Start().Ends()
			if !errors.Is(err, failure.ErrHalted) ||
				!strings.Contains(err.Error(), "version of mechanism: "+c.was+" → "+c.now) ||
				!strings.Contains(err.Error(), "epoch open orders") {
				t.Fatalf("ended with %v", err)
			}
			if after := len(r.Output("orders.dp")); after != before {
				t.Errorf("%d releases were published", after-before)
			}
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
			}))
			r.Produce(c.records, c.records)
			x = r.Start()
			x.Until("a release of the new epoch",
				func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 7 && s.Outbox == 0 })
			x.End()
			if got := r.Kinds(); !strings.HasPrefix(got, "open close") {
				t.Errorf("ledger: %s", got)
			}
			for _, e := range r.Entries() {
				if e.Kind == ledger.KindOpen && e.Epoch == 2 && e.First < 700 {
					t.Errorf("the new epoch begins with offset %d, inside of the old one", e.First)
				}
			}
		})
	}
}
