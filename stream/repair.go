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

// RepairLedger reconstructs the ledger of a state directory whose own is damaged, lost or an old copy. It takes the
// lines that can be trusted, then those that follow them in the control topic, if one is configured, then what else
// manifests, checkpoints and secrets show. With write, the result replaces the old ledger, which is kept under another
// name. No daemon may be running.
//
// Everything unknown is charged to the budget. An epoch whose closing is lost, or that is open, is charged to its
// horizon, or without end: its published releases show only a lower bound of what it read. No reconstructed closing has
// an anchor, so without the operator's assertion the log counts as a different one. Facts that no file shows are lost:
// epochs without a manifest, and limits that were raised since the last opening.
//
// The cost in a manifest is trusted only if there is other evidence for it: the mechanism, built again from its
// configuration and plan, costs no more, or the epoch's checkpoint names the hash of that file.
//
// Errors: as New; a manifest that is damaged, or whose cost has no such evidence.
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
