package config

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// shared returns the example with a table [cluster] whose header is line 6.
func shared(lines string) string {
	return strings.Replace(orders, "[http]", "[cluster]\n"+lines+"\n[http]", 1)
}

func TestClusterTable(t *testing.T) {
	c := parse(t, shared(`group = "orders"`))
	want := Cluster{Group: "orders", Shards: 64, Assign: "partition", SessionTimeout: 6 * time.Second}
	if *c.Cluster != want {
		t.Errorf("%+v", *c.Cluster)
	}
	c = parse(t,
		shared(
			"group = \"g\"\nshards = 4096\nassign = \"topic\"\nsession_timeout = \"1s\"\ninstance = \"a\"\n"+
				"advertise = \"a:1\"\nallow_unreplicated = true"))
	if want := (Cluster{"g", 4096, "topic", time.Second, "a", "a:1", true}); *c.Cluster != want {
		t.Errorf("%+v", *c.Cluster)
	}
	if topics := []string{c.Cluster.StateTopic(), c.Cluster.LedgerTopic(), c.Cluster.ControlTopic(),
		c.Cluster.PartialsTopic()}; !slices.Equal(topics, []string{"g.state", "g.ledger", "g.control", "g.partials"}) {
		t.Error(topics)
	}
	alone := parse(t, orders)
	if alone.Cluster != nil {
		t.Error("the example has no [cluster], but Parse returned one")
	}
	// The epochs are the same with and without [cluster].
	if !bytes.Equal(alone.Streams[0].Canonical(0), c.Streams[0].Canonical(0)) {
		t.Error("[cluster] is in the digest")
	}
}

// TestShard: the shard of a partition must never change. Otherwise the partition would be charged in another ledger.
func TestShard(t *testing.T) {
	for _, want := range []struct {
		topic                     string
		partition, shards         int
		ofPartition, ofTopicAlone int
	}{
		{"orders", 0, 64, 29, 33}, {"orders", 1, 64, 23, 33}, {"orders", 7, 4096, 178, 993}, {"é", 0, 64, 49, 18},
		{"é", 0, 1, 0, 0},
	} {
		c := Cluster{Shards: want.shards, Assign: "partition"}
		if got := c.Shard(want.topic, want.partition); got != want.ofPartition {
			t.Errorf("%s/%d of %d: %d", want.topic, want.partition, want.shards, got)
		}
		c.Assign = AssignTopic
		if got := c.Shard(want.topic, want.partition); got != want.ofTopicAlone {
			t.Errorf("%s of %d: %d", want.topic, want.shards, got)
		}
	}
}

func TestClusterFaults(t *testing.T) {
	f := func(src string, want ...string) {
		t.Helper()
		if got := faults(t, src); !slices.Equal(got, want) {
			t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	group := `group = "g"`
	f(shared(""), `6: cluster.group: required`)
	f(shared(`group = ""`), `7: cluster.group: must not be empty`)
	f(shared(`group = "a b"`), `7: cluster.group: must be 1 to 200 of letters, digits, ".", "_" and "-" ("a b")`)
	f(shared(group+
		"\nshards = 0\nassign = \"hash\"\nsession_timeout = \"999ms\"\ninstance = \"\"\nadvertise = \"a\"\n"+
		"allow_unreplicated = 1"),
		`8: cluster.shards: must be 1 to 4096 (0)`,
		`9: cluster.assign: must be "partition" or "topic" ("hash")`,
		`10: cluster.session_timeout: must be "1s" to "5m" ("999ms")`,
		`11: cluster.instance: must not be empty`,
		`12: cluster.advertise: must be host:port ("a")`,
		`13: cluster.allow_unreplicated: must be true or false (1)`)
	f(shared(group+"\nshards = 4097\nsession_timeout = \"301s\""),
		`8: cluster.shards: must be 1 to 4096 (4097)`, `9: cluster.session_timeout: must be "1s" to "5m" ("301s")`)

	f(strings.Replace(shared(group), "[state]", "group = \"g\"\n[state]", 1),
		`3: kafka.group: must not be cluster.group: that group has members, and accepts offsets only from them ("g")`)
	if c := parse(t, strings.Replace(shared(group), "[state]", "group = \"lag\"\n[state]", 1)); c.Kafka.Group != "lag" {
		t.Errorf("%+v", c.Kafka)
	}

	// These settings cannot be used with shards.
	f(strings.Replace(shared(group), "[state]",
		"control_topic = \"claims\"\n[state]\nencrypt = true\narchive = true", 1),
		`3: kafka.control_topic: must be absent with [cluster]: each shard's ledger is a topic itself, with one writer ("claims")`,
		`5: state.encrypt: must be false with [cluster]: state in Kafka is always encrypted, and instances keep nothing in state.dir that needs encryption (true)`,
		`6: state.archive: must be false with [cluster]: a shard holds 64 MiB, and an archive grows without limit; let the output topic keep the releases (true)`)
	merged := strings.Replace(shared(group), "step   = 100", "merge = true\nstep = 100", 1)
	f(merged,
		`16: stream.orders.merge: needs cluster.assign = "topic": then one ledger holds the budgets of all merged partitions`)
	f(strings.Replace(merged, group, group+"\nassign = \"topic\"", 1))
	f(strings.Replace(shared(group), "step   = 100",
		"user = { key = \"record-key\", cap = 2, max_users = 100000 }\nstep = 100", 1),
		`16: stream.orders.user: must be absent with [cluster]: the persons of a population share one budget, but each shard has a ledger of its own`)
	f(strings.Replace(shared(`group = "orders"`), `topic = "orders.dp"`, `topic = "orders.ledger"`, 1),
		`13: stream.orders.output.topic: must not be one of the topics that belong to cluster.group ("orders.ledger")`)
	f(strings.Replace(shared(`group = "x"`), `topic = "orders", `, `topic = "x.state", `, 1),
		`12: stream.orders.input.topic: must not be one of the topics that belong to cluster.group ("x.state")`)
	f(strings.Replace(shared(group), "[state]", "boundary_topic = \"g.control\"\n[state]", 1),
		`3: kafka.boundary_topic: must not be one of the topics that belong to cluster.group ("g.control")`)
}
