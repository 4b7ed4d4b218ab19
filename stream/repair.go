package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/recovery"
)

// RepairLedger reconstructs the ledger of a state directory if it is damaged, lost or an old copy. It uses three
// sources in this order: the lines of the ledger that can be trusted; the lines that follow them in the control topic,
// if one is configured; and the manifests, checkpoints and secrets. If write is true, the result replaces the old
// ledger, which is kept under another name. No daemon may be running.
//
// If a fact is unknown, the larger charge is assumed. An epoch that is open or whose closing is lost is charged up to
// its horizon or, without a horizon, without end: its published releases show only a lower bound of what it read. No
// reconstructed closing has an anchor, so the log is taken to be a different one unless the operator asserts that it is
// the same. Some facts are in no file and are lost: epochs without a manifest, and limits that were raised since the
// last opening.
//
// The cost in a manifest is trusted only with other evidence. Either the mechanism, built again from the manifest's
// configuration and plan, costs no more, or the epoch's checkpoint holds the hash of the manifest file.
//
// Errors: those of New; a manifest is damaged, or its cost lacks that evidence.
func RepairLedger(ctx context.Context, o Options, write bool) (*recovery.LedgerRepair, error) {
	d, err := prepare(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.lockState(); err != nil {
		return nil, err
	}
	cluster, err := connect.Cluster(d.process.Cfg)
	if err != nil {
		return nil, err
	}
	if d.process.Client, err = kafka.NewClient(cluster); err != nil {
		return nil, err
	}
	r := &recovery.Repair{Shard: &d.own.Shard, Dir: d.process.Cfg.State.Dir, Out: &recovery.LedgerRepair{}}
	if err := r.Salvage(); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	defer d.own.Disk.Remove(d.own.Ledger.Path)
	if m := d.own.Ledger.Moved(); m != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, m.Refusal())
	}
	if err := ledger.NewControlTopic(d.own.Ledger, d.process.Key, d.process.Client, d.process.Cfg.Kafka.ControlTopic,
		failure.NewRetrier(d.process.Log, d.process.Metrics.KafkaError, func() {})).Salvage(ctx); err != nil {
		return nil, err
	}
	if err := r.Tasks(); err != nil {
		return nil, err
	}
	r.Out.Added = d.own.Ledger.All()[r.Out.Kept:]
	if !write || len(r.Out.Added) == 0 && r.Out.Dropped == 0 {
		return r.Out, nil
	}
	r.Out.Old = fmt.Sprintf("%s/%s.%s", r.Dir, ledger.FileName, d.process.Now().UTC().Format("20060102T150405Z"))
	name := r.Dir + "/" + ledger.FileName
	if err := d.own.Disk.Link(name, r.Out.Old); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if err := errors.Join(d.own.Disk.Rename(d.own.Ledger.Path, name), d.own.Disk.SyncDir(r.Dir)); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return r.Out, nil
}
