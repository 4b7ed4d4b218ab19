package output_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestStrayReleases: another writer puts releases into the output of a running task. If this state did not make such a
// release, or has not made it yet, the task stops before its own next release.
func TestStrayReleases(t *testing.T) {
	t.Parallel()
	for key, says := range map[string]string{
		"orders/0/1/3":                    "orders/0/1/3 differs",
		"orders/0/1/10":                   "orders/0/1/10 differs",
		"orders/0/1/11":                   "orders/0/1/11 differs",
		"orders/0/1/9999":                 "records of that step are not in the input",
		"orders/0/1/10/1":                 "which this state did not make",
		"orders/0/1/11/7":                 "which this state did not make",
		"orders/0/2/1":                    "epoch 2, which is not in this ledger",
		"orders/0/1/18446744073709551615": "records of that step are not in the input",
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Produce(0, 550)
			x := r.Start()
			x.Published(5)
			r.Produce(550, 500) // a second request, because a checkpoint knows where the last request began
			x.Published(10)
			r.Forge("{}", key)
			r.Produce(1050, 200)
			x.Halts(failure.OutputAhead, says, "epoch open orders")
			for _, p := range r.Output("orders.dp") {
				if p.Step > 10 && p.Value != "{}" {
					t.Errorf("release %s was published after the stray one", p.Key)
				}
			}
			x.Stop()
			<-x.Done
			// A new process cannot distinguish a foreign piece of a published release from its own.
			if key != "orders/0/1/10/1" {
				// A new process meets the stray release again.
				if err := r.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
					!strings.Contains(err.Error(), "epoch open orders") {
					t.Fatalf("a new process ended with %v", err)
				}
			}
			// A new epoch resolves it.
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{DropOutbox: true})
			}))
			x = r.Start()
			x.Until("the next epoch",
				func(s monitor.TaskStatus) bool { return s.Epoch > 1 && s.State == monitor.StateRunning })
			r.Produce(1250, 200)
			x.Until("a release", func(s monitor.TaskStatus) bool { return s.Step >= 2 && s.Outbox == 0 })
		})
	}
}

// TestForeignKeys: releases with keys of other tasks are ignored.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	r.Forge("{}", "orders/1/9/1", "other/0/1/1", "orders/0/01/3", "", "orders/0/1", "orders/0/1/3/0")
	r.Produce(1050, 500)
	x.Published(15)
	x.End()
}

// TestForgottenReleases: releases whose hashes the guard has dropped are compared with their first occurrence in the
// output.
func TestForgottenReleases(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*streamtest.Rig, fixtures.Published)
		says  string // part of the halt's message; "": no halt
	}{
		"the same": {func(r *streamtest.Rig, p fixtures.Published) { repeat(r, p.Key) }, ""},
		"differs":  {func(r *streamtest.Rig, p fixtures.Published) { r.Forge("{}", p.Key) }, "differs"},
		"the first is gone": {func(r *streamtest.Rig, p fixtures.Published) {
			kafkatest.DeleteRecords(r.T, r.Broker.Addrs(), "orders.dp", 0, p.Offset+1)
			r.Forge("{}", p.Key)
		}, "did not make"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Produce(0, 1050)
			x := r.Start()
			x.Published(10)
			g := x.In.Tasks()[0].Guard
			g.Mu.Lock()
			(*g.Made()) = output.NewHashes()
			g.Mu.Unlock()
			for _, p := range r.Output("orders.dp") {
				if p.Step == 3 {
					c.spoil(r, p)
				}
			}
			r.Produce(1050, 500)
			if c.says != "" {
				x.Halts(failure.OutputAhead, c.says)
				return
			}
			x.Published(15)
			x.End()
			if v := r.History("orders.dp"); v.Duplicates != 1 {
				t.Errorf("%d duplicates", v.Duplicates)
			}
		})
	}
}

// repeat appends a release of the output to the output again.
func repeat(r *streamtest.Rig, key string) {
	r.T.Helper()
	var m kafka.Message
	err := fixtures.Dial(r.T, r.Addr).ReadBack(r.T.Context(), "orders.dp", 0, 0, func(rec *kafka.Record) error {
		if string(rec.Key) == key {
			m = kafka.Message{Key: []byte(key), Value: []byte(string(rec.Value)), Headers: rec.Headers,
				Time: time.UnixMilli(1)}
			return failure.ErrStop
		}
		return nil
	})
	if m.Key == nil {
		r.T.Fatalf("no release %s: %v", key, err)
	}
	if _, err := fixtures.Dial(r.T, r.Addr).Produce(r.T.Context(), "orders.dp", 0, []kafka.Message{m}); err != nil {
		r.T.Fatal(err)
	}
}

// TestHashes: the guard keeps the newest hashes, and no more than its limit.
func TestHashes(t *testing.T) {
	h := output.NewHashes()
	for i := range 3 * output.MaxMade {
		h.Put(fmt.Sprint(i), [32]byte{byte(i)})
		h.Put(fmt.Sprint(i), [32]byte{1, 1}) // only the first hash of a key is kept
	}
	if len(h.Of) != output.MaxMade || len(h.Order) != output.MaxMade {
		t.Fatalf("%d hashes", len(h.Of))
	}
	for i := 2 * output.MaxMade; i < 3*output.MaxMade; i++ {
		if h.Of[fmt.Sprint(i)] != [32]byte{byte(i)} {
			t.Fatalf("hash %d is lost", i)
		}
	}
}

// TestComparing: while a task repeats published releases, it is not ready, and status and metrics show why. Its epoch
// is not closed while committed releases are unpublished.
func TestComparing(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	data, err := os.ReadFile(r.File(state.CheckpointName))
	fixtures.Must(t, err)
	cp, err := state.ParseCheckpoint(data)
	fixtures.Must(t, err)
	// Two messages of step 10 are committed but not published.
	for i := range 2 {
		cp.Outbox = append(cp.Outbox,
			state.Message{
				Message: core.Message{Step: 10, Key: fmt.Appendf(nil, "orders/0/1/10/%d", i+1), Value: []byte("{}")},
				Time:    time.UnixMilli(1)})
	}
	cp.Output, cp.Acknowledged = 10, false
	fixtures.Must(t, os.WriteFile(r.File(state.CheckpointName), cp.Encode(nil), 0o600))
	// The records of the step that only the output has are in the log but not readable yet, because a transaction is
	// open.
	txn := kafkatest.NewProducer(t, r.Broker.Addrs(), "orders", 0, "txn")
	txn.Begin()
	var list []kafkatest.Record
	for i := range 500 {
		list = append(list, kafkatest.Record{Value: fixtures.OrderRecord(1050 + i)})
	}
	txn.Send(list...)
	r.Forge("{}", "orders/0/1/14")
	before := len(r.Output("orders.dp"))
	x := r.Start()
	x.Until("comparing", func(s monitor.TaskStatus) bool { return s.State == monitor.StateComparing })
	if code, body := x.Get("/-/ready"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "task orders-0 is comparing") {
		t.Errorf("ready: %d %s", code, body)
	}
	if _, body := x.Get("/metrics"); !strings.Contains(body,
		`streamdp_task_state{partition="0",state="comparing",stream="orders"} 1`) {
		t.Error("no metric says that it is comparing")
	}
	// The log line comes after the state changes.
	for late := time.Now().Add(fixtures.Patience); !strings.Contains(r.Log.String(),
		"publishing none until they match"); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the log does not say that it is comparing")
		}
	}
	for _, kind := range []string{task.RequestClose, task.RequestOpen} {
		if err := x.Control(kind, epoch.OpenRequest{}); err == nil || !strings.Contains(err.Error(), "--drop-outbox") ||
			!strings.Contains(err.Error(), "2 releases") {
			t.Errorf("%s while comparing: %v", kind, err)
		}
	}
	x.End()
	if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}); err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("open, offline: %v", err)
	}
	if got := r.Kinds(); got != "open" {
		t.Errorf("ledger: %s", got)
	}
	if after := len(r.Output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
	x = r.Start()
	x.Until("comparing", func(s monitor.TaskStatus) bool { return s.State == monitor.StateComparing })
	txn.End(true)
	x.Halts(failure.OutputAhead, "orders/0/1/14 differs")
	x.Stop()
	<-x.Done
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{DropOutbox: true})
	}))
	if !strings.Contains(r.Log.String(), "discarding unpublished releases") {
		t.Error("the log does not say that releases are discarded")
	}
}
