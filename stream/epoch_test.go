package stream

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"streamdp/internal/kafka"
	"streamdp/internal/kafka/kafkatest"
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func flipByte(t testing.TB, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	data[at] ^= 1
	must(t, os.WriteFile(path, data, 0o600))
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
// control socket, and by a command where no daemon runs.
func TestHaltedStates(t *testing.T) {
	t.Parallel()
	for _, h := range haltedStates {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			for _, how := range []string{"socket open", "socket close", "offline open", "offline close"} {
				r := ran(t, ordersStream)
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
				if strings.HasPrefix(how, "socket") {
					err = x.control(kind, open)
				} else {
					x.end()
					err = r.offline(func(ctx context.Context, d *Daemon) error {
						ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
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
				r.closedWell(t, how, 1)
				if kind == "open" && opens {
					if strings.HasPrefix(how, "offline") {
						x = r.start()
					}
					r.client = dial(t, r.addr)
					r.produce(5000, 250)
					if h.reason == haltTooLarge {
						x.halts(h.reason)
					} else {
						x.until("epoch 2 releases", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
					}
				}
				x.end()
			}
		})
	}
}

// closedWell fails unless an epoch is closed, charged for all that it released,
// and nothing of it is left.
func (r *rig) closedWell(t *testing.T, how string, epoch uint64) {
	t.Helper()
	var closed, destroyed bool
	var end int64
	for _, e := range r.entries() {
		if e.Task() != ordersTask || e.Epoch != epoch {
			continue
		}
		switch e.Kind {
		case kindClose:
			closed, end = true, e.End
		case kindDestroyed:
			destroyed = true
		}
	}
	if !closed || !destroyed {
		t.Errorf("%s: closed %t, destroyed %t", how, closed, destroyed)
	}
	if _, err := os.Stat(r.file(secretName(epoch))); err == nil {
		t.Errorf("%s: the secret is still there", how)
	}
	for _, p := range r.outputIfAny("orders.dp") {
		if p.epoch == epoch && p.value != "{}" {
			if got := p.parse(t).Offsets[1]; end >= 0 && got > end {
				t.Errorf("%s: released up to offset %d, charged to %d", how, got, end)
			}
		}
	}
	for _, name := range []string{checkpointName, previousName} {
		if data, err := os.ReadFile(r.file(name)); err == nil {
			if c, err := parseCheckpoint(data); err != nil || c.epoch == epoch {
				t.Errorf("%s: %s of the closed epoch is still there", how, name)
			}
		}
	}
}

// TestSecretRetention: a closed epoch's secret is kept as long as configured,
// its sums are not; a running daemon destroys it when its time has come, and so
// does the next start.
func TestSecretRetention(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	retain := func(d time.Duration) func(*Options) {
		return func(o *Options) { o.Config.State.EpochSecretRetention = d }
	}
	exists := func(epoch uint64) bool {
		_, err := os.Stat(r.file(secretName(epoch)))
		return err == nil
	}
	destroyed := func(epoch uint64) bool {
		return slices.ContainsFunc(r.entries(), func(e Entry) bool { return e.Kind == kindDestroyed && e.Epoch == epoch })
	}
	up := func(s TaskStatus) bool { return s.State == stateRunning }
	x := r.start(retain(time.Hour))
	x.until("up", up)
	for epoch := uint64(1); epoch <= 2; epoch++ {
		if err := x.control(requestOpen, OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.until("the next epoch", func(s TaskStatus) bool { return s.Epoch == epoch+1 })
		if !exists(epoch) || destroyed(epoch) {
			t.Errorf("the secret of epoch %d is gone at once", epoch)
		}
		for _, name := range []string{checkpointName, previousName} {
			if data, err := os.ReadFile(r.file(name)); err == nil {
				if c, err := parseCheckpoint(data); err != nil || c.epoch <= epoch {
					t.Errorf("%s of epoch %d is still there", name, epoch)
				}
			}
		}
	}
	x.end()
	x = r.start(retain(2 * time.Second))
	x.until("up", up)
	for deadline := time.Now().Add(patience); exists(1) || exists(2) || !destroyed(1) || !destroyed(2); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the secrets are still there: %s", r.kinds())
		}
	}
	if err := x.control(requestOpen, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	x.end()
	x = r.start()
	x.until("epoch 4", func(s TaskStatus) bool { return s.Epoch == 4 && s.State == stateRunning })
	x.end()
	if exists(3) || !destroyed(3) || !exists(4) {
		t.Errorf("after a start without retention: %s", r.kinds())
	}
}

// TestAbandonedSecret: a task that is no longer configured, or not of the command
// that runs, keeps its secrets no longer than others.
func TestAbandonedSecret(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for _, by := range []string{"daemon", "command"} {
		r := ran(t, ordersStream)
		retain := func(o *Options) { o.Config.State.EpochSecretRetention = time.Hour }
		x := r.start(retain)
		x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
		if err := x.control(requestClose, OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.end()
		if _, err := os.Stat(r.file(secretName(1))); err != nil {
			t.Fatalf("%s: the secret is not kept: %v", by, err)
		}
		// What an interrupted closing leaves is no better.
		must(t, os.WriteFile(r.file(previousName), []byte("sums"), 0o600))
		r.toml = second
		if by == "daemon" {
			x = r.start()
			x.until("the other stream", func(s TaskStatus) bool { return s.State == stateRunning && s.Step == 10 })
			for deadline := time.Now().Add(patience); !strings.Contains(r.kinds(), kindDestroyed); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the secret is still there: %s", r.kinds())
				}
			}
			x.end()
		} else {
			must(t, r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, Task{"second", 0}, OpenRequest{})
			}))
		}
		r.closedWell(t, by, 1)
	}
}

// TestConfigurationEdited: the difference is shown, and undoing it is enough.
func TestConfigurationEdited(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	was := r.toml
	r.toml = with(r.toml, "clip = 1.0", "clip = 1.5", "step   = 100", "step = 50")
	err := r.start().ends()
	if !errors.Is(err, ErrHalted) {
		t.Fatalf("ended with %v", err)
	}
	for _, w := range []string{"moments.clip: 1 → 1.5", "step: 100 → 50", "epoch open orders"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the difference does not say %q: %v", w, err)
		}
	}
	r.toml = was
	r.produce(1050, 100)
	x := r.start()
	x.published(11)
	x.end()
	// What is not in the digest ends no epoch.
	r.toml = with(was, "limit_epsilon = 3.0", "limit_epsilon = 4.0", `topic = "orders.dp"`, `topic = "orders.dp", values = ["mean"]`)
	r.produce(1150, 100)
	x = r.start()
	x.published(12)
	x.end()
	v := r.history("orders.dp")
	p := v.byKey["orders/0/1/12"]
	if rel := p.parse(t); rel.Epoch != 1 || len(rel.Values) != 1 {
		t.Errorf("release %s", p.value)
	}
}

// TestLimit: an opening beyond the limit is refused and changes nothing; a
// raised limit is a line of the ledger; one below what is charged is refused.
func TestLimit(t *testing.T) {
	t.Parallel()
	toml := with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.2")
	r := newRig(t, toml)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	// The same records again: refused, and the epoch goes on.
	for _, from := range []string{"0", "500", "900"} {
		if err := x.control(requestOpen, OpenRequest{From: from}); err == nil || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open from %s: %v", from, err)
		}
	}
	if err := x.control(requestOpen, OpenRequest{From: "yesterday"}); err == nil {
		t.Error("opened from yesterday")
	}
	if s := x.d.Status()[0]; s.State != stateRunning || s.Epoch != 1 {
		t.Errorf("after a refusal: %+v", s)
	}
	// Those that come after it pay their own.
	if err := x.control(requestOpen, OpenRequest{}); err != nil {
		t.Errorf("open: %v", err)
	}
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
	x.end()
	if got := r.kinds(); got != "open close key-destroyed open" {
		t.Errorf("ledger: %s", got)
	}
	if e := r.entries()[3]; e.First != 1000 {
		t.Errorf("the successor begins at %d", e.First)
	}
	// Offline as well.
	err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "0"})
	})
	if err == nil || !strings.Contains(err.Error(), "above limit_epsilon") || r.kinds() != "open close key-destroyed open" {
		t.Errorf("open from 0: %v, ledger %s", err, r.kinds())
	}

	r.toml = with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 2.5")
	r.produce(1050, 100)
	x = r.start()
	x.published(1)
	x.end()
	if e := r.entries(); e[len(e)-1].Kind != kindLimit || e[len(e)-1].LimitEpsilon != 2.5 {
		t.Errorf("ledger: %s", r.kinds())
	}
	// The release says what the limit was when the epoch opened, and a restart
	// writes no second line.
	x = r.start()
	x.published(1)
	x.end()
	if got := r.kinds(); got != "open close key-destroyed open limit" {
		t.Errorf("ledger: %s", got)
	}
	if last := r.history("orders.dp").byKey["orders/0/2/1"]; !strings.Contains(last.value, `"limit_epsilon":1.2`) || !strings.Contains(last.value, "when this epoch opened was (1.2,") {
		t.Errorf("release %s", last.value)
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "0"})
	}); err != nil {
		t.Error(err) // 2.5 has room for two
	}
	r.toml = with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.0")
	lines := len(r.entries())
	err = r.start().ends()
	if !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "is below what records of orders/0 have paid") {
		t.Errorf("a limit below what is charged: %v", err)
	}
	if len(r.entries()) != lines {
		t.Error("a refused limit was recorded")
	}
}

// TestLimitShared: two streams that read the same records pay together.
func TestLimitShared(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	both := strings.ReplaceAll(ordersStream+second, "limit_epsilon = 3.0", "limit_epsilon = 1.1")
	r := newRig(t, both)
	r.produce(0, 250)
	x := r.start()
	x.until("one of them halts", func(TaskStatus) bool {
		states := map[string]int{}
		for _, s := range x.d.Status() {
			if s.State == stateRunning && s.Step == 2 && s.Outbox == 0 || s.State == stateHalted && s.Reason == haltBudget {
				states[s.State]++
			}
		}
		return states[stateRunning] == 1 && states[stateHalted] == 1
	})
	x.end()
	if r.kinds() != "open" {
		t.Errorf("ledger: %s", r.kinds())
	}
	// With room for both, both run.
	r.toml = strings.ReplaceAll(both, "limit_epsilon = 1.1", "limit_epsilon = 1.6")
	x = r.start()
	x.until("both run", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
			if s.State != stateRunning || s.Step != 2 || s.ChargedEpsilon < 1.2 {
				return false
			}
		}
		return true
	})
	x.end()
}

// TestHorizon: what comes after the last step.
func TestHorizon(t *testing.T) {
	t.Parallel()
	t.Run("halt", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4"))
		r.produce(0, 1050)
		if err := r.start().ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.history("orders.dp"); v.steps != 4 {
			t.Errorf("%d steps", v.steps)
		}
		if got := r.kinds(); got != "open close key-destroyed" {
			t.Errorf("ledger: %s", got)
		}
		x := r.start()
		if err := x.ends(); !errors.Is(err, ErrNothing) {
			t.Errorf("a second run ended with %v", err)
		}
		if s := x.d.Status()[0]; s.State != stateExhausted || s.Epoch != 1 || s.NextOffset != 400 || s.Lag != 0 {
			t.Errorf("state %s, epoch %d up to %d, lag %d", s.State, s.Epoch, s.NextOffset, s.Lag)
		}
		// A log that is lost afterwards is none of its business.
		r.recreate(0, 10)
		if err := r.start().ends(); !errors.Is(err, ErrNothing) {
			t.Errorf("a run without its log ended with %v", err)
		}
	})
	t.Run("the broker is gone at the end", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4"))
		fault := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: -1})
		r.produce(0, 1050)
		x := r.start()
		x.until("the horizon", func(s TaskStatus) bool { return s.Step == 4 && s.Outbox == 4 })
		r.recreate(0, 10) // what it would still read is gone: it reads no more
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := fault.Wait(ctx, fault.Hits()+2); err != nil {
			t.Fatal(err)
		}
		fault.Remove()
		if err := x.ends(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
		if v := r.history("orders.dp"); v.steps != 4 {
			t.Errorf("%d steps", v.steps)
		}
	})
	t.Run("rollover", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 1.0"))
		r.produce(0, 1050)
		x := r.start()
		x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
		x.end()
		v := r.history("orders.dp")
		for key, covers := range map[string]string{"orders/0/1/4": `"covers":[0,400]`, "orders/0/2/1": `"covers":[400,500]`, "orders/0/3/2": `"covers":[800,1000]`} {
			if p := v.byKey[key]; !strings.Contains(p.value, covers) {
				t.Errorf("release %s: %.200s", key, p.value)
			}
		}
		if got, err := ReadEpochs(r.dir + "/state"); err != nil || len(got) != 3 || got[1].State != "closed" || got[2].State != "open" || got[1].Reason != reasonHorizon {
			t.Errorf("epochs %+v %v", got, err)
		}
	})
	t.Run("rollover on another log", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
		r.produce(0, 400)
		x := r.start()
		x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
		x.end()
		// Its records may be the same people's: they would pay twice.
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
		r.recreate(7, 600)
		err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) })
		if err == nil || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("open on another log: %v", err)
		}
	})
	t.Run("rollover without budget", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4", "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
		r.produce(0, 400)
		if err := r.start().ends(); err != nil {
			t.Fatal(err)
		}
		r.recreate(7, 600)
		r.toml = with(r.toml, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
		err := r.start().ends()
		if !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "above limit_epsilon 1.2") {
			t.Errorf("ended with %v", err)
		}
	})
	t.Run("continue", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"continue\""))
		r.produce(0, 1050)
		x := r.start()
		x.published(10)
		x.end()
		if got := r.kinds(); got != "open" {
			t.Errorf("ledger: %s", got)
		}
	})
}

// TestControl: what commands ask of a running daemon.
func TestControl(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	if err := x.control(requestOpen, OpenRequest{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	r.produce(550, 500)
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 5 && s.Outbox == 0 })
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); err != nil { // nothing is left to run
		t.Errorf("the daemon ended with %v", err)
	}
	if got := r.kinds(); got != "open close key-destroyed open close key-destroyed" {
		t.Errorf("ledger: %s", got)
	}
	r.closedWell(t, "control", 1)
	r.closedWell(t, "control", 2)
	v := r.history("orders.dp")
	if p := v.byKey["orders/0/2/5"]; !strings.Contains(p.value, `"covers":[500,1000]`) {
		t.Errorf("release %.200s", p.value)
	}
	// A closed task stays closed, until a command opens it.
	if err := r.start().ends(); !errors.Is(err, ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	for _, c := range []struct {
		kind string
		ok   bool
	}{{requestClose, false}, {requestOpen, true}, {requestClose, true}} {
		err := r.offline(func(ctx context.Context, d *Daemon) error {
			if c.kind == requestOpen {
				return d.OpenEpoch(ctx, ordersTask, OpenRequest{})
			}
			return d.CloseEpoch(ctx, ordersTask, false)
		})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, Task{"nobody", 0}, false) }); err == nil {
		t.Error("closed a task that does not exist")
	}
}

// TestControlWhileWaiting: a task that waits for a topic still takes requests.
func TestControlWhileWaiting(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders")
	x := r.start()
	x.until("waits", func(s TaskStatus) bool {
		return s.State == stateRetrying && strings.Contains(s.Message, "does not exist")
	})
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); !errors.Is(err, ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	r.closedWell(t, "while waiting", 1)
}

// TestCloseWhileComparing: a restored copy that is told to close before it has
// caught up covers what the other copy has published, and publishes nothing.
func TestCloseWhileComparing(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	x.end()
	backup := r.sibling(ordersStream)
	r.copyState(backup)
	r.produce(550, 1000)
	x = r.start()
	x.published(15)
	x.end()
	before := len(r.output("orders.dp"))
	backup.copyState(r)
	// It can't read on, so that it stays where it is.
	held := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	x = r.start()
	x.until("compares", func(s TaskStatus) bool { return s.Comparing })
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); err != nil {
		t.Errorf("ended with %v", err)
	}
	held.Remove()
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
	for _, e := range r.entries() {
		if e.Kind == kindClose && e.End < 1500 || e.Kind == kindOpen && e.Epoch == 2 && e.First < 1500 {
			t.Errorf("%s: end %d, first %d, releases cover 1500", e.Kind, e.End, e.First)
		}
	}
	if after := len(r.output("orders.dp")); after != before {
		t.Errorf("%d releases came out", after-before)
	}
}

// TestInterruptedOpening: a charge without a manifest, and nothing that would
// show that the epoch ran, is void, and its number is not used again.
func TestInterruptedOpening(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open", "offline close"} {
		r := ran(t, ordersStream)
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		for _, name := range []string{"manifest-2", checkpointName, previousName} {
			if err := os.Remove(r.file(name)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		must(t, os.WriteFile(r.file(openingName(2)), nil, 0o600))
		switch by {
		case "start":
			// The last one that counts is closed by request: nothing opens by itself.
			if err := r.start().ends(); !errors.Is(err, ErrNothing) {
				t.Errorf("ended with %v", err)
			}
			if got := r.kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		case "offline open":
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
			if got := r.kinds(); got != "open close key-destroyed open void open" {
				t.Errorf("%s: ledger: %s", by, got)
			}
			if e := r.entries()[5]; e.Epoch != 3 || e.First != 1000 {
				t.Errorf("epoch %d begins at %d", e.Epoch, e.First)
			}
		case "offline close":
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
			if got := r.kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		}
		for _, name := range []string{secretName(2), openingName(2), openingName(3)} {
			if _, err := os.Stat(r.file(name)); err == nil {
				t.Errorf("%s: %s is still there", by, name)
			}
		}
	}
}

// TestLostFiles: an epoch whose files and releases are gone has run, as far as
// anybody knows: its charge stays.
func TestLostFiles(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(r *rig){
		"deleted":   func(r *rig) { kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders.dp") },
		"truncated": func(r *rig) { kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "orders.dp", 0, 10) },
		"moved":     func(r *rig) { r.toml = with(r.toml, `"orders.dp"`, `"moved.dp"`) },
	} {
		r := ran(t, ordersStream)
		must(t, os.RemoveAll(r.file("")))
		lose(r)
		if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch open orders") {
			t.Errorf("%s: ended with %v", how, err)
		}
		if got := r.kinds(); got != "open" {
			t.Errorf("%s: ledger: %s", how, got)
		}
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		if e := r.entries(); e[1].Kind != kindClose || e[1].End != 1050 {
			t.Errorf("%s: ledger: %s, end %d", how, r.kinds(), e[1].End)
		}
	}
}

// TestLostCoverage: where nothing says how far an epoch read, and the log is one
// that ends before it began, its charge has no end.
func TestLostCoverage(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "500"})
	}))
	x := r.start()
	x.published(5)
	x.end()
	must(t, os.Truncate(r.file(checkpointName), 100))
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.recreate(0, 10)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	all := r.entries()
	if e := all[len(all)-2]; e.Kind != kindClose || e.End != -1 {
		t.Errorf("%s: end %d", e.Kind, e.End)
	}
}

// TestInterruptedClosing: what a crash inside a closing left is destroyed at the
// next start, and before a command opens another epoch.
func TestInterruptedClosing(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open"} {
		r := ran(t, ordersStream)
		l, err := openLedger(osDisk{}, r.dir+"/state")
		must(t, err)
		opened := l.opening(ordersTask, 1)
		must(t, l.append(Entry{Kind: kindClose, Stream: "orders", Source: opened.Source, Epoch: 1, Reason: reasonRequest, End: 1000}))
		if by == "start" {
			if err := r.start().ends(); !errors.Is(err, ErrNothing) {
				t.Errorf("ended with %v", err)
			}
		} else {
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		}
		r.closedWell(t, by, 1)
	}
}

// TestLedgerOfTheState: the ledger must be the one that the files were written
// with.
func TestLedgerOfTheState(t *testing.T) {
	t.Parallel()
	damage := map[string]func(t *testing.T, r *rig){
		"a digit":            func(t *testing.T, r *rig) { edit(t, r.ledgerFile(), `"epsilon":1,`, `"epsilon":2,`) },
		"a line is missing":  func(t *testing.T, r *rig) { dropLine(t, r.ledgerFile(), 0) },
		"a line is repeated": func(t *testing.T, r *rig) { repeatLine(t, r.ledgerFile()) },
		"no JSON":            func(t *testing.T, r *rig) { must(t, os.WriteFile(r.ledgerFile(), []byte("x\n"), 0o600)) },
	}
	for name, f := range damage {
		r := ran(t, ordersStream)
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		f(t, r)
		if _, err := New(r.options()); !errors.Is(err, ErrState) || !errors.Is(err, errLedger) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := map[string]func(t *testing.T, r *rig){
		"missing": func(t *testing.T, r *rig) { must(t, os.Remove(r.ledgerFile())) },
		"of the epoch before": func(t *testing.T, r *rig) {
			must(t, os.Rename(r.ledgerFile()+".old", r.ledgerFile()))
		},
	}
	for name, f := range old {
		r := ran(t, ordersStream)
		data, err := os.ReadFile(r.ledgerFile())
		must(t, err)
		must(t, os.WriteFile(r.ledgerFile()+".old", data, 0o600))
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		f(t, r)
		lines := func() int {
			data, _ := os.ReadFile(r.ledgerFile())
			return bytes.Count(data, []byte("\n"))
		}
		before := lines()
		if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "restore the newest one") {
			t.Errorf("%s: ended with %v", name, err)
		}
		if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }); err == nil {
			t.Errorf("%s: an epoch was opened with it", name)
		}
		if lines() != before && name == "missing" {
			t.Errorf("%s: something was charged", name)
		}
	}
	// Lines that came after the epoch opened count too.
	r := ran(t, ordersStream)
	data, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	r.toml = with(r.toml, "limit_epsilon = 3.0", "limit_epsilon = 3.5")
	r.produce(1050, 100)
	x := r.start()
	x.published(11)
	x.end()
	must(t, os.WriteFile(r.ledgerFile(), data, 0o600))
	if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "newer ledger") {
		t.Errorf("ended with %v", err)
	}
}

func dropLine(t testing.TB, path string, n int) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	must(t, os.WriteFile(path, bytes.Join(append(lines[:n:n], lines[n+1:]...), nil), 0o600))
}

func repeatLine(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	i := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	must(t, os.WriteFile(path, append(data, data[i:]...), 0o600))
}

// TestIncarnation: under which number the ledger counts a log, and where the
// next epoch begins.
func TestIncarnation(t *testing.T) {
	t.Parallel()
	check := func(name string, want uint64, first int64, req OpenRequest, change func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ran(t, ordersStream)
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
		o.Tasks = []Task{{"second", 0}}
		d, err := New(o)
		must(t, err)
		err = d.OpenEpoch(t.Context(), Task{"second", 0}, OpenRequest{})
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
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, Task{"second", 0}, OpenRequest{}) }))
	if e := r.entries()[1]; e.Incarnation != 2 {
		t.Errorf("a second stream on another log: incarnation %d", e.Incarnation)
	}
}

// TestCharged: positions of one log compose in parallel, logs in sequence.
func TestCharged(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	x := func(req OpenRequest) float64 {
		t.Helper()
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, req) }))
		eps, err := ChargedEpsilon(r.dir+"/state", r.options().Config.Streams[0], 0)
		must(t, err)
		return eps
	}
	near := func(got, want float64) {
		t.Helper()
		if got < want-0.01 || got > want+0.01 {
			t.Errorf("charged %g, want %g", got, want)
		}
	}
	near(x(OpenRequest{}), 1)
	near(x(OpenRequest{From: "500"}), 1.44) // √2 times mu
	d := r.start()
	d.published(5)
	d.end()
	r.recreate(7, 2000)
	near(x(OpenRequest{}), 1.78) // and the log that came after, √3
}

// TestStatusOfHalted says what an operator sees.
func TestStatusOfHalted(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
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
