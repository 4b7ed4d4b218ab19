package recovery

// This file exports internals to the tests in package recovery_test.

import (
	"context"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

const (
	ExportFormat = exportFormat
)

var (
	NewRecomputation = newRecomputation
	ProvenCharge     = provenCharge
)

func (x *Audit) CoreOf(a0 *config.Stream, a1 *core.Manifest, a2 *epochOnFile, a3 *dp.Epoch) (*core.Core, error) {
	return x.coreOf(a0, a1, a2, a3)
}

func (x *Audit) Epochs(a0 core.Task) ([]*epochOnFile, error) { return x.epochs(a0) }

func (x *Export) Opening(a0 *ledger.Key) (*ledger.Entry, error) { return x.opening(a0) }

func (x *recomputation) Close(a0 context.Context) ([]core.Message, error) { return x.close(a0) }
