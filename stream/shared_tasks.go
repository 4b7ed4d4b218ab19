package stream

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// openShared prepares a daemon that shares tasks with others. What it finds in its state directory
// is no state of a task.
func (d *Daemon) openShared() (err error) {
	dir := d.process.Cfg.State.Dir
	if err := (state.OS{}).MkdirAll(filepath.Join(dir, cluster.WitnessDir)); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if _, err := os.Stat(filepath.Join(dir, ledger.FileName)); err == nil {
		return fmt.Errorf(
			"%w: %s has the ledger of a daemon without [cluster]: give each instance a directory of its own",
			failure.ErrState, dir)
	}
	if d.lock, err = state.Lock(dir); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if err := d.connect(); err != nil {
		return err
	}
	if slices.ContainsFunc(d.process.Cfg.Streams, input.Shareable) {
		d.process.Partials = input.NewSharedSummation(
			d.process.PartialsOf(d.process.Cfg.Cluster.Group,
				&input.KafkaSums{Client: d.process.Client, Topic: d.process.Cfg.Cluster.PartialsTopic(),
					Now: d.process.Now}, func(s *config.Stream) int {
					return d.process.Cfg.Cluster.Shard(s.Input.Topic, core.Merged)
				}))
	}
	d.sharing = cluster.NewMember(
		cluster.Options{Process: &d.process, Runs: served{d}, Reach: d.reach, Advertise: d.Addr})
	return nil
}

// sharedTasks are the tasks of one shard of several.
type sharedTasks struct {
	*shardTasks
	d *Daemon
}

func (s sharedTasks) Begin(run func(func(context.Context) error)) {
	s.d.join(s.shardTasks)
	s.start(run)
}

func (s sharedTasks) Gone() { s.d.part(s.shardTasks) }
