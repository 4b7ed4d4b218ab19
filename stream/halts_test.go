package stream_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// haltedState describes one way to halt a task.
type haltedState struct {
	name    string
	reason  string
	prepare func(t *testing.T, r *streamtest.Rig)
	// stays says that the cause does not depend on the epoch, so no other epoch can open either.
	stays bool
}

// haltedStates are applied to a rig that ran ten steps of 100 offsets on 1050 records. TestLimit covers the halt for
// lack of budget.
var haltedStates = []haltedState{
	{name: "configuration edited", reason: failure.Configuration, prepare: func(t *testing.T, r *streamtest.Rig) {
		r.Toml = fixtures.With(r.Toml, "clip = 1.0", "clip = 1.5")
	}},
	{name: "another key", reason: failure.Key, prepare: func(t *testing.T, r *streamtest.Rig) { r.Seed++ }},
	{name: "secret missing", reason: failure.Key,
		prepare: func(t *testing.T, r *streamtest.Rig) { fixtures.Must(t, os.Remove(r.File("secret-1"))) }},
	{name: "secret short", reason: failure.Key,
		prepare: func(t *testing.T, r *streamtest.Rig) { fixtures.Must(t, os.Truncate(r.File("secret-1"), 31)) }},
	{name: "another secret", reason: failure.Key,
		prepare: func(t *testing.T, r *streamtest.Rig) { fixtures.FlipByte(t, r.File("secret-1"), 5) }},
	{name: "checkpoint damaged", reason: failure.State,
		prepare: func(t *testing.T, r *streamtest.Rig) { fixtures.FlipByte(t, r.File(state.CheckpointName), 300) }},
	{name: "checkpoint torn", reason: failure.State, prepare: func(t *testing.T, r *streamtest.Rig) {
		fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 512))
	}},
	{name: "checkpoint and releases missing", reason: failure.State, prepare: func(t *testing.T, r *streamtest.Rig) {
		for _, name := range []string{state.CheckpointName, state.PreviousName} {
			fixtures.Must(t, os.Remove(r.File(name)))
		}
		kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
		fixtures.Must(t, fixtures.Dial(t, r.Addr).CreateTopic(t.Context(), "orders.dp", 1, nil))
	}},
	{name: "manifest damaged", reason: failure.State, prepare: func(t *testing.T, r *streamtest.Rig) {
		edit(t, r.File("manifest-1"), `"base": 0,`, `"base": 5,`)
	}},
	{name: "manifest damaged where nothing looks", reason: failure.State,
		prepare: func(t *testing.T, r *streamtest.Rig) {
			edit(t, r.File("manifest-1"), `"partitions": 1,`, `"partitions": 2,`)
		}},
	{name: "plan damaged in its last digits", reason: failure.State, prepare: func(t *testing.T, r *streamtest.Rig) {
		data, err := os.ReadFile(r.File("manifest-1"))
		fixtures.Must(t, err)
		i := bytes.Index(data, []byte(`"off_diagonal": `)) + len(`"off_diagonal": `) + 12
		data[i] = '0' + (data[i]-'0'+1)%10
		fixtures.Must(t, os.WriteFile(r.File("manifest-1"), data, 0o600))
	}},
	{name: "manifest missing", reason: failure.State,
		prepare: func(t *testing.T, r *streamtest.Rig) { fixtures.Must(t, os.Remove(r.File("manifest-1"))) }},
	{name: "gap", reason: failure.Gap, prepare: func(t *testing.T, r *streamtest.Rig) {
		r.Produce(1050, 100)
		kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 0, 1100)
	}},
	{name: "truncated", reason: failure.Truncated,
		prepare: func(t *testing.T, r *streamtest.Rig) { r.Recreate(0, 300) }},
	{name: "replaced", reason: failure.Replaced,
		prepare: func(t *testing.T, r *streamtest.Rig) { r.Recreate(7, 2000) }},
	{name: "output ahead", reason: failure.OutputAhead, prepare: func(t *testing.T, r *streamtest.Rig) {
		_, err := fixtures.Dial(t, r.Addr).Produce(t.Context(), "orders.dp", 0,
			[]kafka.Message{{Key: []byte("orders/0/1/11"), Value: []byte("{}"), Time: time.UnixMilli(1)}})
		fixtures.Must(t, err)
		r.Produce(1050, 100)
	}},
	{name: "output truncated", reason: failure.OutputTruncated, prepare: func(t *testing.T, r *streamtest.Rig) {
		kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
	}},
	{name: "release too large", reason: failure.ReleaseTooLarge, stays: true,
		prepare: func(t *testing.T, r *streamtest.Rig) {
			streamtest.SetTopicConfig(t, r, "orders.dp", "max.message.bytes", "1000")
			r.Produce(1050, 100)
		}},
	{name: "compacted", reason: failure.Compacted, stays: true, prepare: func(t *testing.T, r *streamtest.Rig) {
		streamtest.SetTopicConfig(t, r, "orders", "cleanup.policy", "compact")
	}},
	{name: "cluster refuses", reason: failure.Kafka, stays: true, prepare: func(t *testing.T, r *streamtest.Rig) {
		r.Broker.Cluster().Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "orders",
				Err: kerr.PolicyViolation, Count: -1})
	}},
}

func edit(t testing.TB, path, old, new string) {
	t.Helper()
	data, err := os.ReadFile(path)
	fixtures.Must(t, err)
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s has no %q", path, old)
	}
	fixtures.Must(t, os.WriteFile(path, bytes.Replace(data, []byte(old), []byte(new), 1), 0o600))
}

// TestHaltedStates halts a task in every way and resolves each halt, by the control socket or by a command without a
// daemon. With STREAMDP_SLOW=1 each halt is resolved in all four ways, otherwise in two.
func TestHaltedStates(t *testing.T) {
	t.Parallel()
	for i, h := range haltedStates {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			ways := []string{"socket open", "offline close", "socket close", "offline open"}
			if os.Getenv("STREAMDP_SLOW") == "" {
				ways = ways[i%2*2:][:2]
			}
			for _, how := range ways {
				if h.name == "another key" && strings.HasPrefix(how, "socket") {
					continue // the second task halts too, because no epoch opens by itself under a new key
				}
				r := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
				h.prepare(t, r)
				// A second task keeps the daemon running if the first halts at the start; otherwise the process would
				// end.
				r.Toml += strings.ReplaceAll(
					fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`,
						`topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.Broker.Addrs(), "idle", nil)
				open := epoch.OpenRequest{Reason: "test", DropOutbox: true}
				kind := how[strings.IndexByte(how, ' ')+1:]
				x := r.Start()
				x.Halts(h.reason)
				var err error
				stop := x.End
				if strings.HasPrefix(how, "socket") {
					err = x.Control(kind, open)
				} else {
					x.EndHalted()
					stop = func() {}
					err = r.Offline(func(ctx context.Context, d *stream.Daemon) error {
						ctx, cancel := context.WithTimeout(ctx, fixtures.Patience)
						defer cancel()
						if kind == "open" {
							return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, open)
						}
						return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, true)
					})
				}
				opens := !h.stays || h.reason == failure.ReleaseTooLarge
				if (err == nil) != (kind == "close" || opens) {
					t.Fatalf("%s: %v", how, err)
				}
				closedWell(r, t, how, 1)
				if kind == "open" && opens {
					if strings.HasPrefix(how, "offline") {
						x = r.Start()
						stop = x.End
					}
					r.Client = fixtures.Dial(t, r.Addr)
					r.Produce(5000, 250)
					if h.reason == failure.ReleaseTooLarge {
						x.Halts(h.reason)
					} else {
						x.Until("epoch 2 releases",
							func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
					}
				}
				stop()
			}
		})
	}
}

// TestStatusOfHalted checks the status that an operator sees for a halted task.
func TestStatusOfHalted(t *testing.T) {
	t.Parallel()
	r := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
	r.Recreate(7, 2000)
	x := r.Start()
	x.Halts(failure.Replaced)
	for path, want := range map[string][]string{
		"/-/ready":       {"task orders-0 is halted (replaced)"},
		"/api/v1/status": {`"state":"halted"`, `"reason":"replaced"`, "epoch open"},
		"/metrics": {
			`streamdp_task_state{partition="0",state="halted",stream="orders"} 1`,
			`streamdp_halts_total{partition="0",reason="replaced",stream="orders"} 1`,
		},
	} {
		_, body := x.Get(path)
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %q:\n%s", path, w, body)
			}
		}
	}
	if code, _ := x.Get("/-/healthy"); code != 200 {
		t.Errorf("healthy is %d", code)
	}
}
