package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream/core"
)

// parse returns the configuration of a stream at a broker, with a key.
func parse(t *testing.T, broker, table string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse("test.toml", fmt.Appendf(nil, `[kafka]
brokers = [%q]
control_topic = "control"
[state]
dir = %q
key_file = %q
[stream.orders]
input = { topic = "orders", columns = ["amount"], partition = "all" }
output = { topic = "orders.dp" }
step = 10
%s
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 1.0
[stream.orders.moments]
clip = 1.0
`, broker, filepath.Join(dir, "state"), key, table))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestCheck: anything that would stop a daemon is a fault; anything for which the daemon would wait is a warning.
// Nothing is created.
func TestCheck(t *testing.T) {
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	cfg := parse(t, b.Addr(), `dead_letter = { mode = "reference", topic = "dead" }`)
	warns := func(connect bool, want ...string) {
		t.Helper()
		r, err := Check(t.Context(), cfg, connect)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Streams) != 1 || r.Streams[0].Stream != "orders" || len(r.Key) == 0 ||
			r.Config.Stream("orders") == nil ||
			len(r.Rights) > 0 != connect {
			t.Errorf("the report is %+v", r)
		}
		for _, text := range want {
			if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, text) }) {
				t.Errorf("no warning %q in %q", text, r.Warnings)
			}
		}
		if len(r.Warnings) != len(want) {
			t.Errorf("%d warnings, want %d: %q", len(r.Warnings), len(want), r.Warnings)
		}
	}
	topic := func(name string, partitions int, settings map[string]string) {
		t.Helper()
		if err := b.CreateTopic(t.Context(), name, partitions, settings); err != nil {
			t.Fatal(err)
		}
	}
	warns(false)
	warns(true, "input topic orders does not exist yet", "dead_letter.topic dead does not exist")
	topic("orders", 2, map[string]string{"cleanup.policy": "compact"})
	topic("control", 2, nil)
	topic("orders.dp", 1, map[string]string{"max.message.bytes": "100", "cleanup.policy": "compact"})
	_, err = Check(t.Context(), cfg, true)
	if !errors.As(err, new(exit.Config)) {
		t.Fatalf("the error is %v", err)
	}
	for _, text := range []string{
		"kafka.control_topic: topic control has 2 partitions", "input topic orders is compacted",
		"output topic orders.dp accepts messages of at most 100 B",
	} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("no fault %q:\n%v", text, err)
		}
	}
}

// TestCheckFaults: without brokers, every fault is reported at once.
func TestCheckFaults(t *testing.T) {
	cfg := parse(t, "127.0.0.1:1", "")
	if err := os.Chmod(cfg.State.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg.Streams[0].Moments.Workload = "none"
	_, err := Check(t.Context(), cfg, false)
	if !errors.As(err, new(exit.Config)) || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("the error is %v", err)
	}
}

// TestOversize: a release that topics refuse by default is a fault, unless the topic will be asked.
func TestOversize(t *testing.T) {
	if text := Oversize(&core.Description{MessageBytes: defaultMessageBytes}); text != "" {
		t.Error(text)
	}
	if text := Oversize(&core.Description{MessageBytes: 20_000_000}); !strings.Contains(text, "takes up to 20.0 MB") {
		t.Error(text)
	}
}
