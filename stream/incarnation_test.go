package stream

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestIncarnation: under which number the ledger counts a log, and where the
// next epoch begins.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	check := func(name string, want uint64, first int64, req OpenRequest, change func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newOldRig(t, ordersStream).tenSteps()
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
			change(r)
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, req) }))
			all := r.entries()
			if e := all[len(all)-1]; e.Kind != kindOpen || e.Incarnation != want || e.First != first {
				t.Errorf("incarnation %d from offset %d, want %d from %d", e.Incarnation, e.First, want, first)
			}
		})
	}
	nothing := func(*rig) {}
	deleted := func(r *rig) {
		r.produce(1050, 500)
		kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "orders", 0, 1200)
	}
	check("same log", 1, 1000, OpenRequest{}, nothing)
	check("same log, from the start", 1, 0, OpenRequest{From: "earliest"}, nothing)
	check("same log, from an offset", 1, 300, OpenRequest{From: "300"}, nothing)
	check("same log, from its end", 1, 1050, OpenRequest{From: "latest"}, nothing)
	check("replaced", 2, 0, OpenRequest{}, func(r *rig) { r.recreate(7, 2000) })
	check("replaced by a shorter one", 2, 0, OpenRequest{}, func(r *rig) { r.recreate(0, 500) })
	check("replaced, and the operator says it was not", 2, 0, OpenRequest{SameLog: true}, func(r *rig) { r.recreate(7, 2000) })
	check("retention", 2, 1200, OpenRequest{}, deleted)
	check("retention, and the operator's word", 1, 1200, OpenRequest{SameLog: true}, deleted)
	check("cut behind the last record read", 1, 1000, OpenRequest{}, func(r *rig) { r.recreate(0, 1000) })

	// What another stream has read of it proves it too: one that the command
	// does not run, one that is no longer configured, one without its checkpoint.
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for _, by := range []string{"command", "removed", "damaged", "same log"} {
		r := ran(t, ordersStream)
		switch by {
		case "same log":
		case "damaged":
			must(t, os.Truncate(r.file(checkpointName), 100))
		default:
			r.recreate(7, 2000)
		}
		if r.toml = second; by != "removed" {
			r.toml += ordersStream
		}
		o := r.options()
		o.Tasks = []core.Task{{Stream: "second", Partition: 0}}
		d, err := New(o)
		must(t, err)
		err = d.OpenEpoch(t.Context(), core.Task{Stream: "second", Partition: 0}, OpenRequest{})
		d.Close()
		must(t, err)
		all := r.entries()
		if e := all[len(all)-1]; e.Kind != kindOpen || (e.Incarnation == 1) != (by == "same log") {
			t.Errorf("%s: incarnation %d", by, e.Incarnation)
		}
	}

	// An epoch that lost its checkpoint leaves no proof.
	for _, same := range []bool{false, true} {
		r := ran(t, ordersStream)
		must(t, os.Truncate(r.file(checkpointName), 100))
		must(t, r.offline(func(ctx context.Context, d *Daemon) error {
			return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: same})
		}))
		all := r.entries()
		if e := all[len(all)-1]; (e.Incarnation == 1) != same || (e.First == 1050) != same {
			t.Errorf("same log %t: incarnation %d from %d", same, e.Incarnation, e.First)
		}
	}

	// Another stream's open epoch has read the old log.
	r := ran(t, ordersStream)
	r.recreate(7, 2000)
	r.toml += second
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, core.Task{Stream: "second", Partition: 0}, OpenRequest{})
	}))
	if e := r.entries()[1]; e.Incarnation != 2 {
		t.Errorf("a second stream on another log: incarnation %d", e.Incarnation)
	}
}

// TestTopicMadeAgain: a topic that was made anew is another log, and its records are
// not taken for those of the old one, however equal they are.
func TestTopicMadeAgain(t *testing.T) {
	t.Parallel()
	beats := func(n int) (all [][]byte) {
		for range n {
			all = append(all, []byte(`{"amount": 40, "items": 3, "weight": 1}`))
		}
		return all
	}
	r := newRig(t, ordersStream)
	r.send(beats(1050)...)
	x := r.start()
	x.published(10)
	x.end()
	if e := r.entries()[0]; len(e.TopicID) != 32 {
		t.Fatalf("the topic's id is %q", e.TopicID)
	}
	r.recreate(0, 0)
	r.send(beats(3000)...)
	before := len(r.output("orders.dp"))
	x = r.start()
	x.halts(haltReplaced, "was deleted and made again", "epoch open orders")
	if err := x.ends(); !errors.Is(err, ErrHalted) {
		t.Errorf("ended with %v", err)
	}
	if n := len(r.output("orders.dp")); n != before {
		t.Errorf("%d releases of another log", n-before)
	}
	// The operator's word is about what retention took, and not about this.
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: true})
	}))
	all := r.entries()
	if e := all[len(all)-1]; e.Kind != kindOpen || e.Incarnation != 2 || e.First != 0 || e.TopicID == all[0].TopicID || e.TopicID == "" {
		t.Errorf("opened anew: %+v", e)
	}
	x = r.start()
	x.published(30)
	x.end()
}

// TestAnchorOfAnotherGone: where retention took the record by which another stream
// knew the log, nothing tells that it is the same, so it counts as another one.
func TestAnchorOfAnotherGone(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for same, want := range map[bool]uint64{false: 2, true: 1} {
		r := newOldRig(t, second)
		r.produce(0, 550)
		x := r.start()
		x.published(5)
		x.end()
		r.recreate(7, 2000)
		kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1000)
		r.toml = ordersStream + second
		must(t, r.offline(func(ctx context.Context, d *Daemon) error {
			return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: same})
		}))
		all := r.entries()
		if e := all[len(all)-1]; e.Stream != "orders" || e.Kind != kindOpen || e.Incarnation != want {
			t.Errorf("same log %t: incarnation %d, want %d", same, e.Incarnation, want)
		}
	}
}

// TestEqualAtTheAnchor: a log that has the record by which the last one is known, a
// heartbeat, where that had it, and others before it, is noticed by these.
func TestEqualAtTheAnchor(t *testing.T) {
	t.Parallel()
	r := newOldRig(t, ordersStream)
	for i := range 15 { // a commit for each, and an anchor
		r.produce(70*i, 70)
		x := r.start()
		x.published(uint64(70 * (i + 1) / 100))
		x.until("read", func(s TaskStatus) bool { return s.NextOffset == int64(70*(i+1)) })
		x.end()
	}
	data, err := os.ReadFile(r.file(checkpointName))
	must(t, err)
	cp, err := parseCheckpoint(data)
	must(t, err)
	if n := len(cp.older); n < 2 || n > maxOlder {
		t.Fatalf("%d older anchors: %+v", n, cp.older)
	}
	at := int(cp.position.Anchor.Offset)
	r.recreate(7, at)
	r.produce(at, 1)      // the record of the anchor
	r.produce(at+8, 3*at) // and on, past what was read
	before := len(r.output("orders.dp"))
	x := r.start()
	x.halts(haltReplaced, "another record at offset", "epoch open orders")
	x.end()
	if n := len(r.output("orders.dp")); n != before {
		t.Errorf("%d releases of another log", n-before)
	}

	// Retention takes anchors one after another, and proves nothing by that.
	s := newOldRig(t, ordersStream).tenSteps()
	s.produce(1050, 1000)
	y := s.start()
	y.published(20)
	y.end()
	kafkatest.DeleteRecords(t, s.broker.Addrs(), "orders", 0, 1500)
	s.produce(2050, 200)
	y = s.start()
	y.published(22)
	y.end()
}

// TestThinned: older anchors reach far back, and there are few.
func TestThinned(t *testing.T) {
	t.Parallel()
	var older []kafka.Anchor
	for at := int64(0); at < 1_000_000; at += 100 {
		older = thinned(append(older, kafka.Anchor{Offset: at}), at+100)
		if len(older) > maxOlder {
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
