package stream

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// haltedState is a way to bring a task to a halt.
type haltedState struct {
	name    string
	reason  string
	prepare func(t *testing.T, r *rig)
	// stays: the cause is not of the epoch, so that another one can't open.
	stays bool
}

// haltedStates are applied to a rig that ran ten steps, of 100 offsets each, on
// 1050 records. That for want of budget is in TestLimit.
var haltedStates = []haltedState{
	{name: "configuration edited", reason: haltConfiguration, prepare: func(t *testing.T, r *rig) {
		r.toml = with(r.toml, "clip = 1.0", "clip = 1.5")
	}},
	{name: "another key", reason: haltKey, prepare: func(t *testing.T, r *rig) { r.seed++ }},
	{name: "secret missing", reason: haltKey, prepare: func(t *testing.T, r *rig) { must(t, os.Remove(r.file("secret-1"))) }},
	{name: "secret short", reason: haltKey, prepare: func(t *testing.T, r *rig) { must(t, os.Truncate(r.file("secret-1"), 31)) }},
	{name: "another secret", reason: haltKey, prepare: func(t *testing.T, r *rig) { flipByte(t, r.file("secret-1"), 5) }},
	{name: "checkpoint damaged", reason: haltState, prepare: func(t *testing.T, r *rig) { flipByte(t, r.file(checkpointName), 300) }},
	{name: "checkpoint torn", reason: haltState, prepare: func(t *testing.T, r *rig) { must(t, os.Truncate(r.file(checkpointName), 512)) }},
	{name: "checkpoint and releases missing", reason: haltState, prepare: func(t *testing.T, r *rig) {
		for _, name := range []string{checkpointName, previousName} {
			must(t, os.Remove(r.file(name)))
		}
		kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
		must(t, dial(t, r.addr).CreateTopic(t.Context(), "orders.dp", 1, nil))
	}},
	{name: "manifest damaged", reason: haltState, prepare: func(t *testing.T, r *rig) {
		edit(t, r.file("manifest-1"), `"base": 0,`, `"base": 5,`)
	}},
	{name: "manifest damaged where nothing looks", reason: haltState, prepare: func(t *testing.T, r *rig) {
		edit(t, r.file("manifest-1"), `"partitions": 1,`, `"partitions": 2,`)
	}},
	{name: "plan damaged in its last digits", reason: haltState, prepare: func(t *testing.T, r *rig) {
		data, err := os.ReadFile(r.file("manifest-1"))
		must(t, err)
		i := bytes.Index(data, []byte(`"off_diagonal": `)) + len(`"off_diagonal": `) + 12
		data[i] = '0' + (data[i]-'0'+1)%10
		must(t, os.WriteFile(r.file("manifest-1"), data, 0o600))
	}},
	{name: "manifest missing", reason: haltState, prepare: func(t *testing.T, r *rig) { must(t, os.Remove(r.file("manifest-1"))) }},
	{name: "gap", reason: haltGap, prepare: func(t *testing.T, r *rig) {
		r.produce(1050, 100)
		kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1100)
	}},
	{name: "truncated", reason: haltTruncated, prepare: func(t *testing.T, r *rig) { r.recreate(0, 300) }},
	{name: "replaced", reason: haltReplaced, prepare: func(t *testing.T, r *rig) { r.recreate(7, 2000) }},
	{name: "output ahead", reason: haltOutput, prepare: func(t *testing.T, r *rig) {
		_, err := dial(t, r.addr).Produce(t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte("orders/0/1/11"), Value: []byte("{}"), Time: time.UnixMilli(1)}})
		must(t, err)
		r.produce(1050, 100)
	}},
	{name: "output truncated", reason: haltOutputGone, prepare: func(t *testing.T, r *rig) {
		kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	}},
	{name: "release too large", reason: haltTooLarge, stays: true, prepare: func(t *testing.T, r *rig) {
		setTopicConfig(t, r, "orders.dp", "max.message.bytes", "1000")
		r.produce(1050, 100)
	}},
	{name: "compacted", reason: haltCompacted, stays: true, prepare: func(t *testing.T, r *rig) {
		setTopicConfig(t, r, "orders", "cleanup.policy", "compact")
	}},
	{name: "cluster refuses", reason: haltKafka, stays: true, prepare: func(t *testing.T, r *rig) {
		r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "orders", Err: kerr.PolicyViolation, Count: -1})
	}},
}

func edit(t testing.TB, path, old, new string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s has no %q", path, old)
	}
	must(t, os.WriteFile(path, bytes.Replace(data, []byte(old), []byte(new), 1), 0o600))
}

// TestHaltedStates brings a task to every halt, and out of it again: by the
// control socket, and by a command where no daemon runs. Each halt is left in all four ways
// with STREAMDP_SLOW=1, in two without.
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
					continue // the second task halts too: under a new key nothing opens unasked
				}
				r := newOldRig(t, ordersStream).tenSteps()
				h.prepare(t, r)
				// A second task keeps the daemon alive where the first halts at
				// the start: then the process would end.
				r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.broker.Addrs(), "idle", nil)
				open := OpenRequest{Reason: "test", DropOutbox: true}
				kind := how[strings.IndexByte(how, ' ')+1:]
				x := r.start()
				x.halts(h.reason)
				var err error
				stop := x.end
				if strings.HasPrefix(how, "socket") {
					err = x.control(kind, open)
				} else {
					x.endHalted()
					stop = func() {}
					err = r.offline(func(ctx context.Context, d *Daemon) error {
						ctx, cancel := context.WithTimeout(ctx, patience)
						defer cancel()
						if kind == "open" {
							return d.OpenEpoch(ctx, ordersTask, open)
						}
						return d.CloseEpoch(ctx, ordersTask, true)
					})
				}
				opens := !h.stays || h.reason == haltTooLarge
				if (err == nil) != (kind == "close" || opens) {
					t.Fatalf("%s: %v", how, err)
				}
				closedWell(r, t, how, 1)
				if kind == "open" && opens {
					if strings.HasPrefix(how, "offline") {
						x = r.start()
						stop = x.end
					}
					r.client = dial(t, r.addr)
					r.produce(5000, 250)
					if h.reason == haltTooLarge {
						x.halts(h.reason)
					} else {
						x.until("epoch 2 releases", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
					}
				}
				stop()
			}
		})
	}
}

// TestStatusOfHalted says what an operator sees.
func TestStatusOfHalted(t *testing.T) {
	t.Parallel()
	r := newOldRig(t, ordersStream).tenSteps()
	r.recreate(7, 2000)
	x := r.start()
	x.halts(haltReplaced)
	for path, want := range map[string][]string{
		"/-/ready":       {"task orders-0 is halted (replaced)"},
		"/api/v1/status": {`"state":"halted"`, `"reason":"replaced"`, "epoch open"},
		"/metrics": {
			`streamdp_task_state{partition="0",state="halted",stream="orders"} 1`,
			`streamdp_halts_total{partition="0",reason="replaced",stream="orders"} 1`,
		},
	} {
		_, body := x.get(path)
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %q:\n%s", path, w, body)
			}
		}
	}
	if code, _ := x.get("/-/healthy"); code != 200 {
		t.Errorf("healthy is %d", code)
	}
}
