package recovery_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// publish appends a message to the output.
func publish(r *streamtest.Rig, key, value string) {
	r.T.Helper()
	_, err := fixtures.Dial(r.T, r.Addr).Produce(r.T.Context(), "orders.dp", 0,
		[]kafka.Message{{Key: []byte(key), Value: []byte(value), Time: time.UnixMilli(1)}})
	fixtures.Must(r.T, err)
}

// TestVerify: published releases are recomputed while the daemon runs, without changing anything; a release or record
// that differs is found and named.
func TestVerify(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	r.Verified(5)
	x.End()
	// The form of releases may change while an epoch is open.
	r.Toml = fixtures.With(r.Toml, `topic = "orders.dp"`,
		`topic = "orders.dp", values = ["mean"], encoding = "base64", privacy_every = 4`)
	r.Produce(550, 500)
	x = r.Start()
	x.Published(10)
	x.End()
	before := fixtures.Files(t, filepath.Join(r.Dir, "state"))
	r.Verified(10)
	fixtures.SameFiles(t, before, fixtures.Files(t, filepath.Join(r.Dir, "state")))

	other := r.Sibling(r.Toml)
	if all, err := other.Verify(); err == nil {
		t.Errorf("without a state: %+v", all)
	}
	r.Seed++
	if all, err := r.Verify(); err != nil || !strings.Contains(all[0].Unverifiable, "key") {
		t.Errorf("another key: %+v %v", all, err)
	}
	r.Seed--
	r.Toml = fixtures.With(r.Toml, "clip = 1.0", "clip = 1.5")
	if all, err := r.Verify(); err != nil || !strings.Contains(all[0].Unverifiable, "moments.clip: 1 → 1.5") {
		t.Errorf("another configuration: %+v %v", all, err)
	}
	r.Toml = fixtures.With(r.Toml, "clip = 1.5", "clip = 1.0")

	for _, c := range []struct {
		name    string
		prepare func(r *streamtest.Rig)
		want    string
	}{
		{"a release of a later step", func(r *streamtest.Rig) { publish(r, "orders/0/1/11", "{}") }, "up to step 11"},
		{"a release that there is none of", func(r *streamtest.Rig) { publish(r, "orders/0/1/0", "{}") },
			"orders/0/1/0, which the epoch does not make at this step"},
		{"a release of another epoch", func(r *streamtest.Rig) { publish(r, "orders/0/2/1", "{}") },
			"epoch 2, which the ledger does not know"},
		{"two releases of a step", func(r *streamtest.Rig) { publish(r, "orders/0/1/4", "{}") },
			"step 4: the output has two different releases"},
		{"another log", func(r *streamtest.Rig) { r.Recreate(7, 1050) }, "step 1: release orders/0/1/1 differs"},
		{"a shorter log", func(r *streamtest.Rig) { r.Recreate(0, 450) },
			"the log ends at offset 450, before the end of step 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.Ran(t, fixtures.OrdersStream)
			r.Verified(10)
			c.prepare(r)
			all, err := r.Verify()
			fixtures.Must(t, err)
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

// TestVerifyExported: an exported epoch can be verified elsewhere and, if it includes the secret, even after the epoch
// was closed.
func TestVerifyExported(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	cfg := r.Options().Config
	export := func(secret bool) *recovery.Export {
		x, err := recovery.ExportEpoch(cfg, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 0, secret)
		fixtures.Must(t, err)
		data, err := x.Encode()
		fixtures.Must(t, err)
		x, err = recovery.ParseExport(data)
		fixtures.Must(t, err)
		return x
	}
	bare, whole := export(false), export(true)
	if bare.Secret != nil || len(whole.Secret) != 32 {
		t.Fatalf("secrets of %d and %d bytes", len(bare.Secret), len(whole.Secret))
	}
	other := r.Sibling(r.Toml)
	other.Verified(10, func(a *recovery.Audit) { a.From = whole })
	r.Verified(10, func(a *recovery.Audit) { a.From = bare }) // with the directory's secret
	if all, err := other.Verify(func(a *recovery.Audit) { a.From = bare }); err != nil ||
		!strings.Contains(all[0].Unverifiable, "secret") {
		t.Errorf("without the secret: %+v %v", all, err)
	}
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	if all, err := r.Verify(); err != nil ||
		!strings.Contains(all[0].Unverifiable, "destroyed after the epoch was closed") {
		t.Errorf("closed: %+v %v", all, err)
	}
	r.Verified(10, func(a *recovery.Audit) { a.From = whole })
	if _, err := recovery.ExportEpoch(cfg, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 1, true); err == nil ||
		!strings.Contains(err.Error(), "destroyed") {
		t.Errorf("export of a destroyed secret: %v", err)
	}
	whole.Ledger[0] = strings.Replace(whole.Ledger[0], `"epoch":1`, `"epoch":2`, 1)
	if all, err := other.Verify(func(a *recovery.Audit) { a.From = whole }); err == nil {
		t.Errorf("another ledger: %+v", all)
	}
}

// TestRecover: a damaged or lost state is restored after all published releases have been recomputed, both by a command
// and by a running daemon. The run then continues with the same bytes as a run without a fault.
func TestRecover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		lose         func(t *testing.T, r *streamtest.Rig) *recovery.Export
	}{
		{"checkpoint damaged", failure.State, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			fixtures.FlipByte(t, r.File(state.CheckpointName), 300)
			return nil
		}},
		{"both checkpoints damaged", failure.State, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			fixtures.FlipByte(t, r.File(state.CheckpointName), 300)
			fixtures.Must(t, os.Truncate(r.File(state.PreviousName), 100))
			return nil
		}},
		{"checkpoint of zeros", failure.State, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			fixtures.Must(t, os.WriteFile(r.File(state.CheckpointName), bytes.Repeat([]byte{0}, 600), 0o600))
			return nil
		}},
		{"secret lost", failure.Key, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			x, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed),
				fixtures.OrdersTask, 1, true)
			fixtures.Must(t, err)
			fixtures.Must(t, os.Remove(r.File("secret-1")))
			return x
		}},
		{"manifest damaged", failure.State, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			x, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed),
				fixtures.OrdersTask, 0, false)
			fixtures.Must(t, err)
			fixtures.FlipByte(t, r.File("manifest-1"), 40)
			return x
		}},
		{"all files of the task lost", failure.State, func(t *testing.T, r *streamtest.Rig) *recovery.Export {
			x, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed),
				fixtures.OrdersTask, 0, true)
			fixtures.Must(t, err)
			fixtures.Must(t, os.RemoveAll(r.File("")))
			return x
		}},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", running ", running), func(t *testing.T) {
				t.Parallel()
				r := streamtest.Ran(t, fixtures.OrdersStream)
				x := c.lose(t, r)
				r.Toml += strings.ReplaceAll(
					fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`,
						`topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.Broker.Addrs(), "idle", nil)
				run := r.Start()
				s := run.Halts(c.reason)
				if !strings.Contains(s.Message, "streamdp recover --stream orders --partition 0") {
					t.Errorf("the halt does not offer recover: %s", s.Message)
				}
				if running {
					fixtures.Must(t, run.Ask(task.Request{Kind: task.RequestRecover, Stream: "orders", From: x}))
				} else {
					run.End()
					fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
						return streamtest.Recover(ctx, d, fixtures.OrdersTask, x)
					}))
					run = r.Start()
				}
				r.Produce(1050, 500)
				run.Published(15)
				run.End()
				r.Toml = fixtures.OrdersStream
				r.History("orders.dp").Equals(t, r.Uninterrupted(15))
				r.Verified(15)
			})
		}
	}
}

// TestRecoverRefuses: if recomputed releases differ from published ones, or nothing proves that the log is the epoch's,
// nothing on disk changes.
func TestRecoverRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		prepare      func(r *streamtest.Rig)
	}{
		{"another log", failure.OutputAhead, func(r *streamtest.Rig) { r.Recreate(7, 1050) }},
		{"a shorter log", failure.Truncated, func(r *streamtest.Rig) { r.Recreate(0, 450) }},
		{"a log without its first records", failure.Gap,
			func(r *streamtest.Rig) { kafkatest.DeleteRecords(r.T, r.Broker.Addrs(), "orders", 0, 100) }},
		{"another release", failure.OutputAhead, func(r *streamtest.Rig) { publish(r, "orders/0/1/4", "{}") }},
		{"nothing published", failure.State, func(r *streamtest.Rig) {
			kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders.dp")
			fixtures.Must(r.T, fixtures.Dial(r.T, r.Addr).CreateTopic(r.T.Context(), "orders.dp", 1, nil))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
			fixtures.FlipByte(t, r.File(state.CheckpointName), 300)
			fixtures.Must(t, os.Remove(r.File(state.PreviousName)))
			c.prepare(r)
			before := fixtures.Files(t, filepath.Join(r.Dir, "state"))
			err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
			})
			if h := (*failure.Halt)(nil); !errors.As(err, &h) || h.Reason != c.reason ||
				!strings.Contains(err.Error(), "streamdp") {
				t.Errorf("recover: %v, want a halt %s", err, c.reason)
			}
			fixtures.SameFiles(t, before, fixtures.Files(t, filepath.Join(r.Dir, "state")))
		})
	}
}

// TestRecoverWhole: Recover leaves an undamaged state unchanged, and refuses a running task.
func TestRecoverWhole(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
	}))
	x := r.Start()
	x.Published(10)
	if err := x.Ask(task.Request{Kind: task.RequestRecover, Stream: "orders"}); err == nil ||
		!strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("recover of a running task: %v", err)
	}
	x.End()
	other := r.Sibling(r.Toml)
	err := other.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
	})
	if err == nil || !strings.Contains(err.Error(), "streamdp ledger repair") {
		t.Errorf("recover without a ledger: %v", err)
	}
}

// TestRepublish: releases that the output lost are published again with the same bytes, from the archive, the last
// commit or the log.
func TestRepublish(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		archive bool
		running bool
		q       recovery.RepublishRequest
	}{
		{"archive, running", true, true, recovery.RepublishRequest{}},
		{"archive, restarted", true, false, recovery.RepublishRequest{OnlyCopy: true}},
		{"log, running", false, true, recovery.RepublishRequest{FromLog: true}},
		{"log, restarted", false, false, recovery.RepublishRequest{FromLog: true, OnlyCopy: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Archive = c.archive
			want := r.Uninterrupted
			r.Produce(0, 550)
			x := r.Start()
			x.Published(5)
			x.End()
			x = r.Start() // begins another file of the archive
			r.Produce(550, 500)
			x.Published(10)
			if !c.running {
				x.End()
			}
			kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
			if c.running {
				r.Produce(1050, 100)
				x.Published(11)
			} else {
				r.Toml += strings.ReplaceAll(
					fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`,
						`topic = "idle"`), "stream.orders", "stream.other")
				kafkatest.CreateTopic(t, r.Broker.Addrs(), "idle", nil)
				x = r.Start()
				s := x.Halts(failure.OutputTruncated)
				if !strings.Contains(s.Message, "streamdp republish --stream orders --partition 0 --only-copy") {
					t.Errorf("the halt does not offer republish: %s", s.Message)
				}
				without := c.q
				without.OnlyCopy = false
				if err := x.Ask(
					task.Request{Kind: task.RequestRepublish, Stream: "orders", Republish: without}); err == nil {
					t.Error("republished without the operator's word")
				}
			}
			fixtures.Must(t, x.Ask(task.Request{Kind: task.RequestRepublish, Stream: "orders", Republish: c.q}))
			if !c.running {
				r.Produce(1050, 100)
				x.Published(11)
			}
			r.Client = fixtures.Dial(t, r.Addr)
			r.Produce(1150, 100)
			x.Published(12)
			x.End()
			x = r.Start() // the daemon starts without a halt
			x.Published(12)
			x.End()
			r.Toml = fixtures.OrdersStream
			r.History("orders.dp").Equals(t, want(12))
		})
	}
}

// TestRepublishRefuses: if one release in the output differs, nothing is sent.
func TestRepublishRefuses(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(r *streamtest.Rig){
		"another release of a step": func(r *streamtest.Rig) { publish(r, "orders/0/1/4", "{}") },
		"a later step":              func(r *streamtest.Rig) { publish(r, "orders/0/1/11", "{}") },
		"an unknown epoch":          func(r *streamtest.Rig) { publish(r, "orders/0/2/1", "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Archive = true
			r.Produce(0, 1050)
			x := r.Start()
			x.Published(10)
			x.End()
			prepare(r)
			before := len(r.Output("orders.dp"))
			err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.Republish(ctx, d, fixtures.OrdersTask, recovery.RepublishRequest{})
			})
			if h := (*failure.Halt)(nil); !errors.As(err, &h) || h.Reason != failure.OutputAhead {
				t.Errorf("republish: %v", err)
			}
			if n := len(r.Output("orders.dp")); n != before {
				t.Errorf("%d messages were sent", n-before)
			}
		})
	}
	r := streamtest.Ran(t, fixtures.OrdersStream)
	err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Republish(ctx, d, fixtures.OrdersTask, recovery.RepublishRequest{})
	})
	if err == nil || !strings.Contains(err.Error(), "state.archive") {
		t.Errorf("nothing to publish: %v", err)
	}
	other := streamtest.Ran(t, fixtures.OrdersStream)
	fixtures.Must(t, os.Remove(other.File("manifest-1")))
	if err := other.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Republish(ctx, d, fixtures.OrdersTask, recovery.RepublishRequest{FromLog: true})
	}); err == nil {
		t.Error("republished from the log without a manifest")
	}
}

// TestInspect: the description of a file has no data, no noise, no hash and no secret.
func TestInspect(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	x, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 0, true)
	fixtures.Must(t, err)
	export, err := x.Encode()
	fixtures.Must(t, err)
	cp, err := state.TaskStore(filepath.Join(r.Dir, "state"), fixtures.OrdersTask, connect.InsecureKey(r.Seed)).Load()
	fixtures.Must(t, err)
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		fixtures.Must(t, err)
		return data
	}
	secret := read(r.File("secret-1"))
	for want, data := range map[string][]byte{
		"checkpoint": read(r.File(state.CheckpointName)), "manifest": read(r.File("manifest-1")),
		"ledger": read(r.LedgerFile()), "exported epoch": export,
	} {
		fields, err := recovery.Inspect(data)
		if err != nil || fields[0].Value != want {
			t.Errorf("%s: %v %v", want, fields, err)
			continue
		}
		text := fmt.Sprintf("%v %s", fields, fields)
		for _, private := range [][]byte{secret, cp.Transcript[:], cp.Position.Anchor.Hash[:], cp.State[:64]} {
			for _, form := range []string{
				string(private), fmt.Sprintf("%x", private), fmt.Sprint(private),
				base64.StdEncoding.EncodeToString(private),
			} {
				if strings.Contains(text, form) {
					t.Errorf("%s shows %q", want, form)
				}
			}
		}
		for _, f := range fields { // compare whole words, because the value's digits may be part of a hash
			if slices.Contains(strings.Fields(fmt.Sprint(f.Value)), fmt.Sprint(len(cp.State))) {
				t.Errorf("%s shows the size of the state: %v", want, f)
			}
		}
	}
	for name, data := range map[string][]byte{
		"secret": secret, "nothing": nil, "damaged": read(r.File(state.CheckpointName))[:200],
	} {
		if fields, err := recovery.Inspect(data); err == nil {
			t.Errorf("%s: %v", name, fields)
		}
	}
}
