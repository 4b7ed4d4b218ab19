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

// openShared prepares a daemon that shares tasks with other instances. Then the state directory holds no state of
// tasks.
func (d *Daemon) openShared() (err error) {
	dir := d.process.Cfg.State.Dir
	if err := (state.OS{}).MkdirAll(filepath.Join(dir, cluster.WitnessDir)); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if _, err := os.Stat(filepath.Join(dir, ledger.FileName)); err == nil {
		return fmt.Errorf("%w: %s holds the ledger of a daemon without [cluster]: give each instance its own directory",
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

// sharedTasks are the tasks of a shard that this instance owns.
type sharedTasks struct {
	*shardTasks
	d *Daemon
}

// Begin starts the tasks.
func (s sharedTasks) Begin(run func(func(context.Context) error)) {
	s.d.join(s.shardTasks)
	s.start(run)
}

// Gone removes the tasks after they have ended.
func (s sharedTasks) Gone() { s.d.part(s.shardTasks) }
