package stream

// This file exports internals to the tests in package stream_test.

import (
	"context"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/task"
)

var (
	ErrClosing    = errClosing
	ErrNoFile     = errNoFile
	ErrOpening    = errOpening
	ErrStopping   = errStopping
	NewShardTasks = newShardTasks
	Unchanged     = unchanged
)

func (x *Daemon) Change(a0 func(*config.Config) (*config.Config, bool, error)) error {
	return x.change(a0)
}

func (x *Daemon) CloseAbandoned(ctx context.Context, q task.Request) error {
	return x.closeAbandoned(ctx, q)
}

func (x *Daemon) Join(a0 *shardTasks) { x.join(a0) }

func (x *Daemon) Load() *func() (*config.Config, error) { return &x.load }

func (x *Daemon) Own() **shardTasks { return &x.own }

func (x *Daemon) Part(a0 *shardTasks) { x.part(a0) }

func (x *Daemon) Server() **httpapi.Server { return &x.server }

func (x *Daemon) Process() *epoch.Process { return &x.process }

func (x *Daemon) Patterns() []httpapi.PatternStatus { return served{x}.Patterns() }

func (x *Daemon) Epochs() (all []ledger.Entry) {
	for _, c := range x.shardsNow() {
		all = append(all, c.Ledger.All()...)
	}
	return all
}
