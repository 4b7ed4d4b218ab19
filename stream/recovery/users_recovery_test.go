package recovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestUsersRecover: verify recomputes every release, byte for byte. Recover restores a state if its checkpoint, or its
// files of persons, are damaged or lost. The run then continues with the same bytes as a run without a fault.
func TestUsersRecover(t *testing.T) {
	t.Parallel()
	damage := func(t *testing.T, r *streamtest.Rig, name string, at int) { fixtures.FlipByte(t, name, at) }
	lastUsers := func(r *streamtest.Rig) string { all := r.HasUsers(); return all[len(all)-1] }
	for mode, m := range fixtures.PersonModes {
		for _, c := range []struct {
			name string
			lose func(t *testing.T, r *streamtest.Rig)
		}{
			{"checkpoint damaged",
				func(t *testing.T, r *streamtest.Rig) { damage(t, r, r.File(state.CheckpointName), 300) }},
			{"checkpoints damaged", func(t *testing.T, r *streamtest.Rig) {
				damage(t, r, r.File(state.CheckpointName), 300)
				fixtures.Must(t, os.Truncate(r.File(state.PreviousName), 100))
			}},
			{"checkpoints lost", func(t *testing.T, r *streamtest.Rig) {
				fixtures.Must(t, os.Remove(r.File(state.CheckpointName)))
				fixtures.Must(t, os.Remove(r.File(state.PreviousName)))
			}},
			{"file of persons damaged", func(t *testing.T, r *streamtest.Rig) { damage(t, r, lastUsers(r), 25) }},
			{"file of persons cut",
				func(t *testing.T, r *streamtest.Rig) { fixtures.Must(t, os.Truncate(lastUsers(r), 30)) }},
			{"files of persons lost", func(t *testing.T, r *streamtest.Rig) {
				for _, name := range r.HasUsers() {
					fixtures.Must(t, os.Remove(name))
				}
			}},
		} {
			t.Run(m.Name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				r := streamtest.PersonRig(t, mode, 20)
				r.Produce(0, 130)
				x := r.Start()
				x.Published(6)
				r.Verified(6)
				x.End()
				r.Produce(130, 80)
				x = r.Start()
				x.Published(10)
				x.End()
				c.lose(t, r)
				if c.name != "checkpoints lost" { // without a checkpoint, a start begins the epoch again by itself
					x = r.Start()
					s := x.Halts(failure.State)
					if !strings.Contains(s.Message, "streamdp recover --stream orders --partition 0") ||
						strings.Contains(c.name, "persons") != strings.Contains(s.Message, "files of persons") {
						t.Errorf("the halt says: %s", s.Message)
					}
					x.EndHalted()
				}
				fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
					return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
				}))
				if all := r.HasUsers(); len(all) != 1 {
					t.Errorf("recover leaves the files %v", all)
				}
				for n := uint64(11); n < 13; n++ { // the files continue after a restart
					r.Produce(int(n)*20-10, 20)
					x = r.Start()
					x.Published(n)
					x.End()
				}
				r.History("orders.dp").Equals(t, r.Uninterrupted(12))
			})
		}
	}
}

// TestUsersRecoverRefuses: if the result of reading the log differs from the commit or the published releases, nothing
// on disk changes, not even files of persons.
func TestUsersRecoverRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		prepare      func(r *streamtest.Rig)
	}{
		{"another log", failure.OutputAhead, func(r *streamtest.Rig) {
			fixtures.FlipByte(r.T, r.File(state.CheckpointName), 300)
			fixtures.Must(r.T, os.Remove(r.File(state.PreviousName)))
			r.Recreate(7, 210)
		}},
		{"files of persons and output lost, another log", failure.Replaced, func(r *streamtest.Rig) {
			fixtures.Must(r.T, os.Remove(r.HasUsers()[0]))
			kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders.dp")
			fixtures.Must(r.T, fixtures.Dial(r.T, r.Addr).CreateTopic(r.T.Context(), "orders.dp", 1, nil))
			r.Recreate(7, 210)
		}},
		{"files of persons and output lost, a shorter log", failure.Truncated, func(r *streamtest.Rig) {
			fixtures.Must(r.T, os.Remove(r.HasUsers()[0]))
			kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders.dp")
			fixtures.Must(r.T, fixtures.Dial(r.T, r.Addr).CreateTopic(r.T.Context(), "orders.dp", 1, nil))
			r.Recreate(0, 110)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.PersonRig(t, 1, 20)
			b := streamtest.NewOldRig(t, r.Toml)
			b.Record = r.Record
			r = b
			r.Produce(0, 210)
			x := r.Start()
			x.Published(10)
			x.End()
			c.prepare(r)
			before := fixtures.Files(t, filepath.Join(r.Dir, "state"))
			err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
			})
			if h := (*failure.Halt)(nil); !errors.As(err, &h) || h.Reason != c.reason {
				t.Errorf("recover: %v, want a halt %s", err, c.reason)
			}
			fixtures.SameFiles(t, before, fixtures.Files(t, filepath.Join(r.Dir, "state")))
		})
	}
}

// TestUsersRepublish: releases that the output lost are recomputed from the log.
func TestUsersRepublish(t *testing.T) {
	t.Parallel()
	for mode, m := range fixtures.PersonModes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.PersonRig(t, mode, 20)
			r.Produce(0, 210)
			x := r.Start()
			x.Published(10)
			kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
			r.Produce(210, 20)
			x.Published(11)
			fixtures.Must(t,
				x.Ask(
					task.Request{Kind: task.RequestRepublish, Stream: "orders",
						Republish: recovery.RepublishRequest{FromLog: true}}))
			r.Client = fixtures.Dial(t, r.Addr)
			r.Produce(230, 20)
			x.Published(12)
			x.End()
			r.History("orders.dp").Equals(t, r.Uninterrupted(12))
		})
	}
}

// TestUsersRepetitionForgets: entries of persons do not accumulate while a log is read again.
func TestUsersRepetitionForgets(t *testing.T) {
	t.Parallel()
	r := streamtest.PersonRig(t, 0, 20)
	r.Produce(0, 110)
	x := r.Start()
	x.Published(5)
	x.End()
	o := r.Options()
	a := recovery.Audit{Config: o.Config, Key: o.Key}
	all, err := a.Epochs(fixtures.OrdersTask)
	fixtures.Must(t, err)
	m, err := epoch.ManifestOf(fixtures.OrdersTask, all[0].Opened, all[0].Manifest)
	fixtures.Must(t, err)
	keys, err := epoch.KeysOf(a.Key, m, all[0].Secret)
	fixtures.Must(t, err)
	c, err := a.CoreOf(o.Config.Streams[0], m, all[0], keys)
	fixtures.Must(t, err)
	defer c.Destroy()
	again, err := recovery.NewRecomputation(failure.NewRetrier(o.Log, nil, func() {}), r.Client, new(connect.Schemas),
		o.Config.Streams[0], m, c, state.Beginning(m), nil, 1<<20)
	fixtures.Must(t, err)
	for range 5 {
		_, err := again.Close(t.Context())
		fixtures.Must(t, err)
		if n := c.Persons()[0].Waiting(); n > 0 {
			t.Fatalf("after step %d %d bytes wait", c.Step(), n)
		}
	}
}
