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

// RepairLedger works out a ledger for a state directory whose own is damaged, lost or
// an old copy: the lines that can be believed, then those that follow them in the control
// topic, if one is configured, then what manifests, checkpoints and secrets tell of beside
// them. With write it takes the old one's place, which is kept under another name. No
// daemon may run.
//
// What is not known counts against the budget. An epoch whose closing is lost is charged
// to its horizon, or without end: its published releases say what it reached at least,
// not at most. So is one that is open. No closing has an anchor, so that without the
// operator's word the log counts as another one. What no file tells of is lost: epochs
// without a manifest, limits that were raised since the last opening.
//
// A manifest is believed only if something else vouches for what it says of its cost:
// the mechanism, built again from its configuration and plan, costs no more, or the
// epoch's checkpoint names the hash of that very file.
//
// Errors: as New; a manifest that is damaged, or that nothing vouches for.
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
