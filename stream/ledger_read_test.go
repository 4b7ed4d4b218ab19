package stream

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLedgerMissing: a state directory without its ledger does not look like one that
// charges nothing.
func TestLedgerMissing(t *testing.T) {
	t.Parallel()
	if epochs, err := readEpochs(filepath.Join(t.TempDir(), "none")); err != nil || len(epochs) != 0 {
		t.Errorf("of no directory: %v, %v", epochs, err)
	}
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.end()
	must(t, os.Remove(r.ledgerFile()))
	odd := filepath.Join(t.TempDir(), "a[b]*")
	must(t, os.Rename(filepath.Join(r.dir, "state"), odd))
	if _, err := readEpochs(odd); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "streamdp ledger repair") {
		t.Errorf("without its ledger: %v", err)
	}
}
