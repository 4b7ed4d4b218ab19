package ledger_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/failure"
)

// TestLedgerMissing: reading a state directory that has lost its ledger is an error; it is not reported as a directory
// without charges.
func TestLedgerMissing(t *testing.T) {
	t.Parallel()
	if epochs, err := streamtest.ReadEpochs(filepath.Join(t.TempDir(), "none")); err != nil || len(epochs) != 0 {
		t.Errorf("of no directory: %v, %v", epochs, err)
	}
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	fixtures.Must(t, os.Remove(r.LedgerFile()))
	odd := filepath.Join(t.TempDir(), "a[b]*")
	fixtures.Must(t, os.Rename(filepath.Join(r.Dir, "state"), odd))
	if _, err := streamtest.ReadEpochs(odd); !errors.Is(err, failure.ErrState) ||
		!strings.Contains(err.Error(), "streamdp ledger repair") {
		t.Errorf("without its ledger: %v", err)
	}
}
