package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func start(t *testing.T, brokers int, extra ...kfake.Opt) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Brokers: brokers, Extra: extra})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// refused returns the findings in an error.
func refused(t *testing.T, err error) Findings {
	t.Helper()
	var f Findings
	if err != nil && !errors.As(err, &f) {
		t.Fatal(err)
	}
	return f
}

// Init creates what Check requires, once.
func TestInit(t *testing.T) {
	t.Parallel()
	b := start(t, 3)
	o := TopicOptions{Kafka: kafka.Options{Brokers: b.Addrs()}, Group: "g", Shards: 5}
	if got := refused(t, Check(within(t), o)); !slices.Equal(got, Findings{
		"topic g.state " + notThere, "topic g.ledger " + notThere, "topic g.control " + notThere,
		"topic g.partials " + notThere,
	}) {
		t.Errorf("%q", got)
	}
	// An Init that was interrupted after the first topic can be continued.
	admin := &admin{o, nil}
	var err error
	if admin.client, err = o.client(); err != nil {
		t.Fatal(err)
	}
	defer admin.client.Close()
	for range 2 { // two at the same time do not interfere
		if err := admin.create(within(t), o.topics()[1:2]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Init(within(t), o); err != nil {
			t.Fatal(err)
		}
		if err := Check(within(t), o); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"g.state": "cleanup.policy=compact delete.retention.ms=86400000 max.compaction.lag.ms=3600000 " +
			"max.message.bytes=1048588 min.insync.replicas=2 segment.bytes=16777216 segment.ms=3600000 " +
			"unclean.leader.election.enable=false",
		"g.ledger": "cleanup.policy=delete max.message.bytes=1048588 min.insync.replicas=2 retention.bytes=-1 " +
			"retention.ms=-1 unclean.leader.election.enable=false",
		"g.control": "cleanup.policy=delete max.message.bytes=1048588 min.insync.replicas=2 retention.ms=604800000 " +
			"unclean.leader.election.enable=false",
		"g.partials": "cleanup.policy=delete max.message.bytes=1048588 min.insync.replicas=2 retention.ms=86400000 " +
			"segment.ms=3600000 unclean.leader.election.enable=false",
	}
	for name, settings := range want {
		info := b.Cluster().TopicInfo(name)
		var all []string
		for k, v := range info.Configs {
			all = append(all, k+"="+*v)
		}
		slices.Sort(all)
		if got := strings.Join(all, " "); got != settings || info.NumReplicas != 3 ||
			len(b.Cluster().PartitionInfos(name)) != 5 {
			t.Errorf("%s: %d replicas, %s", name, info.NumReplicas, got)
		}
	}

	// With another number of shards, these topics do not fit.
	o.Shards = 6
	for name, err := range map[string]error{"check": Check(within(t), o), "init": Init(within(t), o)} {
		if got := refused(t, err); len(got) != 4 ||
			got[0] != "topic g.state has 5 partitions, but the configuration has 6 shards" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Each wrong setting is named.
func TestCheckSettings(t *testing.T) {
	t.Parallel()
	b := start(t, 3)
	o := TopicOptions{Kafka: kafka.Options{Brokers: b.Addrs()}, Group: "g", Shards: 1}
	if err := Init(within(t), o); err != nil {
		t.Fatal(err)
	}
	topics := o.topics()
	remake := func(topic topic, configs map[string]string) {
		t.Helper()
		if err := b.Cluster().DeleteTopic(topic.name); err != nil {
			t.Fatal(err)
		}
		if err := b.Cluster().CreateTopic(topic.name, 1, configs); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		topic       int
		name, value string
		want        string // "": accepted
	}{
		{0, "cleanup.policy", "compact,delete", "compact"},
		{0, "max.compaction.lag.ms", "9223372036854775807", "at most 3600000"},
		{0, "max.compaction.lag.ms", "60000", ""},
		{0, "segment.ms", "604800000", "at most 3600000"},
		{0, "segment.ms", "-1", "at most 3600000"},
		{0, "segment.bytes", "1073741824", ""}, // Kafka's default
		{0, "segment.bytes", "1073741825", "at most 1073741824"},
		{0, "delete.retention.ms", "1000", "at least 86400000"},
		{0, "delete.retention.ms", "172800000", ""},
		{0, "max.message.bytes", "1000000", "at least 1048588"},
		{0, "unclean.leader.election.enable", "true", "false"},
		{1, "cleanup.policy", "compact", "delete"},
		{1, "retention.ms", "604800000", "-1"},
		{1, "retention.bytes", "1000000000", "-1"},
		{1, "min.insync.replicas", "1", "at least 2"},
		{1, "min.insync.replicas", "3", ""},
		{2, "retention.ms", "1000", "at least 86400000"},
		{2, "retention.ms", "-1", ""},
		{3, "retention.ms", "oops", "at least 3600000"},
		{3, "unclean.leader.election.enable", "", "false"},
	} {
		topic := topics[c.topic]
		configs := map[string]string{}
		for _, s := range (&admin{o, nil}).all(topic) {
			configs[s.name] = s.value
		}
		good := maps.Clone(configs)
		want := fmt.Sprintf("topic %s has %s = %s, not %s", topic.name, c.name, c.value, c.want)
		if configs[c.name] = c.value; c.value == "" {
			delete(configs, c.name)
			want = fmt.Sprintf("topic %s: the broker knows no setting %s", topic.name, c.name)
		}
		remake(topic, configs)
		got := refused(t, Check(within(t), o))
		remake(topic, good)
		if c.want == "" && len(got) == 0 || len(got) == 1 && got[0] == want {
			continue
		}
		t.Errorf("%s of %s is %s: %q, want %q", c.name, topic.name, c.value, got, want)
	}
}

// A lost ledger is not replaced by an empty one, and topics of others are left alone.
func TestInitRefusesRecords(t *testing.T) {
	t.Parallel()
	b := start(t, 3)
	o := TopicOptions{Kafka: kafka.Options{Brokers: b.Addrs()}, Group: "g", Shards: 2}
	if err := Init(within(t), o); err != nil {
		t.Fatal(err)
	}
	kafkatest.NewProducer(t, b.Addrs(), "g.control", 1, "").Send(kafkatest.Record{Value: []byte("x")})
	if got := refused(t, Init(within(t), o)); !slices.Equal(got,
		Findings{"topic g.control has records, although the group's ledgers are empty: the topic belongs to another " +
			"group"}) {
		t.Errorf("%q", got)
	}
	// If the group has begun, these records are requests.
	kafkatest.NewProducer(t, b.Addrs(), "g.state", 1, "").Send(kafkatest.Record{Key: []byte("k"), Value: []byte("x")})
	if err := Init(within(t), o); err != nil {
		t.Error(err)
	}
	if err := b.Cluster().DeleteTopic("g.ledger"); err != nil {
		t.Fatal(err)
	}
	if got := refused(t, Init(within(t), o)); !slices.Equal(got,
		Findings{
			"topic g.state has records, but topic g.ledger does not exist: a lost ledger must not be replaced by " +
				"an empty one"}) {
		t.Errorf("%q", got)
	}
	if b.Cluster().TopicInfo("g.ledger") != nil {
		t.Error("there is a ledger again")
	}
}

// A cluster of one broker has no second copy, which must be allowed explicitly.
func TestUnreplicated(t *testing.T) {
	t.Parallel()
	b := start(t, 1)
	o := TopicOptions{Kafka: kafka.Options{Brokers: b.Addrs()}, Group: "g", Shards: 2}
	if got := refused(t, Init(within(t), o)); len(got) != 1 ||
		!strings.Contains(got[0], "too few brokers for 3 replicas") {
		t.Errorf("%q", got)
	}
	o.AllowUnreplicated = true
	for _, err := range []error{Init(within(t), o), Check(within(t), o)} {
		if err != nil {
			t.Error(err)
		}
	}
	o.AllowUnreplicated = false
	if got := refused(t, Check(within(t), o)); len(got) != 8 ||
		got[0] != "topic g.state: 2 partitions have fewer than 3 replicas (to accept that, set "+
			"cluster.allow_unreplicated)" {
		t.Errorf("%q", got)
	}
}

// Before Kafka 4.0, a late copy of a request can end the next transaction.
func TestTransactionVersion(t *testing.T) {
	t.Parallel()
	b := start(t, 1, kfake.MaxVersions(kversion.V3_9_0()))
	o := TopicOptions{Kafka: kafka.Options{Brokers: b.Addrs()}, Group: "g", Shards: 2, AllowUnreplicated: true}
	for name, err := range map[string]error{"init": Init(within(t), o), "check": Check(within(t), o)} {
		if got := refused(t, err); len(got) == 0 ||
			!strings.Contains(got[0],
				"transactions have version 0, but a group needs version 2, which Apache Kafka has since 4.0") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if b.Cluster().TopicInfo("g.state") != nil {
		t.Error("there are topics")
	}
}

// Each missing right is named, and with all rights none is.
func TestRights(t *testing.T) {
	t.Parallel()
	grant := func(typ kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) (all []kfake.ACL) {
		for _, op := range ops {
			all = append(all,
				kfake.ACL{Resource: typ, Name: name, Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: op,
					Allow: true})
		}
		return all
	}
	topics := grant(kmsg.ACLResourceTypeTopic, "g.", kmsg.ACLOperationRead, kmsg.ACLOperationWrite,
		kmsg.ACLOperationDescribeConfigs)
	rest := append(grant(kmsg.ACLResourceTypeGroup, "g", kmsg.ACLOperationRead),
		grant(kmsg.ACLResourceTypeTransactionalId, "g-", kmsg.ACLOperationWrite)...)
	user := func(name string, acls ...[]kfake.ACL) kfake.Opt {
		return kfake.User("PLAIN", name, "secret", slices.Concat(acls...)...)
	}
	b := start(t, 3, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "secret"),
		user("all", topics, rest), user("none"), user("topics", topics), user("reads", topics[:1], rest))
	as := func(name string) TopicOptions {
		return TopicOptions{Group: "g", Shards: 2,
			Kafka: kafka.Options{Brokers: b.Addrs(),
				SASL: kafka.SASL{Mechanism: "plain", Username: name, Password: "secret"}}}
	}
	if got := refused(t, Init(within(t), as("all"))); len(got) != 1 ||
		got[0] != "this user may not Create topic g.state" {
		t.Errorf("%q", got)
	}
	if err := Init(within(t), as("admin")); err != nil {
		t.Fatal(err)
	}
	may := func(what ...string) (f Findings) {
		for _, w := range what {
			f = append(f, "this user may not "+w)
		}
		return f
	}
	for name, want := range map[string]Findings{
		"all":    nil,
		"topics": may("Read group g", "Write transactional ids g-…"),
		"reads": may("Write topic g.state", "DescribeConfigs topic g.state", "Write topic g.ledger",
			"DescribeConfigs topic g.ledger",
			"Write topic g.control", "DescribeConfigs topic g.control", "Write topic g.partials",
			"DescribeConfigs topic g.partials"),
		"none": may("Describe topic g.state", "Describe topic g.ledger", "Describe topic g.control",
			"Describe topic g.partials",
			"Read group g", "Write transactional ids g-…"),
	} {
		if got := refused(t, Check(within(t), as(name))); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A user who is not a member can see the group.
func TestLook(t *testing.T) {
	t.Parallel()
	b := broker(t, 3)
	o := kafka.Options{Brokers: b.Addrs()}
	if g, err := Look(within(t), o, "g"); err != nil || len(g.Members) != 0 {
		t.Errorf("%+v, %v", g, err)
	}
	a, c := join(t, options(b.Addrs(), 3, shortSession, "a")), join(t, options(b.Addrs(), 3, shortSession, "c"))
	settled(t, 3, whatever, a, c)
	g, err := Look(within(t), o, "g")
	if err != nil || g.Number != a.last.Number || fmt.Sprint(g.Members) != fmt.Sprint(a.last.Members) || g.Self != -1 ||
		g.Active() != 2 || g.Shards != nil {
		t.Errorf("%+v, %v", g, err)
	}
}
