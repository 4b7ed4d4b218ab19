package stream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestStrayReleases: releases that somebody else wrote into the output of a running
// task. What this state did not make, or not yet, stops it before its next release.
func TestStrayReleases(t *testing.T) {
	t.Parallel()
	for key, says := range map[string]string{
		"orders/0/1/3":                    "orders/0/1/3 differs",
		"orders/0/1/10":                   "orders/0/1/10 differs",
		"orders/0/1/11":                   "orders/0/1/11 differs",
		"orders/0/1/9999":                 "whose records the input does not have",
		"orders/0/1/10/1":                 "which this state did not make",
		"orders/0/1/11/7":                 "which this state did not make",
		"orders/0/2/1":                    "epoch 2, which this ledger does not know",
		"orders/0/1/18446744073709551615": "whose records the input does not have",
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ordersStream)
			r.produce(0, 550)
			x := r.start()
			x.published(5)
			r.produce(550, 500) // another request: a checkpoint knows where the last one began
			x.published(10)
			r.forge("{}", key)
			r.produce(1050, 200)
			x.halts(haltOutput, says, "epoch open orders")
			for _, p := range r.output("orders.dp") {
				if p.step > 10 && p.value != "{}" {
					t.Errorf("release %s left after the stray one", p.key)
				}
			}
			x.stop()
			<-x.done
			if key != "orders/0/1/10/1" { // a piece of what was published: nothing tells a new process that it is not its own
				// A new process meets it again.
				if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch open orders") {
					t.Fatalf("a new process ended with %v", err)
				}
			}
			// A new epoch is the way out.
			must(t, r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, ordersTask, OpenRequest{DropOutbox: true})
			}))
			x = r.start()
			x.until("the next epoch", func(s TaskStatus) bool { return s.Epoch > 1 && s.State == stateRunning })
			r.produce(1250, 200)
			x.until("a release", func(s TaskStatus) bool { return s.Step >= 2 && s.Outbox == 0 })
		})
	}
}

// TestForeignKeys: what is not this task's is nobody's business.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	r.forge("{}", "orders/1/9/1", "other/0/1/1", "orders/0/01/3", "", "orders/0/1", "orders/0/1/3/0")
	r.produce(1050, 500)
	x.published(15)
	x.end()
}

// TestForgottenReleases: releases of which the guard has forgotten the hashes are
// compared with their first occurrence in the output.
func TestForgottenReleases(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*rig, published)
		says  string // of the halt, empty: none
	}{
		"the same": {func(r *rig, p published) { repeat(r, p.key) }, ""},
		"differs":  {func(r *rig, p published) { r.forge("{}", p.key) }, "differs"},
		"the first is gone": {func(r *rig, p published) {
			kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "orders.dp", 0, p.offset+1)
			r.forge("{}", p.key)
		}, "did not make"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ordersStream)
			r.produce(0, 1050)
			x := r.start()
			x.published(10)
			g := x.in.Tasks()[0].guard
			g.mu.Lock()
			g.made = newHashes()
			g.mu.Unlock()
			for _, p := range r.output("orders.dp") {
				if p.step == 3 {
					c.spoil(r, p)
				}
			}
			r.produce(1050, 500)
			if c.says != "" {
				x.halts(haltOutput, c.says)
				return
			}
			x.published(15)
			x.end()
			if v := r.history("orders.dp"); v.duplicates != 1 {
				t.Errorf("%d duplicates", v.duplicates)
			}
		})
	}
}

// repeat appends a release of the output to it again.
func repeat(r *rig, key string) {
	r.t.Helper()
	var m kafka.Message
	err := dial(r.t, r.addr).ReadBack(r.t.Context(), "orders.dp", 0, 0, func(rec *kafka.Record) error {
		if string(rec.Key) == key {
			m = kafka.Message{Key: []byte(key), Value: []byte(string(rec.Value)), Headers: rec.Headers, Time: time.UnixMilli(1)}
			return errStop
		}
		return nil
	})
	if m.Key == nil {
		r.t.Fatalf("no release %s: %v", key, err)
	}
	if _, err := dial(r.t, r.addr).Produce(r.t.Context(), "orders.dp", 0, []kafka.Message{m}); err != nil {
		r.t.Fatal(err)
	}
}

// TestHashes: the guard remembers the newest, and no more than it says.
func TestHashes(t *testing.T) {
	h := newHashes()
	for i := range 3 * maxMade {
		h.put(fmt.Sprint(i), [32]byte{byte(i)})
		h.put(fmt.Sprint(i), [32]byte{1, 1}) // the first counts
	}
	if len(h.of) != maxMade || len(h.order) != maxMade {
		t.Fatalf("%d hashes", len(h.of))
	}
	for i := 2 * maxMade; i < 3*maxMade; i++ {
		if h.of[fmt.Sprint(i)] != [32]byte{byte(i)} {
			t.Fatalf("hash %d is lost", i)
		}
	}
}

// TestComparing: a task that repeats what is published is not ready, says so, and shows
// it in metrics. Epochs are not ended over what it has committed and not published.
func TestComparing(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	data, err := os.ReadFile(r.file(checkpointName))
	must(t, err)
	cp, err := parseCheckpoint(data)
	must(t, err)
	// Two messages of step 10 are committed and not published.
	for i := range 2 {
		cp.outbox = append(cp.outbox, pending{Message: core.Message{Step: 10, Key: fmt.Appendf(nil, "orders/0/1/10/%d", i+1), Value: []byte("{}")}, time: time.UnixMilli(1)})
	}
	cp.output, cp.acknowledged = 10, false
	must(t, os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600))
	// The records of the step that is ahead are in the log, and not readable yet: a
	// transaction is open.
	txn := kafkatest.NewProducer(t, r.broker.Addrs(), "orders", 0, "txn")
	txn.Begin()
	var list []kafkatest.Record
	for i := range 500 {
		list = append(list, kafkatest.Record{Value: orderRecord(1050 + i)})
	}
	txn.Send(list...)
	r.forge("{}", "orders/0/1/14")
	before := len(r.output("orders.dp"))
	x := r.start()
	x.until("comparing", func(s TaskStatus) bool { return s.State == stateComparing })
	if code, body := x.get("/-/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "task orders-0 is comparing") {
		t.Errorf("ready: %d %s", code, body)
	}
	if _, body := x.get("/metrics"); !strings.Contains(body, `streamdp_task_state{partition="0",state="comparing",stream="orders"} 1`) {
		t.Error("no metric says that it is comparing")
	}
	// The line follows the state.
	for late := time.Now().Add(patience); !strings.Contains(r.log.String(), "publishing none meanwhile"); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the log does not say that it is comparing")
		}
	}
	for _, kind := range []string{requestClose, requestOpen} {
		if err := x.control(kind, OpenRequest{}); err == nil || !strings.Contains(err.Error(), "--drop-outbox") || !strings.Contains(err.Error(), "2 releases") {
			t.Errorf("%s while comparing: %v", kind, err)
		}
	}
	x.end()
	if err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{})
	}); err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("open, offline: %v", err)
	}
	if got := r.kinds(); got != "open" {
		t.Errorf("ledger: %s", got)
	}
	if after := len(r.output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
	x = r.start()
	x.until("comparing", func(s TaskStatus) bool { return s.State == stateComparing })
	txn.End(true)
	x.halts(haltOutput, "orders/0/1/14 differs")
	x.stop()
	<-x.done
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{DropOutbox: true})
	}))
	if !strings.Contains(r.log.String(), "releases are given up") {
		t.Error("the log does not say that releases are given up")
	}
}
