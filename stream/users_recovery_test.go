package stream

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestUsersRecover: verify works every release out again, byte for byte; recover brings a state back
// whose checkpoint, or whose files of persons, are damaged or lost; and the run goes on to the bytes of
// one without a fault.
func TestUsersRecover(t *testing.T) {
	t.Parallel()
	damage := func(t *testing.T, r *rig, name string, at int) { flipByte(t, name, at) }
	lastUsers := func(r *rig) string { all := r.hasUsers(); return all[len(all)-1] }
	for mode, m := range personModes {
		for _, c := range []struct {
			name string
			lose func(t *testing.T, r *rig)
		}{
			{"checkpoint damaged", func(t *testing.T, r *rig) { damage(t, r, r.file(checkpointName), 300) }},
			{"checkpoints damaged", func(t *testing.T, r *rig) {
				damage(t, r, r.file(checkpointName), 300)
				must(t, os.Truncate(r.file(previousName), 100))
			}},
			{"checkpoints lost", func(t *testing.T, r *rig) {
				must(t, os.Remove(r.file(checkpointName)))
				must(t, os.Remove(r.file(previousName)))
			}},
			{"file of persons damaged", func(t *testing.T, r *rig) { damage(t, r, lastUsers(r), 25) }},
			{"file of persons cut", func(t *testing.T, r *rig) { must(t, os.Truncate(lastUsers(r), 30)) }},
			{"files of persons lost", func(t *testing.T, r *rig) {
				for _, name := range r.hasUsers() {
					must(t, os.Remove(name))
				}
			}},
		} {
			t.Run(m.name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				r := personRig(t, mode, 20)
				r.produce(0, 130)
				x := r.start()
				x.published(6)
				r.verified(6)
				x.end()
				r.produce(130, 80)
				x = r.start()
				x.published(10)
				x.end()
				c.lose(t, r)
				if c.name != "checkpoints lost" { // without one, a start begins anew by itself
					x = r.start()
					s := x.halts(haltState)
					if !strings.Contains(s.Message, "streamdp recover --stream orders --partition 0") || strings.Contains(c.name, "persons") != strings.Contains(s.Message, "files of persons") {
						t.Errorf("the halt says: %s", s.Message)
					}
					x.endHalted()
				}
				must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) }))
				if all := r.hasUsers(); len(all) != 1 {
					t.Errorf("recover leaves the files %v", all)
				}
				for n := uint64(11); n < 13; n++ { // the files go on, over a restart
					r.produce(int(n)*20-10, 20)
					x = r.start()
					x.published(n)
					x.end()
				}
				r.history("orders.dp").equals(t, r.uninterrupted(12))
			})
		}
	}
}

// TestUsersRecoverRefuses: where the log does not lead to what was committed or published, nothing on
// disk changes, files of persons included.
func TestUsersRecoverRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		prepare      func(r *rig)
	}{
		{"another log", haltOutput, func(r *rig) {
			flipByte(r.t, r.file(checkpointName), 300)
			must(r.t, os.Remove(r.file(previousName)))
			r.recreate(7, 210)
		}},
		{"files of persons and output lost, another log", haltReplaced, func(r *rig) {
			must(r.t, os.Remove(r.hasUsers()[0]))
			kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders.dp")
			must(r.t, dial(r.t, r.addr).CreateTopic(r.t.Context(), "orders.dp", 1, nil))
			r.recreate(7, 210)
		}},
		{"files of persons and output lost, a shorter log", haltTruncated, func(r *rig) {
			must(r.t, os.Remove(r.hasUsers()[0]))
			kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders.dp")
			must(r.t, dial(r.t, r.addr).CreateTopic(r.t.Context(), "orders.dp", 1, nil))
			r.recreate(0, 110)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := personRig(t, 1, 20)
			b := newOldRig(t, r.toml)
			b.record = r.record
			r = b
			r.produce(0, 210)
			x := r.start()
			x.published(10)
			x.end()
			c.prepare(r)
			before := files(t, filepath.Join(r.dir, "state"))
			err := r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) })
			if h := (*halt)(nil); !errors.As(err, &h) || h.reason != c.reason {
				t.Errorf("recover: %v, want a halt %s", err, c.reason)
			}
			sameFiles(t, before, files(t, filepath.Join(r.dir, "state")))
		})
	}
}

// TestUsersRepublish: releases that the output lost are worked out again from the log.
func TestUsersRepublish(t *testing.T) {
	t.Parallel()
	for mode, m := range personModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r := personRig(t, mode, 20)
			r.produce(0, 210)
			x := r.start()
			x.published(10)
			kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
			r.produce(210, 20)
			x.published(11)
			must(t, x.ask(requestRepublish, ControlRequest{Stream: "orders", Republish: RepublishRequest{FromLog: true}}))
			r.client = dial(t, r.addr)
			r.produce(230, 20)
			x.published(12)
			x.end()
			r.history("orders.dp").equals(t, r.uninterrupted(12))
		})
	}
}

// TestUsersRepetitionForgets: entries of persons don't pile up while a log is read again.
func TestUsersRepetitionForgets(t *testing.T) {
	t.Parallel()
	r := personRig(t, 0, 20)
	r.produce(0, 110)
	x := r.start()
	x.published(5)
	x.end()
	o := r.options()
	a := Audit{Config: o.Config, Key: o.Key}
	all, err := a.epochs(ordersTask)
	must(t, err)
	m, err := manifestOf(ordersTask, all[0].opened, all[0].manifest)
	must(t, err)
	keys, err := keysOf(a.Key, m, all[0].secret)
	must(t, err)
	c, err := a.coreOf(o.Config.Streams[0], m, all[0], keys)
	must(t, err)
	defer c.Destroy()
	again, err := newRepetition(newRepeater(o.Log, nil, func() {}), r.client, new(Schemas), o.Config.Streams[0], m, c, beginning(m), nil, 1<<20)
	must(t, err)
	for range 5 {
		_, err := again.close(t.Context())
		must(t, err)
		if n := c.Persons()[0].Waiting(); n > 0 {
			t.Fatalf("after step %d %d bytes wait", c.Step(), n)
		}
	}
}
