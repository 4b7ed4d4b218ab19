package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
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
func RepairLedger(ctx context.Context, o Options, write bool) (*LedgerRepair, error) {
	d, err := prepare(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := d.lockState(); err != nil {
		return nil, err
	}
	cluster, err := Cluster(d.cfg)
	if err != nil {
		return nil, err
	}
	if d.client, err = kafka.NewClient(cluster); err != nil {
		return nil, err
	}
	r := &repair{h: &d.own.home, dir: d.cfg.State.Dir, out: &LedgerRepair{}}
	if err := r.salvage(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	defer d.own.disk.Remove(d.own.ledger.path)
	if m := d.own.ledger.moved(); m != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, m.refusal())
	}
	if err := newMirror(d.own.ledger, d.key, d.client, d.cfg.Kafka.ControlTopic, newRepeater(d.log, d.metrics.kafkaError, func() {})).salvage(ctx); err != nil {
		return nil, err
	}
	if err := r.tasks(); err != nil {
		return nil, err
	}
	r.out.Added = d.own.ledger.all()[r.out.Kept:]
	if !write || len(r.out.Added) == 0 && r.out.Dropped == 0 {
		return r.out, nil
	}
	r.out.Old = fmt.Sprintf("%s/%s.%s", r.dir, ledgerName, d.now().UTC().Format("20060102T150405Z"))
	name := r.dir + "/" + ledgerName
	if err := d.own.disk.Link(name, r.out.Old); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	if err := errors.Join(d.own.disk.Rename(d.own.ledger.path, name), d.own.disk.SyncDir(r.dir)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return r.out, nil
}

// openShared prepares a daemon that shares tasks with others. What it finds in its state directory
// is no state of a task.
func (d *Daemon) openShared() (err error) {
	dir := d.cfg.State.Dir
	if err := (osDisk{}).MkdirAll(filepath.Join(dir, witnessDir)); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if _, err := os.Stat(filepath.Join(dir, ledgerName)); err == nil {
		return fmt.Errorf("%w: %s has the ledger of a daemon without [cluster]: give each instance a directory of its own", ErrState, dir)
	}
	if d.lock, err = lockDir(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if err := d.connect(); err != nil {
		return err
	}
	if slices.ContainsFunc(d.cfg.Streams, shareable) {
		d.partials = newPartials(d.partialsOf(d.cfg.Cluster.Group, &kafkaParts{d.client, d.cfg.Cluster.PartialsTopic(), d.now}, func(s *config.Stream) int {
			return d.cfg.Cluster.Shard(s.Input.Topic, core.Merged)
		}))
	}
	d.sharing = &sharing{d: &d.host, runs: d, reach: d.reach, advertise: d.Addr, instance: InstanceName(d.cfg), witnesses: filepath.Join(dir, witnessDir), posts: map[int]*post{}, turns: make(chan struct{}, acquiring)}
	return nil
}

// openShard implements runsShards.
func (d *Daemon) openShard(shard int, files *logShard) (shardTasks, error) {
	c := newCrew(&d.host, files, "")
	c.mine = func(topic string, partition int) bool { return d.cfg.Cluster.Shard(topic, partition) == shard }
	if err := c.openLedger(); err != nil {
		return nil, err
	}
	return sharedCrew{c, d}, c.prepare(nil)
}

// sharedCrew is a crew of one shard of several.
type sharedCrew struct {
	*crew
	d *Daemon
}

func (s sharedCrew) begin(run func(func(context.Context) error)) {
	s.d.join(s.crew)
	s.start(run)
}

func (s sharedCrew) gone() { s.d.part(s.crew) }

// Recover restores the state of a task's open epoch whose checkpoint is damaged or lost.
// It continues from the commit before, or from the epoch's first offset, computes again
// what was published since then, and writes a checkpoint only if every byte is the same.
// from holds files to restore first; it may be nil. It is for a daemon whose Run has not
// been called; a running daemon is asked through its control socket.
func (d *Daemon) Recover(ctx context.Context, t core.Task, from *Export) error {
	return d.command(ctx, t, request{kind: requestRecover, from: from})
}

// Republish publishes the committed releases of a task again, with the same bytes and at
// no charge. It sends nothing if a release in the output differs. It is for a daemon
// whose Run has not been called; a running daemon is asked through its control socket.
func (d *Daemon) Republish(ctx context.Context, t core.Task, q RepublishRequest) error {
	return d.command(ctx, t, request{kind: requestRepublish, republish: q})
}

// traced counts what became of spans, and warns once while they are lost.
func (d *Daemon) traced() func(sent, dropped int, err error) {
	r := newRepeater(d.log.With("endpoint", d.cfg.Trace.URL()), d.metrics.kafkaError, func() {})
	return func(sent, dropped int, err error) {
		d.metrics.traced(sent, dropped)
		if err != nil {
			r.troubled("send traces", err)
		} else {
			r.untroubled("send traces")
		}
	}
}
