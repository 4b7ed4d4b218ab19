package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/statement"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/ledger"
)

// TestMergedCommands: commands need no partition for a merged stream, and print the charge of each of its partitions.
func TestMergedCommands(t *testing.T) {
	s := newSite(t)
	add := func(count int32) {
		req := kmsg.NewPtrCreatePartitionsRequest()
		topic := kmsg.NewCreatePartitionsRequestTopic()
		topic.Topic, topic.Count = "orders", count
		req.Topics, req.TimeoutMillis = append(req.Topics, topic), 5000
		kafkatest.Ask(t, []string{s.broker.Addr()}, req)
	}
	add(2)
	s.write("merge = true", "1.0")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), `topic = "orders",`, `topic = "orders", partition = [0, 1],`, 1))
	if err := os.WriteFile(s.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"[0, 1]",
			"2 partitions share one sequence of releases; the average of 2 separate noisy sequences would have 1.41 " +
				"times the noise"},
		{`"all"`, "the numbers below assume 2 partitions; if there are more, list them in input.partition"},
	} {
		planned := filepath.Join(s.dir, "planned.toml")
		if err := os.WriteFile(planned,
			[]byte(strings.Replace(string(text), "partition = [0, 1]", "partition = "+c[0], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := want(t, exitDone, "", "plan", "-c", planned); !strings.Contains(out, c[1]) {
			t.Errorf("plan says:\n%s", out)
		}
	}
	s.feed(25)
	want(t, exitDone, "25 records sent", "feed", "-c", s.config, "--stream", "orders", "--partition", "1", "--csv",
		filepath.Join(s.dir, "rows.csv"))
	d := s.start()
	d.until("two steps", released(2))
	d.stop(syscall.SIGTERM)
	said := func(text string, args ...string) string {
		t.Helper()
		out := want(t, exitDone, "", append(args, "-c", s.config)...)
		if !strings.Contains(out, text) {
			t.Errorf("%v says:\n%s\nwithout %q", args, out, text)
		}
		return out
	}
	said("orders  merged", "epoch", "list")
	said("orders-merged epoch 1", "ledger")
	said("orders-merged epoch 1: ", "verify", "--stream", "orders")
	var spent []ledger.Spent
	if err := json.Unmarshal([]byte(said("", "ledger", "--json")), &spent); err != nil || len(spent) != 2 ||
		spent[1].Partition != 1 || spent[1].ChargedEpsilon < 0.99 {
		t.Errorf("ledger --json: %+v, %v", spent, err)
	}
	said("orders/merged/1", "report", "--quick")
	for _, partitions := range []string{"[0, 1]", `"all"`} {
		if err := os.WriteFile(s.config,
			[]byte(strings.Replace(string(text), "partition = [0, 1]", "partition = "+partitions, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		var r statement.Statement
		if err := json.Unmarshal([]byte(said("", "report", "--quick", "--json")), &r); err != nil ||
			len(r.Streams[0].Digests) != 1 || r.Streams[0].Digests["merged"] != r.Epochs[0].Digest {
			t.Errorf("report: digests %v, the epoch has %s, %v", r.Streams[0].Digests, r.Epochs[0].Digest, err)
		}
	}
	if err := os.WriteFile(s.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitState, "each partition has its own offsets", "epoch", "open", "orders", "-c", s.config, "--yes",
		"--from", "5")
	said("epoch 1 of orders-merged is closed and charged for offsets [0, 20), [0, 20) of orders/0,1", "epoch",
		"close", "orders", "--yes")
	said("epoch 2 of orders-merged is open from offset 20,20 of orders/0,1", "epoch", "open", "orders", "--yes")
}
