package stream_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// TestIncarnation checks under which number the ledger counts a log, and where the next epoch begins.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	check := func(name string, want uint64, first int64, req epoch.OpenRequest, change func(r *streamtest.Rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
			}))
			change(r)
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, req)
			}))
			all := r.Entries()
			if e := all[len(all)-1]; e.Kind != ledger.KindOpen || e.Incarnation != want || e.First != first {
				t.Errorf("incarnation %d from offset %d, want %d from %d", e.Incarnation, e.First, want, first)
			}
		})
	}
	nothing := func(*streamtest.Rig) {}
	deleted := func(r *streamtest.Rig) {
		r.Produce(1050, 500)
		kafkatest.DeleteRecords(r.T, r.Broker.Addrs(), "orders", 0, 1200)
	}
	check("same log", 1, 1000, epoch.OpenRequest{}, nothing)
	check("same log, from the start", 1, 0, epoch.OpenRequest{From: "earliest"}, nothing)
	check("same log, from an offset", 1, 300, epoch.OpenRequest{From: "300"}, nothing)
	check("same log, from its end", 1, 1050, epoch.OpenRequest{From: "latest"}, nothing)
	check("replaced", 2, 0, epoch.OpenRequest{}, func(r *streamtest.Rig) { r.Recreate(7, 2000) })
	check("replaced by a shorter one", 2, 0, epoch.OpenRequest{}, func(r *streamtest.Rig) { r.Recreate(0, 500) })
	check("replaced, and the operator says it was not", 2, 0, epoch.OpenRequest{SameLog: true},
		func(r *streamtest.Rig) { r.Recreate(7, 2000) })
	check("retention", 2, 1200, epoch.OpenRequest{}, deleted)
	check("retention, and the operator's word", 1, 1200, epoch.OpenRequest{SameLog: true}, deleted)
	check("cut behind the last record read", 1, 1000, epoch.OpenRequest{},
		func(r *streamtest.Rig) { r.Recreate(0, 1000) })

	// Records that another stream has read also prove the log's identity. The other stream is not run by the command,
	// or removed from the configuration, or without its checkpoint.
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	for _, by := range []string{"command", "removed", "damaged", "same log"} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		switch by {
		case "same log":
		case "damaged":
			fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
		default:
			r.Recreate(7, 2000)
		}
		if r.Toml = second; by != "removed" {
			r.Toml += fixtures.OrdersStream
		}
		o := r.Options()
		o.Tasks = []core.Task{{Stream: "second", Partition: 0}}
		d, err := stream.New(o)
		fixtures.Must(t, err)
		err = streamtest.OpenEpoch(t.Context(), d, core.Task{Stream: "second", Partition: 0}, epoch.OpenRequest{})
		d.Close()
		fixtures.Must(t, err)
		all := r.Entries()
		if e := all[len(all)-1]; e.Kind != ledger.KindOpen || (e.Incarnation == 1) != (by == "same log") {
			t.Errorf("%s: incarnation %d", by, e.Incarnation)
		}
	}

	// If an epoch has lost its checkpoint, nothing proves the log's identity.
	for _, same := range []bool{false, true} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: same})
		}))
		all := r.Entries()
		if e := all[len(all)-1]; (e.Incarnation == 1) != same || (e.First == 1050) != same {
			t.Errorf("same log %t: incarnation %d from %d", same, e.Incarnation, e.First)
		}
	}

	// Another stream's open epoch has read the old log.
	r := streamtest.Ran(t, fixtures.OrdersStream)
	r.Recreate(7, 2000)
	r.Toml += second
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, core.Task{Stream: "second", Partition: 0}, epoch.OpenRequest{})
	}))
	if e := r.Entries()[1]; e.Incarnation != 2 {
		t.Errorf("a second stream on another log: incarnation %d", e.Incarnation)
	}
}

// TestTopicMadeAgain: a topic that was deleted and created again is a different log. Its records are never treated as
// the old ones, even if they are equal.
func TestTopicMadeAgain(t *testing.T) {
	t.Parallel()
	beats := func(n int) (all [][]byte) {
		for range n {
			all = append(all, []byte(`{"amount": 40, "items": 3, "weight": 1}`))
		}
		return all
	}
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Send(beats(1050)...)
	x := r.Start()
	x.Published(10)
	x.End()
	if e := r.Entries()[0]; len(e.TopicID) != 32 {
		t.Fatalf("the topic's id is %q", e.TopicID)
	}
	r.Recreate(0, 0)
	r.Send(beats(3000)...)
	before := len(r.Output("orders.dp"))
	x = r.Start()
	x.Halts(failure.Replaced, "was deleted and created again", "epoch open orders")
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) {
		t.Errorf("ended with %v", err)
	}
	if n := len(r.Output("orders.dp")); n != before {
		t.Errorf("%d releases of another log", n-before)
	}
	// The operator's assertion is only about records that retention deleted, so it does not help here.
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: true})
	}))
	all := r.Entries()
	if e := all[len(all)-1]; e.Kind != ledger.KindOpen || e.Incarnation != 2 || e.First != 0 ||
		e.TopicID == all[0].TopicID || e.TopicID == "" {
		t.Errorf("opened again: %+v", e)
	}
	x = r.Start()
	x.Published(30)
	x.End()
}

// TestAnchorOfAnotherGone: if retention deleted the record by which another stream identified the log, nothing proves
// that the log is the same, so it counts as a different one.
func TestAnchorOfAnotherGone(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	for same, want := range map[bool]uint64{false: 2, true: 1} {
		r := streamtest.NewOldRig(t, second)
		r.Produce(0, 550)
		x := r.Start()
		x.Published(5)
		x.End()
		r.Recreate(7, 2000)
		kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 0, 1000)
		r.Toml = fixtures.OrdersStream + second
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: same})
		}))
		all := r.Entries()
		if e := all[len(all)-1]; e.Stream != "orders" || e.Kind != ledger.KindOpen || e.Incarnation != want {
			t.Errorf("same log %t: incarnation %d, want %d", same, e.Incarnation, want)
		}
	}
}

// TestEqualAtTheAnchor: a new log may hold, at the same offset, a record equal to the one that identifies the old log,
// for example a heartbeat. The records before it differ, and they show that the log is a different one.
func TestEqualAtTheAnchor(t *testing.T) {
	t.Parallel()
	r := streamtest.NewOldRig(t, fixtures.OrdersStream)
	for i := range 15 { // a commit with an anchor for each record
		r.Produce(70*i, 70)
		x := r.Start()
		x.Published(uint64(70 * (i + 1) / 100))
		x.Until("read", func(s monitor.TaskStatus) bool { return s.NextOffset == int64(70*(i+1)) })
		x.End()
	}
	data, err := os.ReadFile(r.File(state.CheckpointName))
	fixtures.Must(t, err)
	cp, err := state.ParseCheckpoint(data)
	fixtures.Must(t, err)
	if n := len(cp.Older); n < 2 || n > state.MaxOlder {
		t.Fatalf("%d older anchors: %+v", n, cp.Older)
	}
	at := int(cp.Position.Anchor.Offset)
	r.Recreate(7, at)
	r.Produce(at, 1)      // the anchor's record
	r.Produce(at+8, 3*at) // more records, beyond what was read
	before := len(r.Output("orders.dp"))
	x := r.Start()
	x.Halts(failure.Replaced, "a different record at offset", "epoch open orders")
	x.End()
	if n := len(r.Output("orders.dp")); n != before {
		t.Errorf("%d releases of another log", n-before)
	}

	// Retention deletes the records of the anchors one after the other. That does not prove a different log.
	s := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
	s.Produce(1050, 1000)
	y := s.Start()
	y.Published(20)
	y.End()
	kafkatest.DeleteRecords(t, s.Broker.Addrs(), "orders", 0, 1500)
	s.Produce(2050, 200)
	y = s.Start()
	y.Published(22)
	y.End()
}

// TestThinned: the older anchors of a checkpoint reach far back, but are few.
func TestThinned(t *testing.T) {
	t.Parallel()
	var older []kafka.Anchor
	for at := int64(0); at < 1_000_000; at += 100 {
		older = state.Thinned(append(older, kafka.Anchor{Offset: at}), at+100)
		if len(older) > state.MaxOlder {
			t.Fatalf("%d anchors", len(older))
		}
		if older[0].Offset != 0 {
			t.Fatalf("at %d: the first record is not among %+v", at, older)
		}
	}
	for i := range len(older) - 1 {
		if near, far := 1_000_000-older[i+1].Offset, 1_000_000-older[i].Offset; far > 16*near {
			t.Errorf("no anchor between %d and %d records back: %+v", near, far, older)
		}
	}
	if len(older) < 6 {
		t.Errorf("%d anchors", len(older))
	}
}
