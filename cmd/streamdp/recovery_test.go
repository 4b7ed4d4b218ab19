package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// said runs a command and fails unless it prints a text.
func said(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	if out := want(t, code, "", args...); !strings.Contains(out, text) {
		t.Errorf("%v prints %q, not %q", args, out, text)
	}
}

// TestRecoveryCommands: an operator exports an epoch, verifies it, loses and recovers its state, and loses and
// republishes its output, and each command must end with the right exit code.
func TestRecoveryCommands(t *testing.T) {
	s := newSite(t)
	s.feed(45)
	d := s.start()
	d.until("four steps", released(4))
	said(t, exitDone,
		"orders-0 epoch 1: 4 releases up to step 4, for offsets [0, 40), are equal, byte for byte", "verify",
		"-c", s.config)
	whole := filepath.Join(s.dir, "epoch.json")
	want(t, exitDone, "", "epoch", "export", "orders", "-c", s.config, "--with-secret", "--to", whole)
	if info, err := os.Stat(whole); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the secret has mode %v %v", info.Mode(), err)
	}
	want(t, exitFailure, "file exists", "epoch", "export", "orders", "-c", s.config, "--with-secret", "--to", whole)
	want(t, exitUsage, "--with-secret needs --to", "epoch", "export", "orders", "-c", s.config, "--with-secret")
	want(t, exitFailure, "or none with the given number", "epoch", "export", "orders", "-c", s.config, "--epoch", "7")
	if x, err := recovery.ParseExport(
		[]byte(want(t, exitDone, "", "epoch", "export", "orders", "-c", s.config))); err != nil || x.Secret != nil {
		t.Errorf("printed export: %v, secret %v", err, x)
	}
	want(t, exitFailure, "the task is running: there is nothing to recover", "recover", "-c", s.config)
	want(t, exitFailure, "no committed release of", "republish", "-c", s.config)
	said(t, exitDone, "published the committed releases of orders-0 again", "republish", "-c", s.config, "--from-log")
	d.until("running", func(s monitor.TaskStatus) bool { return s.State == "running" })
	d.stop(syscall.SIGTERM)

	var found []recovery.Verification
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "verify", "-c", s.config, "--from", whole, "--json")),
		&found); err != nil || found[0].Releases != 4 {
		t.Errorf("verify --json: %+v %v", found, err)
	}
	tasks := filepath.Join(s.dir, "state", "tasks", "orders-0")
	said(t, exitDone, "next offset                   40", "inspect", filepath.Join(tasks, "checkpoint"))
	manifest := want(t, exitDone, "", "inspect", filepath.Join(tasks, "manifest-1"))
	if !strings.Contains(manifest, "versions                      mechanism jme/v2, noise row/v1") ||
		strings.ContainsAny(manifest, `{"`) || strings.Contains(manifest, "map[") {
		t.Errorf("inspect shows\n%s", manifest)
	}
	said(t, exitDone, `"base_offset":0`, "inspect", filepath.Join(tasks, "manifest-1"), "--json")
	said(t, exitDone, "exported epoch", "inspect", whole)
	want(t, exitFailure, "its content is not shown", "inspect", filepath.Join(tasks, "secret-1"))

	if err := os.RemoveAll(tasks); err != nil {
		t.Fatal(err)
	}
	want(t, exitState, "streamdp recover --stream orders --partition 0 --from FILE", "run", "-c", s.config)
	want(t, exitFailure, "the manifest of epoch 1 is missing", "recover", "-c", s.config)
	said(t, exitDone, "recovered orders-0", "recover", "-c", s.config, "--from", whole)
	said(t, exitDone, "recovered orders-0", "recover", "-c", s.config) // the same command, with intact state
	s.feed(20)
	d = s.start()
	d.until("six steps", released(6))
	d.stop(syscall.SIGTERM)
	said(t, exitDone, "6 releases up to step 6", "verify", "-c", s.config, "--epoch", "1")

	// verify and recover detect a forged release.
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Produce(t.Context(), "orders.dp", 0,
		[]kafka.Message{{Key: []byte("orders/0/1/5"), Value: []byte("{}"), Time: time.UnixMilli(1)}}); err != nil {
		t.Fatal(err)
	}
	said(t, exitFailure, "DIFFERS at step 5", "verify", "-c", s.config)
	for _, name := range []string{"checkpoint", "checkpoint.prev"} {
		if err := os.Remove(filepath.Join(tasks, name)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, exitFailure, "release orders/0/1/5 differs", "recover", "-c", s.config)

	want(t, exitDone, "", "epoch", "close", "orders", "-c", s.config, "--yes")
	said(t, exitFailure, "destroyed after the epoch was closed", "verify", "-c", s.config)
	said(t, exitFailure, "DIFFERS", "verify", "-c", s.config, "--from", whole)
	if out := want(t, exitDone, "", "verify", "--help"); !strings.Contains(out, "--partition") {
		t.Errorf("help:\n%s", out)
	}
}

// TestCheckConnectWarns: check --connect reports partitions that no stream reads, and partitions that do not exist.
func TestCheckConnectWarns(t *testing.T) {
	s := newSite(t)
	s.write("dead_letter = { mode = \"reference\", topic = \"dead\" }", "1.0")
	kafkatest.CreateTopic(t, []string{s.broker.Addr()}, "dead", nil)
	if code, _, errs := call(t, "check", "-c", s.config, "--connect"); code != exitDone ||
		strings.Contains(errs, "dead_letter.topic") {
		t.Errorf("code %d, warns of a topic that exists: %s", code, errs)
	}
	kafkatest.DeleteTopic(t, []string{s.broker.Addr()}, "dead")
	want(t, exitDone, "dead_letter.topic dead does not exist", "check", "-c", s.config, "--connect")
	req := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = "orders", 3
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 5000
	kafkatest.Ask(t, []string{s.broker.Addr()}, req)
	want(t, exitDone, "partitions [1 2] of input topic orders are not read by any stream", "check", "-c", s.config,
		"--connect")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Replace(string(text), `topic = "orders"`, `topic = "orders", partition = "all"`, 1)
	if err := os.WriteFile(s.config, []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := call(t, "check", "-c", s.config, "--connect")
	if code != exitDone || !strings.Contains(errs, "partitions [0 1 2] of input topic orders have no epoch yet") ||
		strings.Contains(errs, "not read by any stream") {
		t.Errorf("code %d, a stream of all partitions leaves some out: %s", code, errs)
	}
}
