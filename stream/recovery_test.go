package stream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// publish appends a message to the output.
func publish(r *rig, key, value string) {
	r.t.Helper()
	_, err := dial(r.t, r.addr).Produce(r.t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte(key), Value: []byte(value), Time: time.UnixMilli(1)}})
	must(r.t, err)
}

// TestVerify: what was published is worked out again, beside a running daemon and
// without touching anything; a release or a record that is another is found, and named.
func TestVerify(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	r.verified(5)
	x.end()
	// The form of releases may change while an epoch is open.
	r.toml = with(r.toml, `topic = "orders.dp"`, `topic = "orders.dp", values = ["mean"], encoding = "base64", privacy_every = 4`)
	r.produce(550, 500)
	x = r.start()
	x.published(10)
	x.end()
	before := files(t, filepath.Join(r.dir, "state"))
	r.verified(10)
	sameFiles(t, before, files(t, filepath.Join(r.dir, "state")))

	other := r.sibling(r.toml)
	if all, err := other.verify(); err == nil {
		t.Errorf("without a state: %+v", all)
	}
	r.seed++
	if all, err := r.verify(); err != nil || !strings.Contains(all[0].Unverifiable, "key") {
		t.Errorf("another key: %+v %v", all, err)
	}
	r.seed--
	r.toml = with(r.toml, "clip = 1.0", "clip = 1.5")
	if all, err := r.verify(); err != nil || !strings.Contains(all[0].Unverifiable, "moments.clip: 1 → 1.5") {
		t.Errorf("another configuration: %+v %v", all, err)
	}
	r.toml = with(r.toml, "clip = 1.5", "clip = 1.0")

	for _, c := range []struct {
		name    string
		prepare func(r *rig)
		want    string
	}{
		{"a release of a later step", func(r *rig) { publish(r, "orders/0/1/11", "{}") }, "up to step 11"},
		{"a release that there is none of", func(r *rig) { publish(r, "orders/0/1/0", "{}") }, "orders/0/1/0, and the epoch has no such release"},
		{"a release of another epoch", func(r *rig) { publish(r, "orders/0/2/1", "{}") }, "epoch 2, which the ledger does not know"},
		{"two releases of a step", func(r *rig) { publish(r, "orders/0/1/4", "{}") }, "step 4: the output holds two different releases"},
		{"another log", func(r *rig) { r.recreate(7, 1050) }, "step 1: release orders/0/1/1 is not"},
		{"a shorter log", func(r *rig) { r.recreate(0, 450) }, "the log ends at offset 450, before step 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := ran(t, ordersStream)
			r.verified(10)
			c.prepare(r)
			all, err := r.verify()
			must(t, err)
			found := ""
			for _, v := range all {
				found += v.Difference
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("found %+v, want %q", all, c.want)
			}
		})
	}
}

// TestVerifyExported: an exported epoch can be verified elsewhere, and as long as the
// secret is in it also when the epoch is closed.
func TestVerifyExported(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	cfg := r.options().Config
	export := func(secret bool) *Export {
		x, err := ExportEpoch(cfg, InsecureKey(r.seed), ordersTask, 0, secret)
		must(t, err)
		data, err := x.Encode()
		must(t, err)
		x, err = ParseExport(data)
		must(t, err)
		return x
	}
	bare, whole := export(false), export(true)
	if bare.Secret != nil || len(whole.Secret) != 32 {
		t.Fatalf("secrets of %d and %d bytes", len(bare.Secret), len(whole.Secret))
	}
	other := r.sibling(r.toml)
	other.verified(10, func(a *Audit) { a.From = whole })
	r.verified(10, func(a *Audit) { a.From = bare }) // with the directory's secret
	if all, err := other.verify(func(a *Audit) { a.From = bare }); err != nil || !strings.Contains(all[0].Unverifiable, "secret") {
		t.Errorf("without the secret: %+v %v", all, err)
	}
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	if all, err := r.verify(); err != nil || !strings.Contains(all[0].Unverifiable, "destroyed when the epoch is closed") {
		t.Errorf("closed: %+v %v", all, err)
	}
	r.verified(10, func(a *Audit) { a.From = whole })
	if _, err := ExportEpoch(cfg, InsecureKey(r.seed), ordersTask, 1, true); err == nil || !strings.Contains(err.Error(), "destroyed") {
		t.Errorf("export of a destroyed secret: %v", err)
	}
	whole.Ledger[0] = strings.Replace(whole.Ledger[0], `"epoch":1`, `"epoch":2`, 1)
	if all, err := other.verify(func(a *Audit) { a.From = whole }); err == nil {
		t.Errorf("another ledger: %+v", all)
	}
}

// TestRecover: a state that is damaged or lost comes back when all that is published
// has come out again, by a command and by a running daemon, and the run goes on to the
// bytes of one without a fault.
func TestRecover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		lose         func(t *testing.T, r *rig) *Export
	}{
		{"checkpoint damaged", haltState, func(t *testing.T, r *rig) *Export { flipByte(t, r.file(checkpointName), 300); return nil }},
		{"both checkpoints damaged", haltState, func(t *testing.T, r *rig) *Export {
			flipByte(t, r.file(checkpointName), 300)
			must(t, os.Truncate(r.file(previousName), 100))
			return nil
		}},
		{"checkpoint of zeros", haltState, func(t *testing.T, r *rig) *Export {
			must(t, os.WriteFile(r.file(checkpointName), bytes.Repeat([]byte{0}, 600), 0o600))
			return nil
		}},
		{"secret lost", haltKey, func(t *testing.T, r *rig) *Export {
			x, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 1, true)
			must(t, err)
			must(t, os.Remove(r.file("secret-1")))
			return x
		}},
		{"manifest damaged", haltState, func(t *testing.T, r *rig) *Export {
			x, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 0, false)
			must(t, err)
			flipByte(t, r.file("manifest-1"), 40)
			return x
		}},
		{"all files of the task lost", haltState, func(t *testing.T, r *rig) *Export {
			x, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 0, true)
			must(t, err)
			must(t, os.RemoveAll(r.file("")))
			return x
		}},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", running ", running), func(t *testing.T) {
				t.Parallel()
				r := ran(t, ordersStream)
				x := c.lose(t, r)
				r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.broker.Addrs(), "idle", nil)
				run := r.start()
				s := run.halts(c.reason)
				if !strings.Contains(s.Message, "streamdp recover --stream orders --partition 0") {
					t.Errorf("the halt does not offer recover: %s", s.Message)
				}
				if running {
					must(t, run.ask(requestRecover, ControlRequest{Stream: "orders", From: x}))
				} else {
					run.end()
					must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, x) }))
					run = r.start()
				}
				r.produce(1050, 500)
				run.published(15)
				run.end()
				r.toml = ordersStream
				r.history("orders.dp").equals(t, r.uninterrupted(15))
				r.verified(15)
			})
		}
	}
}

// TestRecoverRefuses: where what is worked out differs from what was published, or
// nothing tells that the log is the epoch's, nothing on disk changes.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		prepare      func(r *rig)
	}{
		{"another log", haltOutput, func(r *rig) { r.recreate(7, 1050) }},
		{"a shorter log", haltTruncated, func(r *rig) { r.recreate(0, 450) }},
		{"a log without its first records", haltGap, func(r *rig) { kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "orders", 0, 100) }},
		{"another release", haltOutput, func(r *rig) { publish(r, "orders/0/1/4", "{}") }},
		{"nothing published", haltState, func(r *rig) {
			kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders.dp")
			must(r.t, dial(r.t, r.addr).CreateTopic(r.t.Context(), "orders.dp", 1, nil))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newOldRig(t, ordersStream).tenSteps()
			flipByte(t, r.file(checkpointName), 300)
			must(t, os.Remove(r.file(previousName)))
			c.prepare(r)
			before := files(t, filepath.Join(r.dir, "state"))
			err := r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) })
			if h := (*halt)(nil); !errors.As(err, &h) || h.reason != c.reason || !strings.Contains(err.Error(), "streamdp") {
				t.Errorf("recover: %v, want a halt %s", err, c.reason)
			}
			sameFiles(t, before, files(t, filepath.Join(r.dir, "state")))
		})
	}
}

// TestRecoverWhole: a state that is whole is left where it is, and a running task is
// not recovered.
func TestRecoverWhole(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) }))
	x := r.start()
	x.published(10)
	if err := x.ask(requestRecover, ControlRequest{Stream: "orders"}); err == nil || !strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("recover of a running task: %v", err)
	}
	x.end()
	other := r.sibling(r.toml)
	err := other.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) })
	if err == nil || !strings.Contains(err.Error(), "streamdp ledger repair") {
		t.Errorf("recover without a ledger: %v", err)
	}
}

// TestRepublish: releases that the output lost come back as the same bytes, out of the
// archive, the last commit or the log.
func TestRepublish(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		archive bool
		running bool
		q       RepublishRequest
	}{
		{"archive, running", true, true, RepublishRequest{}},
		{"archive, restarted", true, false, RepublishRequest{OnlyCopy: true}},
		{"log, running", false, true, RepublishRequest{FromLog: true}},
		{"log, restarted", false, false, RepublishRequest{FromLog: true, OnlyCopy: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ordersStream)
			r.archive = c.archive
			want := r.uninterrupted
			r.produce(0, 550)
			x := r.start()
			x.published(5)
			x.end()
			x = r.start() // another file of the archive
			r.produce(550, 500)
			x.published(10)
			if !c.running {
				x.end()
			}
			kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
			if c.running {
				r.produce(1050, 100)
				x.published(11)
			} else {
				r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.broker.Addrs(), "idle", nil)
				x = r.start()
				s := x.halts(haltOutputGone)
				if !strings.Contains(s.Message, "streamdp republish --stream orders --partition 0 --only-copy") {
					t.Errorf("the halt does not offer republish: %s", s.Message)
				}
				without := c.q
				without.OnlyCopy = false
				if err := x.ask(requestRepublish, ControlRequest{Stream: "orders", Republish: without}); err == nil {
					t.Error("republished without the operator's word")
				}
			}
			must(t, x.ask(requestRepublish, ControlRequest{Stream: "orders", Republish: c.q}))
			if !c.running {
				r.produce(1050, 100)
				x.published(11)
			}
			r.client = dial(t, r.addr)
			r.produce(1150, 100)
			x.published(12)
			x.end()
			x = r.start() // no halt
			x.published(12)
			x.end()
			r.toml = ordersStream
			r.history("orders.dp").equals(t, want(12))
		})
	}
}

// TestRepublishRefuses: with one release in the output that differs, nothing is sent.
func TestRepublishRefuses(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(r *rig){
		"another release of a step": func(r *rig) { publish(r, "orders/0/1/4", "{}") },
		"a later step":              func(r *rig) { publish(r, "orders/0/1/11", "{}") },
		"an unknown epoch":          func(r *rig) { publish(r, "orders/0/2/1", "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ordersStream)
			r.archive = true
			r.produce(0, 1050)
			x := r.start()
			x.published(10)
			x.end()
			prepare(r)
			before := len(r.output("orders.dp"))
			err := r.offline(func(ctx context.Context, d *Daemon) error { return d.Republish(ctx, ordersTask, RepublishRequest{}) })
			if h := (*halt)(nil); !errors.As(err, &h) || h.reason != haltOutput {
				t.Errorf("republish: %v", err)
			}
			if n := len(r.output("orders.dp")); n != before {
				t.Errorf("%d messages were sent", n-before)
			}
		})
	}
	r := ran(t, ordersStream)
	err := r.offline(func(ctx context.Context, d *Daemon) error { return d.Republish(ctx, ordersTask, RepublishRequest{}) })
	if err == nil || !strings.Contains(err.Error(), "state.archive") {
		t.Errorf("nothing to publish: %v", err)
	}
	other := ran(t, ordersStream)
	must(t, os.Remove(other.file("manifest-1")))
	if err := other.offline(func(ctx context.Context, d *Daemon) error {
		return d.Republish(ctx, ordersTask, RepublishRequest{FromLog: true})
	}); err == nil {
		t.Error("republished from the log without a manifest")
	}
}

// TestInspect: what is shown of a file holds no data, no noise, no hash and no secret.
func TestInspect(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	x, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 0, true)
	must(t, err)
	export, err := x.Encode()
	must(t, err)
	cp, err := taskStore(filepath.Join(r.dir, "state"), ordersTask, InsecureKey(r.seed)).load()
	must(t, err)
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		must(t, err)
		return data
	}
	secret := read(r.file("secret-1"))
	for want, data := range map[string][]byte{
		"checkpoint": read(r.file(checkpointName)), "manifest": read(r.file("manifest-1")),
		"ledger": read(r.ledgerFile()), "exported epoch": export,
	} {
		fields, err := Inspect(data)
		if err != nil || fields[0].Value != want {
			t.Errorf("%s: %v %v", want, fields, err)
			continue
		}
		text := fmt.Sprintf("%v %s", fields, fields)
		for _, private := range [][]byte{secret, cp.transcript[:], cp.position.Anchor.Hash[:], cp.state[:64]} {
			for _, form := range []string{string(private), fmt.Sprintf("%x", private), fmt.Sprint(private), base64.StdEncoding.EncodeToString(private)} {
				if strings.Contains(text, form) {
					t.Errorf("%s shows %q", want, form)
				}
			}
		}
		for _, f := range fields { // by the word: its digits may be part of a hash
			if slices.Contains(strings.Fields(fmt.Sprint(f.Value)), fmt.Sprint(len(cp.state))) {
				t.Errorf("%s shows the size of the state: %v", want, f)
			}
		}
	}
	for name, data := range map[string][]byte{"secret": secret, "nothing": nil, "damaged": read(r.file(checkpointName))[:200]} {
		if fields, err := Inspect(data); err == nil {
			t.Errorf("%s: %v", name, fields)
		}
	}
}
