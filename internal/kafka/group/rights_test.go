package group

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestMissing: each missing right is named, and no other, for resources that exist and for those that do not. Asking
// changes nothing.
func TestMissing(t *testing.T) {
	t.Parallel()
	grant := func(typ kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) (all []kfake.ACL) {
		for _, op := range ops {
			pattern := kmsg.ACLResourcePatternTypeLiteral
			if typ == kmsg.ACLResourceTypeTransactionalId {
				pattern = kmsg.ACLResourcePatternTypePrefixed
			}
			all = append(all, kfake.ACL{Resource: typ, Name: name, Pattern: pattern, Operation: op, Allow: true})
		}
		return all
	}
	const topic, group, id = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup, kmsg.ACLResourceTypeTransactionalId
	const read, write, create, describe, configs = kmsg.ACLOperationRead, kmsg.ACLOperationWrite,
		kmsg.ACLOperationCreate, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs
	user := func(name string, acls ...[]kfake.ACL) kfake.Opt {
		return kfake.User("PLAIN", name, "secret", slices.Concat(acls...)...)
	}
	b := start(t, 1, kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "in"),
		user("all", grant(topic, "in", read, configs), grant(topic, "out", read, write, create),
			grant(group, "g", read), grant(id, "g-", write)),
		user("none"),
		user("some", grant(topic, "in", describe), grant(topic, "out", write), grant(group, "g", describe),
			grant(id, "g-", describe)),
		user("odd", grant(topic, "in", configs), grant(kmsg.ACLResourceTypeCluster, "kafka-cluster", create)))
	needs := []Resource{
		{"topic", "in", []string{"Read", "DescribeConfigs"}},
		{"topic", "out", []string{"Read", "Write", "Create"}},
		{"group", "g", []string{"Read", "Describe"}},
		{"transactional-id", "g-", []string{"Write", "Describe"}},
	}
	as := func(name string) kafka.Options {
		return kafka.Options{Brokers: b.Addrs(),
			SASL: kafka.SASL{Mechanism: "plain", Username: name, Password: "secret"}}
	}
	for name, want := range map[string][]string{
		"all": {},
		"none": {"Read, DescribeConfigs topic in", "Read, Write, Create topic out", "Read, Describe group g",
			"Write, Describe transactional id g-…"},
		"some": {"Read, DescribeConfigs topic in", "Read, Create topic out", "Read group g",
			"Write, Describe transactional id g-…"},
		"odd": {"Read topic in", "Read, Write topic out", "Read, Describe group g",
			"Write, Describe transactional id g-…"},
	} {
		got, err := Missing(within(t), as(name), needs)
		list := []string{}
		for _, r := range got {
			list = append(list, r.String())
		}
		if err != nil || !slices.Equal(list, want) {
			t.Errorf("%s: %q, %v", name, list, err)
		}
	}
	if got := b.Cluster().PartitionInfo("out", 0); got != nil {
		t.Error("the topic was made")
	}

	// Create is needed if the topic does not exist.
	if got, err := Missing(within(t), as("some"), []Resource{{"topic", "in", []string{"Create"}}}); err != nil ||
		len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	// Old brokers do not report rights.
	b.Cluster().ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		if m := req.(*kmsg.MetadataRequest); len(m.Topics) == 0 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		res.Default()
		x := kmsg.NewMetadataResponseTopic()
		x.Topic, x.ErrorCode = kmsg.StringPtr("in"), kerr.UnknownTopicOrPartition.Code
		res.Topics = append(res.Topics, x)
		return res, nil, true
	})
	if got, err := Missing(within(t), as("all"), needs[:1]); err == nil ||
		fmt.Sprint(err) != "topic in: "+ErrSilent.Error() {
		t.Errorf("%v, %v", got, err)
	}
}

// TestMissingBegins: a cluster that was never asked about a group has no coordinator for a moment.
func TestMissingBegins(t *testing.T) {
	t.Parallel()
	b := start(t, 1)
	asked := atomic.Int32{}
	b.Cluster().ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if asked.Add(1) > 2 {
			return nil, nil, false
		}
		b.Cluster().KeepControl()
		res := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		res.Default()
		for _, key := range req.(*kmsg.FindCoordinatorRequest).CoordinatorKeys {
			c := kmsg.NewFindCoordinatorResponseCoordinator()
			c.Key, c.ErrorCode = key, kerr.CoordinatorNotAvailable.Code
			res.Coordinators = append(res.Coordinators, c)
		}
		return res, nil, true
	})
	if got, err := Missing(within(t), kafka.Options{Brokers: b.Addrs()},
		[]Resource{{"group", "g", []string{"Read"}}}); err != nil || len(got) != 0 || asked.Load() < 3 {
		t.Errorf("%v, %v after %d questions", got, err, asked.Load())
	}
}

// TestGrant: the command grants what is missing.
func TestGrant(t *testing.T) {
	for want, r := range map[string]Resource{
		"kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:u --operation Read --operation " +
			"DescribeConfigs --topic in": {"topic", "in", []string{"Read", "DescribeConfigs"}},
		"kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:u --operation " +
			"Read --group g": {"group", "g", []string{"Read"}},
		"kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:u --operation Write --operation " +
			"Describe --transactional-id g- --resource-pattern-type prefixed": {"transactional-id", "g-",
			[]string{"Write", "Describe"}},
	} {
		if got := r.Grant("b:9092", "User:u"); got != want {
			t.Errorf("%s", got)
		}
	}
}
