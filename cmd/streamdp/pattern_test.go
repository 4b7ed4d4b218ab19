package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/config"
)

// TestPatternCommands: commands find the streams of a pattern through the cluster, the ledger or the topic in their
// names.
func TestPatternCommands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer(`topic = "orders",`, `topics = "orders.*", max_topics = 1,`,
		"output = { topic = \"orders.dp\" }\n", "").Replace(string(text))
	if err := os.WriteFile(s.config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(text string, args ...string) string {
		t.Helper()
		out := want(t, exitDone, "", append(args, "-c", s.config)...)
		if !strings.Contains(out, text) {
			t.Errorf("%q says\n%s\nnot %q", args, out, text)
		}
		return out
	}
	if out := said("stream orders.*\n", "check"); !strings.Contains(out, `"topic":"*"`) ||
		strings.Contains(out, "orders.orders") {
		t.Errorf("check: %s", out)
	}
	said("stream orders.* reads 1 topics (at most 1): orders\n", "check", "--connect")
	if err := s.broker.CreateTopic(t.Context(), "orders-b", 1, nil); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone,
		"stream orders: 1 topics match the pattern, but would get no stream, because input.max_topics is 1", "check",
		"--connect", "-c", s.config)
	said("stream orders.*\n", "plan")
	said("stream orders.*\n", "plan", "--stream", "orders")
	said("stream orders.*\n", "plan", "--stream", "orders.orders-x")
	want(t, exitUsage, "the configuration has no stream other, only orders.TOPIC for topics that match orders.*",
		"plan", "--stream", "other", "-c", s.config)
	want(t, exitUsage, "the configuration has no stream orders.x", "plan", "--stream", "orders.x", "-c", s.config)

	rows := filepath.Join(s.dir, "rows.csv")
	if err := os.WriteFile(rows, []byte("amount,items\n"+strings.Repeat("0.5,0.25\n", 25)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"--stream", "orders"}, {"--stream", "orders.*"}} {
		said("stream orders.*: 25 records, 25 rows, 0 null\n", append([]string{"check", "--sample", rows}, args...)...)
	}
	said("stream orders.orders-x: 25 records", "check", "--sample", rows, "--stream", "orders.orders-x")
	want(t, exitDone, "25 records sent", "feed", "-c", s.config, "--stream", "orders.orders", "--csv", rows)
	want(t, exitDone, "", "replay", rows, "-c", s.config, "--stream", "orders.orders", "--insecure-seed", "1")
	d := s.start()
	d.until("two steps", released(2))
	out := want(t, exitDone, "", "status", "--url", d.url)
	if !strings.Contains(out, "orders.orders-0  running") ||
		!strings.Contains(out, "orders.*: reads 1 topics (at most 1) that match orders.*\n") {
		t.Errorf("status: %s", out)
	}
	said("orders.orders", "epoch", "list")
	said("epoch 1 of orders.orders-0 is closed", "epoch", "close", "orders.orders", "--yes")
	// The daemon continues to run, because another topic may appear.
	if out := want(t, exitDone, "", "status", "--url", d.url); !strings.Contains(out, "closed") {
		t.Errorf("status: %s", out)
	}
	if code := d.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
	said("epoch 2 of orders.orders-0 is open from offset 20 of orders/0", "epoch", "open", "orders.orders", "--yes")
	said("orders.orders", "ledger", "--stream", "orders.orders")
	want(t, exitDone, "charges nothing for stream orders.orders-b", "ledger", "--stream", "orders.orders-b",
		"-c", s.config)
	said("", "verify", "--stream", "orders.orders", "--epoch", "2")
	if out := said("", "report", "--json", "--quick"); !strings.Contains(out, `"stream": "orders.orders"`) ||
		!strings.Contains(out, `"topic": "orders"`) {
		t.Errorf("report: %.300s", out)
	}
	if out := want(t, exitDone, "", "__complete", "-c", s.config, "epoch", "open", ""); !strings.Contains(out,
		"orders.orders\n") {
		t.Errorf("completion offers %s", out)
	}
	// The stream's topic does not match the pattern any more. Its epoch can still be closed.
	if err := os.WriteFile(s.config, []byte(strings.Replace(changed, `"orders.*"`, `"orders-.*"`, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	said("epoch 2 of orders.orders-0 is closed", "epoch", "close", "orders.orders", "--partition", "0", "--yes")
	if c, err := config.Load(s.config); err != nil || len(c.Streams) != 0 {
		t.Error(c, err)
	}
}
